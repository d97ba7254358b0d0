"""Workers, tasks and shards are killed, stopped and restarted while a job trains. The weights are the same, and nothing is lost.

Every kind of fault happens at a step drawn from a printed seed (CAPSTAN_SEED). CAPSTAN_FAULTS is the number of the least
frequent kind, 3 at the gate. What happened is read from the job's events.
"""

import collections
import json
import os
import random
import re
import signal
import time

import services
import support

SEED = int(os.environ.get('CAPSTAN_SEED', '1'))
FAULTS = int(os.environ.get('CAPSTAN_FAULTS', '3'))
LEASE = 1.0
LONG = 80  # epochs; enough for five faults, some of which take three leases
EPOCHS = 24 if FAULTS <= 3 else LONG
STEPS_PER_EPOCH = 32  # 2000 samples, 64 per step
STEPS = STEPS_PER_EPOCH * EPOCHS
MARGIN = STEPS // 6  # a fault in the last steps might come after the end
LAST = STEPS - MARGIN
WORKERS = ['w0', 'w1', 'w2']

# The faults of one job each, in this order, with the event that reports each. 20 together, each kind at least 3 times.
ROUND = [
    ['service', 'leave', 'join', 'both stopped', 'task'],
    ['task', 'task stopped', 'leave', 'join', 'service'],
    ['both stopped', 'leave', 'join', 'task stopped', 'service'],
    ['task', 'both stopped', 'service', 'task stopped', 'task'],
]
TOLD_BY = {
    'service': ('WorkerLost', ''),
    'task': ('WorkerLost', 'signal 9'),
    'both stopped': ('WorkerLost', 'nothing was heard'),
    'task stopped': ('LaneReissued', ''),
    'leave': ('WorkerLost', 'its service has stopped'),
    'join': ('WorkerJoins', ''),
}
OVER_GRPC = ('test_faults_at_drawn_steps', 'test_a_task_that_hangs_again_and_again_costs_the_same_each_time')


