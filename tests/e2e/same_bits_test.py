"""The weights depend only on the resolved spec: equal bits for any number of workers, shards and devices."""

import os
import unittest.mock

import support

WORKERS, SHARDS, LANES = (1, 2, 3, 5, 8), (1, 2, 3), 8


class SameBitsTest(support.TestCase):

    SGD = {'name': 'sgd', 'learning_rate': 0.04, 'momentum': 0.9}

    def job_of(self, workers, shards, kvstore, training, data, devices=1, optimizer=SGD, lanes=LANES):
        resources = {'num_workers': workers, 'gpus_per_worker': devices}
        if lanes:
            resources['lanes'] = lanes
        if shards:
            resources['num_shards'] = shards
        job = self.train(support.job_spec(resources=resources, kvstore={'type': kvstore}, data=data,
                                          training={**training, 'global_batch_size': 64, 'seed': 11, 'optimizer': optimizer}))
        print(f'{kvstore} {workers} workers x {devices} devices, {shards} shards: {job["weights_sha256"]}', flush=True)
        return job

    def hash_of(self, *args, **kwargs):
        job = self.job_of(*args, **kwargs)
        return job['weights_sha256'], job['samples_used']

    def all_equal(self, training, data, samples):
        local = self.hash_of(1, 0, 'local', training, data)
        self.assertEqual(local[1], samples)
        self.assertEqual(self.hash_of(1, 0, 'device', training, data, devices=3), local)
        for workers in WORKERS:
            for shards in SHARDS:
                self.assertEqual(self.hash_of(workers, shards, 'dist_sync', training, data), local, (workers, shards))

    def test_two_hundred_steps(self):
        self.all_equal({'max_steps': 200, 'epochs': 100},
                       {'format': 'synthetic_digits', 'train_samples': 4096, 'test_samples': 100}, 200 * 64)

    def test_an_epoch_that_does_not_divide(self):
        # 1003 = 15 x 64 + 43: the last batch is split 6 6 6 5 5 5 5 5. Two epochs, so that steps follow the small one.
        self.all_equal({'epochs': 2}, {'format': 'synthetic_digits', 'train_samples': 1003, 'test_samples': 37}, 2006)

    def test_without_a_key(self):
        data = {'format': 'synthetic_digits', 'train_samples': 1003, 'test_samples': 37}
        local = self.hash_of(1, 0, 'local', {'epochs': 1}, data, lanes=None)
        self.assertEqual(self.hash_of(1, 0, 'device', {'epochs': 1}, data, devices=2, lanes=None), local)
        for workers, shards in ((2, 2), (3, 1), (4, 2)):  # 4 lanes of 16 samples
            self.assertEqual(self.hash_of(workers, shards, 'dist_sync', {'epochs': 1}, data, lanes=None), local, (workers, shards))

    def test_with_and_without_shared_memory(self):
        data, training = {'format': 'synthetic_digits', 'train_samples': 1024, 'test_samples': 100}, {'max_steps': 100, 'epochs': 20}
        shared = self.hash_of(2, 2, 'dist_sync', training, data)
        with unittest.mock.patch.dict(os.environ, {'CAPSTAN_NO_SHARED_MEMORY': 'true'}):
            self.assertEqual(self.hash_of(2, 2, 'dist_sync', training, data), shared)

    def test_every_optimizer(self):
        # Their state has one to three floats per weight. Chunks also split the clipping and the decayed weights.
        data = {'format': 'synthetic_digits', 'train_samples': 1024, 'test_samples': 100}
        training = {'max_steps': 25, 'epochs': 10, 'gradient_clip_value': 0.01}
        hashes = set()
        for optimizer in ({'name': 'adam', 'learning_rate': 0.001}, {'name': 'adamw', 'learning_rate': 0.001, 'decayed': 'weights'},
                          {'name': 'rmsprop', 'learning_rate': 0.001, 'momentum': 0.9, 'centered': True},
                          {'name': 'adagrad', 'learning_rate': 0.01, 'weight_decay': 0.001},
                          {'name': 'ftrl', 'learning_rate': 0.1, 'l1': 0.0001, 'beta': 0.00001, 'weight_decay': 0.001, 'decayed': 'weights'}):
            local = self.hash_of(1, 0, 'local', training, data, optimizer=optimizer)
            self.assertEqual(self.hash_of(2, 2, 'dist_sync', training, data, optimizer=optimizer), local, optimizer)
            hashes.add(local[0])
        self.assertEqual(len(hashes), 5)

    def test_norms_of_tensors(self):
        # Chunks cut tensors, and shards have different ones.
        data = {'format': 'synthetic_digits', 'train_samples': 1024, 'test_samples': 100}
        for optimizer, more in (({'name': 'lars', 'learning_rate': 0.5, 'eta': 0.02, 'momentum': 0.9, 'weight_decay': 0.001, 'decayed': 'weights'},
                                 {'gradient_clip_norm': 0.5}),
                                ({'name': 'lamb', 'learning_rate': 0.01, 'weight_decay': 0.01}, {})):
            training = {'max_steps': 40, 'epochs': 10, **more}
            job = self.job_of(1, 0, 'local', training, data, optimizer=optimizer)
            losses = [line['loss'] for line in self.step_log(job)]
            self.assertLess(losses[-1], 0.7 * losses[0], optimizer)
            for workers, shards in ((2, 2), (3, 5)):
                self.assertEqual(self.job_of(workers, shards, 'dist_sync', training, data, optimizer=optimizer)['weights_sha256'],
                                 job['weights_sha256'], (optimizer, workers, shards))

    def test_gradients_that_are_clipped_by_norm(self):
        data = {'format': 'synthetic_digits', 'train_samples': 1024, 'test_samples': 100}

        def run(limit, *cluster, **more):
            job = self.job_of(*cluster, {'max_steps': 25, 'epochs': 10, 'gradient_clip_norm': limit}, data, **more)
            return job['weights_sha256'], [line['gradient_norm'] for line in self.step_log(job)]

        free, norms = run(1e30, 1, 0, 'local')
        limit = sorted(norms)[12]
        local = run(limit, 1, 0, 'local')
        self.assertNotEqual(local[0], free)
        self.assertTrue(min(local[1]) < limit < max(local[1]), local[1])
        for cluster, more in (((1, 0, 'device'), {'devices': 2}), ((2, 2, 'dist_sync'), {}), ((3, 3, 'dist_sync'), {})):
            self.assertEqual(run(limit, *cluster, **more), local, cluster)

    def test_contiguous_parts_and_empty_lanes(self):
        # 523 samples in 8 parts of 65 or 66, of which a step takes 8 each. In the last step a lane has 1 or 2 samples.
        data = {'format': 'synthetic_digits', 'train_samples': 523, 'test_samples': 10, 'partition': 'contiguous'}
        training = {'epochs': 2}
        local = self.hash_of(1, 0, 'local', training, data)
        for workers, shards in ((1, 1), (3, 2), (8, 3)):
            self.assertEqual(self.hash_of(workers, shards, 'dist_sync', training, data), local, (workers, shards))


if __name__ == '__main__':
    support.main()
