"""`capstan doctor` finds what stops a cluster from training before anything trains, by name and within five seconds.

Hosts are network namespaces with mutual TLS between them, and every fault is made for real.
"""

import glob
import json
import os
import signal
import subprocess
import sys
import unittest
import unittest.mock

import net_hosts
import secure_cluster
import services
import support

PERSON = 'p'  # a host without a service, from which a person looks
NODES = ['s0', 's1', 'w0', 'w1']
PORT = 7070
WITHIN = 5  # seconds
TEST = os.path.join(os.path.dirname(support.BIN), 'test')
FAKETIME = (glob.glob('/usr/lib/*/faketime/libfaketimeMT.so.1') or [''])[0]


def driver_is_here():
    return bool(subprocess.run(['ldconfig', '-p'], capture_output=True, text=True).stdout.count('libcuda.so.1'))


class DoctorTest(services.ServicesTest):

    @classmethod
    def setUpClass(cls):
        reason = net_hosts.why_not() or ('' if FAKETIME else 'faketime is not installed: tools/install-packages test')
        if reason:
            print(f'NO DOCTOR: {reason}', file=sys.stderr, flush=True)
            raise unittest.SkipTest(reason)

    def setUp(self):
        super().setUp()
        self.hosts = net_hosts.Hosts(['c', *NODES, PERSON])
        self.addCleanup(self.hosts.close)
        self.keys = secure_cluster.Credentials(self.path('keys'), [self.hosts.address(name) for name in self.hosts.names])
        self.keys.issue('admin', '--name', 'root')
        self.coordinator = f'{self.hosts.address("c")}:{PORT}'
        self.start_on('c', 'c', 'coordinator', 'capstan_coordinator', '--tokens', self.keys.path('ca', 'tokens.json'),
                      '--state-dir', self.path('state'), '--data-root', 'file:///')
        for shard in ('s0', 's1'):
            self.start_on(shard, shard, 'param_store', 'capstan_param_store', '--tokens', self.keys.path('ca', 'tokens.json'),
                          '--coordinator', self.coordinator, '--node', shard)
        for worker in ('w0', 'w1'):
            self.start_worker_on(worker, worker, '--devices', 'cpu')
        self.wait_for_nodes(NODES)

    def start_on(self, host, name, role, program, *args, port=PORT, **env):
        with unittest.mock.patch.dict(os.environ, env):
            self.services[name] = services.Service(
                program, [*self.keys.credentials(role), '--listen', f'{self.hosts.address(host)}:{port}', '--http', 'off', *args],
                self.folder, self.path(f'{name}.log'), before=self.hosts.on(host))

    def start_worker_on(self, host, node, *args, program='capstan_gpu_worker', **env):
        self.start_on(host, node, 'worker', program, '--coordinator', self.coordinator, '--node', node, '--cpu-threads', '1', *args,
                      port=PORT + len(self.services), **env)

    def wait_for_nodes(self, names):
        self.wait_until(lambda: set(names) <= {n['name'] for n in json.loads(self.ok('node', 'list', '-o', 'json').out)
                                               if n['state'] == 'READY'}, 60, f'{names} to register')

    def capstan(self, *args, at='c', role='admin', address=None, **kwargs):
        return support.TestCase.capstan(self, '--address', address or self.coordinator, *self.keys.credentials(role), *args,
                                        before=self.hosts.on(at), **kwargs)

    def doctor(self, code, **kwargs):
        """Returns the output, and its problems by kind and subject. Slow pairs, which a busy machine has, are only notes."""
        run = self.capstan('doctor', '-o', 'json', **kwargs)
        self.assertEqual(run.code, code, run)
        said = json.loads(run.out)
        self.assertLess(said['seconds'], WITHIN, run)
        found = {(f['kind'], f['subject']): f['message'] for f in said['findings'] if f['severity'] == 'problem'}
        print(f'{said["seconds"]:.1f} s: {json.dumps(said["findings"], indent=1)}', flush=True)
        return said, found

    def only(self, found, kind, subject, words):
        self.assertEqual([key for key in found], [(kind, subject)])
        self.assertRegex(found[kind, subject], words)

    def test_a_cluster_that_is_well_and_one_that_is_out_of_reach(self):
        run = self.capstan('doctor')
        self.assertEqual(run.code, 0, run)
        print(run.out, flush=True)
        self.assertRegex(run.out, rf'(?m)^w1 +s0 +{self.hosts.address("s0")}:{PORT} +[0-9.e-]+ ms +[0-9.]+ [KMG]iB/s$')
        self.assertRegex(run.out, r'(?m)^(nothing found|note +SlowPair +.*)$')
        said, _ = self.doctor(0)
        self.assertEqual({(pair['from'], pair['to']) for pair in said['pairs']},
                         {(one, shard) for one in NODES for shard in ('s0', 's1') if one != shard})
        self.assertTrue(all(pair['reached'] and pair['bytes_per_second'] > 0 for pair in said['pairs']), said)
        self.assertTrue(all(node['answered'] and abs(node['clock_ahead_seconds']) < 1 for node in said['nodes']), said)
        self.assertEqual(self.capstan('doctor', role='client').code, 4)

        _, found = self.doctor(3, address=f'{self.hosts.address("c")}:7999')
        self.only(found, 'CoordinatorUnreachable', 'coordinator', r'no coordinator answers at 10\.77\.0\.1:7999: nothing listens there\. Does ')
        self.hosts.cut(PERSON, 'c')
        _, found = self.doctor(3, at=PERSON)
        self.only(found, 'CoordinatorUnreachable', 'coordinator', rf'no answer comes .* Open TCP port {PORT} on it')

    def test_a_port_that_is_blocked_and_a_pair_that_is_parted(self):
        self.hosts.block('s1', PORT)
        said, found = self.doctor(5)
        address = f'{self.hosts.address("s1")}:{PORT}'
        self.only(found, 'ShardUnreachable', 's1', rf'none of 3 nodes reaches s1 at {address}: .* Open TCP port {PORT}')
        self.assertEqual({pair['to'] for pair in said['pairs'] if not pair['reached']}, {'s1'})
        self.hosts.heal()

        self.hosts.cut('w1', 's0')
        _, found = self.doctor(5)
        self.only(found, 'PairUnreachable', 'w1 -> s0', rf'^w1 .* does not reach s0 at {self.hosts.address("s0")}:{PORT}, others do')
        print(self.capstan('doctor').out, flush=True)
        self.hosts.heal()
        self.doctor(0)

    def test_hosts_that_lack_something(self):
        small = self.path('small')
        os.mkdir(small)
        subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=4m', 'tmpfs', small], check=True)
        self.addCleanup(subprocess.run, ['umount', '--lazy', small], check=True)
        with open(os.path.join(small, 'all'), 'wb', buffering=0) as f:
            with self.assertRaises(OSError):
                while True:
                    f.write(bytes(1 << 16))
        self.start_worker_on('w0', 'full', '--devices', 'cpu', '--checkpoint-root', small)
        self.start_worker_on('w0', 'late', '--devices', 'cpu', LD_PRELOAD=FAKETIME, FAKETIME='+2h', FAKETIME_DONT_FAKE_MONOTONIC='1',
                             NO_FAKE_STAT='1')
        self.start_worker_on('w0', 'other', '--devices', 'cpu', program=os.path.join(TEST, 'capstan_other_gpu_worker'))
        expected = {('DiskFull', 'full'): rf'{small} \(checkpoints\) of full .* has 0 B free of 4\.0 MiB. Free space',
                    ('Clock', 'late'): 'clock of late .* is (2h00m|1h59m) ahead of the coordinator.* time service',
                    ('Version', 'other'): r'^other .* runs version \d+\.[1-9]\d*\.0, the coordinator .* Install one version'}
        extra = ['full', 'late', 'other']
        if driver_is_here():
            print('NO MISSING DRIVER: this machine has one', file=sys.stderr, flush=True)
        else:
            self.start_worker_on('w0', 'gpu', CAPSTAN_CUDA_PLUGIN=os.path.join(TEST, 'libcapstan_fake_plugin.so'))
            expected['Device', 'gpu'] = r'^gpu .* cannot use cuda:0: .*no NVIDIA driver on this machine \(libcuda.* Install .* --devices cpu'
            extra.append('gpu')
        self.wait_for_nodes(extra)
        _, found = self.doctor(5)
        self.assertEqual(set(found), set(expected))
        for key, words in expected.items():
            self.assertRegex(found[key], words)

        for name in extra:
            self.stop(name)
        self.services['w1'].process.send_signal(signal.SIGSTOP)
        try:
            _, found = self.doctor(5)
        finally:
            self.services['w1'].process.send_signal(signal.SIGCONT)
        self.assertEqual(len(found), 1, found)
        self.assertIn(next(iter(found)), {('NodeSilent', 'w1'), ('NodeLost', 'w1')})


if __name__ == '__main__':
    support.main()
