"""Shards are stopped on purpose while a job trains: it continues from the present version, and no restart is counted."""

import json
import os
import re
import signal
import subprocess
import time

import services
import support

EPOCHS = 48
STEPS = 32 * EPOCHS  # 2000 samples, 64 per step


class PlannedStopsTest(services.ServicesTest):
    references = {}

    def setUp(self):
        super().setUp()
        self.start(workers=2, shards=2)

    @staticmethod
    def job(name, every='1000000 steps'):
        return support.job_spec(
            name=name, resources={'num_workers': 2, 'num_shards': 2, 'lanes': 8},
            training={'epochs': EPOCHS, 'global_batch_size': 64, 'seed': 3,
                      'optimizer': {'name': 'sgd', 'learning_rate': 0.01, 'momentum': 0.9}},
            checkpoint={'every': every}, recovery={'max_restarts': 0})

    def finish(self, job_id):
        self.capstan('wait', job_id, timeout=180)
        job = self.describe(job_id)
        self.assertEqual(job['state'], 'SUCCEEDED', job)
        return job

    def check(self, job_id):
        """The job must end like an undisturbed run and without a restart. Returns the job."""
        if not self.references:
            self.references['weights'] = self.finish(self.submit(self.job('undisturbed')))['weights_sha256']
        job = self.finish(job_id)
        self.assertEqual(job['weights_sha256'], self.references['weights'], job)
        self.assertEqual(job['restarts'], 0, job)
        self.assertNotIn('ShardLost', [event['type'] for event in job['events']])
        return job

    def decided(self, job_id):
        """(lineage, step) of each decided step, from the leads' logs."""
        with open(self.path('state', 'checkpoints', job_id, 'metrics.jsonl')) as f:
            return [(line['lineage'], line['step']) for line in map(json.loads, f)]

    def check_each_step_once(self, job_id):
        self.assertEqual([step for _, step in self.decided(job_id)], list(range(STEPS)))

    def in_lineage(self, job_id, lineage):
        def there():
            job = self.describe(job_id)
            self.assertNotIn(job['state'], ('FAILED', 'CANCELLED', 'SUCCEEDED'), job)
            return job if job['state'] == 'RUNNING' and job['lineage'] == lineage else None

        return self.wait_until(there, 60, f'RUNNING in lineage {lineage}')

    def node(self, name):
        return json.loads(self.ok('node', 'describe', name, '-o', 'json').out)

    def test_three_stops_cost_no_step_and_no_restart(self):
        job_id = self.submit(self.job('stopped'))
        took = []
        for i, (shard, step) in enumerate((('s0', 100), ('s1', 400), ('s0', 700))):  # s0 has the lead
            self.wait_for_step(job_id, step)
            tasks = self.tasks()
            began = time.monotonic()
            self.assertEqual(self.stop(shard), 0)
            took.append(round(time.monotonic() - began, 2))
            self.assertEqual(self.describe(job_id)['reason'], 'ShardLeft')
            self.start_node(shard, 'capstan_param_store')
            self.in_lineage(job_id, i + 2)
            self.assertEqual(self.tasks(), tasks)
        print(f'from SIGTERM to the end: {took} s', flush=True)
        job = self.check(job_id)
        self.check_each_step_once(job_id)
        types = [event['type'] for event in job['events']]
        self.assertEqual(types.count('ShardLeft'), 3)
        self.assertEqual(job['lineage'], 4)

    def test_a_free_shard_takes_the_place(self):
        self.start_node('s2', 'capstan_param_store')
        job_id = self.submit(self.job('moves'))
        self.wait_for_step(job_id, 200)
        used = [shard['node'] for shard in self.describe(job_id)['shards']]
        free, = {'s0', 's1', 's2'} - set(used)
        self.assertEqual(self.stop(used[1]), 0)
        job = self.in_lineage(job_id, 2)
        self.assertEqual([shard['node'] for shard in job['shards']], [used[0], free])
        self.check(job_id)
        self.check_each_step_once(job_id)

    def test_all_shards_at_once(self):
        job_id = self.submit(self.job('both'))
        self.wait_for_step(job_id, 200)
        for shard in ('s0', 's1'):
            self.services[shard].process.send_signal(signal.SIGTERM)
        for shard in ('s0', 's1'):
            self.assertEqual(self.services[shard].process.wait(20), 0)
            self.services.pop(shard).process.stdout.close()
        for shard in ('s0', 's1'):
            self.start_node(shard, 'capstan_param_store')
        self.in_lineage(job_id, 2)
        self.check(job_id)
        self.check_each_step_once(job_id)

    def test_a_drained_node_hands_over_where_another_one_is_free(self):
        job_id = self.submit(self.job('drained'))
        self.wait_for_step(job_id, 100)
        self.ok('node', 'drain', 's1')
        step = self.wait_for_step(job_id, 200)['progress']['step']
        self.assertEqual(self.describe(job_id)['lineage'], 1)  # there is no other shard to move to
        self.assertEqual(self.node('s1')['state'], 'DRAINING')
        self.start_node('s2', 'capstan_param_store')
        job = self.in_lineage(job_id, 2)
        self.assertGreaterEqual(job['progress']['step'], step)
        self.assertEqual([shard['node'] for shard in job['shards']], ['s0', 's2'])
        self.wait_until(lambda: self.node('s1')['state'] == 'DRAINED', 60, 's1 without work')
        self.check(job_id)
        self.check_each_step_once(job_id)

    def test_a_shard_that_goes_at_once_costs_steps_and_no_restart(self):
        self.assertEqual(self.stop('s1'), 0)
        self.start_node('s1', 'capstan_param_store', '--hand-over', '0s')
        job_id = self.submit(self.job('at-once', every='50 steps'))
        self.wait_for_step(job_id, 200)
        self.assertEqual(self.stop('s1'), 0)
        self.start_node('s1', 'capstan_param_store')
        self.in_lineage(job_id, 2)
        self.check(job_id)

    def test_without_workers_a_shard_goes_all_the_same(self):
        job_id = self.submit(self.job('idle', every='50 steps'))
        self.wait_for_step(job_id, 200)
        for worker in ('w0', 'w1'):
            self.assertEqual(self.stop(worker), 0)
        began = time.monotonic()
        self.assertEqual(self.stop('s1'), 0)
        self.assertLess(time.monotonic() - began, 15)
        self.start_node('s1', 'capstan_param_store')
        for worker in ('w0', 'w1'):
            self.start_worker(worker)
        self.check(job_id)


