"""What error feedback leaves out outlives faults (recovery.residuals): one hash on 1, 2 and 4 workers, and whatever fails."""

import glob
import json
import os
import signal

import services
import support

DATA = {'format': 'synthetic_digits', 'train_samples': 2048, 'test_samples': 300}
FEEDBACK = [{'type': '2bit', 'threshold': 1}, {'type': '1bit'}, {'type': 'top_k', 'ratio': 0.02}]
STEPS = 240


def spec(compression, steps=STEPS, kvstore='dist_sync', residuals=None, every='20 steps', **resources):
    # The last step of an epoch has 2 samples, so some lanes have none.
    recovery = {'max_restarts': 100, 'backoff': {'initial': '0s'}, **({'residuals': residuals} if residuals else {})}
    job = support.job_spec(name='residuals', resources={'lanes': 4, **resources}, data=DATA,
                           kvstore={'type': kvstore, 'gradient_compression': compression},
                           training={'max_steps': steps, 'epochs': 1000, 'global_batch_size': 66, 'seed': 5,
                                     'optimizer': {'name': 'sgd', 'learning_rate': 0.02}})
    return {**job, 'checkpoint': {'every': every, 'keep_latest': 3}, 'recovery': recovery}


class ResidualsTest(services.ServicesTest):

    def setUp(self):
        super().setUp()
        self.start(workers=4, shards=2)

    def alone(self, compression):
        """The hash of a job without faults, with one worker that is its own store."""
        return self.train(spec(compression, kvstore='local', num_workers=1))['weights_sha256']

    def ended(self, job_id):
        self.ok('wait', job_id, timeout=180)
        return self.describe(job_id)

    def events(self, job, of):
        return [event['message'] for event in job['events'] if event['type'] == of]

    def test_one_hash_on_any_number_of_workers(self):
        for compression in FEEDBACK:
            want = self.alone(compression)
            for workers, shards in ((1, 1), (2, 2), (4, 1)):
                job = self.ended(self.submit(spec(compression, num_workers=workers, num_shards=shards)))
                self.assertEqual(job['weights_sha256'], want, (compression, workers))
            # The bits of an undisturbed job do not depend on the key.
            job = self.ended(self.submit(spec(compression, residuals='drop', num_workers=2, num_shards=2)))
            self.assertEqual(job['weights_sha256'], want, compression)
            print(compression, want, flush=True)

    def test_a_killed_worker_costs_steps_and_no_bit(self):
        for compression in FEEDBACK:
            want = self.alone(compression)
            job_id = self.submit(spec(compression, num_workers=3, num_shards=2))
            self.wait_for_step(job_id, 50)
            os.kill(self.tasks('w1')[0], signal.SIGKILL)
            job = self.ended(job_id)
            self.assertEqual(job['state'], 'SUCCEEDED', job)
            self.assertGreaterEqual(job['restarts'], 1, job)
            self.assertGreaterEqual(job['lineage'], 2)
            self.assertEqual(job['weights_sha256'], want, job['events'])
            print(compression, job['lineage'], self.events(job, 'LineageStarted'), flush=True)

    def test_a_killed_service_a_killed_shard_and_a_joiner(self):
        compression = FEEDBACK[0]
        want = self.alone(compression)
        job_id = self.submit(spec(compression, num_workers=4, num_shards=2))
        self.wait_for_step(job_id, 45)
        self.assertEqual(self.stop('w2', signal.SIGKILL), -signal.SIGKILL)
        self.wait_until(lambda: self.describe(job_id)['lineage'] >= 2, 60, 'another lineage')
        self.start_worker('w2')
        self.wait_until(lambda: self.events(self.describe(job_id), 'LanesMove'), 60, 'lanes for the joiner')
        self.wait_for_step(job_id, 100)
        self.assertEqual(self.stop('s1', signal.SIGKILL), -signal.SIGKILL)
        self.start_node('s1', 'capstan_param_store')
        job = self.ended(job_id)
        print(job['lineage'], job['restarts'], [event['type'] for event in job['events']], flush=True)
        self.assertEqual(job['weights_sha256'], want, job['events'])
        self.assertIn('gets lanes; the next version is saved first', self.events(job, 'LanesMove')[0])
        verified = self.capstan('verify', job_id, timeout=180)
        self.assertEqual(verified.code, 0, verified)

    def test_suspended_and_resumed_on_another_number_of_workers(self):
        for compression in FEEDBACK:
            want = self.train(spec(compression, steps=1500, kvstore='local', num_workers=1))['weights_sha256']
            job_id = self.submit(spec(compression, steps=1500, every='never', num_workers=2, num_shards=2))
            for workers in (4, 1, 3):
                self.wait_for_step(job_id, self.describe(job_id)['progress']['step'] + 20)
                self.ok('suspend', job_id)
                job = self.wait_until(lambda job_id=job_id: (lambda j: j if j['state'] == 'SUSPENDED' else None)(self.describe(job_id)), 60, 'SUSPENDED')
                self.ok('resume', job_id, '--num-workers', str(workers))
            job = self.ended(job_id)
            self.assertEqual(job['weights_sha256'], want, job['events'])
            self.assertEqual(job['restarts'], 0)
            self.assertEqual(job['lineage'], 4)

    def test_a_local_job_goes_on_from_its_checkpoint(self):
        compression = FEEDBACK[1]
        want = self.alone(compression)
        job_id = self.submit(spec(compression, kvstore='local', num_workers=1))
        self.wait_for_step(job_id, 60)
        os.kill(self.tasks()[0], signal.SIGKILL)
        job = self.ended(job_id)
        self.assertGreaterEqual(job['restarts'], 1)
        self.assertEqual(job['weights_sha256'], want, job['events'])

    def test_a_damaged_file_of_residuals(self):
        compression = FEEDBACK[2]
        want = self.train(spec(compression, steps=600, kvstore='local', num_workers=1))['weights_sha256']
        job_id = self.submit(spec(compression, steps=600, num_workers=2, num_shards=1))
        self.wait_for_step(job_id, 70)
        self.ok('suspend', job_id)
        job = self.wait_until(lambda: (lambda j: j if j['state'] == 'SUSPENDED' else None)(self.describe(job_id)), 60, 'SUSPENDED')
        folder = max(glob.glob(os.path.join(self.folder, '**', job_id, '1-*'), recursive=True), key=lambda path: int(path.rsplit('-', 1)[1]))
        files = sorted(os.path.basename(path) for path in glob.glob(os.path.join(folder, '*')))
        self.assertEqual(files, ['manifest.json', 'residuals-0.safetensors', 'residuals-1.safetensors', 'shard-0.safetensors'], job)
        path = os.path.join(folder, 'residuals-1.safetensors')
        with open(path, 'r+b') as file:
            file.seek(-100, os.SEEK_END)
            byte = file.read(1)
            file.seek(-100, os.SEEK_END)
            file.write(bytes([byte[0] ^ 1]))
        self.ok('resume', job_id)
        job = self.ended(job_id)
        self.assertEqual(job['state'], 'SUCCEEDED', job)
        self.assertIn('residuals-1.safetensors', self.events(job, 'CheckpointRefused')[0])
        self.assertEqual(job['weights_sha256'], want, job['events'])

    def test_dropped_residuals_are_told(self):
        job_id = self.submit(spec(FEEDBACK[0], steps=3000, residuals='drop', num_workers=3, num_shards=2))
        self.wait_for_step(job_id, 60)
        self.wait_until(lambda: self.describe(job_id)['progress']['step'] > 100, 60, 'some steps')
        os.kill(self.tasks('w1')[0], signal.SIGKILL)
        self.wait_until(lambda: self.events(self.describe(job_id), 'ResidualsLost'), 60, 'ResidualsLost')
        job = self.describe(job_id)
        self.assertRegex(self.events(job, 'ResidualsLost')[0],
                         r'^lanes [0-9,]+ of w\d begin without what 2bit had left out of their gradients; the norm of all that w\d had was [0-9.e+-]+$')
        self.assertEqual(job['restarts'], 0)
        self.ok('cancel', job_id)

    def test_the_key_is_refused_where_it_means_nothing(self):
        def refused(job):
            answer = self.capstan('validate', self.write('job.json', json.dumps(job)))
            self.assertNotEqual(answer.code, 0, answer)
            return answer.err

        self.assertIn("'recovery.residuals' has no meaning without error feedback", refused(spec('int8', residuals='rollback', num_workers=2)))
        self.assertIn("'recovery.residuals' 'rollback' does not go together with kvstore.type 'dist_async'",
                      refused(spec('2bit', kvstore='dist_async', residuals='rollback', num_workers=2)))
        self.assertIn("'recovery.residuals' must be one of rollback, drop, found 'keep'", refused(spec('2bit', residuals='keep', num_workers=2)))
        plan = self.ok('validate', self.write('job.json', json.dumps(spec('2bit', num_workers=2)))).out
        self.assertIn('(recovery.residuals: rollback)', plan)
        plan = self.ok('validate', self.write('job.json', json.dumps(spec('2bit', residuals='drop', num_workers=2)))).out
        self.assertIn('(recovery.residuals: drop)', plan)


if __name__ == '__main__':
    support.main()
