"""A job whose network is cut, loses packets, is slow or is interrupted: the weights are the same, and the job says whom it waits
for.

Six hosts with mutual TLS, each in a network namespace. A printed seed (CAPSTAN_SEED) decides what is hit and when. With
CAPSTAN_FAULTS more jobs have interrupted wires.
"""

import os
import random
import re
import sys
import time
import unittest

import net_hosts
import secure_cluster
import services
import support

SEED = int(os.environ.get('CAPSTAN_SEED', '1'))
FAULTS = int(os.environ.get('CAPSTAN_FAULTS', '3'))
SHARDS = ['s0', 's1']
SPARE = 's2'  # the place of a shard that a test starts
WORKERS = ['w0', 'w1', 'w2']
LONGEST = 1.5 if FAULTS <= 3 else 9  # seconds for which a wire is cut; the lease of a node is 5
NAMES_WITHIN = 10  # seconds from a cut until the job says whom it waits for
STEPS = 640
FEW = 16  # steps, if each takes half a second


class NetworkFaultsTest(services.ServicesTest):
    references = {}  # by number of steps: the same job without faults

    @classmethod
    def setUpClass(cls):
        reason = net_hosts.why_not()
        if reason:
            print(f'NO NETWORK FAULTS: {reason}', file=sys.stderr, flush=True)
            raise unittest.SkipTest(reason)

    def setUp(self):
        super().setUp()
        self.draw = random.Random(f'{SEED} {self.id()}')
        self.hosts = net_hosts.Hosts(['c', *SHARDS, SPARE, *WORKERS])
        self.addCleanup(self.hosts.close)
        self.keys = secure_cluster.Credentials(self.path('keys'), [self.hosts.address(name) for name in self.hosts.names])
        self.start_on('c', 'coordinator', 'capstan_coordinator', '--tokens', self.keys.path('ca', 'tokens.json'), '--state-dir',
                      self.path('state'), '--data-root', 'file:///')
        self.coordinator = self.grpc('c')
        for shard in SHARDS:
            self.start_shard(shard)
        for worker in WORKERS:
            self.start_on(worker, 'worker', 'capstan_gpu_worker', '--coordinator', self.coordinator, '--node', worker,
                          '--devices', 'cpu', '--cpu-threads', '1')

    def start_on(self, host, role, program, *args):
        self.services[host] = services.Service(
            program, [*self.keys.credentials(role), '--listen', f'{self.hosts.address(host)}:7070', '--http', '127.0.0.1:0', *args],
            self.folder, self.path(f'{host}.log'), before=self.hosts.on(host))

    def start_shard(self, host):
        self.start_on(host, 'param_store', 'capstan_param_store', '--tokens', self.keys.path('ca', 'tokens.json'),
                      '--coordinator', self.coordinator, '--node', host)

    def grpc(self, host):
        return f'{self.hosts.address(host)}:7070'

    def capstan(self, *args, **kwargs):
        """Runs on the coordinator's host, so that a cut around it does not separate the test from it."""
        return support.TestCase.capstan(self, '--address', self.coordinator, *self.keys.credentials('client'), *args,
                                        before=self.hosts.on('c'), **kwargs)

    # ---- a job and its faults ----

    @staticmethod
    def job(name, steps):
        return support.job_spec(
            name=name, resources={'num_workers': 3, 'num_shards': 2, 'lanes': 4},
            training={'max_steps': steps, 'epochs': 100, 'global_batch_size': 64, 'seed': 3,
                      'optimizer': {'name': 'sgd', 'learning_rate': 0.04, 'momentum': 0.9}},
            checkpoint={'every': '100 steps', 'keep_latest': 2}, recovery={'max_restarts': 20, 'backoff': {'initial': '0s'}})

    def finish(self, job_id):
        self.capstan('wait', job_id, timeout=300)
        job = self.describe(job_id)
        self.assertEqual(job['state'], 'SUCCEEDED', job)
        return job

    def undisturbed(self, steps):
        if steps not in self.references:
            self.references[steps] = self.finish(self.submit(self.job('undisturbed', steps)))
        return self.references[steps]

    def begin(self, fault, steps=STEPS, at=None):
        """A job that has reached a step drawn from its first third. Notes the time from which the fault counts."""
        self.expected = self.undisturbed(steps)
        step = self.draw.randrange(1, steps // 3) if at is None else at
        self.job_id = self.submit(self.job('disturbed', steps))
        job = self.wait_for_step(self.job_id, step)
        # How the job's message calls each member: hosts have their nodes' names, and the job numbers its members.
        self.called = {worker['node']: rf'\bw{worker["index"]}\b' for worker in job['workers']}
        self.called.update({shard['node']: rf'\bshard {shard["index"]}\b' for shard in job['shards']})
        self.events_before = len(job['events'])
        self.cut_at = time.monotonic()
        print(f'seed {SEED}: {fault} from step {job["progress"]["step"]} on', flush=True)

    def named(self, *members):
        """Within the limit, the job says that it waits, or waited, for these members."""
        while True:
            job = self.describe(self.job_id)
            said = [job['message']] + [event['message'] for event in job['events'][self.events_before:]]
            late = time.monotonic() - self.cut_at
            if all(any(re.search(self.called[member], line) for line in said) for member in members):
                print(f'named after {late:.1f} s: {said}', flush=True)
                return
            self.assertLess(late, NAMES_WITHIN, f'{[self.called[member] for member in members]} not named: {job["state"]} {said}')

    def logged(self):
        """The number of decided steps, from the lead's own log, so that no service has to be asked."""
        with open(self.path('state', 'checkpoints', self.job_id, 'metrics.jsonl')) as f:
            return len(f.readlines())

    def goes_on(self, steps=20):
        """The job continues while the fault lasts."""
        before = self.logged()
        self.wait_until(lambda: self.logged() >= min(before + steps, STEPS), 60, f'{steps} steps during the fault')

    def took_effect(self, *directions):
        """Checks that the fault worked: each of these directions ('SENDER>' for all that it sends, '>RECEIVER', or both) has
        lost packets, and nothing has passed an unplugged wire."""
        dropped = self.hosts.dropped()
        print(f'dropped: {dropped}', flush=True)
        for direction in directions:
            self.assertGreater(sum(count for pair, count in dropped.items() if direction in pair), 0, (direction, dropped))
        self.assertEqual(set(self.hosts.got_through().values()) - {0}, set(), self.hosts.got_through())

    def heal(self):
        """Ends a fault that stopped the job; the job must continue."""
        self.hosts.heal()
        healed = time.monotonic()
        self.goes_on(1)
        print(f'a step {time.monotonic() - healed:.1f} s after it healed', flush=True)

    def check(self):
        job = self.finish(self.job_id)
        self.assertEqual(job['weights_sha256'], self.expected['weights_sha256'], job)
        self.assertEqual(job['samples_used'], self.expected['samples_used'], job)
        print(f'done {time.monotonic() - self.cut_at:.1f} s after the fault began', flush=True)
        return job

    # ---- faults; each heals only after the job has named whom it waits for ----

    def test_a_worker_is_parted_from_all(self):
        victim = self.draw.choice(WORKERS)
        self.begin(f'parted-{victim}')
        self.hosts.part(victim, [name for name in self.hosts.names if name != victim])
        self.named(victim)
        self.goes_on()
        self.took_effect(f'{victim}>', f'>{victim}')
        self.hosts.heal()
        self.check()

    def test_what_a_worker_sends_a_shard_is_lost(self):
        worker, shard = self.draw.choice(WORKERS), self.draw.choice(SHARDS)
        self.begin(f'{worker}-to-{shard}')
        self.hosts.cut(worker, shard)
        self.named(worker)
        self.goes_on()
        self.took_effect(f'{worker}>{shard}')
        self.hosts.heal()
        self.check()

    def test_what_a_shard_sends_a_worker_is_lost(self):
        worker, shard = self.draw.choice(WORKERS), self.draw.choice(SHARDS)
        self.begin(f'{shard}-to-{worker}')
        self.hosts.cut(shard, worker)
        self.named(worker)
        self.goes_on()
        self.took_effect(f'{shard}>{worker}')
        self.hosts.heal()
        self.check()

    def test_what_a_shard_sends_the_other_is_lost(self):
        sender, receiver = self.draw.sample(SHARDS, 2)
        self.begin(f'{sender}-to-{receiver}')
        self.hosts.cut(sender, receiver)
        self.named('s1')  # the lead is not named, since s1 lacks the decision or its part is missing
        self.took_effect(f'{sender}>{receiver}')
        self.heal()
        self.assertEqual(self.check()['lineage'], 1)

    def test_a_shard_is_isolated(self):
        victim = self.draw.choice(SHARDS)
        self.begin(f'isolated-{victim}')
        self.hosts.unplug(victim)
        self.named(victim)
        self.assertEqual(list(self.hosts.got_through()), [victim])
        self.took_effect()
        self.heal()
        self.check()

    def test_the_coordinator_is_isolated(self):
        self.begin('isolated-coordinator')
        self.hosts.unplug('c')
        self.named(*SHARDS)
        self.goes_on()
        self.assertEqual(list(self.hosts.got_through()), ['c'])
        self.took_effect()
        self.hosts.heal()
        # No process has lost anything, so nothing is computed again.
        self.assertEqual(self.check()['lineage'], 1)

    def test_a_tenth_of_all_packets_is_lost(self):
        self.undisturbed(FEW)
        self.hosts.lose(10)
        self.begin('lossy', FEW, at=0)  # from its start to its end
        self.check()
        counts = self.hosts.dropped()
        arrived, lost = (sum(count for key, count in counts.items() if key.startswith(what)) for what in ('arrived', 'lost'))
        print(f'{lost} of {arrived} packets were lost', flush=True)
        self.assertGreater(arrived, 2000, counts)
        self.assertAlmostEqual(lost / arrived, 0.1, delta=0.03)  # 4.5 standard deviations of 2000 packets

    def test_hosts_send_eight_megabits_a_second(self):
        self.undisturbed(FEW)
        self.hosts.throttle('8mbit')
        self.begin('slow', FEW, at=0)
        before, begun = self.hosts.sent(), time.monotonic()
        self.check()
        after, seconds = self.hosts.sent(), time.monotonic() - begun
        rates = {name: (after[name][0] - before[name][0]) / seconds for name in after}
        print('bytes a second: ' + ', '.join(f'{name} {rate:.0f}' for name, rate in rates.items()), flush=True)
        for name, rate in rates.items():
            self.assertLess(rate, 1.05e6, (name, rates))
        # The shards, which send weights to all workers, are delayed by it all the time.
        for name in SHARDS:
            self.assertGreater(after[name][1] - before[name][1], 0, (before, after))
        self.assertGreater(max(rates.values()), 0.25e6, rates)

    def test_wires_come_and_go(self):
        self.undisturbed(STEPS)
        self.start_shard(SPARE)
        dropped, cuts = 0, 0
        for _ in range(-(-FAULTS // 3)):
            self.begin('flaps')
            for _ in range(6):
                one, other = self.draw.sample(self.hosts.names, 2)
                kind = self.draw.choice(['unplugged', 'cut', 'parted'])
                if kind == 'unplugged':
                    self.hosts.unplug(one)
                elif kind == 'cut':
                    self.hosts.cut(one, other)
                else:
                    self.hosts.part(one, [other])
                seconds = self.draw.uniform(0.05, LONGEST)
                print(f'seed {SEED}: {kind} {one}{"" if kind == "unplugged" else " " + other} for {seconds:.1f} s', flush=True)
                time.sleep(seconds)  # the fault itself
                cuts += kind != 'unplugged'
                dropped += sum(self.hosts.dropped().values())
                self.assertEqual(set(self.hosts.got_through().values()) - {0}, set(), self.hosts.got_through())
                self.hosts.heal()
                time.sleep(self.draw.uniform(0, 0.5))  # the time until the next fault
            self.check()
        print(f'{dropped} packets were dropped in {cuts} cuts', flush=True)
        if FAULTS > 3:  # a few short cuts may all miss the wires in use
            self.assertGreater(dropped, 0)


if __name__ == '__main__':
    support.main()
