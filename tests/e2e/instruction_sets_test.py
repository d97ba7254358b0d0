"""Workers whose kernels are of different instruction sets: who may train one job together, and who says so."""

import os
import subprocess

import services
import support

AVX2 = {'CAPSTAN_CPU_TARGET': 'avx2'}
WIDEST = {'CAPSTAN_CPU_TARGET': ''}  # as if it were not set: chains by oneDNN
SGD = {'name': 'sgd', 'learning_rate': 0.02, 'momentum': 0.9}


def has_avx2():
    with open('/proc/cpuinfo') as f:
        flags = next((line.split() for line in f if line.startswith('flags')), [])
    return {'avx2', 'fma', 'bmi2'} <= set(flags)


class InstructionSetsTest(services.ServicesTest):

    def setUp(self):
        super().setUp()
        if not has_avx2():
            self.skipTest('NOT TESTED HERE: this processor has no AVX2')

    def start_two(self):
        self.start(workers=0)
        self.start_worker('w0', env=AVX2)
        self.start_worker('w1', env=WIDEST)

    def test_kernels_of_one_kind_everywhere_train_together(self):
        self.start_two()

        def hash_with(workers):
            job_id = self.submit(support.job_spec(
                model={'name': 'resnet18_v1'}, resources={'num_workers': workers, 'num_shards': 1, 'lanes': 4, 'device': 'cpu'},
                data={'format': 'synthetic_digits', 'train_samples': 96, 'test_samples': 20},
                training={'max_steps': 3, 'epochs': 2, 'global_batch_size': 32, 'seed': 5, 'optimizer': SGD}))
            self.ok('wait', job_id)
            job = self.describe(job_id)
            self.assertEqual(job['instruction_set'], '')
            self.assertEqual(job['restarts'], 0)
            return job['weights_sha256'], sorted(worker['node'] for worker in job['workers'])

        both, nodes = hash_with(2)
        self.assertEqual(nodes, ['w0', 'w1'])
        self.ok('node', 'drain', 'w1')
        self.assertEqual(hash_with(1), (both, ['w0']))

    def test_a_job_of_one_instruction_set_refuses_the_others_by_name(self):
        self.start_two()
        job_id = self.submit(support.job_spec(
            model={'name': 'lenet'}, resources={'num_workers': 2, 'num_shards': 1, 'lanes': 4, 'device': 'cpu'},
            training={'epochs': 100000, 'global_batch_size': 64, 'seed': 3, 'optimizer': SGD}))
        waits = 'so its workers are to be of one: worker w0 computes with portable kernels, worker w1 with '
        self.wait_until(lambda: waits in self.describe(job_id)['message'], 30, f'"{waits}"')

        self.start_worker('w2', env=WIDEST)
        job = self.wait_for_step(job_id, 5)
        own = job['instruction_set']
        self.assertIn(own, ('avx512', 'avx2'))
        self.assertEqual(sorted(worker['node'] for worker in job['workers']), ['w1', 'w2'])
        self.assertIn(f'Devices     CPUs with {own} kernels, no others\n', self.ok('describe', job_id).out)

        self.stop('w2')
        refused = (f'worker w0 computes with portable kernels, the job began with {own} kernels, and its bits would change: '
                   f'start a worker of {own}')
        self.wait_until(lambda: refused in self.ok('events', job_id).out, 60, f'"{refused}"')
        step = self.describe(job_id)['progress']['step']
        job = self.wait_for_step(job_id, step + 5)  # on w1 alone
        self.assertNotIn('w0', [worker['node'] for worker in job['workers']])
        self.ok('cancel', job_id)

    def test_a_worker_does_not_start_with_a_word_that_is_none(self):
        done = subprocess.run([os.path.join(support.BIN, 'capstan_gpu_worker'), '--listen', f'unix:{self.path("w.sock")}',
                               '--http', '127.0.0.1:0', '--insecure', '--coordinator', self.address(), '--node', 'w0',
                               '--devices', 'cpu'],
                              env=dict(os.environ, CAPSTAN_CPU_TARGET='avx1024'), capture_output=True, text=True, timeout=30)
        self.assertEqual(done.returncode, 2, done)
        self.assertIn("CAPSTAN_CPU_TARGET 'avx1024', want avx512, avx2 or emulated; this processor has ", done.stderr)


if __name__ == '__main__':
    support.main()
