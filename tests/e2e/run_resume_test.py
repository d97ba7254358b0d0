"""A `capstan run` that was interrupted goes on where it was saved, and comes to the weights of one that was not."""

import fcntl
import json
import os
import shutil
import signal
import subprocess

import support

EPOCHS = 48
STEPS = 32 * EPOCHS  # 2000 samples, 64 a step
JOB = support.job_spec(name='kept', resources={'num_workers': 2, 'num_shards': 2, 'lanes': 8},
                       training={'epochs': EPOCHS, 'global_batch_size': 64, 'seed': 3,
                                 'optimizer': {'name': 'sgd', 'learning_rate': 0.01, 'momentum': 0.9}},
                       checkpoint={'every': '20 steps'})


class RunResumeTest(support.TestCase):
    references = {}

    def run_of(self, name='kept'):
        """The id of the one run of this name in ./capstan-out, once its folder is there."""
        runs = self.path('capstan-out')
        found = [run for run in (os.listdir(runs) if os.path.isdir(runs) else []) if run.startswith(name + '-')]
        return found[0] if found else None

    def saved(self, job_id):
        """Committed checkpoints of the run, as `<lineage>-<step>`."""
        folder = self.path('capstan-out', job_id)
        return [name for name in os.listdir(folder) if os.path.exists(os.path.join(folder, name, 'manifest.json'))]

    def is_live(self, job_id):
        with open(self.path('capstan-out', job_id, 'state', 'lock'), 'rb') as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    def start_and_save(self, spec):
        """A run of this job that has saved once: the process and the job's id."""
        process = subprocess.Popen([support.CAPSTAN, 'run', self.write('job.yaml', json.dumps(spec))], cwd=self.folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)

        def has_saved():
            self.assertIsNone(process.poll(), process.stderr.read() if process.poll() is not None else '')
            job_id = self.run_of(spec['name'])
            return job_id if job_id and self.saved(job_id) else None

        return process, self.wait_until(has_saved, 60, 'the first checkpoint')

    def check(self, job):
        """Ended as an undisturbed run."""
        if not self.references:
            self.references['job'] = self.train(dict(JOB, name='undisturbed'))
        undisturbed = self.references['job']
        self.assertEqual(job['state'], 'SUCCEEDED', job)
        self.assertEqual(job['weights_sha256'], undisturbed['weights_sha256'], job)
        self.assertEqual(job['samples_used'], undisturbed['samples_used'], job)
        self.assertEqual(job['restarts'], 0, job)
        self.assertEqual(len(job['epochs']), EPOCHS, job)

    def test_after_ctrl_c_it_goes_on_from_its_newest_checkpoint(self):
        process, job_id = self.start_and_save(JOB)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 103, err)
        last = err.splitlines()[-1]
        self.assertRegex(last, rf'^capstan run --resume {job_id} goes on from checkpoint 1-\d+$')
        step = int(last.rsplit('-', 1)[1])

        run = self.capstan('run', '--resume', job_id, '-o', 'json')
        self.assertEqual(run.code, 0, run)
        self.assertIn(f'{job_id}  goes on from checkpoint 1-{step}\n', run.err)
        job = json.loads(run.out.splitlines()[-1])
        self.check(job)
        self.assertEqual(job['job_id'], job_id)
        # No step is computed again that was saved.
        again = [line['step'] for line in self.step_log(job) if line['lineage'] > 1]
        self.assertEqual(again, list(range(step, STEPS)))

        run = self.capstan('run', '--resume', job_id)
        self.assertEqual(run.code, 4, run)
        self.assertIn(f'job {job_id} has SUCCEEDED: nothing is left to train', run.err)

    def test_after_the_end_of_all_processes_by_its_folder(self):
        process, job_id = self.start_and_save(JOB)
        busy = self.capstan('run', '--resume', job_id)
        self.assertEqual(busy.code, 4, busy)
        self.assertIn('another coordinator works here', busy.err)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=10)
        self.wait_until(lambda: not self.is_live(job_id), 10, 'the end of the coordinator')

        folder = self.path('capstan-out', job_id)
        moved = self.path('elsewhere')
        shutil.copytree(folder, moved)
        run = self.capstan('run', '--resume', moved)
        self.assertEqual(run.code, 4, run)
        self.assertIn(f'{moved}: job {job_id} saves to {os.path.realpath(folder)}; move its folder back there', run.err)

        run = self.capstan('run', '--resume', folder + '/', '-o', 'json')
        self.assertEqual(run.code, 0, run)
        self.assertRegex(run.err, rf'{job_id}  goes on from checkpoint 1-\d+\n')
        self.check(json.loads(run.out.splitlines()[-1]))

    def test_twice_interrupted(self):
        process, job_id = self.start_and_save(JOB)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        first = set(self.saved(job_id))
        process = subprocess.Popen([support.CAPSTAN, 'run', '--resume', job_id], cwd=self.folder, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        self.wait_until(lambda: set(self.saved(job_id)) - first or process.poll() is not None, 60, 'another checkpoint')
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=10)
        self.wait_until(lambda: not self.is_live(job_id), 10, 'the end of the coordinator')
        run = self.capstan('run', '--resume', job_id, '-o', 'json')
        self.assertEqual(run.code, 0, run)
        self.check(json.loads(run.out.splitlines()[-1]))

    def test_what_cannot_be_resumed_is_said(self):
        run = self.capstan('run', '--resume', 'nothing-x')
        self.assertEqual(run.code, 2, run)
        self.assertIn('capstan-out/nothing-x: there is no such folder of a run', run.err)
        self.write('capstan-out/old-1/metrics.jsonl', '{}\n')
        run = self.capstan('run', '--resume', 'old-1')
        self.assertEqual(run.code, 2, run)
        self.assertIn('capstan-out/old-1: has no state/journal.db', run.err)
        for extra in (['job.yaml'], ['--example', 'lenet'], ['--set', 'training.epochs=3']):
            run = self.capstan('run', '--resume', 'old-1', *extra)
            self.assertEqual(run.code, 2, run)
            self.assertIn('--resume goes on with a job as it was submitted', run.err)


if __name__ == '__main__':
    support.main()
