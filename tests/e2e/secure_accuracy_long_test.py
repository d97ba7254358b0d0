"""The reference job on services that are started one by one and use mutual TLS over loopback TCP.

At the gate, accuracy_test trains it with `capstan run`, and cluster_security_test compares the weights of a short job over TLS.
"""

import json

import accuracy_test
import secure_cluster
import support


class SecureAccuracyTest(support.TestCase):

    def test_d2l_lenet_on_fashion_mnist(self):
        cluster = secure_cluster.SecureCluster(self.folder, workers=2, shards=2)
        self.addCleanup(cluster.stop)
        run = self.capstan(*cluster.client(), '-o', 'json', 'submit', '--wait',
                           self.write('job.yaml', json.dumps(accuracy_test.d2l(1))), timeout=1700)
        self.assertEqual(run.code, 0, f'{run}\n{"".join(cluster.said[-40:])}')
        job = json.loads(run.out.splitlines()[-1])
        accuracies = [epoch['validation_accuracy'] for epoch in job['epochs']]
        print(f'lenet_d2l, Fashion-MNIST, mutual TLS, seed 1: {" ".join(f"{a:.4f}" for a in accuracies)}\n'
              f'weights {job["weights_sha256"]}', flush=True)
        self.assertEqual(job['samples_used'], 600000)
        self.assertGreaterEqual(max(accuracies[-2:]), 0.82)


if __name__ == '__main__':
    support.main()
