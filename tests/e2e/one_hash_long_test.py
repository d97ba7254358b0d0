"""One SHA-256 of the weights, whichever processes compute them: full-size ResNet-18 on CIFAR-10 over 3 steps, both LeNets over
200.

Two runs of one task without shards, every number of devices, workers and shards, one and two threads, and a worker that is
killed during the job. resnet_test and same_bits_test are the short forms at the gate.
"""

import itertools
import os
import shutil
import signal
import tempfile

import cifar10
import services
import support

WORKERS, SHARDS = (1, 2, 3), (1, 2)
SECONDS = 600  # for a job; the longest takes about 30 s on two idle cores
SGD = {'name': 'sgd', 'learning_rate': 0.02, 'momentum': 0.9}


class WhoeverComputes:
    """Mix it with services.ServicesTest. All jobs of a class are the same job except for the numbers of workers, shards and
    devices."""

    DEVICES = (1, 2)  # of a worker
    STEPS, BATCH = 200, 256
    KILLED_AFTER = 20  # steps
    weights = None  # the hash of the class, from the first job that ended

    def model(self):
        return {'name': self.MODEL}

    def data(self):
        return {'format': 'synthetic_digits', 'train_samples': 4096, 'test_samples': 100}

    def start_job(self, kvstore='dist_sync', **resources):
        return self.submit(support.job_spec(
            model=self.model(), data=self.data(), kvstore={'type': kvstore}, resources={'lanes': 16, 'device': 'cpu', **resources},
            training={'max_steps': self.STEPS, 'epochs': 100, 'global_batch_size': self.BATCH, 'seed': 5, 'optimizer': SGD}))

    def ends_with_the_one_hash(self, what, job_id):
        self.ok('wait', job_id, timeout=SECONDS)
        job = self.describe(job_id)
        print(f'{self.MODEL}, {what}: {job["weights_sha256"]}', flush=True)
        self.assertEqual(job['samples_used'], self.STEPS * self.BATCH, job)
        shutil.rmtree(os.path.dirname(self.checkpoint(job)))  # 140 MB of ResNet-18
        if type(self).weights is None:
            type(self).weights = job['weights_sha256']
        self.assertRegex(job['weights_sha256'], '^[0-9a-f]{64}$')
        self.assertEqual(job['weights_sha256'], type(self).weights, what)
        return job

    def test_of_any_number_of_devices_workers_and_shards(self):
        self.start(max(WORKERS), max(SHARDS), max(self.DEVICES))
        for run in ('first', 'second'):
            self.ends_with_the_one_hash(f'local, {run} run', self.start_job('local', num_workers=1))
        for devices, workers, shards in itertools.product(self.DEVICES, WORKERS, SHARDS):
            with self.subTest(devices=devices, workers=workers, shards=shards):
                job_id = self.start_job(gpus_per_worker=devices, num_workers=workers, num_shards=shards)
                self.ends_with_the_one_hash(f'{workers} workers x {devices} devices, {shards} shards', job_id)

    def test_of_two_threads(self):
        self.start(workers=2, shards=1, threads=2)
        for workers in (1, 2):
            with self.subTest(workers=workers):
                job_id = self.start_job(num_workers=workers, num_shards=1)
                self.ends_with_the_one_hash(f'{workers} workers of two threads', job_id)

    def test_after_a_worker_was_killed(self):
        devices = max(self.DEVICES)
        self.start(max(WORKERS), max(SHARDS), devices)
        # First a worker's task, then a whole service. All workers have a part in the job.
        for what, workers, shards in (('task', 2, 2), ('service', 3, 1)):
            with self.subTest(killed=what, workers=workers, shards=shards):
                job_id = self.start_job(gpus_per_worker=devices, num_workers=workers, num_shards=shards)
                self.wait_for_step(job_id, self.KILLED_AFTER, SECONDS)
                if what == 'task':
                    os.kill(self.tasks()[0], signal.SIGKILL)
                else:
                    self.stop('w1', signal.SIGKILL)
                job = self.ends_with_the_one_hash(f'a {what} of {workers} workers killed', job_id)
                # Its lanes move before its lease ends if others have waited for them.
                self.assertTrue({'WorkerLost', 'LaneReissued'} & {event['type'] for event in job['events']}, job)


class LenetTest(WhoeverComputes, services.ServicesTest):
    MODEL, BATCH = 'lenet', 512  # so large that a worker can be killed before the end


class LenetD2lTest(WhoeverComputes, services.ServicesTest):
    MODEL = 'lenet_d2l'


class ResnetTest(WhoeverComputes, services.ServicesTest):
    MODEL = 'resnet18_v1'
    STEPS, BATCH = 3, 64
    KILLED_AFTER = 1
    dropout = 0.1

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.images = tempfile.mkdtemp(prefix='capstan-cifar10-')
        cls.addClassCleanup(shutil.rmtree, cls.images)
        cifar10.write_small(cls.images, tests=32)  # evaluating all would take longer than the steps

    def model(self):
        return {'name': self.MODEL, 'dropout': self.dropout}

    def data(self):
        return {'format': 'cifar10_bin', 'uri': self.images, 'transforms': cifar10.AUGMENTATION}

    def test_dropout_is_in_the_bits(self):
        self.start(workers=1, shards=0, threads=2)
        self.STEPS = 1
        hashes = set()
        for self.dropout in (0, 0.1, 0.2):
            job_id = self.start_job('local', num_workers=1)
            self.ok('wait', job_id, timeout=SECONDS)
            hashes.add(self.describe(job_id)['weights_sha256'])
        self.assertEqual(len(hashes), 3, hashes)


if __name__ == '__main__':
    support.main()