class FaultsTest(services.ServicesTest):
    references = {}  # by epochs: the same job without faults

    def setUp(self):
        super().setUp()
        self.draw = random.Random(SEED)
        self.start_one('coordinator', 'capstan_coordinator', '--state-dir', self.path('state'), '--data-root', 'file:///',
                       '--checkpoint-root', 'file:///', '--heartbeat', '200ms', '--lease', f'{LEASE:.0f}s')
        # In shared memory a step takes a third of the time, and a job of these steps ends before all of its workers' faults.
        slow = ['--no-shared-memory'] if self._testMethodName in OVER_GRPC else []
        for shard in ('s0', 's1'):
            self.start_node(shard, 'capstan_param_store', *slow)
        for worker in WORKERS:
            self.start_worker(worker)

    @staticmethod
    def job(name, epochs=EPOCHS):
        return support.job_spec(
            name=name, resources={'num_workers': 3, 'num_shards': 2, 'lanes': 8},
            training={'epochs': epochs, 'global_batch_size': 64, 'seed': 3,
                      'optimizer': {'name': 'sgd', 'learning_rate': 0.04, 'momentum': 0.9}},
            checkpoint={'every': '20 steps', 'keep_latest': 2}, recovery={'max_restarts': 100, 'backoff': {'initial': '0s'}})

    def finish(self, job_id):
        self.capstan('wait', job_id, timeout=180)
        job = self.describe(job_id)
        self.assertEqual(job['state'], 'SUCCEEDED', job)
        return job

    def undisturbed(self, epochs=EPOCHS):
        if epochs not in self.references:
            self.references[epochs] = self.finish(self.submit(self.job('undisturbed', epochs)))
        return self.references[epochs]

    def steps(self, count):
        """Ascending steps for faults. The first and the last fifth have at least one each."""
        drawn = [self.draw.randrange(1, STEPS // 5), self.draw.randrange(STEPS * 4 // 5, LAST)]
        drawn += [self.draw.randrange(1, LAST) for _ in range(count - 2)]
        drawn = sorted(drawn[:count])
        print(f'seed {SEED}: at steps {drawn}', flush=True)
        return drawn

    def reached(self, job_id, step):
        """The job at or beyond `step`. None if it has ended before."""
        def there():
            job = self.describe(job_id)
            self.assertNotIn(job['state'], ('FAILED', 'CANCELLED'), job)
            return job if job['state'] == 'SUCCEEDED' or job['progress']['step'] >= step else None

        job = self.wait_until(there, 120, f'step {step}')
        return None if job['state'] == 'SUCCEEDED' else job

    def check(self, job_id, undisturbed):
        job = self.finish(job_id)
        self.assertEqual(job['weights_sha256'], undisturbed['weights_sha256'], job)
        self.assertEqual(job['samples_used'], undisturbed['samples_used'], job)
        return [event['type'] for event in job['events']]

    def restart_worker(self, name, how):
        self.assertEqual(self.stop(name, how), -how)
        self.start_worker(name)

    def task_of(self, worker):
        service = self.services[worker].process.pid
        found = []
        for pid in filter(str.isdigit, os.listdir('/proc')):
            try:
                with open(f'/proc/{pid}/stat') as f:
                    state, parent = f.read().rsplit(')', 1)[1].split()[:2]
            except OSError:
                continue
            if int(parent) == service and state != 'Z':
                found.append(int(pid))
        return found

    def count(self, job_id, kind):
        return sum(event['type'] == kind for event in self.describe(job_id)['events'])

    def drawn_steps(self, count):
        """Ascending, from the first step to the last, with one in the first fifth and one in the last."""
        steps = STEPS_PER_EPOCH * LONG
        drawn = [self.draw.randrange(1, steps // 5), self.draw.randrange(steps * 4 // 5, steps - steps // 6)]
        return sorted(drawn + [self.draw.randrange(1, steps // 3) for _ in range(count - 2)])

    def strike(self, job_id, kind, victim, since):
        """Carries out the fault, to its end. `since`: told among the events from this number on.

        Returns whether it happened during a checkpoint.
        """
        if kind == 'service':
            folder = self.catch_half_saved(job_id)
            self.services[victim].process.kill()
            in_checkpoint = self.half_saved(job_id) == folder
            self.restart_worker(victim, signal.SIGKILL)
            return in_checkpoint
        if kind == 'task':
            os.kill(self.task_of(victim)[0], signal.SIGKILL)
        elif kind == 'leave':
            self.assertEqual(self.stop(victim), 0)
        elif kind == 'join':
            self.start_worker(victim)
        elif kind == 'task stopped':
            time.sleep(3 * LEASE)  # the fault itself
            # On a busy machine a step takes a second, and a lane is late after four times what the others need.
            self.told(job_id, kind, since)
            os.kill(self.task_of(victim)[0], signal.SIGCONT)
        else:
            pids = [*self.task_of(victim), self.services[victim].process.pid]
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(3 * LEASE)  # the fault itself
            for pid in reversed(pids):
                os.kill(pid, signal.SIGCONT)
        return False

    def stop_owner_of_lane_0(self, job_id):
        """Stops the task that owns lane 0, and returns the node of its worker.

        Workers that joined or were late have no lanes, so nobody would notice that they stop. On a busy machine lanes
        also move by themselves, so the owner is looked up again once it is stopped.
        """
        def stopped():
            node = self.owner_of_lane_0(job_id)
            task = self.task_of(node)[0]
            os.kill(task, signal.SIGSTOP)
            if self.owner_of_lane_0(job_id) == node:
                return node
            os.kill(task, signal.SIGCONT)
            return None

        return self.wait_until(stopped, 30, 'a task that owns lane 0 while it is stopped')

    def told(self, job_id, kind, since):
        """The event of a fault, among those from number `since` on."""
        wanted, text = TOLD_BY[kind]

        def there():
            events = self.describe(job_id)['events'][since:]
            return next((e for e in events if e['type'] == wanted and text in e['message']), None)

        return self.wait_until(there, 30, f'{wanted} after {kind}')

    def all_train(self, job_id, count):
        """Waits until `count` tasks compute for living workers, so that none is being replaced. Returns the job."""
        def there():
            job = self.describe(job_id)
            self.assertNotIn(job['state'], ('FAILED', 'CANCELLED', 'SUCCEEDED'), job)
            running = {worker['node'] for worker in job['workers'] if worker['state'] == 'RUNNING'}
            return job if len(running) == count == len(self.tasks()) else None

        return self.wait_until(there, 60, f'{count} tasks that train')

    def test_faults_at_drawn_steps(self):
        undisturbed = self.undisturbed(LONG)
        steps_in_all = STEPS_PER_EPOCH * LONG
        struck, at, in_checkpoints = collections.Counter(), [], 0
        for kinds in ROUND * -(-FAULTS // 3):
            job_id = self.submit(self.job('drawn', LONG))
            gone, last_victim = None, None
            for kind, step in zip(kinds, self.drawn_steps(len(kinds))):
                self.assertIsNotNone(self.reached(job_id, step), f'{kind} has missed the job')
                self.all_train(job_id, 2 if gone else 3)
                since = len(self.describe(job_id)['events'])
                if kind == 'task stopped':
                    victim = self.stop_owner_of_lane_0(job_id)
                else:
                    victim = gone if kind == 'join' else self.draw.choice([w for w in WORKERS if w not in (gone, last_victim)])
                others = {pid for worker in WORKERS if worker not in (victim, gone) for pid in self.task_of(worker)}
                in_checkpoint = self.strike(job_id, kind, victim, since)
                event = self.told(job_id, kind, since)
                self.assertLessEqual(others, set(self.tasks()), 'tasks of other workers were started again')
                print(f'seed {SEED}: {kind} {victim}, drawn for step {step}, told at step {event["step"]}: '
                      f'{event["type"]} {event["message"]}{", during a checkpoint" if in_checkpoint else ""}', flush=True)
                gone = {'leave': victim, 'join': None}.get(kind, gone)
                last_victim = victim
                struck[kind] += 1
                in_checkpoints += in_checkpoint
                at.append(event['step'])
            self.check(job_id, undisturbed)
        print(f'{sum(struck.values())} faults: {dict(struck)}, {in_checkpoints} during a checkpoint', flush=True)
        self.assertGreaterEqual(sum(struck.values()), 20)
        self.assertGreaterEqual(min(struck[kind] for kind in TOLD_BY), FAULTS)
        self.assertGreaterEqual(in_checkpoints, 1)
        self.assertLess(min(at), steps_in_all // 5)
        self.assertGreaterEqual(max(at), steps_in_all * 4 // 5)

    def owner_of_lane_0(self, job_id):
        """The node of the worker that owns lane 0."""
        job = self.describe(job_id)
        return job['workers'][support.owner_of_lane_0(job['events'])]['node']

    def test_a_task_that_hangs_again_and_again_costs_the_same_each_time(self):
        undisturbed = self.undisturbed(LONG)
        job_id = self.submit(self.job('hangs', LONG))
        pauses = []
        for i in range(5):
            self.reached(job_id, 60 + 150 * i)
            before = self.count(job_id, 'LaneReissued')
            task = self.task_of(self.stop_owner_of_lane_0(job_id))[0]
            stopped = time.monotonic()
            self.wait_until(lambda: self.count(job_id, 'LaneReissued') > before, 60, 'its lanes at others')
            done = self.steps_of(job_id, 1)
            self.wait_until(lambda: self.steps_of(job_id, 1) > done + 20, 60, 'steps without it')
            pauses.append(round(time.monotonic() - stopped, 2))
            os.kill(task, signal.SIGCONT)
        self.assertEqual(self.describe(job_id)['state'], 'RUNNING')
        print(f'from each stop until others had done twenty steps: {pauses} s', flush=True)
        # A busy machine may make one of the pauses longer. They must not grow: without forgiving they were 2.9, 10.3, 12.0, 31.4
        # and 42.0 s.
        self.assertLess(sorted(pauses)[len(pauses) // 2], 4, pauses)
        self.assertLess(max(pauses), 10, pauses)
        types = self.check(job_id, undisturbed)
        self.assertGreaterEqual(types.count('LaneReissued'), 5)

    def kill_shard(self, victim):
        self.assertEqual(self.stop(victim, signal.SIGKILL), -signal.SIGKILL)

    def replace_shard(self, job_id, victim, before):
        """Restarts the shard. When this returns, the job has reported loss number `before` + 1 and continues."""
        self.start_node(victim, 'capstan_param_store')
        self.wait_until(lambda: self.count(job_id, 'ShardLost') > before, 30, 'the loss among the events')
        self.wait_until(lambda: self.describe(job_id)['state'] in ('RUNNING', 'SUCCEEDED'), 30, 'RUNNING')

    def test_shards_are_killed(self):
        undisturbed = self.undisturbed()
        job_id = self.submit(self.job('shards'))
        for step in self.steps(FAULTS):
            self.assertIsNotNone(self.reached(job_id, step))
            before = self.count(job_id, 'ShardLost')
            victim = self.draw.choice(['s0', 's1'])
            self.kill_shard(victim)
            print(f'killed {victim} at step {step}', flush=True)
            self.replace_shard(job_id, victim, before)
        types = self.check(job_id, undisturbed)
        self.assertGreaterEqual(types.count('ShardLost'), FAULTS)
        self.assertGreaterEqual(types.count('CheckpointSaved'), 2)

    def steps_of(self, job_id, lineage):
        """Number of steps decided in a lineage, from its lead's log."""
        with open(self.path('state', 'checkpoints', job_id, 'metrics.jsonl')) as f:
            return sum(json.loads(line)['lineage'] == lineage for line in f)

    def test_shards_are_killed_while_they_save(self):
        undisturbed = self.undisturbed()
        job_id = self.submit(self.job('saving'))
        tries = 0
        for step in self.steps(FAULTS):
            struck = False
            while not struck:
                tries += 1
                self.assertLess(tries, 10 * FAULTS, 'every checkpoint was faster')
                self.assertIsNotNone(self.reached(job_id, step * 3 // 4))  # leaves room for tries that come too late
                before = self.count(job_id, 'ShardLost')
                victim = self.draw.choice(['s0', 's1'])
                folder = self.catch_half_saved(job_id)
                self.kill_shard(victim)
                struck = self.half_saved(job_id) == folder
                self.replace_shard(job_id, victim, before)
            print(f'seed {SEED}: killed {victim} while {folder} was being saved', flush=True)
        last = time.monotonic()
        self.check(job_id, undisturbed)
        self.assertLess(time.monotonic() - last, 60)

    def catch_loading(self, job_id, shard, last):
        """Polls until the shard reports that it begins a lineage after `last`, because loading takes only milliseconds."""
        deadline = time.monotonic() + 60
        while True:
            said = re.findall(rf'event=lineage_started job={job_id} .*\blineage=(\d+)', self.services[shard].said())
            if said and int(said[-1]) > last:
                return int(said[-1])
            self.assertLess(time.monotonic(), deadline, f'{shard} begins no lineage behind {last}')

    def test_shards_are_killed_while_they_load(self):
        undisturbed = self.undisturbed()
        job_id = self.submit(self.job('loading'))
        self.assertIsNotNone(self.reached(job_id, self.draw.randrange(30, 100)))
        victim = self.draw.choice(['s0', 's1'])
        self.kill_shard(victim)
        self.start_node(victim, 'capstan_param_store')
        struck, tries, lineage = 0, 0, 1
        while struck < FAULTS:
            tries += 1
            self.assertLess(tries, 10 * FAULTS, 'every shard had loaded before')
            victim = self.draw.choice(['s0', 's1'])
            lineage = self.catch_loading(job_id, victim, lineage)
            self.kill_shard(victim)
            if self.steps_of(job_id, lineage) == 0:
                struck += 1
                print(f'seed {SEED}: killed {victim} while it loaded for lineage {lineage}', flush=True)
            self.start_node(victim, 'capstan_param_store')
        last = time.monotonic()
        self.check(job_id, undisturbed)
        self.assertLess(time.monotonic() - last, 60)

    def test_all_roles_at_once(self):
        undisturbed = self.undisturbed()
        job_id = self.submit(self.job('all'))
        for step in self.steps(FAULTS):
            if self.reached(job_id, step) is None:
                break
            for name in ('s1', 'w1', 'coordinator'):
                self.assertEqual(self.stop(name, signal.SIGKILL), -signal.SIGKILL)
            self.start_one('coordinator', 'capstan_coordinator', '--state-dir', self.path('state'), '--data-root', 'file:///',
                           '--checkpoint-root', 'file:///', '--heartbeat', '200ms', '--lease', f'{LEASE:.0f}s')
            self.start_node('s1', 'capstan_param_store')
            self.start_worker('w1')
            print(f'killed s1, w1 and the coordinator at step {step}', flush=True)
            last = time.monotonic()
        self.check(job_id, undisturbed)
        self.assertLess(time.monotonic() - last, 60)

    def test_suspended_and_resumed_on_other_numbers(self):
        undisturbed = self.undisturbed()
        job_id = self.submit(self.job('suspended'))
        self.assertIsNotNone(self.reached(job_id, 30))
        self.ok('suspend', job_id)
        self.wait_until(lambda: self.describe(job_id)['state'] == 'SUSPENDED', 60, 'SUSPENDED')
        self.wait_until(lambda: not self.tasks(), 20, 'the end of all tasks')
        self.ok('resume', job_id, '--num-workers', '2', '--num-shards', '1')
        self.check(job_id, undisturbed)


if __name__ == '__main__':
    support.main()
