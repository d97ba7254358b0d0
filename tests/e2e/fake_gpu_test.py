"""Whole jobs on devices of the fake CUDA plug-in: precisions and failures as people see them."""

import json
import os

import support

ENV = {
    'CAPSTAN_DEVICES': 'cuda:0',
    'CAPSTAN_CUDA_PLUGIN': os.environ['CAPSTAN_FAKE_PLUGIN'],
    'LD_LIBRARY_PATH': os.environ['CAPSTAN_FAKE_DRIVER'],  # folder of a libcuda.so.1 that can be opened
    'CAPSTAN_FAKE_ELEMENTS': 'float',
}


class FakeGpuTest(support.TestCase):

    def job(self, code, env, **groups):
        spec = support.job_spec(model={'name': 'mlp'}, **groups)
        spec['data'].update(train_samples=640, test_samples=100)
        run = self.capstan('run', '-o', 'json', self.write('job.yaml', json.dumps(spec)), env={**ENV, **env})
        self.assertEqual(run.code, code, run)
        return json.loads(run.out.splitlines()[-1])

    def test_fp16_skips_what_overflows_and_the_scale_is_one_for_all(self):
        # 65536 over 64 samples is 1024. Four steps are skipped until the factor is below 100.
        training = {'epochs': 2, 'global_batch_size': 64, 'seed': 3, 'precision': 'fp16',
                    'optimizer': {'name': 'sgd', 'learning_rate': 0.04, 'momentum': 0.9}}
        hashes = []
        for resources in ({'num_workers': 2, 'num_shards': 2}, {'num_workers': 1, 'num_shards': 1}):
            job = self.job(0, {'CAPSTAN_FAKE_OVERFLOW': '100', 'CAPSTAN_DEVICES': 'auto'}, resources=resources, training=training)
            self.assertEqual(job['state'], 'SUCCEEDED', job)
            steps = self.step_log(job)
            self.assertEqual(len(steps), 20)
            self.assertEqual(job['progress']['skipped_steps'], 4, job)
            self.assertEqual(job['samples_used'], 1280, job)  # samples of skipped steps count
            self.assertLess(steps[-1]['loss'], 0.9 * steps[0]['loss'])
            hashes.append(job['weights_sha256'])
        self.assertEqual(hashes[0], hashes[1])

    def test_asynchronous_jobs_run_on_cards_and_leave_out_what_is_not_finite(self):
        resources = {'num_workers': 1, 'num_shards': 2, 'lanes': 1}
        want = self.job(0, {}, resources=resources)
        got = self.job(0, {}, resources=resources, kvstore={'type': 'dist_async'})
        self.assertEqual(got['weights_sha256'], want['weights_sha256'])
        # A lane of 64 samples has the factor 1/64 on its loss, which overflows here in every step.
        job = self.job(100, {'CAPSTAN_FAKE_OVERFLOW': '0.01'}, resources=resources, kvstore={'type': 'dist_async'})
        self.assertEqual(job['reason'], 'NonFiniteLoss', job)
        self.assertIn('step 2: the loss or the gradient is not finite in lane 0, for the 3. step in a row', job['message'])

    def test_out_of_memory_is_a_reason_with_numbers(self):
        job = self.job(100, {'CAPSTAN_FAKE_FREE_MIB': '2'}, resources={'num_workers': 1, 'num_shards': 1, 'lanes': 1},
                       training={'epochs': 1, 'global_batch_size': 600,
                                 'optimizer': {'name': 'sgd', 'learning_rate': 0.04}})
        self.assertEqual(job['state'], 'FAILED')
        self.assertEqual(job['reason'], 'GpuOutOfMemory', job)
        self.assertRegex(job['message'], r'a plan for 600 samples needs [0-9.]+ MiB, 2\.0 MiB of 2\.0 MiB are free; '
                                         r'up to \d+ samples would fit')

    def test_a_fault_of_the_card_names_step_device_and_error(self):
        job = self.job(100, {'CAPSTAN_FAKE_FAIL': 'fault'}, recovery={'never_retry_on': ['InternalError']})
        self.assertEqual(job['state'], 'FAILED')
        self.assertEqual(job['reason'], 'InternalError', job)
        self.assertIn('step 0, lane 0: device cuda:0: cudaStreamSynchronize: 700', job['message'])


if __name__ == '__main__':
    support.main()
