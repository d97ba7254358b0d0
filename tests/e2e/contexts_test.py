"""`capstan login` and `capstan context`, and which files may decide where a token is sent (docs/security.md)."""

import json
import os
import stat

import secure_cluster
import support


class ContextsTest(support.TestCase):

    def setUp(self):
        super().setUp()
        self.cluster = secure_cluster.SecureCluster(self.path('cluster'), workers=0, shards=0)
        self.addCleanup(self.cluster.stop)
        os.mkdir(self.path('home'))
        self.work = self.path('work')
        os.mkdir(self.work)
        self.contexts = self.path('home', '.config', 'capstan', 'contexts.yaml')

    def run_capstan(self, *args, code=0, **env):
        run = support.Run(list(args), self.work, 60, env={'HOME': self.path('home'), 'XDG_CONFIG_HOME': '', 'CAPSTAN_ADDRESS': '', **env})
        self.assertEqual(run.code, code, run)
        return run

    def login(self, *args, code=0, **env):
        return self.run_capstan('login', self.cluster.address, '--credentials', self.cluster.path('client'), *args, code=code, **env)

    def stored(self):
        return json.loads(self.run_capstan('context', 'list', '-o', 'json').out)

    def test_login_checks_and_stores_and_contexts_are_chosen(self):
        self.assertEqual(self.run_capstan('context', 'list').out, '')
        self.assertIn('capstan login ADDRESS', self.run_capstan('context', 'list').err)
        self.run_capstan('context', 'show', code=2)

        self.assertEqual(self.login().out, f'127.0.0.1  {self.cluster.address}\n')
        self.assertEqual(stat.S_IMODE(os.stat(self.contexts).st_mode), 0o600)
        with open(self.contexts) as f, open(self.cluster.path('client', 'client.token')) as token:
            self.assertNotIn(token.read().strip(), f.read())
        self.run_capstan('list')  # no flag names the address
        self.login('--name', 'prod')
        self.assertEqual([(c['name'], c['current']) for c in self.stored()], [('127.0.0.1', False), ('prod', True)])
        self.assertEqual(json.loads(self.run_capstan('context', 'show', '-o', 'json').out),
                         {'name': 'prod', 'current': True, 'address': self.cluster.address, 'timeout': '', 'insecure': False,
                          'tls_ca': self.cluster.path('client', 'ca.crt'), 'tls_cert': self.cluster.path('client', 'client.crt'),
                          'tls_key': self.cluster.path('client', 'client.key'), 'token_file': self.cluster.path('client', 'client.token')})
        self.assertEqual(self.run_capstan('context', 'use', '127.0.0.1').out, f'127.0.0.1  {self.cluster.address}\n')
        self.assertRegex(self.run_capstan('context', 'list').out, r'\* +127\.0\.0\.1 +\S+ +TLS\n- +prod ')
        self.assertEqual(self.run_capstan('context', 'list', '-o', 'name').out, '127.0.0.1\nprod\n')

        # Overrides of the current context: a flag or a variable, for a single value or for a whole context.
        self.run_capstan('list', '--address', '127.0.0.1:1', '--timeout', '1s', code=3)
        self.run_capstan('list', code=2, CAPSTAN_CONTEXT='nobody')
        unknown = self.run_capstan('list', '--context', 'prud', code=2)
        self.assertIn("--context: no context 'prud'; there are: 127.0.0.1, prod", unknown.err)
        self.run_capstan('list', '--context', 'prod')
        self.assertIn('CAPSTAN_CONTEXT is set', self.run_capstan('context', 'use', 'prod', CAPSTAN_CONTEXT='x').err)

        self.assertEqual(self.run_capstan('context', 'delete', 'prod').out, 'prod  deleted\n')
        self.run_capstan('context', 'use', 'prod', code=2)
        self.run_capstan('context', 'delete', 'prod', code=2)
        self.run_capstan('context', 'show', code=2)
        self.assertEqual([(c['name'], c['current']) for c in self.stored()], [('127.0.0.1', False)])
        os.chmod(self.contexts, 0o644)
        self.assertIn('mode 0644', self.run_capstan('list', code=2).err)

    def test_a_login_that_fails_stores_nothing(self):
        self.login()
        before = self.stored()
        refused = self.login('--name', 'bad', '--token-file', self.cluster.path('worker', 'worker.token'), code=4)
        self.assertIn('nothing was stored', refused.err)
        self.run_capstan('login', '127.0.0.1:1', '--credentials', self.cluster.path('client'), '--timeout', '1s', code=3)
        self.run_capstan('login', self.cluster.address, code=2)  # plaintext, although nobody asked for it
        self.login('--name', '../x', code=2)
        self.run_capstan('login', self.cluster.address, '--credentials', self.work, code=2)
        self.assertEqual(self.stored(), before)

    def test_the_working_directory_does_not_get_the_users_token(self):
        self.login()
        other = secure_cluster.SecureCluster(self.path('other'), workers=0, shards=0)
        self.addCleanup(other.stop)

        def says(text, mode=0o600):
            path = os.path.join(self.work, 'capstan.yaml')
            if os.path.lexists(path):
                os.remove(path)
            with open(path, 'w') as f:
                f.write(text)
            os.chmod(path, mode)
            return self.run_capstan('healthcheck', '-o', 'json', CAPSTAN_TIMEOUT='20s')

        def reached(run):
            return json.loads(run.out)['address']

        # Address and authority of somebody else, with the token of the user's own context or from elsewhere on the disk.
        part = f'address: {other.address}\ntls_ca: {other.path("client", "ca.crt")}\n'
        run = says(part)
        self.assertEqual(reached(run), self.cluster.address)
        self.assertIn('capstan.yaml is ignored: ', run.err)
        theft = part + ''.join(f'{key}: {self.cluster.path("client", name)}\n' for key, name in
                               (('tls_cert', 'client.crt'), ('tls_key', 'client.key'), ('token_file', 'client.token')))
        run = says(theft)
        self.assertEqual(reached(run), self.cluster.address)
        self.assertIn('names a file outside its folder', run.err)

        # A whole context in the folder applies, unless others can write the file or a variable sets a part of it.
        os.rename(other.path('client'), os.path.join(self.work, 'papers'))
        whole = (f'address: {other.address}\ntls_ca: papers/ca.crt\ntls_cert: papers/client.crt\n'
                 'tls_key: papers/client.key\ntoken_file: papers/client.token\n')
        run = says(whole)
        self.assertEqual((reached(run), run.err), (other.address, ''))
        self.assertEqual(reached(says(whole, mode=0o666)), self.cluster.address)
        says(whole)
        run = self.run_capstan('healthcheck', '-o', 'json', CAPSTAN_TOKEN_FILE=self.cluster.path('client', 'client.token'))
        self.assertEqual(reached(run), self.cluster.address)
        self.assertEqual(reached(self.run_capstan('healthcheck', '-o', 'json', '--context', '127.0.0.1')), self.cluster.address)


if __name__ == '__main__':
    support.main()