class PatienceTest(support.TestCase):
    """Every manager that stops a shard waits for longer than the stop takes: the hand-over, and 60 s for the end itself."""

    def test_service_managers_wait_for_a_hand_over(self):
        said = subprocess.run([os.path.join(support.BIN, 'capstan_param_store'), '--help'], capture_output=True, text=True,
                              check=True).stdout
        number, unit = re.search(r'--hand-over DURATION\n.*\n *default (\d+)(s|m),', said).groups()
        hand_over = int(number) * {'s': 1, 'm': 60}[unit]
        waits = {
            'deploy/compose/compose.yaml': r'  shard-\d:\n(?:    .*\n)*?    stop_grace_period: (\d+)s',
            'deploy/compose/two-hosts/host-a.yaml': r'  shard-\d:\n(?:    .*\n)*?    stop_grace_period: (\d+)s',
            'deploy/kubernetes/base/shard.yaml': r'terminationGracePeriodSeconds: (\d+)',
            'deploy/systemd/capstan-param-store.service': r'TimeoutStopSec=(\d+)',
        }
        for path, pattern in waits.items():
            with open(os.path.join(support.ROOT, path)) as f:
                text = f.read()
            found = [int(seconds) for seconds in re.findall(pattern, text)]
            self.assertEqual(len(found), max(1, text.count('command: [capstan_param_store]')), path)
            self.assertGreater(min(found), hand_over + 60, path)


if __name__ == '__main__':
    support.main()
