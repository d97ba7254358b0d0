"""An upgrade: the services of this version run on what earlier versions left on disk when they were killed. Every job is there,
and those that had trained continue to the weights that the earlier version expected."""

import fcntl
import json
import os
import shutil
import sys
import tarfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', 'e2e'))

import keep  # noqa: E402
import services  # noqa: E402
import support  # noqa: E402

VERSIONS = sorted(name for name in os.listdir(HERE) if os.path.exists(os.path.join(HERE, name, 'state.tar.xz')))


class KeptStateTest(services.ServicesTest):

    def setUp(self):
        super().setUp()
        lock = open(keep.LOCK, 'w')
        self.addCleanup(lock.close)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self.addCleanup(shutil.rmtree, keep.PLACE, ignore_errors=True)

    def unpack(self, version):
        shutil.rmtree(keep.PLACE, ignore_errors=True)
        os.mkdir(keep.PLACE, 0o700)
        with tarfile.open(os.path.join(HERE, version, 'state.tar.xz')) as archive:
            archive.extractall(keep.PLACE)
        with open(os.path.join(keep.PLACE, 'expected.json')) as f:
            expected = json.load(f)
        # The results of today's engine for the remaining steps. Its bits are not those of every version.
        with open(os.path.join(HERE, version, 'ends.json')) as f:
            ends = json.load(f)
        for job_id, job in expected.items():
            if job['was'] in ('RUNNING', 'SUSPENDED'):
                job['weights_sha256'] = ends[job_id]
        return expected

    def state_of(self, job_id):
        job = self.describe(job_id)
        return job['state'], job['reason']

    def test_every_job_of_an_earlier_version_is_there_and_goes_on(self):
        self.assertIn('0.1.0', VERSIONS)
        for version in VERSIONS:
            with self.subTest(version=version):
                expected = self.unpack(version)
                self.start_one('coordinator', 'capstan_coordinator', '--state-dir', os.path.join(keep.PLACE, 'state'),
                               '--data-root', 'file:///', '--checkpoint-root', 'file:///', '--heartbeat', '200ms',
                               '--lease', '1s')
                was = {job_id: job['was'] for job_id, job in expected.items()}
                self.assertEqual(set(was.values()),
                                 {'SUCCEEDED', 'FAILED', 'CANCELLED', 'SUSPENDED', 'PENDING', 'RUNNING'})
                for job_id, job in expected.items():
                    state, reason = self.state_of(job_id)
                    # A job that ran has lost all its members.
                    self.assertIn(state, (job['was'], 'RECOVERING' if job['was'] == 'RUNNING' else job['was']), job_id)
                    self.assertEqual(reason, job.get('reason', reason), job_id)
                # Three shards replace two, and one worker takes the lanes of two.
                for name in ('s0', 's1', 's2'):
                    self.start_node(name, 'capstan_param_store')
                for name in ('w0', 'w1'):
                    self.start_worker(name)
                for job_id in (job_id for job_id in was if was[job_id] == 'SUSPENDED'):
                    more = [] if job_id.startswith('alone') else ['--num-workers', '1', '--num-shards', '3']
                    self.ok('resume', job_id, *more)
                goes_on = [job_id for job_id in was if was[job_id] in ('RUNNING', 'SUSPENDED')]
                ends = {job_id: json.loads(self.ok('wait', job_id, '-o', 'json').out.splitlines()[-1]) for job_id in goes_on}
                self.assertEqual({job_id: (end['state'], end['weights_sha256']) for job_id, end in ends.items()},
                                 {job_id: ('SUCCEEDED', expected[job_id]['weights_sha256']) for job_id in goes_on})
                for job_id, end in ends.items():
                    self.assertGreater(end['lineage'], 1, job_id)  # it continued from its checkpoint, not from the start
                    types = [event['type'] for event in self.describe(job_id)['events']]
                    self.assertIn('Recovered' if was[job_id] == 'RUNNING' else 'Resumed', types)
                for job_id in (job_id for job_id in was if was[job_id] == 'PENDING'):
                    self.assertEqual(self.state_of(job_id), ('PENDING', 'WaitingForSlots'))
                    self.ok('cancel', job_id)
                for name in sorted(self.services, reverse=True):
                    self.stop(name)


if __name__ == '__main__':
    support.main()
