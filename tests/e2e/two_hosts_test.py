"""deploy/compose/two-hosts on two Docker engines, each in a network namespace (docs/deploy.md, section 3)."""

import hashlib
import json
import os
import shutil
import tempfile
import time
import unittest

import debian_root
import engine
import net_hosts
import support

SPEC = support.job_spec(resources={'num_workers': 2, 'num_shards': 1},
                        data={'format': 'synthetic_digits', 'train_samples': 6000, 'test_samples': 500},
                        training={'epochs': 300, 'global_batch_size': 64, 'seed': 3,
                                  'optimizer': {'name': 'sgd', 'learning_rate': 0.04, 'momentum': 0.9}})


class Engines(support.TestCase):
    """Coordinator, shard-0 and worker-0 on host-a, worker-1 on host-b, and an operator on a third host."""

    shared = True  # both hosts mount one folder of checkpoints; else each has its own
    refused = ''

    def setUp(self):
        super().setUp()
        reason = engine.why_not() or net_hosts.why_not()
        if reason:
            self.skipTest(reason)
        self.hosts = net_hosts.Hosts(['host-a', 'host-b', 'operator'])
        self.addCleanup(self.hosts.close)
        self.engines = {}
        for name in ('host-a', 'host-b'):
            self.engines[name] = engine.Engine(self.hosts.on(name)[-1])
            self.addCleanup(self.engines[name].close)
        self.engines['host-a'].make_images(debian_root.make_package(self.path('package')), self.folder)
        self.engines['host-a'].docker('save', '-o', self.path('image.tar'), 'localhost/capstan')
        self.engines['host-b'].docker('load', '-i', self.path('image.tar'))
        os.remove(self.path('image.tar'))

        # The tree of the first host, its operator's copy for the second, and the folder that both mount.
        self.trees = {'host-a': self.path('deploy/compose'), 'host-b': self.path('host-b')}
        shutil.copytree(os.path.join(support.ROOT, 'deploy'), self.path('deploy'))
        self.secrets = self.path('deploy/compose/secrets')
        debian_root.run(self.path('deploy/compose/make-secrets'), self.hosts.address('host-a'), self.hosts.address('host-b'),
                        env=dict(os.environ, CAPSTAN=support.CAPSTAN))
        archive = self.path('host-b.tar')
        debian_root.run('tar', '-C', self.trees['host-a'], '-cf', archive, 'two-hosts', 'secrets/worker-1')
        os.mkdir(self.trees['host-b'])
        debian_root.run('tar', '-C', self.trees['host-b'], '-xpf', archive, '--numeric-owner')
        os.remove(archive)
        for path in {self.checkpoints('host-a'), self.checkpoints('host-b'), self.path('data')}:
            os.mkdir(path)
            os.chown(path, 10001, 0)
        os.chmod(self.folder, 0o755)
        for name in ('host-a', 'host-b'):
            self.addCleanup(self.compose, name, 'down', '-v', '-t', '20')
            self.compose(name, 'up', '-d')

    def checkpoints(self, host):
        return self.path('checkpoints' if self.shared else f'checkpoints-{host}')

    def compose(self, host, *args):
        env = dict(self.engines[host].environment, CAPSTAN_IMAGE='localhost/capstan', HOST_A=self.hosts.address('host-a'),
                   CAPSTAN_CHECKPOINTS=self.checkpoints(host), CAPSTAN_DATA=self.path('data'))
        return debian_root.run('docker-compose', '-p', 'capstan', '-f', os.path.join(self.trees[host], 'two-hosts', f'{host}.yaml'),
                               *args, env=env)

    def operator(self, *args):
        return engine.operator(self.hosts.on('operator'), f'{self.hosts.address("host-a")}:7070', os.path.join(self.secrets, 'client'),
                               *args)

    def wait_until(self, condition, seconds, what):
        def reached():
            try:
                return condition()
            except AssertionError as error:  # there is no answer yet
                self.refused = str(error)
                return None

        return super().wait_until(reached, seconds, what)

    def what_was_said(self):
        return self.refused + ''.join(self.compose(host, 'logs', '--no-color')[-4000:] for host in ('host-a', 'host-b'))

    def states(self):
        return {node['name']: node['state'] for node in json.loads(self.operator('-o', 'json', 'node', 'list'))}

    def told(self, job):
        return json.loads(self.operator('-o', 'json', 'describe', job))

    def running(self):
        """A job that has done 50 steps."""
        self.wait_until(lambda: self.states() == dict.fromkeys(('shard-0', 'worker-0', 'worker-1'), 'READY'), 120, 'all nodes ready')
        job = self.operator('submit', self.write('job.yaml', json.dumps(SPEC))).strip()
        self.wait_until(lambda: self.told(job)['progress']['step'] >= 50, 120, 'step 50')
        return job

    def ended(self, job):
        """The job must end with the bits that one machine gives."""
        ended = json.loads(self.operator('-o', 'json', 'wait', job).splitlines()[-1])
        self.assertEqual(ended['state'], 'SUCCEEDED', ended)
        self.assertEqual(ended['weights_sha256'], self.train(SPEC)['weights_sha256'])
        return ended


class TwoHostsTest(Engines):

    def test_a_link_that_is_cut_for_ten_seconds_changes_no_bit(self):
        job = self.running()
        begun = time.monotonic()
        self.hosts.part('host-a', ['host-b'])
        self.wait_until(lambda: self.states()['worker-1'] == 'LOST', 120, 'the second host is missed')
        time.sleep(max(0.0, begun + 10 - time.monotonic()))  # the fault itself: a link is down for 10 s
        self.assertEqual(self.told(job)['state'], 'RUNNING')
        self.hosts.heal()
        self.ended(job)
        self.assertIn('WorkerLost', self.operator('events', job))
        self.wait_until(lambda: self.states()['worker-1'] == 'READY', 120, 'the second host is back')


class OwnFoldersTest(Engines):

    shared = False

    def test_weights_that_the_second_host_writes_come_to_the_first(self):
        job = self.running()
        self.compose('host-a', 'kill', 'worker-0')  # the owner of lane 0, which would have written them
        ended = self.ended(job)
        ways = {member['node']: member['files_way'] for member in ended['workers'] + ended['shards'] if member['node'] != 'worker-0'}
        self.assertEqual(ways, {'worker-1': 'grpc', 'shard-0': 'shared'}, ended)
        folder = os.path.join(self.checkpoints('host-a'), job, os.path.basename(ended['checkpoint_uri']))
        with open(os.path.join(folder, 'manifest.json')) as f:
            files = json.load(f)['files']
        self.assertIn('weights.safetensors', [file['name'] for file in files])
        for file in files:
            with open(os.path.join(folder, file['name']), 'rb') as f:
                self.assertEqual(hashlib.sha256(f.read()).hexdigest(), file['sha256'], file)
        left = [name for _, _, names in os.walk(self.checkpoints('host-b')) for name in names]
        self.assertEqual(left, [])


if __name__ == '__main__':
    support.main()
