"""A coordinator's state is backed up while it works and restored elsewhere. A hot copy of its folder is refused by name."""

import json
import os
import shutil
import signal

import services
import support

JOB = support.job_spec(name='kept', resources={'num_workers': 1, 'num_shards': 1},
                       training={'epochs': 30, 'global_batch_size': 64, 'seed': 3,
                                 'optimizer': {'name': 'sgd', 'learning_rate': 0.02}},
                       checkpoint={'every': '20 steps'})


class BackupTest(services.ServicesTest):

    def start_coordinator(self, state):
        self.start_one('coordinator', 'capstan_coordinator', '--state-dir', self.path(state), '--data-root', 'file:///',
                       '--checkpoint-root', 'file:///', '--heartbeat', '200ms', '--lease', '3s')

    def finish(self, job_id):
        job = json.loads(self.ok('wait', job_id, '-o', 'json', timeout=180).out.splitlines()[-1])
        self.assertEqual(job['state'], 'SUCCEEDED', job)
        return job['weights_sha256']

    def test_a_backup_of_a_coordinator_at_work_goes_on_elsewhere(self):
        self.start_coordinator('state')
        self.start_node('s0', 'capstan_param_store')
        self.start_worker('w0')
        undisturbed = self.finish(self.submit(JOB))
        job_id = self.submit(JOB)
        self.wait_for_step(job_id, 30)
        told = json.loads(self.ok('backup', self.path('kept'), '-o', 'json').out)
        self.assertEqual(sorted(os.listdir(self.path('kept'))), ['journal.db', 'journal.mark'])
        self.assertEqual(told['size_bytes'], os.path.getsize(self.path('kept', 'journal.db')))
        again = self.capstan('backup', self.path('kept'))
        self.assertEqual(again.code, 2, again)
        self.assertIn('already holds a backup', again.err)

        # A copy as people make it without `backup`: the files as they are, without the log that has the newest commits.
        hot = self.path('hot')
        os.mkdir(hot)
        for name in ('journal.db', 'journal.mark'):
            shutil.copy(self.path('state', name), hot)
        refused = self.capstan('restore', hot, self.path('from-hot'))
        self.assertEqual(refused.code, 1, refused)
        self.assertRegex(refused.err, rf'{hot}: journal\.db lacks commits that were durable: it holds .*, but journal\.mark beside it has '
                                      r'\d+ .*not a backup: make one with capstan backup')
        busy = self.capstan('restore', self.path('kept'), self.path('state'))
        self.assertEqual(busy.code, 1, busy)
        self.assertIn('another coordinator works here', busy.err)

        self.assertEqual(self.stop('coordinator', signal.SIGKILL), -signal.SIGKILL)
        run = self.capstan('restore', self.path('kept'), self.path('elsewhere'))
        self.assertEqual(run.code, 0, run)
        self.assertRegex(run.out, rf'elsewhere  {told["commits"]} commits, 2 jobs, 1 not ended')
        self.start_coordinator('elsewhere')
        self.assertEqual({job['job_id'] for job in json.loads(self.ok('list', '-o', 'json').out)} & {job_id}, {job_id})
        self.assertEqual(self.finish(job_id), undisturbed)


if __name__ == '__main__':
    support.main()
