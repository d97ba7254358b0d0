"""Services started by hand, as Compose and systemd start them, compute a job on the same devices as `run` does."""

import json
import os
import unittest
import unittest.mock

import services
import support

TEST = os.path.join(os.path.dirname(support.BIN), 'test')
CUDA_ON_CPU = 'fake_cuda/libcapstan_cuda_on_cpu.so'


class CardsTest(services.ServicesTest):

    def cluster(self, workers, **env):
        """Starts workers without any setting for devices."""
        with unittest.mock.patch.dict(os.environ, env):
            self.start(workers=0, shards=1)
            for i in range(workers):
                self.start_node(f'w{i}', 'capstan_gpu_worker', '--cpu-threads', '1')
        # A job that starts before a node registers would use the other nodes, several workers on one.
        self.wait_until(lambda: len(self.ok('node', 'list', '-o', 'name').out.split()) == workers + 1, 20, 'all to register')

    def with_cards(self, workers, cards, plugin='libcapstan_fake_plugin.so'):
        self.cluster(workers, CAPSTAN_CUDA_PLUGIN=os.path.join(TEST, plugin), CAPSTAN_FAKE_ELEMENTS='float',
                     LD_LIBRARY_PATH=os.path.join(TEST, 'empty_driver'), CAPSTAN_FAKE_DEVICES=str(cards),
                     CAPSTAN_FAKE_CUDA=f'devices={cards}')

    def job(self, **resources):
        spec = support.job_spec(model={'name': 'mlp'}, resources={'lanes': 4, **resources})
        spec['data'].update(train_samples=256, test_samples=40)
        return self.submit(spec)

    def ended(self, job_id):
        self.ok('wait', job_id, timeout=60)
        job = self.describe(job_id)
        return job.get('device'), [worker['devices'] for worker in job['workers']]

    def test_two_devices_per_worker_without_gpus_are_two_cpu_devices(self):
        self.cluster(workers=2, CAPSTAN_CUDA_PLUGIN='/nowhere.so')
        self.assertEqual(self.ended(self.job(num_workers=2, gpus_per_worker=2)), ('cpu', [[0, 0], [0, 0]]))

    def test_two_workers_of_a_host_never_compute_on_one_card_and_are_told_of_it(self):
        self.with_cards(workers=2, cards=2)
        self.assertEqual(self.ended(self.job(num_workers=2)), ('gpu', [[0], [1]]))
        self.assertEqual(self.ended(self.job(num_workers=2, device='cpu', gpus_per_worker=2)), ('cpu', [[2, 2], [2, 2]]))
        told = 'cuda:0, cuda:1 are cards that worker w0 on host .* offers too'
        self.wait_until(lambda: 'registered_with_warning' in self.services['w1'].said(), 10, 'a warning of w1')
        self.assertRegex(self.services['w1'].said(), told)
        self.assertRegex(self.ok('node', 'describe', 'w1').out, f'Warning +{told}')
        findings = json.loads(self.capstan('doctor', '-o', 'json').out)['findings']
        self.assertEqual([f['subject'] for f in findings if f['kind'] == 'SharedCards'], ['w0', 'w1'], findings)

    def look_who_adds(self, copies, reduces):
        """Checks in the tasks' logs who added the gradients, because equal bits do not show that."""
        def added(kvstore, deterministic=True, together=True):
            spec = support.job_spec(model={'name': 'mlp'}, kvstore={'type': kvstore},
                                    resources={'gpus_per_worker': 3, 'device': 'gpu', 'lanes': 8})
            spec['data'].update(train_samples=256, test_samples=40)
            spec['training']['deterministic'] = deterministic
            job = self.submit(spec)
            self.ok('wait', job, timeout=60)

            def lines(event):
                return [line for line in self.ok('logs', job).out.splitlines() if f'event={event} ' in line]

            # A job's log lines may arrive after the job's end.
            self.wait_until(lambda: len(lines('device_ready')) == 3, 20, 'three cards in the log')
            if together:
                self.wait_until(lambda: lines('devices_together'), 20, 'the log to say who adds')
            said = lines('devices_together')
            return self.describe(job)['weights_sha256'], said

        host, said = added('dist_sync', together=False)
        self.assertEqual(said, [])
        tree, said = added('dist_device_sync')
        self.assertEqual(len(said), 1, said)
        self.assertIn(copies, said[0])
        self.assertEqual(tree, host)
        other, said = added('dist_device_sync', deterministic=False)
        self.assertEqual(len(said), 1, said)
        self.assertIn(reduces, said[0])
        self.assertNotEqual(other, host)  # for three cards the library's order is not the tree's

    def test_cards_add_by_themselves_and_say_how(self):
        self.with_cards(workers=1, cards=3)
        self.look_who_adds('3 fake cards, sums by copies', '3 fake cards, sums by meeting')

    @unittest.skipUnless(os.path.exists(os.path.join(TEST, CUDA_ON_CPU)), 'built without the headers of CUDA')
    def test_cards_of_the_cuda_plugin_add_by_themselves_and_say_how(self):
        self.with_cards(workers=1, cards=3, plugin=CUDA_ON_CPU)
        self.look_who_adds('3 GPUs, sums by peer copies', '3 GPUs, sums by NCCL ')

    def test_a_job_waits_for_cards_that_are_busy_and_not_on_cpus(self):
        self.with_cards(workers=1, cards=1)
        spec = support.job_spec(model={'name': 'mlp'})
        spec['training']['epochs'] = 10000
        first = self.submit(spec)
        self.wait_for_step(first, 1)
        second = self.job(num_workers=1)
        self.wait_until(lambda: 'needs 1 worker with 1 free gpu device' in self.describe(second)['message'], 20, 'waiting')
        self.ok('cancel', first)
        self.assertEqual(self.ended(second), ('gpu', [[0]]))


if __name__ == '__main__':
    support.main()
