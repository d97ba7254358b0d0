"""deploy/ without an engine: the files that make-secrets makes and changes, and what each container and unit may use
(docs/deploy.md)."""

import glob
import json
import os
import re
import shutil
import subprocess
import unittest

import support

COMPOSE = os.path.join(support.ROOT, 'deploy', 'compose')
NODES = {'coordinator': 'coordinator', 'shard-0': 'param_store', 'shard-1': 'param_store', 'worker-0': 'worker',
         'worker-1': 'worker', 'gpu-worker': 'worker'}
PEOPLE = {'client': 'client', 'admin': 'admin'}


@unittest.skipUnless(os.geteuid() == 0, 'NOT TESTED: keys belong to the uid of the image: needs root')
class SecretsTest(support.TestCase):

    def setUp(self):
        super().setUp()
        shutil.copy(os.path.join(COMPOSE, 'make-secrets'), self.folder)
        self.folders = {**NODES, **PEOPLE}

    def make(self, *args, code=0):
        done = subprocess.run([self.path('make-secrets'), *args], capture_output=True, text=True, timeout=60,
                              env=dict(os.environ, CAPSTAN=support.CAPSTAN))
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stderr

    def secret(self, *names):
        with open(self.path('secrets', *names), encoding='utf-8') as f:
            return f.read()

    def secrets(self):
        """Folder -> certificate, key, token."""
        return {folder: tuple(self.secret(folder, f'{role}.{kind}') for kind in ('crt', 'key', 'token'))
                for folder, role in self.folders.items()}

    def verified(self, authority, folder, certificate):
        return subprocess.run(['openssl', 'verify', '-CAfile', self.path('secrets', authority, 'ca.crt'),
                               self.write('leaf.pem', certificate)], capture_output=True).returncode == 0

    def check_all(self):
        for folder, role in self.folders.items():
            self.assertTrue(self.verified(folder, folder, self.secret(folder, f'{role}.crt')), folder)
            for kind in ('key', 'token'):
                status = os.stat(self.path('secrets', folder, f'{role}.{kind}'))
                self.assertEqual((status.st_mode & 0o777, status.st_uid), (0o600, 0 if role in PEOPLE else 10001), folder)
        status = os.stat(self.path('secrets', 'tokens', 'tokens.json'))
        self.assertEqual((status.st_mode & 0o777, status.st_uid), (0o400, 10001))
        self.assertEqual(self.secret('tokens', 'tokens.json'), self.secret('ca', 'tokens.json'))
        self.assertEqual(os.stat(self.path('secrets', 'ca')).st_mode & 0o777, 0o700)
        self.assertEqual(os.listdir(self.path('secrets', 'authority')), ['ca.crt'])
        self.assertEqual([name for name in os.listdir(self.path('secrets')) if name.startswith('.')], [])

    def entries(self):
        return [(entry['role'], entry['name']) for entry in json.loads(self.secret('tokens', 'tokens.json'))['tokens']]

    def test_a_worker_an_admin_and_a_rotation(self):
        self.make('vm.example')
        self.check_all()
        self.assertIn(('admin', 'operator'), self.entries())
        shown = subprocess.run(['openssl', 'x509', '-noout', '-text', '-in', self.path('secrets/worker-0/worker.crt')],
                               capture_output=True, text=True, check=True).stdout
        for name in ('DNS:worker-0', 'DNS:localhost', 'DNS:vm.example'):
            self.assertIn(name, shown)
        first = self.secrets()
        self.assertIn('exists already', self.make())
        self.assertEqual(self.secrets(), first)

        # One more of each. The table of tokens is a new file, which a mounted folder shows.
        before = os.stat(self.path('secrets/tokens/tokens.json')).st_ino
        self.make('add', 'worker', 'worker-2', '10.0.0.3')
        self.make('add', 'admin', 'eve')
        self.folders.update({'worker-2': 'worker', 'eve': 'admin'})
        self.check_all()
        self.assertIn(('worker', 'worker-2'), self.entries())
        self.assertIn(('admin', 'eve'), self.entries())
        self.assertNotEqual(os.stat(self.path('secrets/tokens/tokens.json')).st_ino, before)
        self.assertIn('exists already', self.make('add', 'worker', 'worker-2', code=2))
        self.assertIn("not 'Worker'", self.make('add', 'worker', 'Worker', code=2))
        self.assertIn("not 'boss'", self.make('add', 'boss', 'x', code=2))

        # A token is withdrawn by removing it from the table that the services read.
        table = json.loads(self.secret('ca', 'tokens.json'))
        table['tokens'] = [entry for entry in table['tokens'] if entry['name'] != 'eve']
        self.write('secrets/ca/tokens.json', json.dumps(table))
        self.write('secrets/ca/issued', self.secret('ca', 'issued').replace('admin eve\n', ''))
        del self.folders['eve']
        self.assertIn(('admin', 'eve'), self.entries())
        self.make()
        self.assertNotIn(('admin', 'eve'), self.entries())

        # A new authority while both are trusted, then new certificates, then the old authority is removed.
        second = self.secrets()
        self.make('rotate')
        self.assertEqual(self.secret('authority', 'ca.crt').count('BEGIN CERTIFICATE'), 2)
        self.assertEqual(self.secrets(), second)
        self.check_all()
        known = len(self.entries())
        self.make('renew')
        self.check_all()
        third = self.secrets()
        for folder, (certificate, key, token) in third.items():
            self.assertTrue(self.verified(folder, folder, second[folder][0]), 'the old one holds, too')
            self.assertNotIn(certificate, second[folder])
            self.assertNotIn(key, second[folder])
            self.assertNotIn(token, second[folder])
        self.assertEqual(len(self.entries()), 2 * known, 'old tokens are valid for a day')
        self.make('rotate', '--finish')
        self.assertEqual(self.secret('authority', 'ca.crt').count('BEGIN CERTIFICATE'), 1)
        self.check_all()
        for folder, papers in second.items():
            self.assertFalse(self.verified(folder, folder, papers[0]), folder)
        self.assertEqual(self.secrets(), third)

    def test_secrets_of_an_earlier_version_are_kept(self):
        self.make()
        before = self.secrets()
        # The folder as an older version left it: no list, no folder of the table, no admin.
        os.rename(self.path('secrets/tokens/tokens.json'), self.path('secrets/tokens.json'))
        os.remove(self.path('secrets/ca/issued'))
        for folder in ('tokens', 'authority', 'admin'):
            shutil.rmtree(self.path('secrets', folder))
        self.make()
        self.check_all()
        self.assertFalse(os.path.exists(self.path('secrets/tokens.json')))
        after = self.secrets()
        self.assertEqual({**before, 'admin': None}, {**after, 'admin': None})
        self.make('renew')
        self.check_all()


