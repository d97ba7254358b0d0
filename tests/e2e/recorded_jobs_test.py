"""The jobs of recorded_jobs.py come to the weights that stand in recorded_jobs.json, bit by bit."""

import json
import signal

import recorded_jobs
import run_resume_test
import support


class RecordedJobsTest(run_resume_test.RunsTest):

    def setUp(self):
        super().setUp()
        with open(recorded_jobs.RECORD) as f:
            self.record = json.load(f)

    def test_every_job_has_a_record(self):
        self.assertEqual(list(self.record), list(recorded_jobs.JOBS))
        self.assertEqual(len(self.record), 20)
        self.assertEqual(len(set(self.record.values())), 20)

    def resumed(self, name):
        """Interrupts the job after its first checkpoint. Returns what it comes to when it has been continued."""
        process, job_id = self.start_and_save(recorded_jobs.spec(name))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 103, err)
        run = self.capstan('run', '--resume', job_id, '-o', 'json')
        self.assertEqual(run.code, 0, run)
        return json.loads(run.out.splitlines()[-1])

    def test_a_resumed_job(self):
        self.assertEqual(self.resumed('lenet_resumed')['weights_sha256'], self.record['lenet_resumed'])

    def test_undisturbed_jobs(self):
        for name, want in self.record.items():
            if name == 'lenet_resumed':
                continue
            with self.subTest(name):
                self.assertEqual(self.train(recorded_jobs.spec(name))['weights_sha256'], want)


if __name__ == '__main__':
    support.main()
