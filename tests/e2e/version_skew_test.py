"""Programs of two builds. This version and the next one work together, other versions are refused by name, and no service starts
a task of another build.

The other build is this source with the next version's number (other_version.cc), so it shows how services judge a number.
protos/proto_compat_test.cc checks whether an older source has the same wire format.
"""

import json
import os
import re
import shutil
import subprocess

import services
import support

OTHER = os.path.join(os.path.dirname(support.BIN), 'test')
JOB = support.job_spec(name='skewed', resources={'num_workers': 1, 'num_shards': 1},
                       training={'epochs': 1, 'global_batch_size': 64, 'seed': 3,
                                 'optimizer': {'name': 'sgd', 'learning_rate': 0.02}})
EPOCHS = 96
STEPS = 32 * EPOCHS  # 2000 samples, 64 per step
# No checkpoints except those of leaving shards, and no restarts.
LONG = support.job_spec(name='rolled', resources={'num_workers': 2, 'num_shards': 2, 'lanes': 8},
                        training={'epochs': EPOCHS, 'global_batch_size': 64, 'seed': 3,
                                  'optimizer': {'name': 'sgd', 'learning_rate': 0.01, 'momentum': 0.9}},
                        checkpoint={'every': '1000000 steps'}, recovery={'max_restarts': 0})


class VersionSkewTest(services.ServicesTest):
    references = {}

    def this_version(self):
        return json.loads(support.TestCase.capstan(self, 'version', '-o', 'json').out)['version']

    def next_version(self):
        major, minor, _ = self.this_version().split('.')
        return f'{major}.{int(minor) + 1}.0'

    def start_cluster(self, coordinator, nodes):
        self.start_coordinator_of(coordinator)
        self.start_node_of(nodes, 's0')
        self.start_node_of(nodes, 'w0')

    def start_coordinator_of(self, folder):
        self.start_one('coordinator', self.program(folder, 'coordinator'), '--state-dir', self.path('state'),
                       '--data-root', 'file:///', '--checkpoint-root', 'file:///', '--heartbeat', '200ms', '--lease', '3s')

    def start_node_of(self, folder, name):
        if name.startswith('s'):
            self.start_node(name, self.program(folder, 'param_store'))
        else:
            self.start_node(name, self.program(folder, 'gpu_worker'), '--devices', 'cpu', '--cpu-threads', '1')

    @staticmethod
    def program(folder, role):
        return os.path.join(folder, f'capstan_other_{role}' if folder == OTHER else f'capstan_{role}')

    def undisturbed(self, spec):
        """The weights of `capstan run` with programs of this version only."""
        name = spec['name']
        if name not in self.references:
            run = support.TestCase.capstan(self, 'run', '-o', 'json', self.write(f'{name}.yaml', json.dumps(spec)))
            self.assertEqual(run.code, 0, run)
            self.references[name] = json.loads(run.out.splitlines()[-1])['weights_sha256']
        return self.references[name]

    def train_once(self):
        job = json.loads(self.ok('wait', self.submit(JOB), '-o', 'json', timeout=120).out.splitlines()[-1])
        self.assertEqual(job['state'], 'SUCCEEDED', job)
        return job['weights_sha256']

    def versions(self):
        return {node['name']: node['version'] for node in json.loads(self.ok('node', 'list', '-o', 'json').out)}

    def test_nodes_of_the_next_version_serve_this_coordinator(self):
        self.start_cluster(support.BIN, OTHER)
        self.assertEqual(self.train_once(), self.undisturbed(JOB))
        self.assertEqual(self.versions(), {'s0': self.next_version(), 'w0': self.next_version()})

    def test_nodes_of_this_version_serve_the_next_coordinator(self):
        self.start_cluster(OTHER, support.BIN)
        self.assertEqual(self.train_once(), self.undisturbed(JOB))
        self.assertEqual(self.versions(), {'s0': self.this_version(), 'w0': self.this_version()})

    def test_each_node_of_a_job_that_trains_is_brought_to_the_next_version(self):
        self.start(workers=2, shards=2)
        job_id = self.submit(LONG)
        self.wait_for_step(job_id, 100)
        nodes = ('s0', 'w0', 's1', 'w1')  # host by host, each with its shard first
        for name in nodes:
            if name != 's0':  # the first one has saved its version; no node of a version other than w1's may join it
                job = self.describe(job_id)
                self.assertEqual((job['state'], job['reason'], job['lineage']), ('RECOVERING', 'ShardLeft', 1), job)
            self.assertEqual(self.stop(name), 0, name)
            self.start_node_of(OTHER, name)
        step = self.wait_for_step(job_id, self.describe(job_id)['progress']['step'] + 50)['progress']['step']
        self.assertEqual(self.versions(), dict.fromkeys(nodes, self.next_version()))
        # The coordinator is last, while they train.
        self.assertEqual(self.stop('coordinator'), 0)
        self.start_coordinator_of(OTHER)
        self.wait_for_step(job_id, step + 50)
        self.capstan('wait', job_id)
        job = self.describe(job_id)
        self.assertEqual((job['state'], job['restarts'], job['lineage']), ('SUCCEEDED', 0, 2), job)
        self.assertEqual(job['weights_sha256'], self.undisturbed(LONG))
        with open(self.path('state', 'checkpoints', job_id, 'metrics.jsonl')) as f:
            self.assertEqual([json.loads(line)['step'] for line in f], list(range(STEPS)))  # no step was made twice

    def test_a_version_outside_of_the_promise_is_refused_with_both(self):
        self.start_plain_coordinator()
        self.start_node('w9', os.path.join(OTHER, 'capstan_other_gpu_worker'), '--devices', 'cpu', env={'CAPSTAN_TEST_VERSION': '99.0.0'})
        sentence = rf'node w9 has version 99\.0\.0, this coordinator {re.escape(self.this_version())}: versions work together'
        for name in ('w9', 'coordinator'):
            self.wait_until(lambda n=name: re.search(sentence, self.services[n].said()), 30, f'the refusal in the log of {name}')
        self.assertEqual(self.versions(), {})

    def test_an_upgrade_of_the_files_changes_no_service_that_runs(self):
        installed = self.path('capstan_gpu_worker')
        shutil.copy(os.path.join(support.BIN, 'capstan_gpu_worker'), installed)
        self.start_plain_coordinator()
        self.start_node('s0', 'capstan_param_store')
        self.start_node('w0', installed, '--devices', 'cpu', '--cpu-threads', '1')
        before = self.train_once()
        shutil.copy(os.path.join(OTHER, 'capstan_other_gpu_worker'), installed + '.new')
        os.rename(installed + '.new', installed)  # as package managers do
        self.assertEqual(self.train_once(), before)
        self.assertNotIn('this binary is of version', self.services['w0'].said())

        # A service without this check would start whatever program is there.
        for args in ([], ['--service-version', f'{self.this_version()}+somebody']):
            task = subprocess.run([installed, 'task', '--devices', 'cpu', *args], capture_output=True, text=True, timeout=30)
            self.assertEqual(task.returncode, 2, task)
            self.assertIn(f'this binary is of version {self.next_version()}+of-a-test, the service that starts it of', task.stderr)


if __name__ == '__main__':
    support.main()
