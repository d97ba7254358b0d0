"""Compressed gradients: fewer bytes, one hash for the same lanes on any number of workers and shards, and training goes on after faults."""

import json
import os
import signal

import prometheus
import services
import support

DATA = {'format': 'synthetic_digits', 'train_samples': 2048, 'test_samples': 500}
SGD = {'name': 'sgd', 'learning_rate': 0.1, 'momentum': 0.9}
# The types with error feedback send only a part of a gradient in each step.
FEEDBACK = [{'type': '2bit', 'threshold': 1}, {'type': '1bit'}, {'type': 'top_k', 'ratio': 0.02}]
TYPES = [{'type': 'fp16'}, {'type': 'bf16'}, {'type': 'int8'}, *FEEDBACK]


def spec(compression, kvstore='dist_sync', epochs=2, batch=64, optimizer=SGD, **resources):
    training = {'epochs': epochs, 'global_batch_size': batch, 'seed': 5, 'optimizer': optimizer}
    return support.job_spec(name='compressed', resources=resources, data=DATA, kvstore={'type': kvstore, 'gradient_compression': compression},
                            training=training)


class RunTest(support.TestCase):

    def test_one_hash_for_each_type_however_many_workers(self):
        hashes = {}
        for compression in TYPES:
            local = self.train(spec(compression, 'local', num_workers=1, lanes=4))
            for kvstore, workers, shards in (('dist_sync', 1, 1), ('dist_sync', 2, 2), ('dist_device_sync', 4, 3)):
                job = self.train(spec(compression, kvstore, num_workers=workers, num_shards=shards, lanes=4))
                self.assertEqual(job['weights_sha256'], local['weights_sha256'], (compression, workers, shards))
                self.assertEqual(job['samples_used'], 2 * 2048)
            hashes[local['weights_sha256']] = compression
            print(compression, local['weights_sha256'], local['epochs'][-1]['validation_accuracy'], flush=True)
        exact = self.train(spec('none', 'local', num_workers=1, lanes=4))
        hashes[exact['weights_sha256']] = 'none'
        self.assertEqual(len(hashes), len(TYPES) + 1, hashes)

    def test_an_asynchronous_job_of_one_lane_has_the_bits_of_a_synchronous_one(self):
        for compression in ({'type': 'int8'}, *FEEDBACK):
            want = self.train(spec(compression, num_workers=1, num_shards=2, epochs=1, lanes=1))
            got = self.train(spec(compression, 'dist_async', num_workers=1, num_shards=2, epochs=1, lanes=1))
            self.assertEqual(got['weights_sha256'], want['weights_sha256'], compression)

    def test_running_statistics_are_exact(self):
        # After the first step, statistics do not depend on the gradients of the weights.
        statistics = []
        for compression in ('none', '2bit', 'int8'):
            job = self.train(support.job_spec(
                name='statistics', resources={'num_workers': 2, 'num_shards': 2, 'lanes': 2}, model={'name': 'resnet18_v1'},
                data={'format': 'synthetic_digits', 'train_samples': 32, 'test_samples': 10},
                kvstore={'type': 'dist_sync', 'gradient_compression': compression},
                training={'max_steps': 1, 'global_batch_size': 8, 'seed': 1, 'optimizer': {'name': 'sgd', 'learning_rate': 1e-30}}))
            tensors = support.read_safetensors(os.path.join(self.checkpoint(job), 'weights.safetensors'))
            statistics.append({name: data for name, data in tensors.items() if 'running' in name})
        self.assertGreater(len(statistics[0]), 30)
        self.assertEqual(statistics[1], statistics[0])
        self.assertEqual(statistics[2], statistics[0])

    def test_every_type_learns_with_every_store(self):
        for compression in TYPES:
            for kvstore in ('device', 'dist_async'):
                workers = 1 if kvstore == 'device' else 2
                job = self.train(spec(compression, kvstore, epochs=4, num_workers=workers, optimizer={'name': 'sgd', 'learning_rate': 0.1}))
                losses = [epoch['train_loss'] for epoch in job['epochs']]
                print(compression, kvstore, losses, flush=True)
                self.assertLess(losses[-1], losses[0] / 2, (compression, kvstore))

    def test_the_plan_says_what_is_sent(self):
        def said(compression, *more):
            path = self.write('job.json', json.dumps(spec(compression, num_workers=2, num_shards=2)))
            return self.capstan('validate', path, *more)

        plan = said('2bit').out
        self.assertRegex(plan, r'push 15\.2 KiB in 2bit \(235\.2 KiB without compression\), pull 235\.2 KiB')
        self.assertIn("one lane per device, the default: each lane's gradient is compressed by itself", plan)
        self.assertIn("what 2bit leaves out of a gradient is added to the lane's next one", plan)
        self.assertNotIn('leaves out', said('fp16').out)
        lanes = said('fp16', '--set', 'resources.lanes=8').out
        self.assertIn('push 470.5 KiB in fp16 (4 lanes; 235.2 KiB without compression)', lanes)
        self.assertIn('warning: a worker sends 4 compressed gradients, together no smaller than one without compression', lanes)
        self.assertNotIn('warning: a worker sends', plan)
        self.assertIn('warning: momentum 0.9 with 2bit may lose accuracy', plan)
        self.assertNotIn('may lose accuracy', said('fp16').out + said('2bit', '--set', 'training.optimizer.momentum=0').out)
        for compression, text in (
                ('3bit', "'kvstore.gradient_compression.type' must be one of none, fp16, bf16, int8, 2bit, 1bit, top_k, found '3bit'"),
                ({'threshold': 1}, "'kvstore.gradient_compression.type' is required"),
                ({'type': '2bit', 'threshold': 0}, "'kvstore.gradient_compression.threshold' must be between 1e-20 and 1e+20, found 0"),
                ({'type': 'top_k', 'ratio': 1.5}, "'kvstore.gradient_compression.ratio' must be between 1e-06 and 1, found 1.5"),
                ({'type': 'int8', 'ratio': 0.5}, "'kvstore.gradient_compression.ratio' has no meaning for 'int8'")):
            refused = said(compression)
            self.assertNotEqual(refused.code, 0, compression)
            self.assertIn(text, refused.err)


