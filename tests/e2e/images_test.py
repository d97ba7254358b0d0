"""Color images in the binary format of CIFAR-10, from files to weights."""

import json
import os
import random

import support

MODELS = ('lenet', 'lenet_d2l', 'mlp')


def record(rng, label):
    """One image of noise, with less and brighter noise in the plane that the label chooses."""
    planes = [rng.randbytes(1024) for _ in range(3)]
    planes[label % 3] = planes[label % 3].translate(bytes(20 * label + value // 4 for value in range(256)))
    return bytes([label]) + b''.join(planes)


class ImagesTest(support.TestCase):

    def setUp(self):
        super().setUp()
        rng = random.Random(5)
        for name, count in (('data_batch_1.bin', 150), ('data_batch_2.bin', 90), ('test_batch.bin', 30)):
            self.write(os.path.join('set', name), b''.join(record(rng, rng.randrange(10)) for _ in range(count)))

    def spec(self, model='mlp', resources=None, **data):
        resources = {'num_workers': 1, 'num_shards': 1, 'lanes': 4, 'device': 'cpu', **(resources or {})}
        return support.job_spec(resources=resources, model={'name': model}, data={'format': 'cifar10_bin', 'uri': self.path('set'), **data},
                                training={'epochs': 2, 'global_batch_size': 64, 'seed': 3,
                                          'optimizer': {'name': 'sgd', 'learning_rate': 0.01}})

    def test_every_model_trains_on_them_and_the_plan_counts_the_batches(self):
        for model in MODELS:
            job = self.train(self.spec(model))
            self.assertEqual(job['samples_used'], 2 * 240, job)
            weights = support.read_safetensors(os.path.join(self.checkpoint(job), 'weights.safetensors'))
            first, shape = {'lenet': ('conv1', [6, 3, 5, 5]), 'lenet_d2l': ('conv1', [20, 3, 3, 3]), 'mlp': ('fc1', [128, 3072])}[model]
            self.assertEqual(weights[f'{first}.weight'][0], shape)
        run = self.capstan('validate', self.write('job.yaml', json.dumps(self.spec())))
        self.assertEqual(run.code, 0, run)
        self.assertIn('set, 2 of 5 batches, 240 + 30 samples', run.out + run.err)

    def test_transforms_draw_the_same_whoever_reads(self):
        transforms = [{'random_crop': {'padding': 4}}, {'random_flip': {}}, {'cutout': {'size': 8}},
                      {'normalize': {'mean': [0.5, 0.5, 0.4], 'std': [0.25, 0.25, 0.3]}}]
        hashes = set()
        for resources, kvstore in (({}, 'local'), ({'num_workers': 2, 'num_shards': 2}, 'dist_sync'),
                                   ({'num_workers': 3}, 'dist_sync')):
            spec = self.spec(resources=resources, transforms=transforms, reader_threads=resources.get('num_workers', 1))
            spec['kvstore'] = {'type': kvstore}
            hashes.add(self.train(spec)['weights_sha256'])
        self.assertEqual(len(hashes), 1, hashes)
        self.assertNotIn(self.train(self.spec())['weights_sha256'], hashes)
        spec = self.spec(transforms=[{'resize': {'size': 16}}, {'random_flip': {}}])
        run = self.capstan('validate', self.write('job.yaml', json.dumps(spec)))
        self.assertIn('images resize, random_flip -> 3 x 16 x 16', run.out + run.err)

    def test_damaged_files_are_refused_by_name(self):
        path = self.path('set', 'data_batch_2.bin')
        with open(path, 'r+b') as f:
            f.seek(3073)
            f.write(b'\x0a')
        run = self.capstan('run', self.write('job.yaml', json.dumps(self.spec())))
        self.assertNotEqual(run.code, 0, run)
        self.assertIn('data_batch_2.bin: label 10 at offset 3073, want 0 to 9', run.err)
        os.truncate(path, 5000)
        run = self.capstan('validate', self.path('job.yaml'))
        self.assertIn('data_batch_2.bin: 5000 bytes, want a multiple of 3073', run.err + run.out)
        self.assertNotEqual(run.code, 0, run)
        os.remove(self.path('set', 'test_batch.bin'))
        os.remove(path)
        run = self.capstan('validate', self.path('job.yaml'))
        self.assertIn('test_batch.bin: no such file', run.err + run.out)


if __name__ == '__main__':
    support.main()
