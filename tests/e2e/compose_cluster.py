"""The cluster of deploy/compose on a Docker engine of the test's own, with the images of this build."""

import json
import os
import shutil
import tempfile
import time
import unittest

import debian_root
import engine
import support

ROLES = ('coordinator', 'shard-0', 'shard-1', 'worker-0', 'worker-1')
OVERRIDE = os.path.join(support.ROOT, 'tests/e2e/containers/compose.yaml')


class ComposeTest(support.TestCase):
    """One engine and one cluster for all tests of a class, so a test sees what earlier tests have changed."""

    project = 'capstan'

    @classmethod
    def setUpClass(cls):
        reason = engine.why_not()
        if reason:
            raise unittest.SkipTest(reason)
        folder = tempfile.TemporaryDirectory(prefix='capstan-compose-')
        cls.addClassCleanup(folder.cleanup)
        cls.shared = folder.name
        namespace = f'capstan-{os.getpid()}-engine'
        debian_root.run('ip', 'netns', 'add', namespace)
        cls.addClassCleanup(debian_root.run, 'ip', 'netns', 'del', namespace)
        debian_root.run('ip', '-n', namespace, 'link', 'set', 'lo', 'up')
        cls.engine = engine.Engine(namespace)
        cls.addClassCleanup(cls.engine.close)
        cls.engine.make_images(debian_root.make_package(os.path.join(cls.shared, 'package')), cls.shared)

        # As in an operator's checkout, secrets/ and data/ are beside compose.yaml.
        shutil.copytree(os.path.join(support.ROOT, 'deploy'), os.path.join(cls.shared, 'deploy'))
        cls.there = os.path.join(cls.shared, 'deploy', 'compose')
        debian_root.run(os.path.join(cls.there, 'make-secrets'), env=dict(os.environ, CAPSTAN=support.CAPSTAN))
        begun = time.monotonic()
        cls.addClassCleanup(cls.compose, 'down', '-v', '-t', '20')
        try:
            cls.compose('up', '-d', '--no-build')
        except AssertionError as error:
            raise AssertionError(f'{error}\n{cls.compose("logs", "--no-color")[-8000:]}') from None
        deadline = begun + 120
        while True:
            states = {role: cls.inspect(role, '{{.State.Health.Status}}') for role in ROLES}
            if set(states.values()) == {'healthy'}:
                break
            if time.monotonic() > deadline:
                raise AssertionError(f'{states}\n{cls.compose("logs", "--no-color")[-8000:]}')
            time.sleep(0.2)
        cls.seconds_to_healthy = time.monotonic() - begun

    @classmethod
    def files(cls):
        """The Compose files of the cluster, compose.yaml first."""
        return [os.path.join(cls.there, 'compose.yaml'), OVERRIDE]

    @classmethod
    def environment(cls):
        return dict(cls.engine.environment, CAPSTAN_IMAGE='localhost/capstan', PROMETHEUS_IMAGE='localhost/prometheus',
                    ALERTMANAGER_IMAGE='localhost/alertmanager')

    @classmethod
    def compose(cls, *args):
        files = [word for path in cls.files() for word in ('-f', path)]
        return debian_root.run('docker-compose', '-p', cls.project, *files, *args, env=cls.environment())

    @classmethod
    def name(cls, role):
        return f'{cls.project}_{role}_1'

    @classmethod
    def inspect(cls, role, form):
        return cls.engine.docker('inspect', '-f', form, cls.name(role)).strip()

    def operator(self, *args):
        """Runs `capstan` outside of the containers, through the port that Compose publishes."""
        return engine.operator(self.engine.on, 'localhost:7070', os.path.join(self.there, 'secrets/client'), *args)

    def what_was_said(self):
        return self.operator('node', 'list') + self.operator('events')

    def described(self, job):
        return json.loads(self.operator('-o', 'json', 'describe', job))

    def node_is(self, name, state):
        nodes = json.loads(self.operator('-o', 'json', 'node', 'list'))
        return [node['state'] for node in nodes if node['name'] == name] == [state]

    def query(self, expression):
        """Prometheus's answer, a line `{labels} => value @[time]` for each series."""
        return self.engine.docker('exec', self.name('prometheus'), 'promtool', 'query', 'instant', 'http://localhost:9090', expression)
