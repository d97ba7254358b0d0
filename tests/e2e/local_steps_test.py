"""kvstore.local_steps: one hash for the same lanes wherever they are computed, also after faults, and fewer bytes."""

import json
import os
import signal

import prometheus
import services
import support

DATA = {'format': 'synthetic_digits', 'train_samples': 2048, 'test_samples': 500}


def spec(local_steps, kvstore='dist_sync', epochs=4, batch=64, compression='none', **resources):
    return support.job_spec(
        name='local-steps', resources=resources, data=DATA,
        kvstore={'type': kvstore, 'local_steps': local_steps, 'gradient_compression': compression},
        training={'epochs': epochs, 'global_batch_size': batch, 'seed': 5, 'optimizer': {'name': 'sgd', 'learning_rate': 0.1, 'momentum': 0.5}})


class RunTest(support.TestCase):

    def test_one_hash_however_many_workers(self):
        hashes = set()
        for local_steps, compression in ((4, 'none'), (4, 'int8'), (7, 'none')):
            local = self.train(spec(local_steps, 'local', num_workers=1, lanes=4, compression=compression))
            self.assertEqual(local['progress']['step'], 4 * -(-2048 // (64 * local_steps)))
            self.assertEqual(local['samples_used'], 4 * 2048)
            self.assertLess(local['epochs'][-1]['train_loss'], local['epochs'][0]['train_loss'] / 2)
            for kvstore, workers, shards in (('dist_sync', 1, 1), ('dist_sync', 2, 2), ('dist_device_sync', 4, 3)):
                job = self.train(spec(local_steps, kvstore, num_workers=workers, num_shards=shards, lanes=4, compression=compression))
                self.assertEqual(job['weights_sha256'], local['weights_sha256'], (local_steps, compression, workers, shards))
            hashes.add(local['weights_sha256'])
        hashes.add(self.train(spec(1, 'local', num_workers=1, lanes=4))['weights_sha256'])
        self.assertEqual(len(hashes), 4)

    def test_refusals(self):
        def refused(spec):
            run = self.capstan('validate', self.write('job.json', json.dumps(spec)))
            self.assertEqual(run.code, 2, run)
            return run.err

        self.assertIn("'kvstore.type' does not go together with kvstore.local_steps 4", refused(spec(4, 'dist_async', num_workers=2)))
        self.assertIn("'kvstore.local_steps' is 4, and resnet18_v1 has running statistics",
                      refused({**spec(4, num_workers=2), 'model': {'name': 'resnet18_v1'}}))


class FaultsTest(services.ServicesTest):

    def setUp(self):
        super().setUp()
        self.start(workers=3, shards=2)

    def job(self, local_steps, epochs):
        # The last round of an epoch is smaller.
        return {**spec(local_steps, epochs=epochs, batch=66, num_workers=3, num_shards=2, lanes=3), 'checkpoint': {'every': '5 steps'},
                'recovery': {'max_restarts': 100, 'backoff': {'initial': '0s'}}}

    def test_a_task_and_a_shard_die(self):
        job_id = self.submit(self.job(4, 60))
        self.wait_for_step(job_id, 40)
        changed = self.capstan('update', job_id, '--learning-rate', '0.01')
        self.assertEqual(changed.code, 4, changed)
        self.assertIn('has kvstore.local_steps 4, so workers follow the rate of its file', changed.err)
        os.kill(self.tasks('w1')[0], signal.SIGKILL)
        self.wait_for_step(job_id, 150)
        self.assertEqual(self.stop('s1', signal.SIGKILL), -signal.SIGKILL)
        self.start_node('s1', 'capstan_param_store')
        self.learned(job_id, 60 * 2048)
        verified = self.capstan('verify', job_id, timeout=180)
        self.assertEqual(verified.code, 0, verified)

    def test_fewer_bytes_for_the_same_samples(self):
        sent = {}
        for local_steps in (1, 8):
            job_id = self.submit(self.job(local_steps, 4))
            self.wait_until(lambda job_id=job_id: self.describe(job_id)['state'] == 'SUCCEEDED', 60, 'SUCCEEDED')
            sent[local_steps] = sum(
                float(line.rsplit(' ', 1)[1]) for worker in ('w0', 'w1', 'w2')
                for line in prometheus.get(self.services[worker].http, '/metrics').splitlines()
                if line.startswith('capstan_ps_client_wire_bytes_total{') and job_id in line and 'direction="tx"' in line)
        print(sent, flush=True)
        # 32 steps an epoch, or 4 rounds.
        self.assertTrue(6.5 < sent[1] / sent[8] < 9, sent)


if __name__ == '__main__':
    support.main()
