"""Makes every alert of deploy/prometheus fire. dashboards_test.py covers the alerts about lost and stopped processes with the
rules as shipped. This covers the others, with the same rules but shorter times."""

import json
import os
import re
import shutil
import signal
import socket
import threading
import unittest
import unittest.mock

import dashboards_test
from prometheus import Prometheus
from secure_cluster import Credentials
import services
import support

# The times for which the rules wait and look back, in seconds. Scrapes are a second apart.
HOLD, LOOK_BACK, OLD = 1, 6, 5


def quick_rules(folder):
    """Copies of recording.yml and alerts.yml with these times. Everything else is as shipped."""
    for name in ('recording.yml', 'alerts.yml'):
        with open(os.path.join(dashboards_test.RULES, name), encoding='utf-8') as f:
            text = f.read()
        text = re.sub(r'(?m)^( +for: )\d+m$', rf'\g<1>{HOLD}s', text)
        text = re.sub(r'\[\d+m\]', f'[{LOOK_BACK}s]', text)
        text, ages = re.subn(r'> 3600\b', f'> {OLD}', text)
        assert ages == (2 if name == 'alerts.yml' else 0), ages
        assert not re.search(r'(?m)^ +for: .*m$|\[\d+m', text), text
        with open(os.path.join(folder, name), 'w', encoding='utf-8') as f:
            f.write(text)


def quick(folder, coordinator, authority):
    """prometheus.yml with the rules of quick_rules()."""
    return dashboards_test.shipped(coordinator, authority).replace(dashboards_test.RULES, folder)


class MadeTest(support.TestCase):

    def test_every_alert_is_made_somewhere(self):
        made = set()
        for path in (__file__, dashboards_test.__file__):
            with open(path, encoding='utf-8') as f:
                made |= set(re.findall(r"fires\('(Capstan\w+)'", f.read()))
        self.assertEqual(made, set(dashboards_test.shipped_alerts()))


class Alerts:
    """Shared by the tests below: `prometheus` is started by each test, and these methods ask what fires there."""

    prometheus = None

    def firing(self, name, **labels):
        """Whether the alert fires with these labels."""
        alerts = (self.prometheus.api('alerts') or {'alerts': []})['alerts']
        return any(alert['state'] == 'firing' and dict(alert['labels'], alertname=name, **labels) == alert['labels'] for alert in alerts)

    def fires(self, name, **labels):
        self.wait_until(lambda: self.firing(name, **labels), 60, f'the alert {name} {labels}')

    def is_quiet(self, *names):
        for name in names:
            self.assertFalse(self.firing(name), name)

    def resolves(self, *names):
        for name in names:
            self.wait_until(lambda n=name: not self.firing(n), 60, f'the end of {name}')


class InTurns:
    """Stops a process and continues it in turns while the block lasts, like a task on a host that is busy with something else."""

    def __init__(self, pid):
        self.pid, self.over = pid, threading.Event()
        self.thread = threading.Thread(target=self.turn)

    def turn(self):
        while not self.over.is_set():
            os.kill(self.pid, signal.SIGSTOP)
            self.over.wait(0.3)
            os.kill(self.pid, signal.SIGCONT)
            self.over.wait(0.1)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


