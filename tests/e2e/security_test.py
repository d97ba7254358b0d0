"""The services on TCP: what starts, who is let in, and that no secret leaves its file (docs/security.md)."""

import glob
import json
import os
import subprocess
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
            with open(path) as f:
                out += [line for line in f.read().splitlines() if not line.startswith('-----')]
        self.assertGreater(len(out), 8)
        return out

    def test_a_job_trains_over_mutual_tls_and_no_secret_is_seen_anywhere(self):
        cluster = self.cluster(workers=2, shards=2)
        secrets = self.secrets(cluster)
        spec = support.job_spec(resources={'num_workers': 2, 'num_shards': 2})
        file = self.write('job.yaml', json.dumps(spec))
        seen = []

        def look():
            for pid in cluster.pids():
                for name in ('cmdline', 'environ'):
                    try:
                        with open(f'/proc/{pid}/{name}', 'rb') as f:
                            seen.append(f.read().decode(errors='replace'))
                    except OSError:
                        pass  # it has ended, or nobody may look
            for address in cluster.http_addresses():
                with urllib.request.urlopen(f'http://{address}/metrics', timeout=10) as answer:
                    seen.append(answer.read().decode())

        submit = self.capstan(*cluster.client(), 'submit', file)
        self.assertEqual(submit.code, 0, f'{submit}\n{"".join(cluster.said)}')
        look()
        job_id = submit.out.strip()
        wait = self.capstan(*cluster.client(), '-v', '-o', 'json', 'wait', job_id, timeout=120)
        self.assertEqual(wait.code, 0, f'{wait}\n{"".join(cluster.said)}')
        look()
        job = json.loads(wait.out.splitlines()[-1])
        self.assertEqual(job['state'], 'SUCCEEDED')
        # The same weights as without a network: TLS carries bytes and nothing else.
        self.assertEqual(job['weights_sha256'], self.train(spec)['weights_sha256'])
        logs = self.capstan(*cluster.client(), 'logs', job_id)
        self.assertEqual(logs.code, 0, logs)
        cluster.stop()

        everything = ''.join(cluster.said + seen) + ''.join(run.out + run.err for run in (submit, wait, logs))
        for root, _, names in os.walk(cluster.path('state')):
            for name in names:
                with open(os.path.join(root, name), 'rb') as f:
                    everything += f.read().decode(errors='replace')
        self.assertIn('event=registered', everything)
        self.assertIn('capstan_build_info', everything)
        for secret in secrets:
            self.assertNotIn(secret, everything)

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

    def test_plaintext_on_tcp_needs_insecure_and_says_how_to_go_on(self):
        for binary, args in (('capstan_coordinator', []),
                             ('capstan_param_store', ['--coordinator', 'unix:/tmp/c', '--node', 's']),
                             ('capstan_gpu_worker', ['--coordinator', 'unix:/tmp/c', '--node', 'w'])):
            done = subprocess.run([os.path.join(support.BIN, binary), '--listen', '127.0.0.1:0', *args],
                                  capture_output=True, text=True, cwd=self.folder, timeout=30)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn('listening on TCP needs --tls-cert; `capstan certs init DIR`', done.stderr)

    def test_tasks_and_services_leave_no_core_file_and_have_all_descriptors(self):
        cluster = self.cluster(workers=1, shards=1)
        for process, _, _ in cluster.members:
            with open(f'/proc/{process.pid}/limits') as f:
                limits = f.read()
            self.assertRegex(limits, r'Max core file size +0 +0 ')
            soft, hard = [line for line in limits.splitlines() if line.startswith('Max open files')][0].split()[3:5]
            self.assertEqual(soft, hard)


if __name__ == '__main__':
    support.main()
