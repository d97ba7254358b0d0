"""A full or too small disk under `capstan run`: reported before the start, at once while it lasts, and with its cause."""

import json
import os
import re
import subprocess

import services
import support

STEPS = 32 * 60  # 2000 samples, 64 per step


class FullDiskTest(services.ServicesTest):

    def start_run(self, disk, stall_timeout, *flags):
        """Starts a run in a pipe that saves only at its end, on a disk that is full already. Its stderr goes to a file."""
        spec = support.job_spec(
            name='full', training={'epochs': 60, 'global_batch_size': 64, 'seed': 3,
                                   'optimizer': {'name': 'sgd', 'learning_rate': 0.04, 'momentum': 0.9}},
            checkpoint={'every': 'never', 'storage_path': f'file://{disk}'}, limits={'stall_timeout': stall_timeout})
        err = open(self.path('err'), 'wb')
        self.addCleanup(err.close)
        process = subprocess.Popen([support.CAPSTAN, *flags, 'run', self.write('job.yaml', json.dumps(spec))], cwd=self.folder,
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
        process, filler = self.start_run(self.small_disk('disk', '12m'), '5m', '-q')
        os.unlink(filler)
        out, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, out + self.what_was_said())
        self.assertRegex(out, r'full-\w{6}  SUCCEEDED')

    def test_a_disk_that_stays_full_is_the_root_cause_and_the_job_goes_on_once_there_is_room(self):
        disk = self.small_disk('disk', '12m')
        process, filler = self.start_run(disk, '15s')
        out, _ = process.communicate(timeout=90)
        self.assertEqual(process.returncode, 100, out + self.what_was_said())
        self.assertRegex(out, rf'full-\w{{6}}  FAILED  Stalled\ncannot save step {STEPS}: {services.NO_SPACE}: ')
        # Only once, although it is retried.
        self.assertEqual(len(re.findall('^capstan: .*cannot save', self.what_was_said(), re.MULTILINE)), 1)

        os.unlink(filler)
        last = self.what_was_said().splitlines()[-1]
        self.assertRegex(last, rf'^capstan run --resume {disk}/full-\w{{6}} goes on from the initial weights$')
        folder = last.split()[3]
        failed = json.loads(self.capstan('describe', folder, '-o', 'json').out)
        self.assertEqual((failed['state'], failed['reason']), ('FAILED', 'Stalled'))
        run = self.capstan('run', '--resume', folder, '-o', 'json')
        self.assertEqual(run.code, 0, run)
        job = json.loads(run.out.splitlines()[-1])
        self.assertEqual((job['job_id'], job['state'], job['progress']['step']), (failed['job_id'], 'SUCCEEDED', STEPS))

    def test_a_job_that_does_not_fit_is_refused_before_anything_starts(self):
        disk = self.small_disk('disk', '512k')
        run = self.capstan('run', '--example', 'lenet', '--set', f'checkpoint.storage_path={disk}')
        self.assertEqual(run.code, 2, run)
        self.assertRegex(run.err, rf"'checkpoint.storage_path' cannot be used: {disk}: no space left for this job: its last version and weights are up to [\d.]+ KiB, "
                                  r'and [\d.]+ KiB can be used \(512.0 KiB are free, [\d.]+ KiB are reserved\); nothing was started')
        self.assertEqual(os.listdir(disk), [])

    def test_a_disk_that_is_read_only_is_a_usage_error_with_its_key(self):
        disk = self.small_disk('disk', '12m')
        subprocess.run(['mount', '-o', 'remount,ro', disk], check=True)
        job = self.write('job.yaml', json.dumps(support.job_spec(checkpoint={'storage_path': f'file://{disk}'}), indent=0))
        for command in ('run', 'launch'):
            run = self.capstan(command, job)
            self.assertEqual(run.code, 2, run)
            self.assertRegex(run.err, r"job\.yaml:\d+:\d+: error: 'checkpoint\.storage_path' cannot be used: "
                                      rf'mkdir {disk}/test-\w{{6}}: Read-only file system')
        os.symlink(disk, self.path('capstan-out'))
        run = self.capstan('run', '-', stdin=json.dumps(support.job_spec()))
        self.assertEqual(run.code, 2, run)
        self.assertIn('capstan: the runs cannot be stored here: mkdir ', run.err)

    def test_the_plan_says_what_is_free(self):
        disk = self.small_disk('disk', '2m')
        run = self.capstan('run', '--example', 'lenet', '--set', f'checkpoint.storage_path={disk}', '--set', 'training.max_steps=10')
        self.assertIn('files of at most', run.err)
        self.assertIn(f'      2.0 MiB free in {disk}\n      warning: of these 1.9 MiB can be used, so checkpoints will fail', run.err)


if __name__ == '__main__':
    support.main()
