"""Checks the files of deploy/grafana and deploy/prometheus, then runs every query against a cluster that trains."""

import contextlib
import copy
import functools
import json
import math
import os
import re
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
import time
import unittest
import unittest.mock
import urllib.error
import urllib.request

from prometheus import Prometheus, get
from secure_cluster import Credentials
import services
import support

DEPLOY = os.path.join(support.ROOT, 'deploy')
DASHBOARDS = os.path.join(DEPLOY, 'grafana', 'dashboards')
RULES = os.path.join(DEPLOY, 'prometheus')
SDK = 'grafana-foundation-sdk==1769699379!11.6.0'


def dashboards():
    """Name -> dashboard."""
    found = {}
    for name in sorted(os.listdir(DASHBOARDS)):
        with open(os.path.join(DASHBOARDS, name), encoding='utf-8') as f:
            found[name] = json.load(f)
    return found


def shipped(coordinator, authority):
    """prometheus.yml as shipped, except for its intervals and the addresses."""
    with open(os.path.join(RULES, 'prometheus.yml'), encoding='utf-8') as f:
        config = f.read()
    for old, new in (('15s', '1s'), ('http://127.0.0.1:7071', coordinator), ('/etc/prometheus/capstan-ca.crt', authority),
                     ('[recording.yml, alerts.yml]', f'[{RULES}/recording.yml, {RULES}/alerts.yml]')):
        assert old in config, old
        config = config.replace(old, new)
    return config


def shipped_alerts():
    """Name -> text of each alert in alerts.yml."""
    with open(os.path.join(RULES, 'alerts.yml'), encoding='utf-8') as f:
        parts = re.split(r'- alert: (\w+)\n', f.read())
    return dict(zip(parts[1::2], parts[2::2]))


