"""How jobs continue elsewhere and how they end: resumed with other numbers, cancelled in every state, failed with a root cause."""

import json
import os
import signal

import services
import support

SGD = {'name': 'sgd', 'learning_rate': 0.04, 'momentum': 0.9}


def job(name, workers=2, shards=1, epochs=100000, **groups):
    return support.job_spec(name=name, resources={'num_workers': workers, 'num_shards': shards, 'lanes': 10},
                            training={'epochs': epochs, 'global_batch_size': 64, 'seed': 3, 'optimizer': SGD}, **groups)


class EndsTest(services.ServicesTest):

    def finish(self, job_id):
        self.capstan('wait', job_id, timeout=180)
        found = self.describe(job_id)
        self.assertEqual(found['state'], 'SUCCEEDED', found)
        return found

    def wait_for_state(self, job_id, state, reason=None):
        def there():
            found = self.describe(job_id)
            return found if found['state'] == state and reason in (None, found['reason']) else None

        return self.wait_until(there, 60, f'{state} {reason or ""} of {job_id}')

    def suspend(self, job_id):
        self.ok('suspend', job_id)
        return self.wait_for_state(job_id, 'SUSPENDED')

    def wait_until_nothing_is_left(self):
        def there():
            nodes = json.loads(self.ok('node', 'list', '-o', 'json').out)
            return not self.tasks() and not any(node['job_ids'] for node in nodes if node['state'] == 'READY')

        self.wait_until(there, 60, 'the end of all tasks and shards')

    def test_three_shards_and_five_workers_go_on_as_two_and_two(self):
        self.start(workers=5, shards=3)
        undisturbed = self.finish(self.submit(job('undisturbed', 5, 3, epochs=4)))
        job_id = self.submit(job('moved', 5, 3, epochs=4))
        self.wait_for_step(job_id, 30)
        suspended = self.suspend(job_id)
        self.wait_until_nothing_is_left()
        step = suspended['progress']['step']
        self.assertLess(step, 100)
        print(f'suspended at step {step} of 128', flush=True)
        for name in ('s2', 'w2', 'w3', 'w4'):
            self.assertEqual(self.stop(name), 0)
        self.ok('resume', job_id, '--num-workers', '2', '--num-shards', '2')
        moved = self.finish(job_id)
        self.assertEqual((len(moved['workers']), len(moved['shards'])), (2, 2))
        log, want = self.step_log(moved), self.step_log(undisturbed)
        self.assertEqual(log[step]['lineage'], moved['lineage'])
        keys = ('step', 'epoch', 'loss', 'learning_rate', 'samples')
        self.assertEqual([[line[key] for key in keys] for line in log], [[line[key] for key in keys] for line in want])
        self.assertEqual(moved['weights_sha256'], undisturbed['weights_sha256'])
        self.assertEqual(moved['samples_used'], undisturbed['samples_used'])
        self.assertEqual([{key: epoch[key] for key in ('epoch', 'train_loss', 'validation_loss', 'validation_accuracy')}
                          for epoch in moved['epochs']],
                         [{key: epoch[key] for key in ('epoch', 'train_loss', 'validation_loss', 'validation_accuracy')}
                          for epoch in undisturbed['epochs']])

    def cancel(self, job_id):
        self.ok('cancel', job_id)
        self.assertEqual(self.capstan('wait', job_id).code, 103)
        self.wait_until_nothing_is_left()

    def test_cancel_in_every_state_of_a_fault(self):
        self.start(workers=2, shards=1)
        patient = {'recovery': {'max_restarts': 5, 'backoff': {'initial': '60s'}}}

        suspended = self.submit(job('suspended'))
        self.wait_for_step(suspended, 3)
        self.suspend(suspended)
        self.wait_until_nothing_is_left()
        self.cancel(suspended)

        # A stopped shard does not begin the lineage.
        self.services['s0'].process.send_signal(signal.SIGSTOP)
        starting = self.submit(job('starting'))
        self.wait_for_state(starting, 'STARTING')
        self.ok('cancel', starting)
        self.services['s0'].process.send_signal(signal.SIGCONT)
        self.assertEqual(self.capstan('wait', starting).code, 103)
        self.wait_until_nothing_is_left()

        # During the back-off before a restart.
        recovering = self.submit(job('recovering', **patient))
        self.wait_for_step(recovering, 3)
        self.assertEqual(self.stop('s0', signal.SIGKILL), -signal.SIGKILL)
        self.wait_for_state(recovering, 'RECOVERING', 'ShardLost')
        self.start_node('s0', 'capstan_param_store')
        self.cancel(recovering)

        # Without any worker.
        alone = self.submit(job('alone'))
        self.wait_for_step(alone, 3)
        for name in ('w0', 'w1'):
            self.assertEqual(self.stop(name, signal.SIGKILL), -signal.SIGKILL)
        self.wait_for_state(alone, 'RECOVERING', 'WorkerLost')
        self.cancel(alone)
        for name in ('w0', 'w1'):
            self.start_worker(name)

        # A local job that waits for another try.
        waiting = self.submit(support.job_spec(name='waiting', kvstore={'type': 'local'}, resources={},
                                               training={'epochs': 100000, 'global_batch_size': 64, 'optimizer': SGD}, **patient))
        self.wait_for_step(waiting, 3)
        os.kill(self.tasks()[0], signal.SIGKILL)
        self.wait_for_state(waiting, 'PENDING', 'BackOff')
        self.cancel(waiting)
        self.assertEqual(self.ok('cancel', waiting).out, f'{waiting}  CANCELLED\n')  # again

        # The next job gets the same devices and shards.
        self.finish(self.submit(job('next', epochs=1)))

    def check_failed(self, job_id, reason, *words):
        """The job is FAILED with `reason`, according to both wait and describe."""
        self.assertEqual(self.capstan('wait', job_id).code, 100)
        found = self.describe(job_id)
        self.assertEqual((found['state'], found['reason']), ('FAILED', reason), found)
        text = self.ok('describe', job_id).out
        print(text.splitlines()[-1], flush=True)
        self.assertRegex(text, rf'(?m)^State +FAILED +{reason}')
        for word in words:
            self.assertRegex(text.splitlines()[-1], rf'^Root cause  .*{word}')
        self.wait_until_nothing_is_left()

    def test_a_job_that_cannot_go_on_fails_with_its_root_cause(self):
        self.start(workers=2, shards=1)

        used_up = self.submit(job('used-up', recovery={'max_restarts': 0}))
        self.wait_for_step(used_up, 3)
        self.assertEqual(self.stop('s0', signal.SIGKILL), -signal.SIGKILL)
        self.check_failed(used_up, 'MaxRestartsExceeded', 'recovery.max_restarts 0', 'shard 0')
        self.start_node('s0', 'capstan_param_store')

        corrupt = self.submit(job('corrupt', checkpoint={'every': '5 steps', 'keep_latest': 1},
                                  recovery={'max_restarts': 5, 'backoff': {'initial': '0s'}}))
        self.wait_for_step(corrupt, 30)
        self.services['s0'].process.send_signal(signal.SIGSTOP)
        self.wait_for_state(corrupt, 'RECOVERING')
        listed = json.loads(self.ok('checkpoint', 'list', corrupt, '-o', 'json').out)
        for checkpoint in listed:
            os.truncate(os.path.join(checkpoint['uri'][len('file://'):], 'shard-0.safetensors'), 1000)
        self.assertEqual(self.stop('s0', signal.SIGKILL), -signal.SIGKILL)
        self.start_node('s0', 'capstan_param_store')
        self.check_failed(corrupt, 'CheckpointCorrupt', 'no checkpoint is left that is whole', 'shard-0.safetensors')

        stalled = self.submit(job('stalled', limits={'stall_timeout': '2s'}))
        self.wait_for_step(stalled, 3)
        for name in ('w0', 'w1'):
            self.assertEqual(self.stop(name, signal.SIGKILL), -signal.SIGKILL)
        self.check_failed(stalled, 'Stalled', 'w')


if __name__ == '__main__':
    support.main()