class FaultsTest(services.ServicesTest):
    """Three workers of one lane each, and two shards."""

    def setUp(self):
        super().setUp()
        self.start(workers=3, shards=2)

    def job(self, compression, epochs):
        # The last step of an epoch has 2 samples, so one lane has none.
        job = spec(compression, epochs=epochs, batch=66, num_workers=3, num_shards=2, optimizer={'name': 'sgd', 'learning_rate': 0.02})
        # What faults do to residuals that are kept: residuals_test.py.
        drop = {'residuals': 'drop'} if compression in FEEDBACK else {}
        return {**job, 'checkpoint': {'every': '20 steps', 'keep_latest': 2}, 'recovery': {'max_restarts': 100, 'backoff': {'initial': '0s'}, **drop}}

    def sent(self, job_id):
        """Bytes of the gradients of all workers, and of what was sent for them."""
        sums = {'payload': 0.0, 'wire': 0.0}
        for worker in ('w0', 'w1', 'w2'):
            for line in prometheus.get(self.services[worker].http, '/metrics').splitlines():
                for kind in sums:
                    if line.startswith(f'capstan_ps_client_{kind}_bytes_total{{') and job_id in line and 'direction="tx"' in line:
                        sums[kind] += float(line.rsplit(' ', 1)[1])
        return sums['payload'], sums['wire']

    def test_a_task_and_a_shard_die(self):
        for compression in ('int8', FEEDBACK[0]):
            epochs = 20
            job_id = self.submit(self.job(compression, epochs))
            self.wait_for_step(job_id, 60)
            os.kill(self.tasks('w1')[0], signal.SIGKILL)
            self.wait_for_step(job_id, 150)
            self.assertEqual(self.stop('s1', signal.SIGKILL), -signal.SIGKILL)
            self.start_node('s1', 'capstan_param_store')
            job = self.learned(job_id, epochs * 2048)
            self.assertGreaterEqual(job['restarts'], 1)
            verified = self.capstan('verify', job_id, timeout=180)
            if compression == 'int8':  # nothing is kept from step to step, so nothing is lost
                self.assertEqual(verified.code, 0, verified)
            else:
                self.assertNotEqual(verified.code, 0, verified)
                self.assertIn('compresses gradients (2bit), and what they had left out was lost', verified.err)

    def test_a_takeover_loses_what_was_left_out(self):
        job_id = self.submit(self.job(FEEDBACK[0], 20))
        self.wait_for_step(job_id, 60)
        self.assertEqual(self.stop('w2', signal.SIGKILL), -signal.SIGKILL)
        job = self.learned(job_id, 20 * 2048)
        self.assertEqual(job['restarts'], 0)
        verified = self.capstan('verify', job_id, timeout=180)
        self.assertNotEqual(verified.code, 0, verified)
        self.assertIn('what they had left out was lost when its tasks changed', verified.err)

    def test_undisturbed_jobs_are_verified_and_send_less(self):
        for compression, least, most in (('fp16', 1.9, 2.1), ('int8', 3.7, 4.1), ('2bit', 12, 17), ('1bit', 20, 33), ({'type': 'top_k'}, 30, 51)):
            job_id = self.submit(self.job(compression, 2))
            self.wait_until(lambda job_id=job_id: self.describe(job_id)['state'] == 'SUCCEEDED', 60, 'SUCCEEDED')
            payload, wire = self.sent(job_id)
            print(compression, payload, wire, payload / wire, flush=True)
            self.assertTrue(least < payload / wire < most, (compression, payload / wire))
            verified = self.capstan('verify', job_id, timeout=180)
            self.assertEqual(verified.code, 0, (compression, verified))


if __name__ == '__main__':
    support.main()
