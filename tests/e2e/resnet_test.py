"""ResNet-18 with batch normalisation, dropout and augmentation through the services: one hash, whichever processes compute it.

It uses small images. one_hash_long_test has CIFAR-10's, and every number of devices, workers and shards. It also learns
Fashion-MNIST.
"""

import gzip
import os
import signal
import struct

import services
import support


def spec(resources, kvstore='dist_sync'):
    """Four steps in two epochs, between which a sample's random draws differ."""
    return support.job_spec(
        model={'name': 'resnet18_v1', 'dropout': 0.1}, kvstore={'type': kvstore},
        resources={'lanes': 6, 'device': 'cpu', **resources},
        data={'format': 'synthetic_digits', 'train_samples': 192, 'test_samples': 20,
              'transforms': [{'random_crop': {'size': 16}}, {'random_flip': {}}, {'cutout': {'size': 4}},
                             {'normalize': {'mean': [0.15], 'std': [0.3]}}]},
        training={'epochs': 2, 'global_batch_size': 96, 'seed': 5,
                  'optimizer': {'name': 'sgd', 'learning_rate': 0.02, 'momentum': 0.9}})


def write_small_fashion(folder, train, tests):
    """Writes the first samples of Fashion-MNIST, unpacked. Returns the folder."""
    os.makedirs(folder)
    for part, count in (('train', train), ('t10k', tests)):
        for name, header, size in (('images-idx3', 16, 28 * 28), ('labels-idx1', 8, 1)):
            with gzip.open(os.path.join(support.FASHION_MNIST, f'{part}-{name}-ubyte.gz'), 'rb') as f:
                head, data = f.read(header), f.read(count * size)
            with open(os.path.join(folder, f'{part}-{name}-ubyte'), 'wb') as f:
                f.write(head[:4] + struct.pack('>I', count) + head[8:] + data)
    return folder


class ResnetTest(services.ServicesTest):
    alone = None  # the result of one device of one task, without a shard

    def reference(self):
        if ResnetTest.alone is None:
            job = self.train(spec({'num_workers': 1}, 'local'))
            self.assertEqual(job['samples_used'], 384, job)
            print(f'alone: {job["weights_sha256"]}', flush=True)
            ResnetTest.alone = job['weights_sha256']
            names = support.read_safetensors(os.path.join(self.checkpoint(job), 'weights.safetensors'))
            for name, shape in (('conv1.weight', [64, 1, 3, 3]), ('bn1.running_var', [64]),
                                ('layer2.0.downsample.0.weight', [128, 64, 1, 1]), ('fc.bias', [10])):
                self.assertEqual(names[name][0], shape, name)
        return ResnetTest.alone

    def test_one_hash(self):
        job = self.train(spec({'gpus_per_worker': 2, 'num_workers': 2, 'num_shards': 2}))
        print(f'2 workers x 2 devices, 2 shards: {job["weights_sha256"]}', flush=True)
        self.assertEqual(job['weights_sha256'], self.reference())
        self.assertEqual(job['samples_used'], 384, job)

    def test_a_killed_worker_changes_no_bit(self):
        reference = self.reference()
        self.start(workers=3, shards=1)
        job_id = self.submit(spec({'num_workers': 3, 'num_shards': 1}))
        job = self.finish_after_a_kill(job_id, 1, lambda: os.kill(self.tasks()[0], signal.SIGKILL))
        self.assertEqual(job['weights_sha256'], reference, job)
        self.assertEqual(job['samples_used'], 384, job)

    def test_it_learns_fashion_mnist(self):
        """28 x 28 with one channel: the stages halve 28 to 14, 7 and 4."""
        job = self.train(support.job_spec(
            model={'name': 'resnet18_v1'}, kvstore={'type': 'local'},
            resources={'num_workers': 1, 'gpus_per_worker': 2, 'device': 'cpu'},
            data={'format': 'idx', 'uri': write_small_fashion(self.path('fashion'), train=128, tests=16)},
            training={'epochs': 4, 'global_batch_size': 32, 'seed': 5,
                      'optimizer': {'name': 'sgd', 'learning_rate': 0.02, 'momentum': 0.9}}))
        losses = [line['loss'] for line in self.step_log(job)]
        self.assertEqual(len(losses), 16)
        first, last = sum(losses[:4]) / 4, sum(losses[-4:]) / 4
        print(f'Fashion-MNIST: mean loss of the first epoch {first:.3f}, of the fourth {last:.3f}', flush=True)
        self.assertLess(last, first / 2)


if __name__ == '__main__':
    support.main()
