"""An operator's work after the first day (docs/deploy.md, sections 5 and 6) on a real Docker engine, while a job trains.

Each command of these pages is printed with its output, so the log of this test is their transcript.
"""

import json
import os
import re
import shutil
import subprocess
import time

import compose_cluster
import support
from compose_cluster import ROLES

PAGE = os.path.join(support.ROOT, 'docs', 'deploy.md')
LOOP = 'for service in coordinator shard-0 shard-1 worker-0 worker-1; do\n'


def spec(epochs, **groups):
    """A job with 94 steps an epoch and 64 samples a step."""
    return support.job_spec(resources={'num_workers': 2, 'min_workers': 1, 'num_shards': 2, 'lanes': 8},
                            data={'format': 'synthetic_digits', 'train_samples': 6000, 'test_samples': 500},
                            training={'epochs': epochs, 'global_batch_size': 64, 'seed': 3,
                                      'optimizer': {'name': 'sgd', 'learning_rate': 0.04, 'momentum': 0.9}}, **groups)


def block(begin):
    """The page's block of commands that begins with this line."""
    with open(PAGE, encoding='utf-8') as f:
        return re.search(rf'^```sh\n({re.escape(begin)}.*?)^```$', f.read(), re.MULTILINE | re.DOTALL)[1]


