"""Shards are added, drained and moved while a job trains, and nodes of shards are drained: no step is lost, and the bits stay."""

import json
import os
import re
import signal
import threading
import time

from prometheus import get
import services
import support

EPOCHS = 44  # of 2000 samples, 64 per step
LONG = 200  # for several moves, also where a command takes long


class StepWatch(threading.Thread):
    """Notes when the line of each step comes into the lead's log."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.seen, self.over = path, [], threading.Event()  # (time, lineage, step)
        self.start()

    def run(self):
        while not os.path.exists(self.path):  # it comes over gRPC
            time.sleep(0.01)
        with open(self.path) as f:
            rest = ''
            while not self.over.is_set():
                rest += f.read()
                *lines, rest = rest.split('\n')
                now = time.monotonic()
                self.seen += [(now, line['lineage'], line['step']) for line in map(json.loads, lines)]
                time.sleep(0.002)

    def pauses(self):
        """By lineage, the seconds between the last step of the lineage before it and its first."""
        self.over.set()
        self.join()
        return {after[1]: round(after[0] - before[0], 3) for before, after in zip(self.seen, self.seen[1:]) if after[1] != before[1]}


class MovesCase(services.ServicesTest):
    references = {}
    store_args = ()

    def setUp(self):
        super().setUp()
        self.start_plain_coordinator()
        for i in range(3):
            self.start_store(f's{i}')
        for i in range(2):
            self.start_worker(f'w{i}')

    def start_store(self, name):
        self.start_node(name, 'capstan_param_store', *self.store_args)

    @staticmethod
    def job(name, every='1000000 steps', epochs=EPOCHS, **groups):
        return support.job_spec(
            name=name, resources={'num_workers': 2, 'num_shards': 2, 'lanes': 8},
            training={'epochs': epochs, 'global_batch_size': 64, 'seed': 3,
                      'optimizer': {'name': 'sgd', 'learning_rate': 0.01, 'momentum': 0.9}},
            checkpoint={'every': every}, **groups)

    def begin(self, name, step, **kwargs):
        job_id = self.submit(self.job(name, **kwargs))
        self.wait_for_step(job_id, step)
        return job_id

    def log_of(self, job_id):
        return self.path('state', 'checkpoints', job_id, 'metrics.jsonl')

    def events(self, job_id, kind):
        return [event['message'] for event in self.describe(job_id)['events'] if event['type'] == kind]

    def in_lineage(self, job_id, lineage):
        """Waits until the job trains in this lineage. Returns its shards' nodes."""
        def there():
            job = self.describe(job_id)
            self.assertIn(job['state'], ('RUNNING', 'RECOVERING'), job)
            base = max((c['step'] for c in job['checkpoints'] if c['lineage'] < lineage), default=0)
            return job if job['lineage'] == lineage and job['progress']['step'] > base else None

        return [shard['node'] for shard in self.wait_until(there, 30, f'a step in lineage {lineage}')['shards']]

    def reference(self, epochs):
        """The weights of an undisturbed run."""
        if epochs not in self.references:
            job_id = self.submit(self.job('undisturbed', epochs=epochs))
            self.ok('wait', job_id, timeout=120)
            self.references[epochs] = self.describe(job_id)['weights_sha256']
        return self.references[epochs]

    def check(self, job_id, restarts=0, epochs=EPOCHS):
        """The job ends like an undisturbed run. Without a restart, each step was decided once. Returns the job."""
        self.ok('wait', job_id, timeout=120)
        job = self.describe(job_id)
        self.assertEqual(job['state'], 'SUCCEEDED', job)
        self.assertEqual(job['weights_sha256'], self.reference(epochs), job['events'])
        self.assertEqual(job['restarts'], restarts, job)
        with open(self.log_of(job_id)) as f:
            steps = [json.loads(line)['step'] for line in f]
        if restarts == 0:
            self.assertEqual(steps, list(range(32 * epochs)))
        return job

    def balance(self, job_id, shards):
        """The busiest shard over the mean, of the bytes that went in and out in this lineage."""
        def known():
            found = json.loads(self.ok('shards', job_id, '-o', 'json').out)
            return found if len(found) == shards and all('job_balance' in shard for shard in found) else None

        found = self.wait_until(known, 30, f'the traffic of {shards} shards')
        self.assertAlmostEqual(sum(shard['traffic_share'] for shard in found), 1)
        text = self.ok('shards', job_id).out
        self.assertRegex(text, r': balance 1\.\d+, the traffic of the busiest shard over the mean')
        self.assertLessEqual(found[0]['job_balance'], 1.05, text)
        return round(found[0]['job_balance'], 3)

    def add_drain_and_move(self):
        job_id = self.begin('moved', 60, epochs=LONG)
        watch = StepWatch(self.log_of(job_id))
        balances = [self.balance(job_id, 2)]
        self.ok('shard', 'add', job_id, '--node', 's2')
        self.assertEqual(self.in_lineage(job_id, 2), ['s0', 's1', 's2'])
        balances.append(self.balance(job_id, 3))
        said = self.ok('shard', 'drain', job_id, '0')  # the lead; shard 2 gets its number
        self.assertRegex(said.out, r'^order \d+: capstan events ')
        self.assertEqual(self.in_lineage(job_id, 3), ['s2', 's1'])
        balances.append(self.balance(job_id, 2))
        self.wait_until(lambda: not json.loads(self.ok('node', 'describe', 's0', '-o', 'json').out).get('job_ids'), 10, 's0 without a job')
        self.ok('shard', 'move', job_id, '1', '--node', 's0')
        self.assertEqual(self.in_lineage(job_id, 4), ['s2', 's0'])
        job = self.check(job_id, epochs=LONG)
        print(f'balance of 2, 3 and 2 shards: {balances}; s without a step by lineage: {watch.pauses()}', flush=True)
        types = [event['type'] for event in job['events']]
        self.assertEqual(types.count('ShardsMoved'), 3, job['events'])
        self.assertNotIn('Recovered', types)  # it never left RUNNING
        self.assertNotIn('ShardLost', types)
        metrics = get(self.services['coordinator'].http, '/metrics')
        self.assertIn('capstan_job_events_total{event="ShardsMoved"} 3\n', metrics)
        self.assertEqual(re.findall(r'capstan_job_restarts_total{.*} [1-9].*', metrics), [])


