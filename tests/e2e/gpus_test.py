"""Jobs on several GPUs through the real services: cards that add by themselves give the bits of the host's sum.

Runs on the fake plug-in, and if it was built, on the CUDA plug-in itself over a stand-in for CUDA.
"""

import json
import os
import signal
import subprocess
import unittest

import own_networks_test
import regression_test
import run_resume_test
import support

TEST = os.path.join(os.path.dirname(support.BIN), 'test')
LANES = 8


class GpusTest(support.TestCase):
    PLUGIN = os.path.join(TEST, 'libcapstan_fake_plugin.so')
    FAULT = {'CAPSTAN_FAKE_GROUP': 'fault:1:0'}
    FAULT_TEXT = 'GPU 2, .*: cudaEventQuery: 700 '
    HANG = {'CAPSTAN_FAKE_GROUP': 'hang:0'}

    def run_job(self, devices, env=None, limits=None, command=('run', '-v'), **groups):
        """`devices`: of each worker service. None: those that it finds, dealt by the coordinator."""
        resources = {'lanes': LANES, **groups.pop('resources', {})}
        spec = support.job_spec(
            resources=resources, model=groups.pop('model', {'name': 'mlp'}),
            data=groups.pop('data', {'format': 'synthetic_digits', 'train_samples': 300, 'test_samples': 40}),
            training={'epochs': 1, 'global_batch_size': 64, 'seed': 5, **groups.pop('training', {}),
                      'optimizer': groups.pop('optimizer', {'name': 'sgd', 'learning_rate': 0.05, 'momentum': 0.9})}, **groups)
        if limits:
            spec['limits'] = limits
        path = [os.path.join(TEST, 'empty_driver'), os.environ.get('LD_LIBRARY_PATH', '')]
        named = {'CAPSTAN_DEVICES': devices} if devices else {}
        return self.capstan(*command, '-o', 'json', self.write('job.yaml', json.dumps(spec)), env={
            'CAPSTAN_CUDA_PLUGIN': self.PLUGIN, 'LD_LIBRARY_PATH': ':'.join(p for p in path if p),
            'CAPSTAN_FAKE_ELEMENTS': 'float', **self.cards(4), **named, **(env or {})})

    @staticmethod
    def cards(count):
        return {'CAPSTAN_FAKE_DEVICES': str(count), 'CAPSTAN_FAKE_CUDA': f'devices={count}'}

    def dealt(self, run):
        """The kind of device that the job used, and the devices of each of its workers."""
        self.assertEqual(run.code, 0, run)
        job = json.loads(run.out.splitlines()[-1])
        return job.get('device'), [worker['devices'] for worker in job['workers']]

    def hash_of(self, kvstore, devices, workers=1, shards=None, gpus=None, samples=300, **groups):
        resources = {'num_workers': workers, 'gpus_per_worker': gpus or len(devices.split(',')), **groups.pop('resources', {})}
        if shards:
            resources['num_shards'] = shards
        run = self.run_job(devices, kvstore={'type': kvstore}, resources=resources, **groups)
        self.assertEqual(run.code, 0, run)
        job = json.loads(run.out.splitlines()[-1])
        self.assertEqual(job['samples_used'], samples, run)
        return job['weights_sha256']

    def test_the_same_bits_wherever_the_lanes_are_added(self):
        # 300 = 4 x 64 + 44: lanes of 8 samples, then lanes of 5 and 6.
        host = self.hash_of('local', 'cuda:0')
        self.assertEqual(self.hash_of('local', 'cuda:0,cuda:1,cuda:2'), host)
        self.assertEqual(self.hash_of('device', 'cuda:0'), host)
        self.assertEqual(self.hash_of('device', 'cuda:0,cuda:1'), host)
        self.assertEqual(self.hash_of('device', 'cuda:0,cuda:0'), host)
        self.assertEqual(self.hash_of('device', 'cuda:0,cuda:1,cuda:2'), host)
        self.assertEqual(self.hash_of('device', 'cuda:0,cuda:1,cuda:2,cuda:3'), host)
        self.assertEqual(self.hash_of('dist_sync', None, gpus=2, workers=2, shards=2), host)
        for kvstore, workers, shards in (('dist_device_sync', 2, 2), ('dist_sync_device', 1, 1), ('dist_device_sync', 3, 1)):
            self.assertEqual(self.hash_of(kvstore, None, gpus=2, workers=workers, shards=shards, env=self.cards(6)), host,
                             (kvstore, workers, shards))

    def test_without_determinism_the_cards_reduce(self):
        def reduced(**numbers):
            return self.hash_of('dist_device_sync', None, shards=1, resources={'device': 'gpu'}, training={'deterministic': False},
                                **numbers)

        reduced(gpus=2, workers=2)
        # For three cards the library's order is not the tree's.
        self.assertNotEqual(reduced(gpus=3), self.hash_of('local', 'cuda:0'))

    def test_cards_are_taken_unasked_and_dealt_among_the_workers(self):
        resources = {'num_workers': 2, 'gpus_per_worker': 2}
        for command in (('run',), ('launch',)):
            run = self.run_job(None, command=command, kvstore={'type': 'dist_device_sync'}, resources=resources)
            self.assertEqual(self.dealt(run), ('gpu', [[0, 1], [2, 3]]), run)
            self.assertIn('\n      on GPUs if 2 workers have 2 each, else on CPUs\n', run.err)
            self.assertIn('gang ready: 2 workers, 1 shard, on GPUs\n', run.err)

    def test_too_few_cards_leave_the_cpus_and_that_is_said(self):
        resources = {'num_workers': 2, 'gpus_per_worker': 3}
        run = self.run_job(None, resources=resources)
        self.assertEqual(self.dealt(run), ('cpu', [[4, 4, 4], [4, 4, 4]]), run)
        self.assertIn('on CPUs (2 workers with 3 GPUs each are needed, 1 is there)\n', run.err)

    def test_what_the_cards_can_never_carry_ends_at_once(self):
        # Two workers were told to use the same card.
        run = self.run_job('cuda:0', resources={'num_workers': 2})
        job = json.loads(run.out.splitlines()[-1])
        self.assertEqual((run.code, job['state'], job['reason']), (100, 'FAILED', 'InvalidSpec'), run)
        self.assertEqual(job['message'], 'needs 2 workers with 1 free device each, 0 are there (as for GPUs, 2 workers with 1 GPU each are needed, '
                                         '1 is there), and no other service will come')
        for command in (('run',), ('launch',)):
            run = self.run_job(None, command=command, env={'CAPSTAN_CUDA_PLUGIN': '/nowhere.so'},
                               resources={'num_workers': 2, 'device': 'gpu'})
            job = json.loads(run.out.splitlines()[-1])
            self.assertEqual((run.code, job['state'], job['reason']), (100, 'FAILED', 'InvalidSpec'), run)
            self.assertEqual(job['message'],
                             'needs 2 workers with 1 free gpu device each, 0 are there (worker w0 has none: no CUDA plug-in: '
                             'there is no /nowhere.so; this may be a build without CUDA), and no other service will come')

    def test_a_graph_that_is_no_chain(self):
        """Dropout, branches and statistics: the plug-in gets any graph. Its cards update by Adam, decay weights alone, and clip."""
        adam = {'name': 'adamw', 'learning_rate': 0.003, 'weight_decay': 0.1, 'decayed': 'weights',
                'lr_schedule': {'name': 'cosine', 'warmup': '2 steps'}}
        hashes = [self.hash_of(kvstore, devices, model={'graph': {'nodes': own_networks_test.branches()}}, gpus=2 if devices is None else None,
                               optimizer=adam, resources={'device': 'gpu'}, training={'deterministic': True, 'gradient_clip_value': 0.01},
                               **numbers)
                  for kvstore, devices, numbers in (('local', 'cuda:0', {}), ('device', 'cuda:0,cuda:1', {}), ('device', 'cuda:0', {}),
                                                    ('dist_sync', None, {'workers': 2, 'shards': 2}))]
        self.assertEqual(len(set(hashes)), 1, hashes)

    def test_targets_that_are_numbers(self):
        self.write('set.npz', regression_test.npz())
        hashes = [self.hash_of(kvstore, devices, samples=100, model={'name': 'mlp', 'num_outputs': regression_test.OUTPUTS},
                               data={'format': 'npz', 'uri': self.path('set.npz')}, gpus=2 if devices is None else None,
                               resources={'device': 'gpu'}, training={'deterministic': True, 'loss': 'mean_squared_error'}, **numbers)
                  for kvstore, devices, numbers in (('local', 'cuda:0', {}), ('device', 'cuda:0,cuda:1', {}),
                                                    ('dist_sync', None, {'workers': 2, 'shards': 2}))]
        self.assertEqual(len(set(hashes)), 1, hashes)

    def test_a_subset_of_the_devices(self):
        # A fault of the second card shows that it was used, because the error has its number.
        run = self.run_job('cuda:0,cuda:1,cuda:2,cuda:3', env=self.FAULT, kvstore={'type': 'device'},
                           resources={'device': 'gpu', 'devices': [0, 2]},
                           recovery={'never_retry_on': ['InternalError']})
        self.assertEqual(run.code, 100, run)
        job = json.loads(run.out.splitlines()[-1])
        self.assertEqual((job['state'], job['reason']), ('FAILED', 'InternalError'), run)
        self.assertRegex(job['message'], 'step 0: devices together: ' + self.FAULT_TEXT)

    def test_a_sum_that_hangs_ends_the_job_with_its_name(self):
        run = self.run_job('cuda:0,cuda:1', env=self.HANG, limits={'stall_timeout': '6s'},
                           kvstore={'type': 'dist_device_sync'}, recovery={'never_retry_on': ['NcclTimeout']},
                           # With another worker the lanes would move to it.
                           resources={'num_workers': 1, 'gpus_per_worker': 2, 'device': 'gpu', 'lanes': 4})
        self.assertEqual(run.code, 100, run)
        job = json.loads(run.out.splitlines()[-1])
        self.assertEqual((job['state'], job['reason']), ('FAILED', 'NcclTimeout'), run)
        self.assertRegex(job['message'], 'step 0: .*GPU 0, the sum of bucket 0 over 2 devices: not done after 3 s')


