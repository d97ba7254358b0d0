"""Programs of two builds: this version and the next one work together, others are refused by name, and no service starts a task of another build."""

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


class VersionSkewTest(services.ServicesTest):

    def this_version(self):
        return json.loads(support.TestCase.capstan(self, 'version', '-o', 'json').out)['version']

    def next_version(self):
        major, minor, _ = self.this_version().split('.')
        return f'{major}.{int(minor) + 1}.0'

    def start_cluster(self, coordinator, nodes):
        self.start_one('coordinator', os.path.join(coordinator, self.program(coordinator, 'coordinator')), '--state-dir', self.path('state'),
                       '--data-root', 'file:///', '--checkpoint-root', 'file:///', '--heartbeat', '200ms', '--lease', '3s')
        self.start_node('s0', os.path.join(nodes, self.program(nodes, 'param_store')))
        self.start_node('w0', os.path.join(nodes, self.program(nodes, 'gpu_worker')), '--devices', 'cpu', '--cpu-threads', '1')

    def program(self, folder, role):
        return f'capstan_other_{role}' if folder == OTHER else f'capstan_{role}'

    def train_once(self):
        job = json.loads(self.ok('wait', self.submit(JOB), '-o', 'json', timeout=120).out.splitlines()[-1])
        self.assertEqual(job['state'], 'SUCCEEDED', job)
        return job['weights_sha256']

    def versions(self):
        return {node['name']: node['version'] for node in json.loads(self.ok('node', 'list', '-o', 'json').out)}

    def test_nodes_of_the_next_version_serve_this_coordinator(self):
        self.start_cluster(support.BIN, OTHER)
        self.train_once()
        self.assertEqual(self.versions(), {'s0': self.next_version(), 'w0': self.next_version()})

    def test_nodes_of_this_version_serve_the_next_coordinator(self):
        self.start_cluster(OTHER, support.BIN)
        self.train_once()
        self.assertEqual(self.versions(), {'s0': self.this_version(), 'w0': self.this_version()})

    def test_a_version_outside_of_the_promise_is_refused_with_both(self):
        self.start_plain_coordinator()
        self.start_node('w9', os.path.join(OTHER, 'capstan_other_gpu_worker'), '--devices', 'cpu', env={'CAPSTAN_TEST_VERSION': '99.0.0'})
        sentence = rf'node w9 is of version 99\.0\.0, this coordinator of {re.escape(self.this_version())}: versions work together'
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
        os.rename(installed + '.new', installed)  # as a package does it
        self.assertEqual(self.train_once(), before)
        self.assertNotIn('this binary is of version', self.services['w0'].said())

        # What a service of before this check would do: start whatever lies there.
        for args in ([], ['--service-version', f'{self.this_version()}+somebody']):
            task = subprocess.run([installed, 'task', '--devices', 'cpu', *args], capture_output=True, text=True, timeout=30)
            self.assertEqual(task.returncode, 2, task)
            self.assertIn(f'this binary is of version {self.next_version()}+of-a-test, the service that starts it of', task.stderr)


if __name__ == '__main__':
    support.main()
