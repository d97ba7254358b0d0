"""The disk of the coordinator's state folder is full: jobs go on, nothing can be changed, it says so, and all is well once there is room."""

import json
import os
import signal
import urllib.request

import services
import support

DISK = '12m'
JOB = support.job_spec(name='goes-on', kvstore={'type': 'dist_sync'}, resources={'num_workers': 1, 'num_shards': 1},
                       training={'epochs': 400, 'global_batch_size': 64, 'seed': 3,
                                 'optimizer': {'name': 'sgd', 'learning_rate': 0.01}},
                       checkpoint={'every': '20 steps', 'keep_latest': 1})


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
            self.fill(disk)  # whatever was given up is taken by others
            self.capstan('submit', job_file, timeout=30)
            return self.metric('capstan_state_disk_full') == 1
        self.wait_until(full, 60, 'a full disk')
        told = self.refused('submit', job_file)
        print(told.strip(), flush=True)
        self.assertIn("the disk of the coordinator's state folder is full", told)
        health = ['--timeout', '4s', 'healthcheck', '--service']
        self.assertEqual(self.capstan(*health, 'state-disk').code, 1)
        self.assertEqual(self.capstan(*health, 'readiness').code, 0)
        # Reads are answered, nodes keep their leases and the job goes on.
        step = self.describe(job_id)['progress']['step']
        during = self.wait_for_step(job_id, step + 200)
        self.assertEqual(during['state'], 'RUNNING')
        self.assertIn(job_id, self.ok('list').out)

        # Killed and started again on the full disk.
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

    def test_checkpoints_leave_room_for_the_journal(self):
        """A job whose checkpoints lie beside the journal: they stop before the disk is full."""
        disk = self.small_disk('state', DISK)
        self.start_coordinator()
        self.start_node('s0', 'capstan_param_store')
        self.start_worker('w0')
        with open(os.path.join(disk, 'other'), 'wb') as f:  # 12 MiB, less 2.5 of ours
            f.write(b'\0' * (10 << 20))
        job_id = self.submit(dict(JOB, checkpoint={'every': '20 steps', 'keep_latest': 50}))

        def failed():
            return [e['message'] for e in self.describe(job_id)['events'] if e['type'] == 'CheckpointFailed']
        message = self.wait_until(failed, 60, 'a checkpoint that is refused')[0]
        print(message, flush=True)
        self.assertRegex(message, rf'^step \d+: .*: write {disk}/checkpoints/.*: \d+ bytes, where \d+ are free and \d+ stay so: '
                                  rf'{services.NO_SPACE}$')
        self.assertIn('CHECKPOINT_DEGRADED', self.describe(job_id)['conditions'])
        free = os.statvfs(disk)
        self.assertGreater(free.f_bavail * free.f_frsize, 300_000)
        self.assertEqual(self.metric('capstan_state_disk_full'), 0)
        self.submit(support.job_spec(name='meanwhile'))
        self.ok('cancel', job_id)


if __name__ == '__main__':
    support.main()