class MovedJobTest(run_resume_test.RunsTest):
    """A run on CPUs that is interrupted goes on upon cards, with the state of its optimizer."""
    AHEAD = 20  # steps that are compared

    def steps(self, job_id, lineage):
        """The steps that this lineage has made so far."""
        with open(self.path('capstan-out', job_id, 'metrics.jsonl')) as log:
            lines = [json.loads(line) for line in log if line.endswith('\n')]
        return [line for line in lines if line['lineage'] == lineage]

    def test_a_job_moves_from_cpus_to_cards(self):
        spec = dict(run_resume_test.JOB, kvstore={'type': 'device'}, resources={'num_workers': 1, 'lanes': 8}, model={'name': 'mlp'},
                    training={'epochs': 24, 'global_batch_size': 64, 'seed': 3, 'optimizer': {'name': 'adam', 'learning_rate': 0.001}})
        losses = [line['loss'] for line in self.step_log(self.train(dict(spec, name='undisturbed')))]
        process, job_id = self.start_and_save(spec)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 103, err)
        step = int(err.splitlines()[-1].rsplit('-', 1)[1])
        self.assertLess(step + self.AHEAD, len(losses))

        path = [os.path.join(TEST, 'empty_driver'), os.environ.get('LD_LIBRARY_PATH', '')]
        cards = {'CAPSTAN_CUDA_PLUGIN': GpusTest.PLUGIN, 'LD_LIBRARY_PATH': ':'.join(p for p in path if p), 'CAPSTAN_FAKE_DEVICES': '1'}
        process = subprocess.Popen([support.CAPSTAN, 'run', '--resume', job_id], cwd=self.folder, env={**os.environ, **cards},
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        self.wait_until(lambda: len(self.steps(job_id, 2)) >= self.AHEAD or process.poll() is not None, 60, 'the steps of the card')
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 103, err)
        self.assertIn('gang ready: 1 worker, 0 shards, on GPUs\n', err)
        lines = self.steps(job_id, 2)
        self.assertGreaterEqual(len(lines), self.AHEAD, err)
        for i, line in enumerate(lines[:self.AHEAD]):
            self.assertEqual(line['step'], step + i)
            self.assertAlmostEqual(line['loss'], losses[line['step']], delta=1e-3 * losses[line['step']] + 1e-5)


CUDA_ON_CPU = os.path.join(TEST, 'fake_cuda', 'libcapstan_cuda_on_cpu.so')


@unittest.skipUnless(os.path.exists(CUDA_ON_CPU), 'built without the headers of CUDA')
class CudaOnCpuTest(GpusTest):
    PLUGIN = CUDA_ON_CPU
    # The fault comes after the weights and the momentum, which arrive in two pieces here and in one at the neighbour.
    FAULT = {'CAPSTAN_FAKE_CUDA': 'devices=4 fault=2:5'}
    FAULT_TEXT = '.*GPU 2'  # reported by the first call of CUDA, cuDNN or cuBLASLt that meets it
    HANG = {'CAPSTAN_FAKE_CUDA': 'devices=4 hang=0:3'}


if __name__ == '__main__':
    support.main()
