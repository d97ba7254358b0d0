"""kvstore.update_on_kvstore: false. Workers update their own weights: the hash of the job in which shards do, also after faults."""

import json
import os
import signal
import unittest.mock

import prometheus
import services
import support

DATA = {'format': 'synthetic_digits', 'train_samples': 1024, 'test_samples': 300}
SGD = {'name': 'sgd', 'learning_rate': 0.1, 'momentum': 0.9, 'lr_schedule': {'name': 'cosine', 'warmup': '5 steps'}}
ADAM = {'name': 'adam', 'learning_rate': 0.001}


def spec(on_kvstore, kvstore='dist_sync', optimizer=SGD, training=None, model='lenet', data=DATA, compression='none', **resources):
    store = {'type': kvstore, 'gradient_compression': compression}
    if on_kvstore is not None:
        store['update_on_kvstore'] = on_kvstore
    return support.job_spec(
        name='worker-updates', resources=resources, model={'name': model}, data=data, kvstore=store,
        training={'max_steps': 40, 'epochs': 100, 'global_batch_size': 64, 'seed': 5, 'optimizer': optimizer, **(training or {})})


class RunTest(support.TestCase):

    def test_one_hash_wherever_updates_are_made(self):
        hashes = set()
        for optimizer, training in ((SGD, {'gradient_clip_norm': 0.5}), (ADAM, {'gradient_clip_value': 0.01}),
                                    ({'name': 'lamb', 'learning_rate': 0.01, 'weight_decay': 0.01}, {})):
            want = self.train(spec(None, 'local', optimizer, training, num_workers=1, lanes=4))['weights_sha256']
            self.assertEqual(self.train(spec(False, 'local', optimizer, training, num_workers=1, lanes=4))['weights_sha256'], want)
            for workers, shards in ((1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (4, 2)):
                kvstore = 'dist_device_sync' if workers == 1 else 'dist_sync'
                job = self.train(spec(False, kvstore, optimizer, training, num_workers=workers, num_shards=shards, lanes=4))
                self.assertEqual(job['weights_sha256'], want, (optimizer, workers, shards))
            self.assertEqual(self.train(spec(True, optimizer=optimizer, training=training, num_workers=2, num_shards=2, lanes=4))['weights_sha256'], want)
            hashes.add(want)
        self.assertEqual(len(hashes), 3)

    def test_compressed_gradients(self):
        for compression in ('int8', '2bit'):
            hashes = {self.train(spec(on_kvstore, compression=compression, num_workers=2, num_shards=2, lanes=2))['weights_sha256']
                      for on_kvstore in (True, False)}
            self.assertEqual(len(hashes), 1, compression)

    def test_over_grpc(self):
        want = self.train(spec(True, num_workers=2, num_shards=2, lanes=2))['weights_sha256']
        with unittest.mock.patch.dict(os.environ, {'CAPSTAN_NO_SHARED_MEMORY': 'true'}):
            self.assertEqual(self.train(spec(False, num_workers=2, num_shards=2, lanes=2))['weights_sha256'], want)

    def test_running_statistics(self):
        data = {'format': 'synthetic_digits', 'train_samples': 64, 'test_samples': 10}
        hashes = {self.train(spec(on_kvstore, model='resnet18_v1', data=data, training={'max_steps': 8, 'global_batch_size': 8},
                                  num_workers=2, num_shards=2, lanes=2), timeout=300)['weights_sha256'] for on_kvstore in (True, False)}
        self.assertEqual(len(hashes), 1)

    def test_plan_and_refusals(self):
        plan = self.capstan('validate', self.write('job.json', json.dumps(spec(False, optimizer=ADAM, num_workers=2))))
        self.assertEqual(plan.code, 0, plan)
        self.assertIn('workers pull the sums of gradients and update their own weights', plan.out)

        def refused(changed):
            run = self.capstan('validate', self.write('job.json', json.dumps({**spec(False, num_workers=2), **changed})))
            self.assertEqual(run.code, 2, run)
            return run.err

        key = "'kvstore.update_on_kvstore' is false, which does not go together with "
        self.assertIn(key + "kvstore 'dist_async': each worker's gradient is applied alone",
                      refused({'kvstore': {'type': 'dist_async', 'update_on_kvstore': False}}))
        self.assertIn(key + 'kvstore.local_steps 4: shards average weights there',
                      refused({'kvstore': {'type': 'dist_sync', 'local_steps': 4, 'update_on_kvstore': False}}))


class FaultsTest(services.ServicesTest):

    def job(self, on_kvstore, optimizer, steps):
        return {**spec(on_kvstore, optimizer=optimizer, training={'max_steps': steps}, num_workers=3, min_workers=2, num_shards=2, lanes=3),
                'checkpoint': {'every': '10 steps'}, 'recovery': {'max_restarts': 100, 'backoff': {'initial': '0s'}}}

    def received(self, worker, job_id):
        return sum(float(line.rsplit(' ', 1)[1]) for line in prometheus.get(self.services[worker].http, '/metrics').splitlines()
                   if line.startswith('capstan_ps_client_wire_bytes_total{') and job_id in line and 'direction="rx"' in line)

    def test_a_step_brings_the_bytes_of_the_sums(self):
        # A version with the state of adam has three times the bytes.
        self.start(workers=2, shards=2)
        received = {}
        for on_kvstore in (True, False):
            job_id = self.submit(spec(on_kvstore, optimizer=ADAM, training={'max_steps': 100}, num_workers=2, num_shards=2, lanes=2))
            self.ok('wait', job_id)
            for worker in ('w0', 'w1'):
                # The last counters come with the end of the task, which may be later than that of the job.
                self.wait_until(lambda ended=f'event=task_ended job={job_id}', worker=worker: ended in self.services[worker].said(), 30, 'task_ended')
            received[on_kvstore] = self.received('w0', job_id) + self.received('w1', job_id)
        print(received, flush=True)
        self.assertTrue(1 < received[False] / received[True] < 1.1, received)

    def test_a_joiner_a_dead_task_a_replaced_shard_and_a_suspended_job(self):
        self.start(workers=2, shards=3)  # one shard is spare
        for optimizer in (SGD, ADAM):
            steps = 800
            job_id = self.submit(self.job(False, optimizer, steps))
            self.wait_for_step(job_id, 40)
            if 'w2' not in self.services:
                self.start_worker('w2')  # joins
            self.wait_for_step(job_id, 90)
            os.kill(self.tasks('w1')[0], signal.SIGKILL)
            self.wait_for_step(job_id, 140)
            mine = [name for name in ('s0', 's1', 's2') if f'job={job_id}' in self.services[name].said()]
            lost = mine[0] if mine else 's0'
            self.assertEqual(self.stop(lost, signal.SIGKILL), -signal.SIGKILL)  # the spare one takes its place
            self.wait_for_step(job_id, 200)
            with self.paused():  # else it may end before the order is taken
                self.ok('suspend', job_id)
            self.wait_until(lambda job_id=job_id: self.describe(job_id)['state'] == 'SUSPENDED', 60, 'SUSPENDED')
            self.ok('resume', job_id)
            self.start_node(lost, 'capstan_param_store')
            self.ok('wait', job_id, timeout=180)
            job = self.describe(job_id)
            self.assertEqual(job['progress']['step'], steps)
            self.assertGreaterEqual(job['restarts'], 1)
            for worker in ('w0', 'w1', 'w2'):
                self.assertNotIn('event=replica_differs', self.services[worker].said())
            other = self.submit(self.job(True, optimizer, steps))
            self.ok('wait', other, timeout=180)
            self.assertEqual(self.describe(other)['weights_sha256'], job['weights_sha256'])


if __name__ == '__main__':
    support.main()
