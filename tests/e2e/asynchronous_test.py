"""Asynchronous training: every contribution counts once, whoever dies. One lane gives the bits of `dist_sync`."""

import json
import os
import signal
import struct
import time

import dashboards_test
import prometheus
import services
import support

DATA = {'format': 'synthetic_digits', 'train_samples': 2048, 'test_samples': 500}
SGD = {'name': 'sgd', 'learning_rate': 0.02}


def spec(kvstore, steps=None, epochs=2, name='async', **resources):
    training = {'epochs': epochs, 'global_batch_size': 64, 'seed': 5, 'optimizer': SGD}
    if steps:
        training['max_steps'] = steps
    return support.job_spec(name=name, resources={'num_workers': 2, 'num_shards': 2, **resources}, data=DATA, kvstore=kvstore, training=training)


def marks_of(folder):
    """{chunk: (next step by lane, contributions)} of a checkpoint, from all its shard files."""
    marks = {}
    for file in os.listdir(folder):
        if not file.startswith('shard-'):
            continue
        with open(os.path.join(folder, file), 'rb') as f:
            size, = struct.unpack('<Q', f.read(8))
            header, payload = json.loads(f.read(size)), f.read()
        for name, entry in header.items():
            if name.startswith('marks.'):
                begin, end = entry['data_offsets']
                numbers = struct.unpack(f'<{(end - begin) // 8}q', payload[begin:end])
                marks[int(name[len('marks.'):])] = (list(numbers[:-1]), numbers[-1])
    return marks


class RunTest(support.TestCase):

    def test_one_lane_has_the_bits_of_dist_sync(self):
        for training in ({}, {'optimizer': {'name': 'adam', 'learning_rate': 0.001}}, {'gradient_clip_norm': 0.5}):
            def job(kvstore, training=training):
                one = spec(kvstore, steps=40, num_workers=1, lanes=1)
                one['training'].update(training)
                return self.train(one)
            want = job({'type': 'dist_sync'})
            for kvstore in ({'type': 'dist_async'}, {'type': 'dist_device_async'}, {'type': 'dist_async', 'max_staleness': 0}):
                got = job(kvstore)
                self.assertEqual(got['weights_sha256'], want['weights_sha256'], kvstore)
                self.assertEqual([line['loss'] for line in self.step_log(got)], [line['loss'] for line in self.step_log(want)])

    def test_learns_and_counts_every_contribution_once(self):
        for kvstore in ({'type': 'dist_async'}, {'type': 'dist_async_device', 'max_staleness': 2}):
            job = self.train(spec(kvstore, epochs=6))
            self.assertEqual(job['samples_used'], 6 * 2048)
            self.assertLess(job['epochs'][-1]['train_loss'], job['epochs'][0]['train_loss'] / 2)
            steps = 6 * 2048 // 64
            self.assertEqual([line['step'] for line in self.step_log(job)], list(range(steps)))
            marks = marks_of(self.checkpoint(job))
            self.assertGreater(len(marks), 10)
            for chunk, counted in marks.items():
                self.assertEqual(counted, ([steps, steps], 2 * steps), chunk)

    def test_the_plan_says_what_it_means(self):
        path = self.write('job.json', json.dumps(spec({'type': 'dist_async', 'max_staleness': 3})))
        said = self.capstan('validate', path)
        for line in ('2 workers x 1 device + 2 shards, dist_async, start all or none',
                     'one lane per device, the default: each gradient is applied alone',
                     'a lane is at most 3 steps ahead of the slowest; two runs do not give the same bits'):
            self.assertIn(line, said.out)
        refused = self.capstan('validate', path, '--set', 'kvstore.type=dist_sync')
        self.assertNotEqual(refused.code, 0)
        self.assertIn("'kvstore.max_staleness' is 3, but only kvstore 'dist_async' trains on old weights", refused.err)


