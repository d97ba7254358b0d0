"""ResNet-18 through the services: one hash for any number of workers, shards."""

import os

import support

LANES = 4


class ResnetTest(support.TestCase):

    def spec(self, kvstore, resources):
        return support.job_spec(
            model={'name': 'resnet18_v1'}, kvstore={'type': kvstore},
            resources={'lanes': LANES, 'device': 'cpu', **resources},
            data={'format': 'synthetic_digits', 'train_samples': 96, 'test_samples': 20},
            training={'max_steps': 3, 'epochs': 2, 'global_batch_size': 32, 'seed': 5,
                      'optimizer': {'name': 'sgd', 'learning_rate': 0.02, 'momentum': 0.9}})

    def test_one_hash(self):
        hashes = {}
        for name, kvstore, resources in (
                ('local', 'local', {'num_workers': 1}),
                ('2 workers x 2 shards', 'dist_sync', {'num_workers': 2, 'num_shards': 2})):
            job = self.train(self.spec(kvstore, resources))
            self.assertEqual(job['state'], 'SUCCEEDED', job)
            self.assertEqual(job['samples_used'], 96)
            hashes[name] = job['weights_sha256']
            print(f'{name}: {job["weights_sha256"]}', flush=True)
        self.assertEqual(len(set(hashes.values())), 1, hashes)
        names = support.read_safetensors(os.path.join(self.checkpoint(job), 'weights.safetensors'))
        for name, shape in (('conv1.weight', [64, 1, 3, 3]), ('bn1.running_var', [64]),
                            ('layer2.0.downsample.0.weight', [128, 64, 1, 1]), ('fc.bias', [10])):
            self.assertEqual(names[name][0], shape, name)


if __name__ == '__main__':
    support.main()
