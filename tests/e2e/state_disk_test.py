"""The coordinator's state disk is full: jobs continue, changes are refused and reported, and all works once there is room."""

import json
import os
import re
import signal
import subprocess
import urllib.request

import services
import support

DISK = '12m'
JOB = support.job_spec(name='goes-on', kvstore={'type': 'dist_sync'}, resources={'num_workers': 1, 'num_shards': 1},
                       training={'epochs': 400, 'global_batch_size': 64, 'seed': 3,
                                 'optimizer': {'name': 'sgd', 'learning_rate': 0.01}},
                       checkpoint={'every': '20 steps', 'keep_latest': 1})

EPOCHS = 80  # of 32 steps each; for a job that ends while its disk is full


class StateDiskTest(services.ServicesTest):

    def metric(self, name):
        with urllib.request.urlopen(f'http://{self.services["coordinator"].http}/metrics', timeout=10) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(name + ' '):
                    return float(line.split()[1])
        return None

    def start_coordinator(self):
        self.start_one('coordinator', 'capstan_coordinator', '--state-dir', self.path('state'), '--data-root', 'file:///',
                       '--checkpoint-root', 'file:///', '--heartbeat', '200ms', '--lease', '3s')

    def refused(self, *args):
        run = self.capstan(*args)
        self.assertNotEqual(run.code, 0, run)
        return run.err

    def test_a_full_state_disk_stops_changes_and_nothing_else(self):
        disk = self.small_disk('state', DISK)
        self.start_coordinator()
        self.start_node('s0', 'capstan_param_store')
        self.start_worker('w0')
        job_id = self.submit(JOB)
        self.wait_for_step(job_id, 40)
        self.assertEqual(self.metric('capstan_state_disk_full'), 0)
        self.assertGreater(os.path.getsize(os.path.join(disk, 'journal.reserve')), 500_000)

        filler = self.fill(disk)
        job_file = self.write('more.yaml', json.dumps(support.job_spec(name='more')))

        def full():
            self.fill(disk)  # fills the room that was given up
            self.capstan('submit', job_file, timeout=30)
            return self.metric('capstan_state_disk_full') == 1
        self.wait_until(full, 60, 'a full disk')
        told = self.refused('submit', job_file)
        print(told.strip(), flush=True)
        self.assertIn("the disk of the coordinator's state folder is full", told)
        health = ['--timeout', '4s', 'healthcheck', '--service']
        self.assertEqual(self.capstan(*health, 'state-disk').code, 1)
        self.assertEqual(self.capstan(*health, 'readiness').code, 0)
        # Reads are answered, nodes keep their leases, and the job continues.
        step = self.describe(job_id)['progress']['step']
        during = self.wait_for_step(job_id, step + 200)
        self.assertEqual(during['state'], 'RUNNING')
        self.assertIn(job_id, self.ok('list').out)

        # Killed and restarted on the full disk.
        self.assertEqual(self.stop('coordinator', signal.SIGKILL), -signal.SIGKILL)
        self.fill(disk)
        self.start_coordinator()
        self.assertEqual(self.wait_until(lambda: self.metric('capstan_state_disk_full'), 30, 'a full disk'), 1)
        self.assertIn(job_id, self.ok('list').out)
        self.assertIn('is full', self.refused('submit', job_file))

        os.unlink(filler)
        self.wait_until(lambda: self.metric('capstan_state_disk_full') == 0, 30, 'room again')
        self.assertEqual(self.capstan(*health, 'state-disk').code, 0)
        after = self.submit(support.job_spec(name='after'))
        self.assertIn(after, self.ok('list').out)
        job = self.wait_for_step(job_id, self.describe(job_id)['progress']['step'] + 40)
        self.assertEqual(job['state'], 'RUNNING')
        self.assertEqual([e['type'] for e in job['events'] if e['type'] in ('WorkerLost', 'ShardLost')], [])
        self.ok('cancel', job_id)
        self.ok('cancel', after)

    def test_who_waits_for_a_job_hears_at_once_that_it_cannot_be_saved(self):
        """Meanwhile the coordinator holds back what it streams."""
        disk = self.small_disk('state', DISK)
        self.start_coordinator()
        self.start_node('s0', 'capstan_param_store')
        self.start_worker('w0')
        job_file = self.write('long.json', json.dumps(dict(JOB, training=dict(JOB['training'], epochs=EPOCHS), checkpoint={'every': 'never'})))
        with open(self.path('err'), 'wb') as err:
            waits = subprocess.Popen([support.CAPSTAN, 'submit', job_file, '--wait'], cwd=self.folder, stdout=subprocess.PIPE, stderr=err,
                                     text=True, env=dict(os.environ, CAPSTAN_ADDRESS=self.address()))
        self.addCleanup(waits.kill)
        self.wait_until(lambda: any('metrics.jsonl' in files for _, _, files in os.walk(disk)), 60, 'the first steps')
        others = [self.submit(support.job_spec(name='waits')) for _ in range(12)]

        def held():
            """Each cancellation is a commit. The first ones use the room that the reserve gives up."""
            self.fill(disk)
            if others:
                self.capstan('cancel', others.pop(), timeout=30)
            return 'event=journal_held' in self.services['coordinator'].said()
        self.wait_until(held, 60, 'a commit that finds no room')

        def trouble():
            self.fill(disk)
            with open(self.path('err'), errors='replace') as f:
                said = f.read()
            self.assertIsNone(waits.poll(), said)
            return re.findall('^capstan: .*cannot save.*', said, re.MULTILINE)
        line = self.wait_until(trouble, 60, 'the error')[0]
        print(line, flush=True)
        self.assertRegex(line, rf'^capstan: goes-on-\w{{6}}: cannot save step {32 * EPOCHS}: .*{services.NO_SPACE}')
        os.unlink(os.path.join(disk, 'filler'))
        out, _ = waits.communicate(timeout=60)
        self.assertEqual(waits.returncode, 0, out)

    def test_checkpoints_leave_room_for_the_journal(self):
        """A job whose checkpoints are on the journal's disk stops saving before that disk is full."""
        disk = self.small_disk('state', DISK)
        self.start_coordinator()
        self.start_node('s0', 'capstan_param_store')
        self.start_worker('w0')
        with open(os.path.join(disk, 'other'), 'wb') as f:  # 12 MiB, minus 2.5 of ours
            f.write(b'\0' * (10 << 20))
        job_id = self.submit(dict(JOB, checkpoint={'every': '20 steps', 'keep_latest': 50}))
        first = self.wait_until(lambda: [e['message'] for e in self.describe(job_id)['events'] if e['type'] == 'StorageShort'], 30, 'StorageShort')
        self.assertRegex(first[0], rf'^files of at most [\d.]+ MiB, and [\d.]+ [KM]iB can be used in {disk}/checkpoints \([\d.]+ [KM]iB free\): '
                                   '(checkpoints will fail; |not even the last version and weights fit)')

        def failed():
            return [e['message'] for e in self.describe(job_id)['events'] if e['type'] == 'CheckpointFailed']
        message = self.wait_until(failed, 60, 'a checkpoint that is refused')[0]
        print(message, flush=True)
        self.assertRegex(message, rf'^step \d+: .*: write {disk}/checkpoints/.*: \d+ bytes, but \d+ are free, and \d+ are reserved: '
                                  rf'{services.NO_SPACE}$')
        self.assertIn('CHECKPOINT_DEGRADED', self.describe(job_id)['conditions'])
        free = os.statvfs(disk)
        self.assertGreater(free.f_bavail * free.f_frsize, 300_000)
        self.assertEqual(self.metric('capstan_state_disk_full'), 0)
        self.submit(support.job_spec(name='meanwhile'))
        self.ok('cancel', job_id)


if __name__ == '__main__':
    support.main()
