"""ResNet-18 with batch normalisation, dropout and augmentation through the services: one hash, whoever computes it.

CAPSTAN_RESNET=all tries every number of devices, workers and shards; else a few of them, each number once, the last of them with the killed worker.
"""

import itertools
import os
import signal

import services
import support

ALL = os.environ.get('CAPSTAN_RESNET') == 'all'
LANES = 6
DEVICES, WORKERS, SHARDS = (1, 2), (1, 2, 3), (1, 2)
COMBINATIONS = list(itertools.product(DEVICES, WORKERS, SHARDS)) if ALL else [(2, 2, 2)]
FAULTS = [(1, 2, 2), (2, 3, 1)] if ALL else [(1, 3, 1)]


def spec(resources, kvstore='dist_sync', **model):
    """Four steps in two epochs: what is drawn for a sample differs between them."""
    return support.job_spec(
        model={'name': 'resnet18_v1', 'dropout': 0.1, **model}, kvstore={'type': kvstore},
        resources={'lanes': LANES, 'device': 'cpu', **resources},
        data={'format': 'synthetic_digits', 'train_samples': 192, 'test_samples': 20,
              'transforms': [{'random_crop': {'size': 16}}, {'random_flip': {}}, {'cutout': {'size': 4}},
                             {'normalize': {'mean': [0.15], 'std': [0.3]}}]},
        training={'epochs': 2, 'global_batch_size': 96, 'seed': 5,
                  'optimizer': {'name': 'sgd', 'learning_rate': 0.02, 'momentum': 0.9}})


def resources_of(devices, workers, shards):
    return {'gpus_per_worker': devices, 'num_workers': workers, 'num_shards': shards}


class ResnetTest(services.ServicesTest):
    alone = None  # what one device of one task comes to, without any shard

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
        for devices, workers, shards in COMBINATIONS:
            with self.subTest(devices=devices, workers=workers, shards=shards):
                job = self.train(spec(resources_of(devices, workers, shards)))
                print(f'{workers} workers x {devices} devices, {shards} shards: {job["weights_sha256"]}', flush=True)
                self.assertEqual(job['weights_sha256'], self.reference())
                self.assertEqual(job['samples_used'], 384, job)
        if ALL:
            others = {self.train(spec({'num_workers': 1}, 'local', dropout=p))['weights_sha256'] for p in (0, 0.2)}
            self.assertEqual(len(others | {self.reference()}), 3)

    def test_a_killed_worker_changes_no_bit(self):
        for number, (devices, workers, shards) in enumerate(FAULTS):
            with self.subTest(devices=devices, workers=workers, shards=shards):
                reference = self.reference()
                try:
                    self.start(workers, shards, devices)
                    job_id = self.submit(spec(resources_of(devices, workers, shards)))
                    self.wait_for_step(job_id, 1)
                    # A task, and where there is a second turn a whole service.
                    if number == 0:
                        os.kill(self.tasks()[0], signal.SIGKILL)
                    else:
                        self.stop('w1', signal.SIGKILL)
                    self.ok('wait', job_id, timeout=120)
                    job = self.describe(job_id)
                    self.assertIn('WorkerLost', [event['type'] for event in job['events']], job)
                    self.assertEqual(job['weights_sha256'], reference, job)
                    self.assertEqual(job['samples_used'], 384, job)
                finally:
                    for name in sorted(self.services, reverse=True):
                        self.stop(name)


if __name__ == '__main__':
    support.main()
