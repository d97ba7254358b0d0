"""The services on TCP: which settings start, who is admitted, and that no secret leaves its file (docs/security.md)."""

import glob
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request

import secure_cluster
import support


class SecurityTest(support.TestCase):

    def cluster(self, **options):
        cluster = secure_cluster.SecureCluster(self.folder, **options)
        self.addCleanup(cluster.stop)
        return cluster

    def secrets(self, cluster):
        out = []
        for path in glob.glob(cluster.path('*', '*.token')):
            with open(path) as f:
                out.append(f.read().strip())
        for path in glob.glob(cluster.path('*', '*.key')):
            with open(path, 'rb') as f:
                key = f.read()
            if key.startswith(b'-----'):
                out += [line for line in key.decode().splitlines() if not line.startswith('-----')]
            else:  # in the coordinator's state folder: bytes, which a log would show like this
                out.append(key.hex())
        self.assertGreater(len(out), 8)
        return out

    def test_a_job_trains_over_mutual_tls_through_faults_and_no_secret_is_seen_anywhere(self):
        cluster = self.cluster(workers=3, shards=2, coordinator_args=('--heartbeat', '200ms', '--lease', '1s'))
        secrets = self.secrets(cluster)
        spec = support.job_spec(
            resources={'num_workers': 3, 'num_shards': 2, 'lanes': 8}, checkpoint={'every': '20 steps'},
            recovery={'max_restarts': 100, 'backoff': {'initial': '0s'}},
            training={'epochs': 30, 'global_batch_size': 64, 'seed': 3, 'optimizer': {'name': 'sgd', 'learning_rate': 0.04}})
        seen = []  # texts

        def look():
            for pid in cluster.pids():
                for name in ('cmdline', 'environ', 'limits'):
                    try:
                        with open(f'/proc/{pid}/{name}', 'rb') as f:
                            seen.append(f.read().decode(errors='replace'))
                    except OSError:
                        continue  # it has ended, or may not be read
                    if name == 'limits' and seen[-1]:  # also of tasks
                        self.assertRegex(seen[-1], r'Max core file size +0 +0 ')
            for address in cluster.http_addresses():
                for path in ('', 'healthz', 'readyz', 'metrics'):
                    try:
                        with urllib.request.urlopen(f'http://{address}/{path}', timeout=20) as answer:
                            seen.append(answer.read().decode())
                    except urllib.error.HTTPError as error:
                        seen.append(error.read().decode())

        def call(*args, code=0, **options):
            run = self.capstan(*cluster.client(), *args, **options)
            self.assertEqual(run.code, code, f'{run}\n{"".join(cluster.said)}')
            seen.append(run.out + run.err)
            return run

        def reach(step):
            deadline = time.monotonic() + 120
            job = {'progress': {'step': 0}}
            while job['progress']['step'] < step:
                self.assertLess(time.monotonic(), deadline, job)
                job = json.loads(call('-o', 'json', 'describe', job_id).out)
            self.assertIn(job['state'], ('RUNNING', 'RECOVERING'), job)

        job_id = call('submit', self.write('job.yaml', json.dumps(spec))).out.strip()
        reach(5)
        look()
        os.kill(cluster.tasks()[0], signal.SIGSEGV)
        reach(60)
        cluster.kill(-1)  # a worker
        reach(100)
        cluster.begin(cluster.kill(1))  # a shard
        call('events', job_id)
        reach(140)
        cluster.begin(cluster.kill(0))  # the coordinator
        look()
        stolen = cluster.client()
        stolen[-1] = cluster.path('worker', 'worker.token')
        seen.append(str(self.capstan(*stolen, 'list')))
        job = json.loads(call('-o', 'json', 'wait', job_id, timeout=180).out.splitlines()[-1])
        self.assertEqual(job['state'], 'SUCCEEDED')
        look()
        for args in (['logs', job_id], ['describe', job_id], ['list', '-o', 'wide'], ['events', job_id], ['node', 'list']):
            call(*args)
        cluster.stop()
        # The same weights as without a network and without faults, because TLS only carries bytes.
        self.assertEqual(job['weights_sha256'], self.train(spec)['weights_sha256'])

        everything = ''.join(cluster.said + seen)
        papers = {cluster.path(name) for name in ('ca', 'coordinator', 'param_store', 'worker', 'client')}
        for root, folders, names in os.walk(self.folder):
            folders[:] = [name for name in folders if os.path.join(root, name) not in papers]
            for name in names:
                self.assertNotRegex(name, r'^core\b')
                with open(os.path.join(root, name), 'rb') as f:
                    everything += f.read().decode(errors='replace')
        for sign in ('event=registered', 'capstan_build_info', 'LineageStarted', 'SQLite format 3', 'ann'):
            self.assertIn(sign, everything)  # shows that this place was searched
        for secret in secrets:
            self.assertNotIn(secret, everything)

    def test_the_authority_changes_while_a_job_trains(self):
        cluster = self.cluster(workers=2, shards=1)
        roles = ('coordinator', 'param_store', 'worker', 'client')
        shutil.copytree(cluster.path('client'), cluster.path('old'))
        with_old = ['--address', cluster.address, '--timeout', '2s', *(arg.replace(cluster.path('client'), cluster.path('old'))
                                                                      for arg in cluster.credentials('client'))]
        # It ends when it is told to, at a step that is known only then.
        spec = support.job_spec(resources={'num_workers': 2, 'num_shards': 1, 'lanes': 8}, checkpoint={'every': '1000000 steps'},
                                training={'epochs': 100000, 'global_batch_size': 64, 'seed': 3,
                                          'optimizer': {'name': 'sgd', 'learning_rate': 0.04}})

        def call(*args, **options):
            run = self.capstan(*cluster.client(), *args, **options)
            self.assertEqual(run.code, 0, f'{run}\n{"".join(cluster.said)}')
            return run

        def describe():
            return json.loads(call('-o', 'json', 'describe', job_id).out)

        def trains_on(steps=5):
            before = describe()
            self.assertEqual((before['state'], before['restarts']), ('RUNNING', 0), before)
            self.wait_until(lambda: describe()['progress']['step'] >= before['progress']['step'] + steps, 30, f'{steps} more steps')

        def hand_out():
            for role in roles:  # replaced by a new file, as editors and package tools do
                shutil.copy(cluster.path('ca', 'ca.crt'), cluster.path(role, 'ca.new'))
                os.rename(cluster.path(role, 'ca.new'), cluster.path(role, 'ca.crt'))

        def trusted_by(address, who):
            return self.capstan('--address', address, '--timeout', '2s', *who, 'healthcheck').code == 0

        job_id = call('submit', self.write('job.yaml', json.dumps(spec))).out.strip()
        self.wait_until(lambda: describe()['progress']['step'] >= 5, 60, 'step 5')
        # 1. All processes trust both authorities.
        cluster.certs('rotate', cluster.path('ca'))
        hand_out()
        cluster.issue('client', '--name', 'ann', '--force', '--overlap-days', '1')
        for address in cluster.addresses():
            self.wait_until(lambda: trusted_by(address, cluster.credentials('client')), 20, f'{address} trusts the new authority')
            self.assertTrue(trusted_by(address, with_old[4:]), address)
        self.assertEqual(self.capstan(*with_old, 'list').code, 0)  # its token overlaps
        # 2. All get certificates of the new authority. 3. The old authority is removed.
        for role in roles[:-1]:
            cluster.issue(role, '--force', '--overlap-days', '1')
        cluster.certs('rotate', cluster.path('ca'), '--finish')
        hand_out()
        for address in cluster.addresses():
            self.wait_until(lambda: not trusted_by(address, with_old[4:]), 20, f'{address} refuses the old authority')
            self.wait_until(lambda: trusted_by(address, cluster.credentials('client')), 20, f'{address} has its new certificate')
        trains_on()
        # A node that dials again is admitted with its present files, and the job is not affected.
        cluster.begin(cluster.kill(-1))
        self.wait_until(lambda: [node['state'] for node in json.loads(call('-o', 'json', 'node', 'list').out)] == ['READY'] * 3, 60,
                        'all nodes ready')
        self.wait_until(lambda: len([worker for worker in describe()['workers'] if worker['state'] == 'RUNNING']) == 2, 60,
                        'a task on the node that is back')
        trains_on()
        types = [event['type'] for event in describe()['events']]
        self.assertEqual((types.count('WorkerLost'), types.count('ShardLost')), (1, 0), types)
        # The weights equal those of a run without a network, at the step at which the job is told to stop.
        call('suspend', job_id)
        self.wait_until(lambda: describe()['state'] == 'SUSPENDED', 60, 'the job at rest')
        saved = json.loads(call('-o', 'json', 'checkpoint', 'export', job_id, '--out', self.path('exported')).out)
        until = dict(spec, training=dict(spec['training'], max_steps=saved['step']))
        self.assertEqual(saved['weights_sha256'], self.train(until, timeout=240)['weights_sha256'])

    def test_callers_without_the_right_papers_are_turned_away_with_exit_codes(self):
        cluster = self.cluster(workers=0, shards=0)
        good = self.capstan(*cluster.client(), 'list')
        self.assertEqual(good.code, 0, good)
        plain = self.capstan('--address', cluster.address, '--insecure', '--timeout', '2s', 'list')
        self.assertEqual(plain.code, 3, plain)
        worker = ['--address', cluster.address, *cluster.credentials('worker')]
        refused = self.capstan(*worker, 'list')
        self.assertEqual(refused.code, 4, refused)
        self.assertIn('role worker may not call', refused.err)
        stolen = cluster.client()
        stolen[-1] = cluster.path('worker', 'worker.token')
        refused = self.capstan(*stolen, 'list')
        self.assertEqual(refused.code, 4, refused)
        self.assertIn('the token is of worker 127.0.0.1, the certificate of client ann', refused.err)
        os.chmod(cluster.path('client', 'client.token'), 0o644)
        loose = self.capstan(*cluster.client(), 'list')
        self.assertNotEqual(loose.code, 0, loose)
        self.assertIn('mode 0644', loose.err)

    def test_the_last_job_is_ones_own(self):
        cluster = self.cluster(workers=0, shards=0)
        cluster.certs('issue', 'client', '--ca', cluster.path('ca'), '--name', 'bob', '--out', cluster.path('bob'))
        ann = cluster.client()
        bob = [word.replace(cluster.path('client') + '/', cluster.path('bob') + '/') for word in ann]
        self.wait_until(lambda: self.capstan(*bob, '--timeout', '2s', 'list').code == 0, 20, "bob's token is known")

        def call(who, *args):
            run = self.capstan(*who, *args)
            self.assertEqual(run.code, 0, run)
            return run.out

        file = self.write('job.yaml', json.dumps(support.job_spec()))
        hers = call(ann, 'submit', file).strip()
        none = self.capstan(*bob, 'describe', '@last')
        self.assertEqual(none.code, 102, none)
        self.assertIn('@last: there is no job of bob', none.err)
        his = call(bob, 'submit', file).strip()
        for who, job_id, owner in ((ann, hers, 'ann'), (bob, his, 'bob')):
            job = json.loads(call(who, '-o', 'json', 'describe', '@last'))
            self.assertEqual((job['job_id'], job['owner']), (job_id, owner))
        call(ann, 'cancel', '@last')
        self.assertEqual([job['job_id'] for job in json.loads(call(ann, '-o', 'json', 'list', '-s', 'PENDING'))], [his])

    def test_what_the_handshake_said_and_a_refused_connection_are_told_at_once(self):
        cluster = self.cluster(workers=0, shards=0)
        port = cluster.address.rsplit(':', 1)[1]
        os.mkdir(self.path('other'))
        other = secure_cluster.Credentials(self.path('other'))
        both = self.path('both.crt')
        with open(both, 'w') as f:
            for path in (cluster.path('ca', 'ca.crt'), other.path('ca', 'ca.crt')):
                with open(path) as ca:
                    f.write(ca.read())
        foreign = other.credentials('client')
        known = [both if word.endswith('ca.crt') else word for word in foreign]
        plain = secure_cluster.SecureCluster(self.path('other'), workers=0, shards=0, tls=False)
        self.addCleanup(plain.stop)

        def said(address, papers, *words, command=('list',)):
            begun = time.monotonic()
            run = self.capstan('--address', address, *papers, *command)
            self.assertEqual(run.code, 3, run)
            self.assertLess(time.monotonic() - begun, 5, run)  # the timeout is 30 s
            for word in words:
                self.assertIn(word, run.err, run)

        ours = cluster.credentials('client')
        said(f'localhost:{port}', ours, 'its certificate (of coordinator ', 'is for 127.0.0.1, not for localhost', '--host localhost')
        said(cluster.address, foreign, 'is refused: self-signed certificate in certificate chain', 'ca.crt of this cluster?')
        said(cluster.address, known, 'it does not accept our certificate --tls-cert')
        said(cluster.address, ['--insecure'], 'it speaks TLS; give --tls-ca')
        said(plain.address, ours, 'it does not speak TLS')
        said(plain.address, ours, 'it does not speak TLS', command=('healthcheck',))
        plain.stop()
        said(plain.address, ours, f'no coordinator answers at {plain.address}: nothing listens there')
        said(f'unix:{self.path("no.sock")}', [], 'no.sock: there is no such socket')

    def test_plaintext_on_tcp_needs_insecure_and_says_how_to_go_on(self):
        for binary, args in (('capstan_coordinator', []),
                             ('capstan_param_store', ['--coordinator', 'unix:/tmp/c', '--node', 's']),
                             ('capstan_gpu_worker', ['--coordinator', 'unix:/tmp/c', '--node', 'w'])):
            done = subprocess.run([os.path.join(support.BIN, binary), '--listen', '127.0.0.1:0', *args],
                                  capture_output=True, text=True, cwd=self.folder, timeout=30)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn('listening on TCP needs --tls-cert; `capstan certs init DIR`', done.stderr)

    def test_services_leave_no_core_file_have_all_descriptors_and_tell_their_health(self):
        cluster = self.cluster(workers=1, shards=1)
        for process, _, _ in cluster.members:
            with open(f'/proc/{process.pid}/limits') as f:
                limits = f.read()
            self.assertRegex(limits, r'Max core file size +0 +0 ')
            soft, hard = [line for line in limits.splitlines() if line.startswith('Max open files')][0].split()[3:5]
            self.assertEqual(soft, hard)
        for address in cluster.addresses():
            check = ['--address', address, *cluster.credentials('client'), 'healthcheck']
            self.wait_until(lambda: self.capstan(*check).out == 'SERVING\n', 20, address)  # registered
            self.assertEqual(self.capstan(*check).code, 0)


if __name__ == '__main__':
    support.main()
