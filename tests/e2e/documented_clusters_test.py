"""The clusters that README and docs/operations.md start, command by command, run an example as it is."""

import json
import os
import re
import subprocess

import support

README, OPERATIONS = os.path.join(support.ROOT, 'README.md'), os.path.join(support.ROOT, 'docs', 'operations.md')


class DocumentedClustersTest(support.TestCase):

    def block(self, page, begin):
        """The block of commands that begins with this line."""
        with open(page) as f:
            return re.search(rf'^```\n({re.escape(begin)}.*?)^```$', f.read(), re.MULTILINE | re.DOTALL)[1]

    def trains(self, commands, stop='kill $(jobs -p); wait'):
        """The job of `submit --example lenet`, in a shell that has carried out the commands."""
        until = 'for i in $(seq 100); do capstan -q healthcheck 2>/dev/null && break; sleep 0.2; done'
        script = f'{commands}\n{until}\n' + 'capstan submit --example lenet --wait -o json\ncode=$?\n' + f'{stop}\nexit $code\n'
        done = subprocess.run(['bash', '-c', script], cwd=self.folder, capture_output=True, text=True, timeout=200,
                              env=dict(os.environ, PATH=f'{support.BIN}:{os.environ["PATH"]}', TMPDIR=self.folder))
        self.assertEqual(done.returncode, 0, f'{script}\n{done.stdout}\n{done.stderr[-4000:]}')
        job = json.loads([line for line in done.stdout.splitlines() if line.startswith('{')][-1])
        self.assertEqual(job['state'], 'SUCCEEDED')
        return job

    def test_both_run_the_example_to_the_same_bits(self):
        readme = self.trains(self.block(README, 'D=$(mktemp -d)'), self.block(README, 'kill $(jobs -p)'))
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
