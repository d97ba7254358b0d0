"""A coordinator under the load of many clients and nodes. The limits hold on a busy machine; docs/benchmarks/ has figures."""

import json
import os
import signal
import subprocess
import time

import services
import support

LOAD = os.path.join(support.BIN, 'capstan_coordinator_load')


class LoadTest(services.ServicesTest):

    def coordinator(self, *args):
        self.start_one('coordinator', 'capstan_coordinator', '--state-dir', self.path('state'), '--data-root', 'file:///',
                       '--checkpoint-root', 'file:///', *args)

    def load(self, *args):
        done = subprocess.run([LOAD, args[0], '--address', self.address(), *args[1:]], capture_output=True, text=True, timeout=200)
        self.assertEqual(done.returncode, 0, done.stderr)
        print(f'{" ".join(args)}: {done.stdout.strip()}', flush=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def cpu_seconds(self):
        with open(f'/proc/{self.services["coordinator"].process.pid}/stat') as f:
            return sum(map(int, f.read().rsplit(')', 1)[1].split()[11:13])) / os.sysconf('SC_CLK_TCK')

    def test_ten_thousand_jobs_are_taken_and_are_there_after_a_kill(self):
        self.coordinator()
        begin = self.cpu_seconds()
        got, = self.load('submit', '--clients', '32', '--count', '10000')
        # CPU time, because other processes may use the cores. The cost of a submit must not grow with the waiting jobs.
        self.assertLess((self.cpu_seconds() - begin) / 10000, 1 / 500, got)
        full = self.capstan('submit', self.write('job.yaml', json.dumps(support.job_spec())))
        self.assertIn('10000 queued jobs is the limit', full.err)
        newest = json.loads(self.ok('list', '--limit', '1', '-o', 'json').out.splitlines()[-1])

        self.stop('coordinator', signal.SIGKILL)
        begin = time.monotonic()
        self.coordinator()
        self.assertEqual(json.loads(self.ok('list', '--limit', '1', '-o', 'json').out.splitlines()[-1]), newest)
        print(f'back after {time.monotonic() - begin:.2f} s, {self.cpu_seconds():.2f} s of CPU', flush=True)
        self.assertLess(self.cpu_seconds(), 3)
        full = self.capstan('submit', self.write('job.yaml', json.dumps(support.job_spec())))
        self.assertIn('10000 queued jobs is the limit', full.err)  # all jobs are queued

    def test_clients_whose_calls_all_fail_end_in_order(self):
        for _ in range(3):
            done = subprocess.run([LOAD, 'submit', '--address', f'unix:{self.path("nobody.sock")}', '--clients', '64', '--timeout', '1'],
                                  capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertEqual(done.stderr.count('submit: '), 1, done.stderr)

    def test_the_heartbeats_of_three_hundred_nodes_are_heard(self):
        # A heartbeat's time ends with the order to end an unknown task. Without this flag that order comes only after a minute.
        self.coordinator('--accept-journal', '0')
        registered, _, got = self.load('nodes', '--count', '300', '--seconds', '5')
        self.assertEqual(registered['registered'], 300)
        self.assertEqual(got['answered'], got['asked'])
        self.assertLess(got['p50_ms'], 500)


if __name__ == '__main__':
    support.main()
