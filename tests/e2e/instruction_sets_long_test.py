"""One SHA-256 of the weights with the kernels of every instruction set that this processor has.

Trains both LeNets over 50 steps, and ResNet-18 for a step: on small images with all sets, on CIFAR-10's with all except
`emulated`, which is about fifty times slower. tests/contract/cpu_target_test.cc compares fewer steps of single plans with a
recorded hash.
"""

import cifar10
import services
import support

# The same flags as in gpu_worker/engine/cpu/blocked/math.cc.
FLAGS = {'avx512': {'avx512f', 'avx512vl', 'avx512bw', 'avx512dq', 'avx512cd'}, 'avx2': {'avx2', 'fma', 'bmi2'}, 'emulated': set()}
SECONDS = 600  # for a job; the longest takes about 30 s on two idle cores
SGD = {'name': 'sgd', 'learning_rate': 0.02, 'momentum': 0.9}


def present():
    with open('/proc/cpuinfo') as f:
        has = next((set(line.split()) for line in f if line.startswith('flags')), set())
    return [word for word, flags in FLAGS.items() if flags <= has]


class InstructionSetsLongTest(services.ServicesTest):

    def setUp(self):
        super().setUp()
        self.start(workers=0)

    def hashes(self, words, specs):
        """For each spec, the hashes with all words."""
        found = [set() for _ in specs]
        for word in words:
            self.start_worker(f'w-{word}', env={'CAPSTAN_CPU_TARGET': word}, threads=2)
            for number, spec in enumerate(specs):
                job_id = self.submit(spec)
                self.ok('wait', job_id, timeout=SECONDS)
                job = self.describe(job_id)
                said = f'device="cpu: own kernels, {word}"'
                self.wait_until(lambda: said in self.ok('logs', job_id).out, 30, said)
                print(f'{spec["model"]["name"]}, {word}: {job["weights_sha256"]}', flush=True)
                self.assertEqual(job['samples_used'], spec['training']['max_steps'] * spec['training']['global_batch_size'], job)
                found[number].add(job['weights_sha256'])
            self.stop(f'w-{word}')
        return found

    def one_hash(self, words, *specs):
        for word in FLAGS:
            if word not in words:
                print(f'NOT TESTED HERE: {word}', flush=True)
        if len(words) < 2:
            self.skipTest('NOT TESTED HERE: nothing to compare, this processor has one instruction set of them')
        for spec, found in zip(specs, self.hashes(words, specs)):
            self.assertEqual(len(found), 1, spec['model'])

    @staticmethod
    def spec(model, steps, batch, lanes, data):
        return support.job_spec(
            model={'name': model}, data=data, resources={'num_workers': 1, 'num_shards': 1, 'lanes': lanes, 'device': 'cpu'},
            training={'max_steps': steps, 'epochs': 100, 'global_batch_size': batch, 'seed': 5, 'optimizer': SGD})

    def test_both_lenets_and_a_small_resnet_by_all(self):
        digits = {'format': 'synthetic_digits', 'train_samples': 2048, 'test_samples': 32}
        small = {**digits, 'transforms': [{'resize': {'size': 16}}, {'normalize': {'mean': [0.15], 'std': [0.3]}}]}
        self.one_hash(present(), self.spec('lenet', 50, 64, 4, digits), self.spec('lenet_d2l', 50, 64, 4, digits),
                      self.spec('resnet18_v1', 1, 32, 2, small))

    def test_resnet_of_full_size_by_vectors(self):
        data = {'format': 'cifar10_bin', 'uri': cifar10.write_small(self.path('cifar10'), tests=32),
                'transforms': cifar10.AUGMENTATION}
        self.one_hash([word for word in present() if word != 'emulated'], self.spec('resnet18_v1', 1, 64, 4, data))


if __name__ == '__main__':
    support.main()
