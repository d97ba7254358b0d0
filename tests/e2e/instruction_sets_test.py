"""Workers with loops of different instruction sets train one job to the bits that each gives alone."""

import os
import re
import subprocess

import services
import support

VARIABLE = 'CAPSTAN_CPU_TARGET'


class InstructionSetsTest(services.ServicesTest):

    def refused(self, word):
        """The message with which a worker refuses this value of the variable at its start."""
        done = subprocess.run([os.path.join(support.BIN, 'capstan_gpu_worker'), '--listen', f'unix:{self.path("w.sock")}',
                               '--http', '127.0.0.1:0', '--insecure', '--coordinator', self.address(), '--node', 'w0',
                               '--devices', 'cpu'],
                              env=dict(os.environ, **{VARIABLE: word}), capture_output=True, text=True, timeout=30)
        self.assertEqual(done.returncode, 2, done)
        return done.stderr

    def test_workers_of_two_instruction_sets_train_one_job(self):
        present = re.search(r'this processor has ([a-z0-9, ]+)', self.refused('none'))[1].split(', ')
        if len(present) < 2:
            self.skipTest(f'NOT TESTED HERE: this processor has {present[0]} alone')
        widest, narrower = present[:2]
        self.start(workers=0)
        self.start_worker('w0', env={VARIABLE: narrower})
        self.start_worker('w1', env={VARIABLE: ''})  # counts as not set

        def hash_with(*workers):
            job_id = self.submit(support.job_spec(
                resources={'num_workers': len(workers), 'num_shards': 1, 'lanes': 4, 'device': 'cpu'},
                data={'format': 'synthetic_digits', 'train_samples': 256, 'test_samples': 20},
                training={'max_steps': 4, 'epochs': 1, 'global_batch_size': 64, 'seed': 5,
                          'optimizer': {'name': 'sgd', 'learning_rate': 0.02, 'momentum': 0.9}}))
            self.ok('wait', job_id)
            job = self.describe(job_id)
            self.assertEqual([member['node'] for member in job['workers']], list(workers), job)
            self.assertEqual(job['restarts'], 0)
            loops = sorted({'w0': narrower, 'w1': widest}[worker] for worker in workers)
            self.wait_until(lambda: sorted(set(re.findall(r'own kernels, ([a-z0-9]+)', self.ok('logs', job_id).out))) == loops,
                            20, f'loops {loops} in the log')
            return job['weights_sha256']

        both = hash_with('w0', 'w1')
        self.ok('node', 'drain', 'w1')
        self.assertEqual(hash_with('w0'), both)
        self.ok('node', 'undrain', 'w1')
        self.ok('node', 'drain', 'w0')
        self.assertEqual(hash_with('w1'), both)

    def test_a_worker_does_not_start_with_a_word_that_is_none(self):
        self.assertIn(f"{VARIABLE} 'avx1024', want avx512, avx2 or emulated; this processor has ", self.refused('avx1024'))


if __name__ == '__main__':
    support.main()
