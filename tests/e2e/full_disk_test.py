"""A disk that is full, or too small, under `capstan run`: said before anything starts, at once while it lasts, and by its cause."""

import json
import os
import re
import subprocess

import services
import support

STEPS = 32 * 60  # 2000 samples, 64 a step


class FullDiskTest(services.ServicesTest):

    def start_run(self, disk, stall_timeout):
        """A run in a pipe that saves at its end alone, on a disk that is full before; what it says on stderr goes to a file."""
        spec = support.job_spec(
            name='full', training={'epochs': 60, 'global_batch_size': 64, 'seed': 3,
                                   'optimizer': {'name': 'sgd', 'learning_rate': 0.04, 'momentum': 0.9}},
            checkpoint={'every': 'never', 'storage_path': f'file://{disk}'}, limits={'stall_timeout': stall_timeout})
        err = open(self.path('err'), 'wb')
        self.addCleanup(err.close)
        process = subprocess.Popen([support.CAPSTAN, 'run', self.write('job.yaml', json.dumps(spec))], cwd=self.folder,
                                   stdout=subprocess.PIPE, stderr=err, text=True)
        self.addCleanup(process.kill)
        self.wait_until(lambda: any('metrics.jsonl' in files for _, _, files in os.walk(disk)), 60, 'the first steps')
        filler = self.fill(disk)
        said = self.wait_until(lambda: self.trouble(process), 120, 'the error')
        print(said, flush=True)
        self.assertRegex(said, rf'^capstan: full-\w{{6}}: cannot save step {STEPS}: {services.NO_SPACE}: \w+ {disk}/full-.* '
                               r'\((shard 0|worker w0) on host \S+\)')
        self.assertIsNone(process.poll(), 'it was said at its end alone')
        return process, filler

    def trouble(self, process):
        with open(self.path('err'), errors='replace') as f:
            said = [line for line in f if 'cannot save' in line]
        self.assertIsNone(process.poll(), self.what_was_said())
        return said[0] if said else None

    def what_was_said(self):
        with open(self.path('err'), errors='replace') as f:
            return f.read()[-4000:]

    def test_what_cannot_be_saved_is_said_at_once_and_saved_once_there_is_room(self):
        process, filler = self.start_run(self.small_disk('disk', '12m'), '5m')
        os.unlink(filler)
        out, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, out + self.what_was_said())
        self.assertRegex(out, r'full-\w{6}  SUCCEEDED')

    def test_a_disk_that_stays_full_is_the_root_cause(self):
        process, _ = self.start_run(self.small_disk('disk', '12m'), '15s')
        out, _ = process.communicate(timeout=90)
        self.assertEqual(process.returncode, 100, out + self.what_was_said())
        self.assertRegex(out, rf'full-\w{{6}}  FAILED  Stalled\ncannot save step {STEPS}: {services.NO_SPACE}: ')
        # Once, whatever it is tried.
        self.assertEqual(len(re.findall('^capstan: .*cannot save', self.what_was_said(), re.MULTILINE)), 1)

    def test_a_job_that_does_not_fit_is_refused_before_anything_starts(self):
        disk = self.small_disk('disk', '512k')
        run = self.capstan('run', '--example', 'lenet', '--set', f'checkpoint.storage_path={disk}')
        self.assertEqual(run.code, 2, run)
        self.assertRegex(run.err, rf"'checkpoint.storage_path' cannot be used: {disk}: no space left for this job: its last version and weights are up to [\d.]+ KiB, "
                                  r'and [\d.]+ KiB can be used \(512.0 KiB are free, [\d.]+ KiB stay so\); nothing was started')
        self.assertEqual(os.listdir(disk), [])

    def test_the_plan_says_what_is_free(self):
        disk = self.small_disk('disk', '2m')
        run = self.capstan('run', '--example', 'lenet', '--set', f'checkpoint.storage_path={disk}', '--set', 'training.max_steps=10')
        self.assertIn('files of at most', run.err)
        self.assertIn(f'      2.0 MiB free in {disk}\n      warning: of these 1.9 MiB can be used, so checkpoints will fail', run.err)


if __name__ == '__main__':
    support.main()
