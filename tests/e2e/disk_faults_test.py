"""A disk that is full for a while, and damaged checkpoints: both are reported and worked around, and the final weights are the
same."""

import json
import os
import shutil
import signal
import subprocess

import services
import support

# Enough epochs that the job still runs after the test has looked at its checkpoints. A local job's steps are shorter.
EPOCHS = {'dist_sync': 36, 'local': 120}
STEPS_PER_EPOCH = 32  # 2000 samples, 64 per step
DISK = '8m'


class DiskFaultsTest(services.ServicesTest):

    def job(self, name, folder, kind='dist_sync'):
        many = {'num_workers': 2, 'num_shards': 2}
        return support.job_spec(
            name=name, kvstore={'type': kind}, resources=dict(many if kind == 'dist_sync' else {}, lanes=4),
            training={'epochs': EPOCHS[kind], 'global_batch_size': 64, 'seed': 3,
                      'optimizer': {'name': 'sgd', 'learning_rate': 0.04, 'momentum': 0.9}},
            checkpoint={'every': '20 steps', 'keep_latest': 3, 'storage_path': f'file://{folder}'},
            recovery={'max_restarts': 100, 'backoff': {'initial': '0s'}})

    def finish(self, job_id):
        self.capstan('wait', job_id, timeout=180)
        job = self.describe(job_id)
        self.assertEqual(job['state'], 'SUCCEEDED', job)
        return job

    def events(self, job_id, kind):
        return [event['message'] for event in self.describe(job_id)['events'] if event['type'] == kind]

    def check_full_disk(self, kind, who):
        disk = self.small_disk('disk', DISK)
        self.start(workers=2, shards=2)
        undisturbed = self.finish(self.submit(self.job('undisturbed', self.path('other'), kind)))

        job_id = self.submit(self.job('full', disk, kind))
        with open(self.path('quiet'), 'w') as err:
            quiet = subprocess.Popen([support.CAPSTAN, '-q', 'wait', job_id], stderr=err,
                                     env=dict(os.environ, CAPSTAN_ADDRESS=self.address()))
        self.addCleanup(quiet.kill)

        def said():
            with open(self.path('quiet')) as f:
                return f.read()

        self.wait_until(lambda: len(self.events(job_id, 'CheckpointSaved')) >= 2, 60, 'the second checkpoint')
        filler = self.fill(disk)
        failed = self.wait_until(lambda: self.events(job_id, 'CheckpointFailed'), 60, 'a checkpoint that fails')
        print(failed[0], flush=True)
        # The disk may also be full only when the coordinator writes the manifest.
        self.assertRegex(failed[0], rf'^step \d+: ({who}: )?\w+ {disk}/{job_id}/.*: {services.NO_SPACE}$')
        with self.paused():
            during = self.describe(job_id)
            self.assertIn('CHECKPOINT_DEGRADED', during['conditions'])
            self.assertIn(services.NO_SPACE, self.ok('describe', job_id).out)
            # The last good checkpoint is intact all the time.
            self.assertIn('Verified', self.ok('checkpoint', 'verify', job_id).out)
            self.wait_until(lambda: 'no checkpoint' in said(), 20, 'what -q wait says of it')
        self.wait_for_step(job_id, during['progress']['step'] + 60)
        self.assertEqual(self.describe(job_id)['state'], 'RUNNING')
        saved = len(self.events(job_id, 'CheckpointSaved'))
        os.unlink(filler)
        self.wait_until(lambda: len(self.events(job_id, 'CheckpointSaved')) > saved, 60, 'a checkpoint on the freed disk')
        with self.paused():
            self.assertEqual(self.describe(job_id)['conditions'], [])
            self.wait_until(lambda: 'saved again' in said(), 20, 'what -q wait says of it')

        job = self.finish(job_id)
        self.assertEqual(quiet.wait(60), 0, said())
        self.assertRegex(said(), rf'^capstan: {job_id}: no checkpoint: step \d+: {who}: .*{services.NO_SPACE}\n'
                                 rf'capstan: {job_id}: checkpoints are saved again\n')
        self.assertEqual(job['weights_sha256'], undisturbed['weights_sha256'])
        self.assertEqual(job['samples_used'], undisturbed['samples_used'])
        self.assertEqual([e['type'] for e in job['events'] if e['type'] in ('WorkerLost', 'ShardLost')], [])
        self.assertEqual([name for name in os.listdir(self.checkpoint(job)) if name.endswith('.tmp')], [])
        # The log has every step, too, and no incomplete line.
        self.assertEqual([line['step'] for line in self.step_log(job)], list(range(STEPS_PER_EPOCH * EPOCHS[kind])))

    def test_a_full_disk_stops_checkpoints_and_not_the_training(self):
        self.check_full_disk('dist_sync', r'shard [01] on host \S+')

    def test_a_full_disk_under_a_task_that_is_its_own_store(self):
        self.check_full_disk('local', 'the task')

    def test_damaged_checkpoints_are_refused_by_name_and_an_older_one_is_taken(self):
        self.start_one('coordinator', 'capstan_coordinator', '--state-dir', self.path('state'), '--data-root', 'file:///',
                       '--checkpoint-root', 'file:///', '--heartbeat', '200ms', '--lease', '1s')
        for shard in ('s0', 's1'):
            self.start_node(shard, 'capstan_param_store')
        for worker in ('w0', 'w1'):
            self.start_worker(worker)
        undisturbed = self.finish(self.submit(self.job('another', self.path('files'))))
        foreign = os.path.join(self.checkpoint(undisturbed), 'shard-0.safetensors')

        def flip(folder):
            with open(os.path.join(folder, 'shard-1.safetensors'), 'r+b') as f:
                f.seek(-1001, os.SEEK_END)
                byte = f.read(1)[0]
                f.seek(-1001, os.SEEK_END)
                f.write(bytes([byte ^ 0x10]))

        def cut(folder):
            path = os.path.join(folder, 'shard-0.safetensors')
            os.truncate(path, os.path.getsize(path) // 2)

        def swap(folder):
            first, second = (os.path.join(folder, f'shard-{i}.safetensors') for i in (0, 1))
            os.rename(first, first + '.kept')
            os.rename(second, first)
            os.rename(first + '.kept', second)

        def of_another_job(folder):
            shutil.copyfile(foreign, os.path.join(folder, 'shard-0.safetensors'))

        def manifest(folder):
            with open(os.path.join(folder, 'manifest.json'), 'r+b') as f:
                f.seek(f.read().index(b'"step"') + 1)
                f.write(b'S')

        job_id = self.submit(self.job('damaged', self.path('files')))
        for count, (damage, named) in enumerate(((flip, 'shard-1.safetensors'), (cut, 'shard-0.safetensors'),
                                                 (swap, r'shard-[01]\.safetensors'), (of_another_job, 'shard-0.safetensors'),
                                                 (manifest, 'manifest.json')), 1):
            # Two checkpoints of this lineage, so that an older one remains. On a busy machine a lease of 1 s may lapse and begin
            # another lineage.
            def two():
                lineage = self.describe(job_id)['lineage']
                listed = json.loads(self.ok('checkpoint', 'list', job_id, '-o', 'json').out)
                return len([one for one in listed if one['lineage'] == lineage]) >= 2
            self.wait_until(two, 60, 'two checkpoints of one lineage')
            # Stopped shards save nothing newer meanwhile.
            for shard in ('s0', 's1'):
                self.services[shard].process.send_signal(signal.SIGSTOP)
            self.wait_until(lambda: self.describe(job_id)['state'] == 'RECOVERING', 30, 'RECOVERING')
            newest, older = json.loads(self.ok('checkpoint', 'list', job_id, '-o', 'json').out)[:2]
            damage(newest['uri'][len('file://'):])
            for shard in ('s0', 's1'):
                self.assertEqual(self.stop(shard, signal.SIGKILL), -signal.SIGKILL)
            for shard in ('s0', 's1'):
                self.start_node(shard, 'capstan_param_store')
            refused = self.wait_until(lambda: (self.events(job_id, 'CheckpointRefused') + [''] * count)[count - 1], 30,
                                      f'the refusal after {damage.__name__}')
            print(refused, flush=True)
            self.assertRegex(refused, rf'^{newest["id"]}: shard [01] on host \S+: /.*/{newest["id"]}/{named}:')
            begun = self.wait_until(lambda: [text for text in self.events(job_id, 'LineageStarted')
                                             if f'from checkpoint {older["id"]},' in text], 30, 'the older checkpoint')
            print(begun[-1], flush=True)
        job = self.finish(job_id)
        self.assertEqual(job['weights_sha256'], undisturbed['weights_sha256'])
        self.assertEqual(job['samples_used'], undisturbed['samples_used'])
        self.assertEqual(len(self.events(job_id, 'CheckpointRefused')), 5)


if __name__ == '__main__':
    support.main()