class FaultsTest(services.ServicesTest):
    """Three workers of one lane each, and two shards."""

    def setUp(self):
        super().setUp()
        self.start(workers=3, shards=2)

    def job(self, epochs, **kvstore):
        training = {'epochs': epochs, 'global_batch_size': 66, 'seed': 5, 'optimizer': SGD}
        return support.job_spec(name='async', resources={'num_workers': 3, 'num_shards': 2}, data=DATA, training=training,
                                kvstore={'type': 'dist_async', **kvstore}, checkpoint={'every': '20 steps', 'keep_latest': 2},
                                recovery={'max_restarts': 100, 'backoff': {'initial': '0s'}})

    def check(self, job_id, epochs):
        """Every lane has all its steps in every chunk, once each."""
        job = self.learned(job_id, epochs * 2048)
        steps = epochs * 32  # 31 of 66 samples and one of 2, in which the last lane has none
        marks = marks_of(self.checkpoint(job))
        self.assertGreater(len(marks), 10)
        for chunk, counted in marks.items():
            self.assertEqual(counted, ([steps] * 3, 3 * steps - epochs), chunk)
        return job

    def test_a_task_and_a_worker_die(self):
        epochs = 20
        job_id = self.submit(self.job(epochs))
        self.wait_for_step(job_id, 60)
        os.kill(self.tasks('w1')[0], signal.SIGKILL)
        self.wait_for_step(job_id, 200)
        self.assertEqual(self.stop('w2', signal.SIGKILL), -signal.SIGKILL)
        job = self.check(job_id, epochs)
        self.assertEqual(job['restarts'], 0, 'a worker costs no lineage')
        self.assertIn('WorkerLost', [event['type'] for event in job['events']])

    def test_a_shard_dies(self):
        epochs = 20
        job_id = self.submit(self.job(epochs, max_staleness=4))
        self.wait_for_step(job_id, 100)
        self.assertEqual(self.stop('s1', signal.SIGKILL), -signal.SIGKILL)
        self.start_node('s1', 'capstan_param_store')
        job = self.check(job_id, epochs)
        self.assertEqual(job['restarts'], 1)

    def test_a_suspended_job_goes_on_with_its_marks(self):
        epochs = 12
        job_id = self.submit(self.job(epochs))
        self.wait_for_step(job_id, 100)
        self.ok('suspend', job_id)
        self.wait_until(lambda: self.describe(job_id)['state'] == 'SUSPENDED', 30, 'SUSPENDED')
        self.ok('resume', job_id, '--num-workers', '2')
        self.check(job_id, epochs)

    def bound(self, job_id):
        for line in prometheus.get(self.services['s0'].http, '/metrics').splitlines():
            if line.startswith('capstan_ps_max_staleness_steps') and job_id in line:
                return float(line.rsplit(' ', 1)[1])
        return None

    def test_the_bound_changes_while_the_job_runs(self):
        epochs = 60
        job_id = self.submit(self.job(epochs))
        self.wait_for_step(job_id, 20)
        self.assertEqual(self.bound(job_id), -1)
        for number, (bound, shown) in enumerate((('0', 0), ('5', 5), ('any', -1), ('2', 2)), 1):
            self.assertEqual(self.ok('update', job_id, '--max-staleness', bound).out,
                             f'order {number}: capstan events {job_id} says at which step\n')
            self.wait_until(lambda: self.bound(job_id) == shown, 30, f'a bound of {bound}')
        # A shard that dies goes on with the bound of its checkpoint, or gets the order again.
        self.assertEqual(self.stop('s1', signal.SIGKILL), -signal.SIGKILL)
        self.start_node('s1', 'capstan_param_store')
        self.wait_until(lambda: self.describe(job_id)['restarts'] == 1, 60, 'a restart')
        self.wait_for_step(job_id, self.describe(job_id)['progress']['step'] + 100)
        self.assertEqual(self.bound(job_id), 2)
        job = self.check(job_id, epochs)
        messages = [event['message'] for event in job['events'] if event['type'] == 'OrderGiven']
        self.assertEqual(messages, ['order 1: max_staleness 0', 'order 2: max_staleness 5', 'order 3: max_staleness any',
                                    'order 4: max_staleness 2'])
        for bound in ('-1', 'none', '1.5'):
            refused = self.capstan('update', job_id, '--max-staleness', bound)
            self.assertEqual(refused.code, 2, refused)
            self.assertIn(f"--max-staleness: want a number from 0 on or 'any', got '{bound}'", refused.err)

    def test_staleness_is_bounded_and_shown(self):
        epochs = 12
        job_id = self.submit(self.job(epochs, max_staleness=1))
        self.wait_for_step(job_id, 50)
        slow = self.tasks('w0')[0]
        for _ in range(3):  # the others soon wait for its lane
            os.kill(slow, signal.SIGSTOP)
            time.sleep(1)  # the fault itself
            os.kill(slow, signal.SIGCONT)
        buckets = {}
        text = prometheus.get(self.services['s0'].http, '/metrics')
        name = 'capstan_ps_gradient_staleness_steps'
        exposed, documented = dashboards_test.exposed(text), dashboards_test.catalogue()['Parameter store server']
        panel, = (one for one in dashboards_test.dashboards()['capstan-job.json']['panels'] if one['title'] == dashboards_test.STALENESS)
        queries = ' '.join(one['expr'] for one in panel['targets'])
        for shown in (name, 'capstan_ps_max_staleness_steps'):
            self.assertEqual(exposed[shown], documented[shown])
            self.assertIn(shown, queries)
        self.assertEqual(self.bound(job_id), 1)
        for line in text.splitlines():
            if line.startswith(f'{name}_bucket') and job_id in line:
                buckets[line.split('le="')[1].split('"')[0]] = float(line.rsplit(' ', 1)[1])
        self.assertEqual(buckets['1'], buckets['+Inf'])
        self.assertGreater(buckets['1'], buckets['0'], 'some lane was ahead')
        self.check(job_id, epochs)


if __name__ == '__main__':
    support.main()
