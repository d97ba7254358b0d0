"""Workers, tasks and shards that are killed, stopped and started again while a job trains: the same weights, nothing lost.

Every kind of fault comes at a step drawn from a printed seed (CAPSTAN_SEED, CAPSTAN_FAULTS of each kind; the gate has
few). What happened is read back from the job's events.
"""

import os
import random
import signal
import time

import services
import support

SEED = int(os.environ.get('CAPSTAN_SEED', '1'))
FAULTS = int(os.environ.get('CAPSTAN_FAULTS', '2'))
LEASE = 1.0
EPOCHS = 16
STEPS = 32 * EPOCHS  # 2000 samples, 64 a step
LAST = STEPS - 60  # a fault behind it might come when all is over


class FaultsTest(services.ServicesTest):
    references = {}  # by epochs: the same job without faults

    def setUp(self):
        super().setUp()
        self.draw = random.Random(SEED)
        self.start_one('coordinator', 'capstan_coordinator', '--state-dir', self.path('state'), '--data-root', 'file:///',
                       '--checkpoint-root', 'file:///', '--heartbeat', '200ms', '--lease', f'{LEASE:.0f}s')
        for shard in ('s0', 's1'):
            self.start_node(shard, 'capstan_param_store')
        for worker in ('w0', 'w1', 'w2'):
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
        """Steps at which something befalls the job, ascending; the first fifth and the last are among them."""
        drawn = [self.draw.randrange(1, STEPS // 5), self.draw.randrange(STEPS * 4 // 5, LAST)]
        drawn += [self.draw.randrange(1, LAST) for _ in range(count - 2)]
        drawn = sorted(drawn[:count])
        print(f'seed {SEED}: at steps {drawn}', flush=True)
        return drawn

    def reached(self, job_id, step):
        """The job at or behind `step`; None where it has ended before."""
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

    def test_workers_and_tasks_are_killed(self):
        undisturbed = self.undisturbed()
        job_id = self.submit(self.job('killed'))
        kinds = ['service', 'task'] * FAULTS
        struck = 0
        for kind, step in zip(kinds, self.steps(2 * FAULTS)):
            if self.reached(job_id, step) is None:
                break
            victim = self.draw.choice(['w0', 'w1', 'w2'])
            others = {pid for worker in ('w0', 'w1', 'w2') if worker != victim for pid in self.task_of(worker)}
            if kind == 'service':
                self.restart_worker(victim, signal.SIGKILL)
            else:
                tasks = self.task_of(victim)
                if not tasks:
                    continue
                os.kill(tasks[0], signal.SIGKILL)
            struck += 1
            self.assertLessEqual(others, set(self.tasks()), 'tasks of other workers were started again')
            print(f'killed the {kind} of {victim} at step {self.describe(job_id)["progress"]["step"]}', flush=True)
            # The job has seen it before the next one comes.
            self.wait_until(lambda: self.count(job_id, 'WorkerLost') >= struck, 30, 'the loss among the events')
        types = self.check(job_id, undisturbed)
        self.assertGreaterEqual(types.count('WorkerLost'), struck)
        self.assertGreaterEqual(struck, 2)

    def count(self, job_id, kind):
        return sum(event['type'] == kind for event in self.describe(job_id)['events'])

    def test_workers_and_tasks_are_stopped_for_three_leases(self):
        # Others go on meanwhile, some hundred steps.
        undisturbed = self.undisturbed(epochs=80)
        job_id = self.submit(self.job('stopped', epochs=80))
        struck = []
        for kind, step in (('both', self.draw.randrange(1, 300)), ('task', self.draw.randrange(1000, 1200))):
            self.assertIsNotNone(self.reached(job_id, step))
            victim = self.draw.choice(['w0', 'w1', 'w2'])
            tasks = self.task_of(victim)
            pids = tasks + ([self.services[victim].process.pid] if kind == 'both' else [])
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(3 * LEASE)  # the fault itself
            for pid in reversed(pids):
                os.kill(pid, signal.SIGCONT)
            struck.append(kind)
            print(f'seed {SEED}: stopped {kind} of {victim} behind step {step}', flush=True)
        types = self.check(job_id, undisturbed)
        self.assertIn('WorkerLost', types)
        self.assertEqual(struck, ['both', 'task'])

    def test_shards_are_killed(self):
        undisturbed = self.undisturbed()
        job_id = self.submit(self.job('shards'))
        struck = 0
        for step in self.steps(2 * FAULTS):
            if self.reached(job_id, step) is None:
                break
            victim = self.draw.choice(['s0', 's1'])
            self.assertEqual(self.stop(victim, signal.SIGKILL), -signal.SIGKILL)
            self.start_node(victim, 'capstan_param_store')
            struck += 1
            print(f'killed {victim} at step {step}', flush=True)
            self.wait_until(lambda: self.count(job_id, 'ShardLost') >= struck, 30, 'the loss among the events')
        types = self.check(job_id, undisturbed)
        self.assertGreaterEqual(types.count('ShardLost'), struck)
        self.assertGreaterEqual(types.count('CheckpointSaved'), 2)
        self.assertGreaterEqual(struck, 2)

    def test_all_roles_at_once(self):
        undisturbed = self.undisturbed()
        job_id = self.submit(self.job('all'))
        for step in self.steps(2):
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

    def test_a_worker_joins_and_one_leaves(self):
        undisturbed = self.undisturbed()
        job_id = self.submit(self.job('joined'))
        self.assertIsNotNone(self.reached(job_id, 20))
        self.assertEqual(self.stop('w2'), 0)  # hands its lanes over
        self.assertIsNotNone(self.reached(job_id, 60))
        self.start_worker('w3')
        types = self.check(job_id, undisturbed)
        self.assertIn('WorkerJoins', types)


if __name__ == '__main__':
    support.main()