class ComposeTest(support.TestCase):

    def services(self):
        """(file, service) -> its text."""
        found = {}
        for path in [*glob.glob(os.path.join(COMPOSE, '*.yaml')), *glob.glob(os.path.join(COMPOSE, 'two-hosts', '*.yaml'))]:
            with open(path, encoding='utf-8') as f:
                text = f.read()
            shared = re.search(r'^x-capstan: &capstan\n((?:  .*\n)+)', text, re.MULTILINE)
            part = re.search(r'^services:\n((?:(?:  .*)?\n)+)', text, re.MULTILINE)[1]
            for name, body in re.findall(r'^  ([a-z0-9-]+):\n((?:    .*\n|\n)+)', part, re.MULTILINE):
                found[os.path.basename(path), name] = body.replace('    <<: *capstan\n', shared[1] if shared else '')
        return found

    def test_no_container_takes_all_memory_or_processes_of_its_host(self):
        found = self.services()
        self.assertGreaterEqual(len(found), 13)
        for where, body in found.items():
            self.assertRegex(body, r'mem_limit: \S', where)
            self.assertRegex(body, r'pids_limit: \d', where)
            self.assertRegex(body, r'logging: (\*logging|.*max-size: 10m)', where)

    def test_secrets_are_folders(self):
        seen = 0
        for (file, name), body in self.services().items():
            self.assertNotIn('secrets:', body.replace('/secrets:', ''), f'{file} {name}: a file that is mounted stays the old one')
            mounts = re.findall(r'- (\.\.?/secrets/\S+):(/run/secrets/\w+):ro', body)
            seen += len(mounts)
            for source, target in mounts:
                self.assertNotIn('.', os.path.basename(source), (file, name))
                self.assertEqual(target, '/run/secrets/tokens' if source.endswith('/tokens') else '/run/secrets/capstan')
        self.assertGreaterEqual(seen, 13)

    @unittest.skipUnless(shutil.which('docker-compose'), 'NOT TESTED: needs docker-compose')
    def test_docker_compose_takes_the_files(self):
        for path in glob.glob(os.path.join(COMPOSE, '**', '*.yaml'), recursive=True):
            done = subprocess.run(['docker-compose', '-f', path, 'config', '-q'], capture_output=True, text=True, timeout=60,
                                  env=dict(os.environ, HOST_A='10.0.0.1', CAPSTAN_NODE='worker-2'))
            self.assertEqual(done.returncode, 0, f'{path}: {done.stderr}')


class UnitsTest(support.TestCase):

    FOLDERS = {'capstan-coordinator': 'coordinator', 'capstan-param-store': 'param_store', 'capstan-gpu-worker': 'gpu_worker'}

    def text(self, unit):
        with open(os.path.join(support.ROOT, 'deploy/systemd', f'{unit}.service'), encoding='utf-8') as f:
            return f.read()

    def test_every_secret_is_read_where_it_lies_and_those_of_others_are_not_seen(self):
        for unit, folder in self.FOLDERS.items():
            text = self.text(unit)
            self.assertNotIn('LoadCredential', text, f'{unit}: a copy of the start stays the old one')
            role = 'worker' if folder == 'gpu_worker' else folder
            paths = dict(re.findall(r'(CAPSTAN_(?:TLS_\w+|TOKEN_FILE))=(\S+)', text))
            wanted = {'CAPSTAN_TLS_CERT': f'{role}.crt', 'CAPSTAN_TLS_KEY': f'{role}.key', 'CAPSTAN_TLS_CA': 'ca.crt'}
            if folder != 'coordinator':
                wanted['CAPSTAN_TOKEN_FILE'] = f'{role}.token'
            self.assertEqual(paths, {name: f'/etc/capstan/{folder}/{file}' for name, file in wanted.items()}, unit)
            hidden = re.search(r'^InaccessiblePaths=(.*)$', text, re.MULTILINE)[1].split()
            self.assertEqual(set(hidden), {f'-/etc/capstan/{other}' for other in self.FOLDERS.values() if other != folder}, unit)

    def test_no_unit_takes_all_memory_or_processes_of_its_host(self):
        for unit in self.FOLDERS:
            self.assertRegex(self.text(unit), r'(?m)^MemoryMax=\d+(G|%)$', unit)
            self.assertRegex(self.text(unit), r'(?m)^TasksMax=\d+$', unit)

    def test_what_units_say_goes_to_the_journal_which_is_bounded(self):
        for unit in self.FOLDERS:
            targets = re.findall(r'(?m)^Standard(?:Output|Error)=(.*)$', self.text(unit))
            self.assertEqual([target for target in targets if target not in ('journal', 'inherit')], [], f'{unit}: grows for ever')


if __name__ == '__main__':
    support.main()