@unittest.skipUnless(shutil.which('prometheus'), 'NOT TESTED: needs prometheus; Debian has it in the package prometheus')
class ClusterTest(Alerts, services.ServicesTest):

    def setUp(self):
        super().setUp()
        env = {**dashboards_test.FAKE, 'CAPSTAN_FAKE_NVML': self.write('cards', dashboards_test.CARDS)}
        patch = unittest.mock.patch.dict(os.environ, env)
        patch.start()
        self.addCleanup(patch.stop)

    def watch(self):
        self.ok('certs', 'init', self.path('ca'))  # named in prometheus.yml, though nothing here has a certificate of it
        quick_rules(self.folder)
        self.prometheus = Prometheus(self, quick(self.folder, f'http://{self.services["coordinator"].http}', self.path('ca', 'ca.crt')))

    @staticmethod
    def job(name, every, workers=1):
        return support.job_spec(name=name, resources={'num_workers': workers, 'num_shards': 1, 'lanes': 4, 'device': 'cpu'},
                                training={'epochs': 100000, 'global_batch_size': 64, 'seed': 3,
                                          'optimizer': {'name': 'sgd', 'learning_rate': 0.01}},
                                checkpoint={'every': every, 'keep_latest': 1}, recovery={'backoff': {'initial': '5s'}})

    def test_faults_of_jobs_and_of_the_coordinator(self):
        self.start(workers=2, shards=1)
        self.start_node('w2', 'capstan_gpu_worker', '--devices', 'cuda:0', '--cpu-threads', '1')
        self.watch()
        job_id = self.submit(self.job('faulty', every='never', workers=2))
        self.wait_for_step(job_id, 20)
        self.fires('CapstanCheckpointMissing', job_id=job_id)
        self.is_quiet('CapstanGpuMemoryNearFull', 'CapstanCheckpointTooOld', 'CapstanPsErrors', 'CapstanNonFiniteLoss')
        # The card is full, and the second worker's host is busy with something else.
        self.write('cards', dashboards_test.CARDS.replace('used=1073741824', 'used=150000000000'))
        slow = next(worker for worker in self.describe(job_id)['workers'] if worker['node'] == 'w1')
        task, = self.tasks(of='w1')
        with InTurns(task):
            self.fires('CapstanStraggler', job_id=job_id, rank=str(slow.get('index', 0)))
        self.fires('CapstanGpuMemoryNearFull', gpu='0')
        self.write('cards', dashboards_test.CARDS)
        # The job gets a checkpoint, which becomes old, and then the next one.
        self.ok('update', job_id, '--checkpoint')
        self.resolves('CapstanCheckpointMissing')
        self.fires('CapstanCheckpointTooOld', job_id=job_id)
        self.ok('update', job_id, '--checkpoint')
        self.resolves('CapstanCheckpointTooOld', 'CapstanStraggler', 'CapstanGpuMemoryNearFull')
        # Its shard is restarted: tasks open their streams again and again until the job continues.
        self.stop('s0', signal.SIGKILL)
        self.start_node('s0', 'capstan_param_store')
        self.fires('CapstanPsErrors', job_id=job_id)
        # It computes the steps since its checkpoint again, which are many on a fast machine.
        self.wait_until(lambda: self.describe(job_id)['state'] == 'RUNNING', 60, 'the job goes on')
        self.wait_for_step(job_id, self.describe(job_id)['progress']['step'] + 20, seconds=180)
        self.resolves('CapstanPsErrors')
        self.ok('update', job_id, '--learning-rate', '1e30')
        self.fires('CapstanNonFiniteLoss', job_id=job_id)
        self.stop('coordinator', signal.SIGKILL)
        self.fires('CapstanCoordinatorDown')
        self.start_plain_coordinator()  # so that the services can say goodbye to it

    def test_a_disk_that_fills_up(self):
        disk = self.small_disk('state', '12m')
        self.start(workers=1, shards=1)
        self.watch()
        job_id = self.submit(self.job('full', every='1s'))
        self.wait_for_step(job_id, 20)
        self.wait_until(lambda: json.loads(self.ok('checkpoint', 'list', job_id, '-o', 'json').out), 60, 'a checkpoint')
        names = ('CapstanDiskNearFull', 'CapstanCheckpointFails', 'CapstanStateDiskFull')
        self.is_quiet(*names)
        free = os.statvfs(disk)
        with open(os.path.join(disk, 'other'), 'wb') as f:  # leaves less than a tenth; with one more checkpoint, less than a 20th
            f.write(b'\0' * (free.f_bavail * free.f_frsize - (800 << 10)))
        self.fires('CapstanDiskNearFull', folder=disk, use='state')

        def failing():
            # If a checkpoint was removed meanwhile, its room is filled again.
            room = os.statvfs(disk)
            more = room.f_bavail * room.f_frsize - (800 << 10)
            if more > 0:
                with open(os.path.join(disk, 'other'), 'ab') as f:
                    f.write(b'\0' * more)
            return self.firing('CapstanCheckpointFails')

        self.wait_until(failing, 60, 'the alert CapstanCheckpointFails')
        self.fires('CapstanCheckpointFails', job_id=job_id)
        self.is_quiet('CapstanStateDiskFull')
        more = self.write('more.yaml', json.dumps(support.job_spec(name='more')))

        def refused():
            self.fill(disk)  # fills the room that was given up
            self.capstan('submit', more, timeout=30)
            return self.firing('CapstanStateDiskFull')

        self.fill(disk)
        self.wait_until(refused, 60, 'the alert CapstanStateDiskFull')
        self.fires('CapstanStateDiskFull')
        for name in ('filler', 'other'):
            os.unlink(os.path.join(disk, name))
        self.resolves(*names)


