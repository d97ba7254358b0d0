"""Wall clocks that are two hours off, or that jump while a job trains or is waited for. No decision uses them, so nothing
changes.

libfaketime does not reach the kernel. There gRPC's Abseil waits until an absolute time of the wall clock. So behind the true
clock such a wait ends at once, again and again, and uses a whole core. Therefore these jobs are short, and a jump behind the
true clock lasts only until it is seen.
"""

import datetime
import glob
import json
import os
import re
import subprocess
import threading
import time
import unittest
import unittest.mock
import urllib.request

import services
import support

LIBRARY = (glob.glob('/usr/lib/*/faketime/libfaketimeMT.so.1') or [''])[0]


@unittest.skipUnless(LIBRARY, 'shifts clocks: needs the package faketime')
class ClocksTest(services.ServicesTest):

    def setUp(self):
        super().setUp()
        for name in ('coordinator', 's0', 's1', 'w0', 'w1', 'w2'):
            self.start_service(name)

    @staticmethod
    def faked(**clock):
        """An environment with settings of libfaketime. The speed of time is not changed."""
        return dict(LD_PRELOAD=LIBRARY, FAKETIME_DONT_FAKE_MONOTONIC='1', NO_FAKE_STAT='1', **clock)

    def start_service(self, name, **clock):
        """`clock`: settings of libfaketime for this process and its children."""
        with unittest.mock.patch.dict(os.environ, self.faked(**clock) if clock else {}):
            if name == 'coordinator':
                self.start_one(name, 'capstan_coordinator', '--state-dir', self.path('state'), '--data-root', 'file:///',
                               '--checkpoint-root', 'file:///', '--heartbeat', '200ms', '--lease', '5s')
            elif name.startswith('s'):
                self.start_node(name, 'capstan_param_store')
            else:
                self.start_worker(name)

    def restart(self, name, **clock):
        self.assertEqual(self.stop(name), 0)
        self.start_service(name, **clock)

    @staticmethod
    def job(name, epochs):
        return support.job_spec(
            name=name, resources={'num_workers': 3, 'num_shards': 2, 'lanes': 8},
            training={'epochs': epochs, 'global_batch_size': 64, 'seed': 3,
                      'optimizer': {'name': 'sgd', 'learning_rate': 0.04, 'momentum': 0.9}},
            checkpoint={'every': '20 steps'})

    def finish(self, job_id):
        self.capstan('wait', job_id, timeout=180)
        job = self.describe(job_id)
        self.assertEqual(job['state'], 'SUCCEEDED', job)
        return job

    def check(self, job_id, undisturbed):
        job = self.finish(job_id)
        self.assertEqual(job['weights_sha256'], undisturbed['weights_sha256'])
        self.assertEqual(job['samples_used'], undisturbed['samples_used'])
        types = [event['type'] for event in job['events']]
        # On a busy machine lanes may move. Each time adds a generation and changes nothing else.
        moves = types.count('LanesMoved')
        self.assertEqual((job['lineage'], job['generation'], job['restarts']), (1, 1 + moves, 0), job['events'])
        self.assertFalse(set(types) & {'WorkerLost', 'ShardLost', 'CheckpointFailed', 'Requeued'}, job['events'])

    def hours_off(self, name):
        """The difference between the clock in the service's last line and ours."""
        last = re.findall(r'(?m)^time=(\S+?)Z ', self.services[name].said())[-1]
        then = datetime.datetime.fromisoformat(last).replace(tzinfo=datetime.timezone.utc)
        return round((then - datetime.datetime.now(datetime.timezone.utc)).total_seconds() / 3600)

    def coordinator_is_right(self):
        """Checks the coordinator's time on its status page, since it may have nothing to log."""
        url = f'http://{self.services["coordinator"].http}/api/overview'
        with urllib.request.urlopen(url, timeout=10) as answer:
            then = datetime.datetime.fromisoformat(json.load(answer)['time'][:-1])
        return abs(then - datetime.datetime.utcnow()) < datetime.timedelta(minutes=10)

    def hours_since_submitted(self, job_id):
        """Hours from the job's submission to each of its events, by the coordinator's clock."""
        times = [datetime.datetime.fromisoformat(event['time'][:-1]) for event in self.describe(job_id)['events']]
        return [round((time - times[0]).total_seconds() / 3600) for time in times]

    def test_a_clock_two_hours_off_on_each_role(self):
        undisturbed = self.finish(self.submit(self.job('right', 1)))
        for name in ('coordinator', 's0', 'w0'):
            for hours in (2, -2):
                self.restart(name, FAKETIME=f'{hours:+d}h')
                job_id = self.submit(self.job('off', 1))
                self.check(job_id, undisturbed)
                self.assertEqual(self.hours_off(name), hours)
            self.restart(name)

    def test_clocks_that_jump_while_a_job_trains(self):
        undisturbed = self.finish(self.submit(self.job('right', 48)))
        jumping = ('coordinator', 's0', 'w0')

        def jump(hours):
            for name in jumping:  # the library checks every second
                os.replace(self.write(name + '.new', f'{hours:+d}h\n'), self.path(name + '.clock'))

        jump(0)
        for name in jumping:
            self.restart(name, FAKETIME_TIMESTAMP_FILE=self.path(name + '.clock'), FAKETIME_CACHE_DURATION='1')
        for hours in (2, -2):
            job_id = self.submit(self.job('jumps', 48))
            self.wait_for_step(job_id, 60)
            jump(hours)
            self.wait_until(lambda: hours in self.hours_since_submitted(job_id), 30, f'an event of {hours:+d} h')
            jump(0)
            self.check(job_id, undisturbed)
            self.wait_until(self.coordinator_is_right, 30, 'the way back')

    def test_a_clock_that_jumps_under_a_wait(self):
        spec = self.job('nowhere', 1)
        spec['resources']['num_workers'] = 4  # there are only three
        job_id = self.submit(spec)
        clock = self.write('client.clock', '+0h\n')
        jump = threading.Timer(2, lambda: os.replace(self.write('client.new', '+2h\n'), clock))
        jump.start()
        self.addCleanup(jump.cancel)
        begun = time.monotonic()
        env = self.faked(FAKETIME_TIMESTAMP_FILE=clock, FAKETIME_CACHE_DURATION='1')
        run = self.capstan('wait', job_id, '--timeout', '8s', env=env)
        self.assertGreater(time.monotonic() - begun, 7.5, run)
        self.assertEqual(run.code, 101, run)
        date = subprocess.run(['date', '+%s'], env=dict(os.environ, **env), capture_output=True, text=True, check=True)
        self.assertGreater(int(date.stdout) - time.time(), 7000, 'the clock has jumped')


if __name__ == '__main__':
    support.main()
