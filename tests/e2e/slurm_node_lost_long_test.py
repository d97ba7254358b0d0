"""A node of Slurm dies under a launch, and Slurm notices. The job continues with the others to the same bits."""

import os
import shutil
import signal

import launches
import support


class SlurmNodeLostTest(launches.LaunchCase):

    def test_the_job_goes_on_without_it(self):
        self.slurm()
        spec = dict(launches.SPEC, training=dict(launches.LONG['training'], epochs=4000))  # minutes, because Slurm is slow
        want = self.train(spec, timeout=600)['weights_sha256']
        launch = self.launch(('--launcher', 'slurm', '-H', 'n1,n2', '--interface', 'lo'), spec)
        launch.wait_for('event=job_state .*to=RUNNING')
        launch.look()
        # Tasks are spread over the nodes: s0 and w1 are on n1, and only w0 is on n2.
        service = launch.pid_of('w0')
        node = int(launches.stat_of(service)[1])
        step = int(launches.stat_of(node)[1])
        self.assertIn('slurmstepd', ' '.join(launches.command_of(step)))
        words = launches.command_of(service)
        folder = os.path.dirname(words[words.index('--tls-cert') + 1])
        for pid in (self.slurmd.pid, step, node, service):
            os.kill(pid, signal.SIGKILL)
        # Nobody is left there to clean up, unless the service was quicker than the signals.
        launch.folders.remove(folder)
        self.wait_until(lambda: not os.path.exists(f'/proc/{service}') or not launches.stat_of(service), 60, 'the end of w0')
        shutil.rmtree(folder, ignore_errors=True)

        launch.wait_for('event=view .*generation=2')
        self.wait_until(lambda: self.slurm_nodes()[1].startswith('down'), 120, 'Slurm notices')
        self.assertIsNone(launch.process.poll(), 'the job has ended before Slurm noticed')
        self.assertEqual(launch.end(600), 0, ''.join(launch.said[-100:]))
        self.assertEqual(launch.job()['weights_sha256'], want)


if __name__ == '__main__':
    support.main()