class DayTwoTest(compose_cluster.ComposeTest):
    """Runs in the order of the names: the second test removes the cluster and continues elsewhere."""

    # Of the two workers together, so that a job lasts through the test with few steps. The limit is removed at the end.
    CPUS = 0.15

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # Provides what the page assumes: `docker compose`, and another host behind ssh, which is a folder here.
        cls.host = os.path.join(cls.shared, 'another-host')
        tools = os.path.join(cls.shared, 'tools')
        os.mkdir(cls.host)
        os.mkdir(tools)
        docker = shutil.which('docker')
        for name, script in {
            'docker': f'if [ "$1" = compose ]; then shift; exec docker-compose "$@"; fi\nexec {docker} "$@"',
            'ssh': f'[ "$1" = root@10.0.0.3 ] && cd {cls.host} && exec bash -ec "$2"',
        }.items():
            path = os.path.join(tools, name)
            with open(path, 'w', encoding='utf-8') as f:
                f.write(f'#!/bin/bash\n{script}\n')
            os.chmod(path, 0o755)
        cls.path_of_pages = f'{tools}:{support.BIN}:{os.environ["PATH"]}'

    @classmethod
    def files(cls):
        slow = os.path.join(cls.shared, 'slow.json')
        with open(slow, 'w', encoding='utf-8') as f:
            json.dump({'services': {role: {'healthcheck': {'interval': '2s'},  # not 5 s, because the page waits for it repeatedly
                                           **({'cpus': cls.CPUS} if role.startswith('worker') else {})} for role in ROLES}}, f)
        return [*super().files(), slow]

    def page(self, script, folder=None, timeout=200, **variables):
        """Runs commands of the page in deploy/compose, or in `folder`, and returns their output."""
        env = dict(self.environment(), PATH=self.path_of_pages, COMPOSE_PROJECT_NAME=self.project, **variables)
        env['COMPOSE_FILE'] = ':'.join(['compose.yaml', *self.files()[1:]])
        begin = block('cd deploy/compose\nas() {').split('\n', 1)[1]
        done = subprocess.run([*self.engine.on, 'bash', '-ec', f'{begin}\n{script}'], cwd=folder or self.there, env=env, text=True,
                              errors='replace', stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=timeout)
        print(f'$ {script.rstrip()}\n{done.stdout.rstrip()}', flush=True)
        if done.returncode != 0:
            self.fail(f'{script}\nexit code {done.returncode}\n{done.stdout}\n{self.what_was_said()}')
        return done.stdout

    def what_was_said(self):
        try:
            return super().what_was_said()
        except AssertionError as error:  # there is no coordinator
            return str(error)

    def submit(self, job):
        """Submits the job and starts the same job undisturbed; returns the id and that run."""
        path = self.write('job.yaml', json.dumps(job))
        job_id = self.page(f'as client -q submit {path}').split()[-1]
        run = subprocess.Popen([support.CAPSTAN, 'run', '-o', 'json', path], cwd=self.folder, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL)

        def end():
            run.kill()
            run.wait()
            run.stdout.close()

        self.addCleanup(end)
        return job_id, run

    def running(self, job, step, workers=None):
        """Waits until the job is RUNNING beyond the step, with these workers; returns the job."""
        def reached():
            told = self.described(job)
            self.assertNotIn(told['state'], ('FAILED', 'CANCELLED', 'SUCCEEDED'), told)
            there = {worker['node'] for worker in told['workers'] if worker['state'] == 'RUNNING'}
            going = told['state'] == 'RUNNING' and told['progress']['step'] > step
            return told if going and workers in (None, there) else None

        return self.wait_until(reached, 90, f'RUNNING beyond step {step}' + (f' on {workers}' if workers else ''))

    def throttle(self, cpus, *containers):
        self.engine.docker('update', '--cpus', str(cpus), *containers)

    def at_full_speed(self, *containers):
        self.throttle(os.cpu_count(), *containers)

    def check(self, job, run):
        """The job must end like the undisturbed run."""
        # Most of the 13,160 steps are left: 60 steps a second on two cores without AVX-512.
        self.page(f'as client -q wait {job}', timeout=600)
        told = self.described(job)
        self.assertEqual(told['state'], 'SUCCEEDED', told)
        undisturbed = json.loads(run.communicate(timeout=200)[0].splitlines()[-1])
        self.assertEqual(undisturbed['state'], 'SUCCEEDED', undisturbed)
        print(f'{undisturbed["weights_sha256"]}  undisturbed\n{told["weights_sha256"]}  {job}', flush=True)
        self.assertEqual(told['weights_sha256'], undisturbed['weights_sha256'])
        return told

    def all_scraped(self, targets, since):
        """Whether Prometheus has reached this many targets since then. Earlier successes used older connections."""
        answer = self.query(f'sum(up{{job="capstan"}} * (timestamp(up{{job="capstan"}}) > bool {since:.3f}))')
        return f'=> {targets} ' in answer

    def test_a_job_trains_through_new_containers_new_certificates_and_another_worker(self):
        job, run = self.submit(spec(140, checkpoint={'every': '1000000 steps'}, recovery={'max_restarts': 0}))
        self.addCleanup(self.page, f'as client cancel {job} || true')  # if this test fails, the job must not disturb the next one
        step = self.running(job, 20)['progress']['step']

        # Afterwards each container is a new one.
        loop = block('nodes=')
        self.assertIn(LOOP, loop)
        for role in ROLES:
            before = self.inspect(role, '{{.Id}}')
            self.page(loop.replace(LOOP, f'for service in {role}; do\n'))
            self.assertNotEqual(self.inspect(role, '{{.Id}}'), before, role)
            told = self.running(job, step + 10)
            step = told['progress']['step']
            print(f'{role} is another container: step {step}, lineage {told["lineage"]}, {told["restarts"]} restarts', flush=True)
        told = self.running(job, step, {'worker-0', 'worker-1'})
        self.assertEqual(told['restarts'], 0, told)

        # New certificates and tokens, then a new authority. At the end the old files are worthless.
        lines = block('cd deploy/compose\n./make-secrets add').splitlines()
        old = os.path.join(self.shared, 'old')
        shutil.copytree(os.path.join(self.there, 'secrets/client'), old)
        for line in lines:
            if re.match(r'\./make-secrets (renew|rotate)', line):
                self.page(line)
        shutil.copy(os.path.join(self.there, 'secrets/client/ca.crt'), old)

        def answers(role):  # to a client in its container, with the present files
            return subprocess.run(['docker', 'exec', self.name(role), 'capstan', '-q', 'healthcheck'], env=self.engine.environment,
                                  capture_output=True, timeout=60).returncode == 0

        def refused():
            done = subprocess.run(
                [*self.engine.on, support.CAPSTAN, '--address', 'localhost:7070', '--timeout', '2s', '--tls-cert', f'{old}/client.crt',
                 '--tls-key', f'{old}/client.key', '--tls-ca', f'{old}/ca.crt', '--token-file', f'{old}/client.token', 'node', 'list'],
                capture_output=True, text=True, timeout=60)
            # Not just a coordinator that is away for a moment.
            return done.stderr if done.returncode and re.search('certificate|handshake', done.stderr) else None

        for role in ROLES:
            self.wait_until(lambda role=role: answers(role), 20, f'{role} has its new certificate')
        said = self.wait_until(refused, 20, 'papers of the old authority are refused')
        print(f'a client with a certificate of the old authority: {said}', flush=True)
        step = self.running(job, step)['progress']['step']
        told = self.running(job, step + 10, {'worker-0', 'worker-1'})
        self.assertEqual(told['restarts'], 0, told)
        print(f'under another authority: {told["state"]}, step {told["progress"]["step"]}', flush=True)
        now = time.time()
        self.wait_until(lambda: self.all_scraped(5, now), 60, 'Prometheus reaches all five with the new authority')

        # Another worker, with files of the new authority, replaces one that is drained.
        add, up = (line for line in lines if 'worker-2' in line)
        self.page(add)
        self.addCleanup(self.page, up.replace('up -d', 'down -t 20'))
        self.page(up)
        self.wait_until(lambda: self.node_is('worker-2', 'READY'), 60, 'the worker that was added')
        self.page('as admin node drain worker-0')
        told = self.running(job, told['progress']['step'], {'worker-1', 'worker-2'})
        self.running(job, told['progress']['step'] + 10, {'worker-1', 'worker-2'})
        self.wait_until(lambda: self.node_is('worker-0', 'DRAINED'), 60, 'worker-0 without work')
        self.page('as admin node undrain worker-0')
        now = time.time()
        self.wait_until(lambda: self.all_scraped(6, now), 60, 'Prometheus reaches the worker that was added, too')
        self.page('as admin log-level --node worker-2 debug')

        self.at_full_speed(self.name('worker-0'), self.name('worker-1'))
        told = self.check(job, run)
        self.assertEqual(told['restarts'], 0, told)
        types = [event['type'] for event in told['events']]
        self.assertEqual((types.count('ShardLeft'), types.count('ShardLost')), (2, 0), types)
        self.page('as client describe ' + job)
        self.page('as admin doctor')

    def test_backup_goes_on_elsewhere(self):
        self.throttle(self.CPUS, self.name('worker-0'), self.name('worker-1'))  # the test before has removed the limit
        job, run = self.submit(spec(20, checkpoint={'every': '50 steps', 'keep_latest': 20}))
        self.running(job, 120)
        backup = os.path.join(self.shared, 'backup')
        takes = block('backup=').split('\n', 1)[1]
        self.page(takes, backup=backup)
        step = self.described(job)['progress']['step']
        self.running(job, step + 20)
        self.page(block('tar -C .. -cf - compose'), backup=backup)
        self.page('docker compose down -t 60')

        goes_on = block('cd capstan/compose\n').split('\n', 1)[1]
        there = os.path.join(self.host, 'capstan/compose')
        self.addCleanup(self.page, 'docker compose -p elsewhere down -v -t 20', there)
        said = self.page(goes_on, there)
        self.assertRegex(said, r'/var/lib/capstan  \d+ commits, \d+ jobs, 1 not ended')
        self.assertNotIn('not on this host', said)
        self.at_full_speed('elsewhere_worker-0_1', 'elsewhere_worker-1_1')
        told = self.check(job, run)
        self.assertLess(told['restarts'], 2, told)
        begun = [event['message'] for event in told['events'] if event['type'] == 'LineageStarted']
        print('\n'.join(begun), flush=True)
        self.assertRegex(begun[-1], r'from checkpoint 1-\d+')


if __name__ == '__main__':
    support.main()