class FilesTest(support.TestCase):

    def test_the_json_is_what_the_generator_writes(self):
        check = subprocess.run([sys.executable, os.path.join(DEPLOY, 'grafana', 'generate.py'), '--check'],
                               capture_output=True, text=True, timeout=60)
        self.assertEqual(check.returncode, 0, check.stderr)

    def test_the_published_schema_takes_all_of_the_json(self):
        python = support.python_with('grafana', SDK)
        schema = [python, os.path.join(support.ROOT, 'tests', 'e2e', 'grafana_schema.py')]
        files = [os.path.join(DASHBOARDS, name) for name in dashboards()]
        done = subprocess.run([*schema, *files], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        # Shows that the check works: a misspelt key, and an option that panels of this kind do not have.
        wrong = copy.deepcopy(dashboards()['capstan-job.json'])
        wrong['panels'][1]['transparant'] = True
        next(panel for panel in wrong['panels'] if panel['type'] == 'stat')['options']['colour'] = 'red'
        done = subprocess.run([*schema, self.write('wrong.json', json.dumps(wrong))], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn('.transparant is not in the schema', done.stderr)
        self.assertIn('.options.colour is not in the schema', done.stderr)

    def test_what_containers_show_off_loopback_is_open_by_choice(self):
        # Their Prometheus sends no token, and the panels need the series of all services.
        files = [os.path.join(DEPLOY, 'compose', 'compose.yaml')]
        files += [os.path.join(DEPLOY, 'kubernetes', 'base', f'{name}.yaml') for name in ('coordinator', 'shard', 'worker')]
        for path in files:
            with open(path, encoding='utf-8') as f:
                text = f.read()
            shown = re.findall(r'CAPSTAN_HTTP\b.*0\.0\.0\.0:', text)
            self.assertEqual(len(shown), 3 if 'compose' in path else 1, path)
            self.assertEqual(len(re.findall(r'CAPSTAN_OPEN_METRICS\b.*"true"', text)), len(shown), path)

    def test_every_panel_says_what_it_shows(self):
        names = set()
        for name, dashboard in dashboards().items():
            self.assertEqual(f'{dashboard["uid"]}.json', name)
            self.assertEqual(dashboard['templating']['list'][0]['type'], 'datasource')
            ids = [panel['id'] for panel in dashboard['panels']]
            self.assertEqual(len(ids), len(set(ids)), name)
            for panel in dashboard['panels']:
                if panel['type'] == 'row':
                    continue
                self.assertTrue(panel['description'], panel['title'])
                if panel['type'] != 'text':
                    self.assertTrue(panel['fieldConfig']['defaults']['unit'], panel['title'])
                    self.assertTrue(panel['fieldConfig']['defaults']['thresholds']['steps'], panel['title'])
                    self.assertEqual(panel['datasource']['uid'], '${datasource}', panel['title'])
                names.add(panel['title'])
        self.assertGreater(len(names), 40)

    def test_what_people_look_for_has_a_panel(self):
        fleet, job = (dashboards()[f'capstan-{name}.json'] for name in ('fleet', 'job'))
        for dashboard, title, metrics in (
                (fleet, 'Free disk by folder', {'capstan_folder_free_bytes', 'capstan_folder_size_bytes'}),
                (fleet, 'Free disk', {'capstan_folder_free_bytes'}),
                (fleet, PAPERS, {'capstan_certificate_expiry_timestamp_seconds', 'capstan_token_expiry_timestamp_seconds'}),
                (job, 'CPU by task', {'capstan_task_cpu_seconds_total'}),
                (job, 'Memory by task', {'capstan_task_resident_memory_bytes'})):
            shown = [set(re.findall(r'\bcapstan_\w+', ' '.join(target['expr'] for target in panel['targets'])))
                     for panel in dashboard['panels'] if panel['title'] == title]
            self.assertEqual(shown, [metrics], f'{dashboard["title"]}: {title}')

    @unittest.skipUnless(shutil.which('promtool'), 'NOT TESTED: needs promtool; Debian has it in the package prometheus')
    def test_promtool_takes_configuration_and_rules_and_every_alert_fires_and_resolves(self):
        for arguments in (['check', 'config', 'prometheus.yml'], ['check', 'rules', 'recording.yml', 'alerts.yml'],
                          ['test', 'rules', 'rules_test.yml']):
            done = subprocess.run(['promtool', *arguments], cwd=RULES, capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(os.path.join(RULES, 'rules_test.yml'), encoding='utf-8') as f:
            tested = f.read()
        alerts = shipped_alerts()
        self.assertGreaterEqual(len(alerts), 14)
        for alert in alerts:
            # Before, while and after it fires.
            self.assertGreaterEqual(tested.count(f'alertname: {alert}'), 3, alert)

    def test_annotations_of_a_job_are_of_that_job_alone(self):
        expressions = [one['expr'] for one in dashboards()['capstan-job.json']['annotations']['list']]
        self.assertEqual(len(expressions), 2)
        for expression in expressions:
            self.assertEqual(re.findall(r'\bcapstan_\w+({[^}]*})?', expression), ['{job_id=~"$job_id"}'], expression)

    def test_every_alert_leads_to_its_entry_of_the_runbook(self):
        with open(os.path.join(support.ROOT, 'docs', 'operations.md'), encoding='utf-8') as f:
            entries = re.findall(r'^### (Capstan\w+)\n\n\S', f.read().split('## 6. Runbook')[1], re.MULTILINE)
        alerts = shipped_alerts()
        self.assertEqual(sorted(entries), sorted(alerts))
        for alert, text in alerts.items():
            self.assertEqual(re.findall(r'runbook: (\S+)', text), [f'docs/operations.md#{alert.lower()}'])
            self.assertRegex(text, r'severity: (page|warning)\}', alert)

    @unittest.skipUnless(shutil.which('promtool'), 'NOT TESTED: needs promtool; Debian has it in the package prometheus')
    def test_kubernetes_has_the_same_rules(self):
        folder = os.path.join(DEPLOY, 'kubernetes', 'monitoring')
        check = subprocess.run([sys.executable, os.path.join(folder, 'generate.py'), '--check'], capture_output=True, text=True,
                               timeout=60)
        self.assertEqual(check.returncode, 0, check.stderr)
        with open(os.path.join(folder, 'rules.yaml'), encoding='utf-8') as f:
            head, spec = f.read().split('spec:\n')
        self.assertIn('kind: PrometheusRule', head)
        # The operator gives Prometheus a file of rules. The tests of the other files apply to it.
        self.write('rules.yml', textwrap.dedent(spec))
        with open(os.path.join(RULES, 'rules_test.yml'), encoding='utf-8') as f:
            tests = f.read()
        self.assertIn('rule_files: [recording.yml, alerts.yml]\n', tests)
        self.write('rules_test.yml', tests.replace('rule_files: [recording.yml, alerts.yml]', 'rule_files: [rules.yml]'))
        done = subprocess.run(['promtool', 'test', 'rules', 'rules_test.yml'], cwd=self.folder, capture_output=True, text=True,
                              timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(os.path.join(folder, 'kustomization.yaml'), encoding='utf-8') as f:
            self.assertIn('  - rules.yaml\n', f.read())


FAKE = {
    'CAPSTAN_CUDA_PLUGIN': os.environ.get('CAPSTAN_FAKE_PLUGIN', ''),
    'LD_LIBRARY_PATH': os.environ.get('CAPSTAN_FAKE_DRIVER', ''),  # the folder of a libcuda.so.1 that opens
    'CAPSTAN_NVML_LIBRARY': os.environ.get('CAPSTAN_FAKE_NVML_LIBRARY', ''),
    'CAPSTAN_FAKE_ELEMENTS': 'float',
}
CARDS = 'driver 580.95.05\n' + ''.join(
    f'gpu uuid=GPU-{name} name=NVIDIA_H200 bus=00000000:{bus}:00.0 total=150754820096 used=1073741824 util=50 temp=41 '
    f'energy=NOT_SUPPORTED power=70000\n'
    for name, bus in (('a', '1B'), ('b', '1C')))
SPEC = support.job_spec(name='shown', resources={'num_workers': 2, 'num_shards': 2, 'lanes': 4}, model={'name': 'mlp'},
                        data={'format': 'synthetic_digits', 'train_samples': 640, 'test_samples': 100},
                        training={'epochs': 10000, 'global_batch_size': 64, 'optimizer': {'name': 'sgd', 'learning_rate': 0.01}},
                        checkpoint={'every': '1s', 'keep_latest': 2}, limits={'stall_timeout': '20s'})
WHOM = ('job_id', 'worker', 'param_store', 'node', 'reason')  # labels that name the subject of an alert
# Families that exist only with such files or folders. In ClusterTest the coordinator has folders, and nobody has certificates.
SOMETIMES = {'capstan_folder_free_bytes', 'capstan_folder_size_bytes', 'capstan_certificate_expiry_timestamp_seconds',
             'capstan_token_expiry_timestamp_seconds', 'capstan_ps_gradient_staleness_steps', 'capstan_ps_max_staleness_steps'}
PAPERS = 'Certificates and tokens end in'  # a panel that HttpsTest fills
STALENESS = 'Staleness of asynchronous jobs'  # a panel that stays empty here; asynchronous_test.py compares its names with a shard's
# Queries whose results may all be NaN in a healthy cluster, each with the reason beside it.
MAY_BE_NAN = {}


def catalogue():
    """Section of docs/metrics.md -> name -> (type, labels, help)."""
    with open(os.path.join(support.ROOT, 'docs', 'metrics.md'), encoding='utf-8') as f:
        text = f.read().split('## 2. Catalogue')[1].split('\n## ')[0]
    found, section = {}, None
    for line in text.splitlines():
        title = re.match(r'\*\*(.+?)\*\*', line)
        if title:
            section = found.setdefault(title[1], {})
        row = re.match(r'\| `(\w+)` \| (\w+) \| (.+?) \| (.+) \|$', line)
        if row:
            section[row[1]] = (row[2], frozenset(re.findall(r'`(\w+)`', row[3])), row[4])
    return found


def exposed(text):
    """The same for a scrape."""
    helps, types, labels = {}, {}, {}
    for line in text.splitlines():
        words = line.split(' ', 3)
        if words[:2] == ['#', 'HELP']:
            helps[words[2]] = words[3]
        elif words[:2] == ['#', 'TYPE']:
            types[words[2]] = words[3]
        elif line:
            series = re.match(r'(\w+)(?:\{(.*)\})? ', line)
            name = series[1]
            if name not in types:
                name = re.sub('_(bucket|sum|count)$', '', name)
            names = frozenset(re.findall(r'(\w+)="', series[2] or '')) - {'le'}
            labels.setdefault(name, set()).add(names)
    return {name: (kind, next(iter(labels[name])) if len(labels.get(name, ())) == 1 else labels.get(name), helps[name])
            for name, kind in types.items()}


@unittest.skipUnless(shutil.which('prometheus'), 'NOT TESTED: needs prometheus; Debian has it in the package prometheus')
class ClusterTest(services.ServicesTest):

    def setUp(self):
        super().setUp()
        env = {**FAKE, 'CAPSTAN_FAKE_NVML': self.write('cards', CARDS)}
        patch = unittest.mock.patch.dict(os.environ, env)
        patch.start()
        self.addCleanup(patch.stop)

    def test_a_cluster_with_a_job_fills_every_panel_and_its_faults_fire(self):
        self.start(workers=0, shards=2)
        for name, device in (('w0', 'cuda:0'), ('w1', 'cuda:1'), ('w2', 'cpu')):
            self.start_node(name, 'capstan_gpu_worker', '--devices', device, '--cpu-threads', '1')
        self.ok('certs', 'init', self.path('ca'))  # named in the file, though nothing here has a certificate of it
        prometheus = Prometheus(self, shipped(f'http://{self.services["coordinator"].http}', self.path('ca', 'ca.crt')))
        self.see_what_discovery_says(prometheus)
        job_id = self.submit(SPEC)
        self.wait_for_step(job_id, 20)
        self.fill_panels(prometheus, job_id)
        self.compare_with_the_catalogue()
        self.assertEqual(self.firing(prometheus), [], 'no alert while all is well')
        self.see_alerts(prometheus, job_id)

    def see_what_discovery_says(self, prometheus):
        def targets():
            return sorted((labels['component'], labels['node']) for labels, value in prometheus.query('up') if value == 1)

        wanted = [('coordinator', 'coordinator'), *(('gpu_worker', f'w{i}') for i in range(3)),
                  *(('param_store', f's{i}') for i in range(2))]
        self.wait_until(lambda: targets() == wanted, 60, 'the targets of /sd')

    def fill_panels(self, prometheus, job_id):
        fill = {'$job_id': job_id, '$rank': '.+', '$queue': '.+', '$instance': '.+', '$__rate_interval': '1m'}

        def filled(text):
            for name, value in fill.items():
                text = text.replace(name, value)
            self.assertNotIn('$', text)
            return text

        wanted = {}
        for name, dashboard in dashboards().items():
            for panel in dashboard['panels']:
                if panel['title'] in (PAPERS, STALENESS):
                    for target in panel['targets']:
                        prometheus.query(filled(target['expr']))  # it is valid
                    continue
                for target in panel.get('targets', []):
                    wanted[f'{name}: {panel["title"]}: {target["expr"]}'] = filled(target['expr'])
            for variable in dashboard['templating']['list']:
                if variable['type'] == 'query':
                    series, label = re.fullmatch(r'label_values\((.+), (\w+)\)', variable['query']['query']).groups()
                    self.wait_until(lambda: prometheus.api(f'label/{label}/values', **{'match[]': filled(series)}), 60,
                                    f'values of variable {variable["name"]} of {name}')
            for annotation in dashboard['annotations']['list']:
                prometheus.query(filled(annotation['expr']))  # it is valid; there is nothing to show yet
        self.assertGreater(len(wanted), 70)

        def empty():
            for key in list(wanted):
                values = [value for _, value in prometheus.query(wanted[key])]
                if any(not math.isnan(value) for value in values) or (values and key in MAY_BE_NAN):
                    del wanted[key]
            return not wanted

        try:
            self.wait_until(empty, 60, 'data in every panel')
        except AssertionError:
            raise AssertionError('nothing to be seen in\n' + '\n'.join(wanted)) from None

    def compare_with_the_catalogue(self):
        sections = catalogue()
        every, nodes = sections.pop('Every service'), sections.pop('Worker and parameter store server')
        for service, section, documented in (
                ('coordinator', 'Coordinator', every), ('w0', 'Worker', {**every, **nodes}),
                ('s0', 'Parameter store server', {**every, **nodes})):
            self.assertGreater(len(sections[section]), 10)
            documented = {**documented, **sections[section]}
            text = get(self.services[service].http, '/metrics')
            lint = subprocess.run(['promtool', 'check', 'metrics'], input=text, text=True, capture_output=True, timeout=60)
            self.assertEqual((lint.returncode, lint.stdout + lint.stderr), (0, ''), service)
            found = exposed(text)
            documented = {name: family for name, family in documented.items() if name in found or name not in SOMETIMES}
            self.assertEqual(sorted(set(documented) - set(found)), [], f'in docs/metrics.md, but not exported by {service}')
            self.assertEqual(sorted(set(found) - set(documented)), [], f'exported by {service}, but not in docs/metrics.md')
            for name, family in documented.items():
                self.assertEqual(found[name], family, f'{name} of {service}')

    @staticmethod
    def firing(prometheus):
        alerts = prometheus.api('alerts')['alerts']
        return sorted((alert['labels']['alertname'], next((alert['labels'][name] for name in WHOM if name in alert['labels']), ''))
                      for alert in alerts if alert['state'] == 'firing')

    def see_alerts(self, prometheus, job_id):
        def fires(*alert):
            self.wait_until(lambda: alert in self.firing(prometheus), 60, f'the alert {alert}')

        # A shard dies and is restarted, so its job returns to a checkpoint.
        self.services['s1'].stop(signal.SIGKILL)
        self.start_node('s1', 'capstan_param_store')
        fires('CapstanJobRestarted', 'ShardLost')
        self.wait_until(lambda: self.describe(job_id)['state'] == 'RUNNING', 60, 'the job goes on')
        # All tasks stand still (one alone would lose its lanes to the other), and a worker and a shard die.
        tasks = self.tasks()
        self.assertEqual(len(tasks), 2)
        for pid in tasks:
            os.kill(pid, signal.SIGSTOP)
        try:
            fires('CapstanJobStalled', job_id)
            fires('CapstanJobFailed', job_id)
        finally:
            for pid in tasks:
                with contextlib.suppress(ProcessLookupError):  # already stopped by others, as the job has failed
                    os.kill(pid, signal.SIGCONT)
        self.wait_until(lambda: ('CapstanJobStalled', job_id) not in self.firing(prometheus), 60, 'its end')
        self.services['w2'].stop(signal.SIGKILL)
        self.services['s0'].stop(signal.SIGKILL)
        fires('CapstanWorkerLost', 'w2')
        fires('CapstanShardLost', 's0')
        self.start_worker('w2')
        self.start_node('s0', 'capstan_param_store')
        # These two look back for 15 minutes.
        self.wait_until(lambda: {name for name, _ in self.firing(prometheus)} <= {'CapstanJobFailed', 'CapstanJobRestarted'}, 60,
                        'all well again')


@unittest.skipUnless(shutil.which('prometheus'), 'NOT TESTED: needs prometheus; Debian has it in the package prometheus')
class HttpsTest(support.TestCase):

    def serve(self, program, keys, role, *args):
        service = services.Service(program, ['--listen', f'unix:{self.path(role)}.sock', '--http', '0.0.0.0:0', *keys.credentials(role), *args],
                                   self.folder, self.path(f'{role}.log'))
        self.addCleanup(service.stop)
        return service

    def test_services_off_loopback_are_scraped_with_the_authority_and_a_token(self):
        host = socket.gethostname()  # the name in /sd
        keys = Credentials(self.folder, hosts=('127.0.0.1', host))
        coordinator = self.serve('capstan_coordinator', keys, 'coordinator', '--state-dir', self.path('state'), '--tokens',
                                 keys.path('ca', 'tokens.json'))
        node = ['--coordinator', f'unix:{self.path("coordinator.sock")}', '--tokens', keys.path('ca', 'tokens.json'), '--node']
        shard = self.serve('capstan_param_store', keys, 'param_store', *node, 's0')
        worker = self.serve('capstan_gpu_worker', keys, 'worker', *node, 'w0', '--devices', 'cpu')
        open_url = functools.partial(urllib.request.urlopen, context=ssl.create_default_context(cafile=keys.path('coordinator', 'ca.crt')), timeout=10)

        def url(service, path):
            return f'https://{host}:{service.http.rpartition(":")[2]}{path}'

        with open(keys.path('worker', 'worker.token'), encoding='utf-8') as f:
            no_reader = {'Authorization': 'Bearer ' + f.read().strip()}
        with open(keys.path('client', 'client.token'), encoding='utf-8') as f:
            reader = {'Authorization': 'Bearer ' + f.read().strip()}
        for service, path in ((coordinator, '/metrics'), (coordinator, '/sd'), (shard, '/metrics'), (worker, '/metrics')):
            for headers in ({}, no_reader):
                with self.assertRaises(urllib.error.HTTPError) as refused:
                    open_url(urllib.request.Request(url(service, path), headers=headers))
                self.assertEqual(refused.exception.code, 401)
                self.assertIn('--open-metrics', refused.exception.read().decode())
            self.assertEqual(open_url(url(service, '/healthz')).status, 200)
        config = shipped(url(coordinator, ''), keys.path('coordinator', 'ca.crt'))
        self.assertEqual(config.count('# authorization:'), 2)
        config = config.replace('# authorization:', 'authorization:').replace('/etc/prometheus/capstan.token', keys.path('client', 'client.token'))
        prometheus = Prometheus(self, config)
        deadline = time.monotonic() + 60
        up = []
        while up != ['coordinator', 's0', 'w0']:
            self.assertLess(time.monotonic(), deadline, up)
            select.select([], [], [], 0.1)
            up = sorted(labels['node'] for labels, value in prometheus.query('up') if value == 1)
        days = {(labels['node'], labels['certificate']): value for labels, value in prometheus.query(
            '(capstan_certificate_expiry_timestamp_seconds - time()) / 86400')}
        self.assertEqual(sorted(days), [(node, paper) for node in up for paper in ('authority', 'own')])
        for (node, paper), left in days.items():
            self.assertAlmostEqual(left, 365 if paper == 'own' else 3650, delta=1, msg=f'{paper} of {node}')
        # Only services' tokens, which all three read. People watch their own tokens.
        tokens = prometheus.query('count by (role, name) (capstan_token_expiry_timestamp_seconds)')
        self.assertEqual(sorted((labels['role'], value) for labels, value in tokens), [('param_store', 3), ('worker', 3)])
        panel, = (one for dashboard in dashboards().values() for one in dashboard['panels'] if one['title'] == PAPERS)
        for target in panel['targets']:
            self.assertTrue(prometheus.query(target['expr'].replace('$instance', '.+')), target['expr'])
        lint = subprocess.run(['promtool', 'check', 'metrics'], text=True, capture_output=True, timeout=60,
                              input=open_url(urllib.request.Request(url(coordinator, '/metrics'), headers=reader)).read().decode())
        self.assertEqual((lint.returncode, lint.stdout + lint.stderr), (0, ''))


if __name__ == '__main__':
    support.main()