@unittest.skipUnless(shutil.which('prometheus'), 'NOT TESTED: needs prometheus; Debian has it in the package prometheus')
class PapersTest(Alerts, support.TestCase):

    def serve(self, program, keys, role, *args):
        service = services.Service(program, ['--listen', f'unix:{self.path(role)}.sock', '--http', '0.0.0.0:0', *keys.credentials(role), *args],
                                   self.folder, self.path(f'{role}.log'))
        self.addCleanup(service.stop)
        return service

    def test_a_certificate_that_ends_and_a_service_that_knows_no_reader(self):
        host = socket.gethostname()
        try:
            socket.getaddrinfo(host, None)
        except socket.gaierror as error:
            self.skipTest(f'NOT TESTED: the name of this host does not resolve: {error}')
        keys = Credentials(self.folder, hosts=('127.0.0.1', host))
        keys.issue('worker', '--days', '1', '--force')
        keys.certs('init', self.path('other'))  # an empty table of tokens
        table = self.path('other', 'tokens.json')
        coordinator = self.serve('capstan_coordinator', keys, 'coordinator', '--state-dir', self.path('state'), '--tokens',
                                 keys.path('ca', 'tokens.json'))
        node = ['--coordinator', f'unix:{self.path("coordinator.sock")}', '--node']
        self.serve('capstan_gpu_worker', keys, 'worker', *node, 'w0', '--devices', 'cpu', '--tokens', keys.path('ca', 'tokens.json'))
        self.serve('capstan_param_store', keys, 'param_store', *node, 's0', '--tokens', table)
        quick_rules(self.folder)
        config = quick(self.folder, f'https://{host}:{coordinator.http.rpartition(":")[2]}', keys.path('coordinator', 'ca.crt'))
        config = config.replace('# authorization:', 'authorization:').replace('/etc/prometheus/capstan.token', keys.path('client', 'client.token'))
        self.prometheus = Prometheus(self, config)
        self.fires('CapstanCertificateEnds', node='w0', certificate='own')
        self.fires('CapstanCertificateExpires', node='w0', certificate='own')
        for name in ('CapstanCertificateEnds', 'CapstanCertificateExpires'):
            self.fires(name, role='worker')
            for others in ({'node': 'coordinator'}, {'node': 'w0', 'certificate': 'authority'}, {'role': 'param_store'}):
                self.assertFalse(self.firing(name, **others), others)
        self.fires('CapstanTargetDown', node='s0')
        # The next certificates, and the table that has the reader.
        keys.issue('worker', '--force')
        shutil.copy(keys.path('ca', 'tokens.json'), table + '.new')
        os.rename(table + '.new', table)
        self.resolves('CapstanCertificateEnds', 'CapstanCertificateExpires', 'CapstanTargetDown')


if __name__ == '__main__':
    support.main()
