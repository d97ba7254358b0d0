"""The clusters in README and docs/operations.md, started with the pages' commands, run an example unchanged."""

import json
import os
import re
import socket
import subprocess

import support

README, OPERATIONS = os.path.join(support.ROOT, 'README.md'), os.path.join(support.ROOT, 'docs', 'operations.md')


class DocumentedClustersTest(support.TestCase):

    def block(self, page, begin):
        """The block of commands that begins with this line."""
        with open(page) as f:
            return re.search(rf'^```\n({re.escape(begin)}.*?)^```$', f.read(), re.MULTILINE | re.DOTALL)[1]

    def trains(self, commands, stop='kill $(jobs -p); wait'):
        """Runs the commands in a shell, trains `submit --example lenet` there, and returns the job."""
        until = 'for i in $(seq 100); do capstan -q healthcheck 2>/dev/null && break; sleep 0.2; done'
        script = f'{commands}\n{until}\n' + 'capstan submit --example lenet --wait -o json\ncode=$?\n' + f'{stop}\nexit $code\n'
        done = subprocess.run(['bash', '-c', script], cwd=self.folder, capture_output=True, text=True, timeout=200,
                              env=dict(os.environ, PATH=f'{support.BIN}:{os.environ["PATH"]}', TMPDIR=self.folder))
        self.assertEqual(done.returncode, 0, f'{script}\n{done.stdout}\n{done.stderr[-4000:]}')
        self.out = done.stdout
        job = json.loads([line for line in done.stdout.splitlines() if line.startswith('{')][-1])
        self.assertEqual(job['state'], 'SUCCEEDED')
        return job

    def with_a_page(self, commands):
        """The commands with README's changes for the status page, and the command that looks at it."""
        with open(README) as f:
            flags, url = re.search(r'`(--http \S+ --insecure)` in place\s+of `--http off`.*?(http://\S+/)', f.read(), re.DOTALL).groups()
        self.assertEqual(commands.count('c.sock --http off'), 1)
        with socket.socket() as free:
            free.bind(('127.0.0.1', 0))
            port = f':{free.getsockname()[1]}'
        commands = commands.replace('c.sock --http off', f'c.sock {flags}'.replace(':7071', port))
        code = ('import sys, urllib.request; '
                'print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode().replace(chr(10), " "))')
        url = url.replace(':7071', port)
        return commands, '\n'.join(f"""echo {name} "$(python3 -c '{code}' {url}{path})\"""" for name, path in
                                   (('page:', ''), ('overview:', 'api/overview')))

    def test_both_run_the_example_to_the_same_bits(self):
        commands, look = self.with_a_page(self.block(README, 'D=$(mktemp -d)'))
        readme = self.trains(commands, look + '\n' + self.block(README, 'kill $(jobs -p)'))
        self.assertRegex(self.out, r'(?m)^page: .*<html')
        self.assertRegex(self.out, rf'(?m)^overview: .*{readme["job_id"]}')
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith('tmp.')], [])
        self.assertEqual(sorted(worker['node'] for worker in readme['workers']), ['w0', 'w1'])
        run = self.path('run')
        os.mkdir(run, 0o700)
        commands = self.block(OPERATIONS, 'D=/run/capstan').replace('D=/run/capstan', f'D={run}')
        commands = commands.replace('/var/lib/capstan', self.path('state')).replace('file:///data', f'file://{self.folder}')
        commands = re.sub(r'--http 127\.0\.0\.1:\d+', '--http 127.0.0.1:0', commands)
        operations = self.trains(commands)
        self.assertEqual([(worker['node'], worker['devices']) for worker in operations['workers']], [('w0', [0, 1])])
        self.assertEqual(operations['weights_sha256'], readme['weights_sha256'])


if __name__ == '__main__':
    support.main()