class ShardsTest(MovesCase):

    def test_one_is_added_and_one_drained_while_it_trains(self):
        self.add_drain_and_move()

    def test_every_kind_of_job_with_shards_can_move_them(self):
        for kvstore in ({'update_on_kvstore': False}, {'local_steps': 2}, {'gradient_compression': {'type': 'fp16'}},
                        {'gradient_compression': {'type': '2bit'}}, {'type': 'dist_async'}):
            spec = {**self.job('kind', epochs=30), 'kvstore': {'type': 'dist_sync', **kvstore}}
            hashes, samples = set(), set()
            for moved in (False, True):
                with self.subTest(kvstore, moved=moved):
                    job_id = self.submit(spec)
                    if moved:
                        self.wait_for_step(job_id, 40)
                        self.ok('shard', 'add' if 'type' in kvstore else 'drain', job_id, *(() if 'type' in kvstore else '0'))
                    self.ok('wait', job_id, timeout=120)
                    job = self.describe(job_id)
                    self.assertEqual((job['state'], job['restarts']), ('SUCCEEDED', 0), job)
                    self.assertEqual(len(self.events(job_id, 'ShardsMoved')), 1 if moved else 0, job['events'])
                    hashes.add(job['weights_sha256'])
                    samples.add(job['samples_used'])
            self.assertEqual(len(samples), 1, kvstore)
            if kvstore != {'type': 'dist_async'}:  # whose bits depend on who was faster
                self.assertEqual(len(hashes), 1, kvstore)

    def test_what_cannot_be_is_refused_by_name(self):
        job_id = self.begin('refused', 20)
        for words, why in ((('drain', job_id, '2'), 'has 0 to 1'), (('add', job_id, '--node', 's0'), 'has shard'),
                           (('add', job_id, '--node', 'w0'), 'it is a worker'), (('move', job_id, '0', '--node', 's9'), 'no node s9')):
            run = self.capstan('shard', *words)
            self.assertNotEqual(run.code, 0, run)
            self.assertIn(why, run.err, run)
        self.ok('node', 'drain', 's2')
        self.assertIn('it is drained', self.capstan('shard', 'add', job_id, '--node', 's2').err)
        self.assertIn('no param_store is free', self.capstan('shard', 'add', job_id).err)
        self.assertEqual(self.describe(job_id)['lineage'], 1)
        self.ok('cancel', job_id)

    def test_a_drained_node_gives_its_shard_away_without_losing_a_step(self):
        self.reference(LONG)  # while there are two param_stores that take work
        job_id = self.begin('drained', 100, epochs=LONG)
        watch = StepWatch(self.log_of(job_id))
        used = [shard['node'] for shard in self.describe(job_id)['shards']]
        free, = {'s0', 's1', 's2'} - set(used)
        self.ok('node', 'drain', used[0])
        self.assertEqual(self.in_lineage(job_id, 2), [free, used[1]])
        # Now there is no free one. A person takes the shard away instead.
        self.ok('node', 'drain', used[1])
        self.ok('shard', 'drain', job_id, '1')
        self.assertEqual(self.in_lineage(job_id, 3), [free])
        self.check(job_id, epochs=LONG)
        print(f's without a step by lineage: {watch.pauses()}', flush=True)

    def order_and_hold(self, job_id, *words):
        """Orders a move whose version comes only once the tasks go on. Returns these."""
        tasks = self.tasks('w0') + self.tasks('w1')
        self.assertEqual(len(tasks), 2)
        for task in tasks:
            os.kill(task, signal.SIGSTOP)
        self.ok('shard', *words)
        self.assertEqual(self.describe(job_id)['lineage'], 1)
        self.assertEqual(self.events(job_id, 'ShardsMoved'), [])
        return tasks

    def test_a_shard_is_killed_in_the_middle(self):
        job_id = self.begin('killed-shard', 100, every='40 steps')
        self.start_store('s3')  # takes the place of the one that dies, so s2 stays free for the one that is added
        tasks = self.order_and_hold(job_id, 'add', job_id, '--node', 's2')
        self.stop('s1', signal.SIGKILL)
        self.wait_until(lambda: self.describe(job_id)['lineage'] > 1, 30, 'the next lineage')
        self.assertEqual([shard['node'] for shard in self.describe(job_id)['shards']], ['s0', 's3', 's2'])
        for task in tasks:
            os.kill(task, signal.SIGCONT)
        self.check(job_id, restarts=1)
        self.assertEqual(len(self.events(job_id, 'ShardsMoved')), 1)

    def test_the_coordinator_is_killed_in_the_middle(self):
        job_id = self.begin('killed-coordinator', 100)
        tasks = self.order_and_hold(job_id, 'drain', job_id, '0')
        self.assertEqual(self.stop('coordinator', signal.SIGKILL), -signal.SIGKILL)
        self.start_plain_coordinator()
        for task in tasks:
            os.kill(task, signal.SIGCONT)
        self.assertEqual(self.in_lineage(job_id, 2), ['s1'])
        self.check(job_id)
        self.assertEqual(len(self.events(job_id, 'ShardsMoved')), 1)


class OwnFoldersTest(MovesCase):
    """No shard shares the coordinator's folder: checkpoints and the log go over gRPC, also those of a shard that goes."""
    store_args = ('--checkpoint-root', 'file:///nowhere')

    def test_one_is_added_and_one_drained_while_it_trains(self):
        self.add_drain_and_move()


if __name__ == '__main__':
    support.main()
