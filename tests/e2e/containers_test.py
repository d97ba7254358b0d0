"""deploy/compose on a real Docker engine, started as an operator does (docs/deploy.md, section 2)."""

import json
import os
import subprocess

import compose_cluster
import debian_root
import support
from compose_cluster import ROLES

SPEC = support.job_spec(resources={'num_workers': 2, 'gpus_per_worker': 2, 'num_shards': 2},
                        data={'format': 'synthetic_digits', 'train_samples': 6000, 'test_samples': 500},
                        training={'epochs': 30, 'global_batch_size': 64, 'seed': 3,
                                  'optimizer': {'name': 'sgd', 'learning_rate': 0.04, 'momentum': 0.9}})


class ContainersTest(compose_cluster.ComposeTest):
    """Each test leaves the cluster as it found it."""

    def test_up_to_healthy_takes_less_than_a_minute(self):
        print(f'healthy after {self.seconds_to_healthy:.1f} s', flush=True)
        self.assertLess(self.seconds_to_healthy, 60)

    def test_no_container_of_ours_has_a_right_that_it_does_not_need(self):
        for role in ROLES:
            def shell(command):
                return self.engine.docker('exec', self.name(role), 'sh', '-c', command)

            self.assertEqual(shell('id -u').strip(), '10001')
            self.assertIn('Read-only file system', shell('touch /usr/bin/x /x 2>&1 || true'))
            status = shell('cat /proc/1/status /proc/self/status')
            for line in ('CapEff:\t0000000000000000', 'CapBnd:\t0000000000000000', 'NoNewPrivs:\t1'):
                self.assertEqual(status.count(line), 2, f'{role}: {line}')
            # No other user of the image can read the keys, and no environment contains them.
            self.assertEqual(set(shell('stat -L -c %a:%u /run/secrets/capstan/*.key').split()), {'600:10001'})
            self.assertNotIn('PRIVATE', self.engine.docker('inspect', self.name(role)))

    def test_the_logs_of_every_container_are_bounded(self):
        for role in (*ROLES, 'prometheus', 'alertmanager'):
            self.assertEqual(json.loads(self.inspect(role, '{{json .HostConfig.LogConfig}}')),
                             {'Type': 'json-file', 'Config': {'max-size': '10m', 'max-file': '5'}}, role)

    def test_the_memory_and_the_processes_of_every_container_are_bounded(self):
        wanted = {**dict.fromkeys(ROLES, '8589934592 4096'), 'prometheus': '2147483648 1024', 'alertmanager': '536870912 1024'}
        self.assertEqual({role: self.inspect(role, '{{.HostConfig.Memory}} {{.HostConfig.PidsLimit}}') for role in wanted}, wanted)

    def test_killed_and_paused_workers_change_nothing_of_a_job_submitted_from_outside(self):
        job = self.operator('submit', self.write('job.yaml', json.dumps(SPEC))).strip()

        def at_step(step):
            told = self.described(job)
            self.assertNotIn(told['state'], ('FAILED', 'CANCELLED', 'SUCCEEDED'), told)
            return told['progress']['step'] >= step

        self.wait_until(lambda: at_step(50), 120, 'step 50')
        self.engine.docker('pause', self.name('worker-0'))
        self.wait_until(lambda: self.node_is('worker-0', 'LOST'), 120, 'worker-0 is lost while it is paused')
        self.engine.docker('unpause', self.name('worker-0'))
        self.wait_until(lambda: self.node_is('worker-0', 'READY'), 120, 'worker-0 is back')
        self.assertFalse(at_step(30 * 94), 'the job ended before its second worker was killed')
        self.engine.docker('kill', self.name('worker-1'))
        self.wait_until(lambda: self.node_is('worker-1', 'LOST'), 120, 'worker-1 is lost')
        self.engine.docker('start', self.name('worker-1'))
        ended = json.loads(self.operator('-o', 'json', 'wait', job).splitlines()[-1])
        self.assertEqual(ended['state'], 'SUCCEEDED', ended)
        self.assertEqual(ended['weights_sha256'], self.train(SPEC)['weights_sha256'])
        events = self.operator('events', job)
        self.assertGreaterEqual(events.count('WorkerLost'), 2, events)
        self.wait_until(lambda: self.node_is('worker-1', 'READY'), 120, 'worker-1 is back')

        # Prometheus in the cluster saw all five services, and the job's steps.
        self.wait_until(lambda: '=> 5 ' in self.query('sum(up{job="capstan"})'), 120, 'five targets up')
        self.wait_until(lambda: '=>' in self.query(f'max_over_time(capstan_job_global_step{{job_id="{job}"}}[10m]) > 50'),
                        120, 'the steps of the job')

    def test_alertmanager_runs_and_prometheus_sends_alerts_to_it(self):
        def amtool(*args):
            return self.engine.docker('exec', self.name('alertmanager'), 'amtool', '--alertmanager.url=http://localhost:9093', *args)

        self.wait_until(lambda: self.inspect('alertmanager', '{{.State.Status}} {{.RestartCount}}') == 'running 0', 60,
                        'Alertmanager, at its first start')
        fails = dict(SPEC, training=dict(SPEC['training'], optimizer={'name': 'sgd', 'learning_rate': 1e30}))
        self.operator('submit', self.write('job.yaml', json.dumps(fails)))
        self.wait_until(lambda: 'CapstanJobFailed' in amtool('alert', 'query'), 120, 'its alert in Alertmanager')

    def test_a_worker_more_an_admin_and_a_token_that_is_withdrawn(self):
        env = dict(self.engine.environment, CAPSTAN=support.CAPSTAN, CAPSTAN_IMAGE='localhost/capstan', CAPSTAN_NODE='worker-2')
        make = os.path.join(self.there, 'make-secrets')

        def more(*args):
            return debian_root.run('docker-compose', '-p', 'worker-2', '-f', os.path.join(self.there, 'worker.yaml'), *args, env=env)

        # No container is restarted. Each sees the new table under the old one's name.
        debian_root.run(make, 'add', 'worker', 'worker-2', env=env)
        self.addCleanup(more, 'down', '-t', '20')
        more('up', '-d')
        self.wait_until(lambda: self.node_is('worker-2', 'READY'), 120, 'the worker that was added')
        debian_root.run(make, 'add', 'admin', 'eve', env=env)
        eve = ('--address', 'localhost:7070', *(f'--{flag}={self.there}/secrets/eve/{name}' for flag, name in (
            ('tls-cert', 'admin.crt'), ('tls-key', 'admin.key'), ('tls-ca', 'ca.crt'), ('token-file', 'admin.token'))))

        def drain():
            return subprocess.run([*self.engine.on, support.CAPSTAN, *eve, 'node', 'drain', 'worker-2'], capture_output=True,
                                  text=True, timeout=60)

        done = drain()
        self.assertEqual(done.returncode, 0, done.stderr)
        path = os.path.join(self.there, 'secrets/ca/tokens.json')
        with open(path) as f:
            table = json.load(f)
        table['tokens'] = [entry for entry in table['tokens'] if entry['name'] != 'eve']
        with open(path, 'w') as f:
            json.dump(table, f)
        debian_root.run(make, env=env)
        done = drain()
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn('token missing, invalid or expired', done.stderr)

    def test_a_stopped_worker_drains_and_ends_with_0(self):
        self.engine.docker('stop', '-t', '30', self.name('worker-0'))
        self.assertEqual(self.inspect('worker-0', '{{.State.ExitCode}}'), '0')
        self.engine.docker('start', self.name('worker-0'))
        self.wait_until(lambda: self.node_is('worker-0', 'READY'), 120, 'worker-0 is back')

    def test_the_dockerfile_for_gpus_is_well_formed(self):
        # The engine parses the whole file before it looks for the stage. The downloads of the file are not possible here.
        done = subprocess.run(['docker', 'build', '--target', 'no-such-stage', '-f',
                               os.path.join(support.ROOT, 'deploy/docker/Dockerfile.gpu'), self.folder],
                              env=self.engine.environment, capture_output=True, text=True)
        self.assertIn('failed to reach build target no-such-stage', done.stdout + done.stderr)


if __name__ == '__main__':
    support.main()
