"""`capstan launch`: every launcher trains the same job to the same bits, and nothing is left behind."""

import glob
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile

import launches
import support
from damaged_input_test import idx_images, idx_labels


EPOCHS = 80
# Saved often, and long enough for the faults of the tests.
SAVED = support.job_spec(name='saved', resources={'num_workers': 2, 'num_shards': 1},
                         training={'epochs': EPOCHS, 'global_batch_size': 64, 'seed': 3,
                                   'optimizer': {'name': 'sgd', 'learning_rate': 0.01, 'momentum': 0.9}},
                         checkpoint={'every': '20 steps'})


class LaunchTest(launches.LaunchCase):
    references = {}

    def wait_until_saved(self, launch):
        """Waits until the job of SAVED has a checkpoint."""
        def saved():
            self.assertIsNone(launch.process.poll(), ''.join(launch.said))
            return glob.glob(self.path('capstan-out', 'saved-*', '1-*', 'manifest.json'))

        self.wait_until(saved, 60, 'the first checkpoint')

    def is_as_undisturbed(self, job):
        if not self.references:
            self.references['job'] = self.train(dict(SAVED, name='undisturbed'))
        self.assertEqual(job['state'], 'SUCCEEDED', job)
        self.assertEqual(job['weights_sha256'], self.references['job']['weights_sha256'], job)
        self.assertEqual(job['samples_used'], self.references['job']['samples_used'], job)
        self.assertEqual(job['restarts'], 0, job)

    def test_local(self):
        launch = self.train_by('--launcher', 'local')
        for name in ('c', 's0', 'w0', 'w1'):
            self.assertRegex(''.join(launch.said), rf'(?m)^\[{name} \S+\] event=listening')
        self.ends_in_every_way('--launcher', 'local')

    def test_services_are_heard_where_they_warn(self):
        launch = self.launch((), SAVED, verbose=False)
        self.wait_until_saved(launch)
        launch.look()
        service = launch.pid_of('w1')
        for task in [pid for pid in launches.all_pids() if (stat := launches.stat_of(pid)) and int(stat[1]) == service]:
            os.kill(task, signal.SIGKILL)
        launch.wait_for(r'(?m)^\[w1 \S+\] time=\S+ level=error event=task_ended .*signal 9')
        self.assertEqual(launch.end(), 0, ''.join(launch.said))
        self.assertNotRegex(''.join(launch.said), 'event=listening|level=info|event=exchange_lost')
        self.is_as_undisturbed(launch.job())
        every = self.capstan('run', '-v', self.write('job.yaml', json.dumps(launches.SPEC)))
        self.assertEqual(every.code, 0, every)
        self.assertIn('level=info', every.err)
        self.assertNotIn('event=exchange_lost', every.err)

    def sshd(self):
        """Starts an sshd on 127.0.0.2 and 127.0.0.3, as two hosts. Returns the command that logs in there."""
        sshd = shutil.which('sshd', path='/usr/sbin:' + os.environ['PATH'])
        if sshd is None or os.geteuid() != 0:
            self.skipTest('NOT TESTED: needs openssh-server and root')
        os.makedirs('/run/sshd', exist_ok=True)
        for name in ('host', 'user'):
            subprocess.run(['ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-f', self.path(name)], check=True)
        with socket.socket() as free:
            free.bind(('127.0.0.2', 0))
            port = free.getsockname()[1]
        config = self.write('sshd_config', f"""
            Port {port}
            ListenAddress 127.0.0.2
            ListenAddress 127.0.0.3
            HostKey {self.path('host')}
            AuthorizedKeysFile {self.path('user.pub')}
            StrictModes no
            UsePAM no
            PermitRootLogin prohibit-password
            PidFile none
            """)
        server = subprocess.Popen([sshd, '-D', '-e', '-f', config], stderr=subprocess.DEVNULL)
        self.addCleanup(lambda: (server.terminate(), server.wait(30)))
        client = self.write('ssh_config', f"""
            Host *
              Port {port}
              IdentityFile {self.path('user')}
              IdentitiesOnly yes
              UserKnownHostsFile /dev/null
              StrictHostKeyChecking no
              LogLevel ERROR
            """)
        ssh = f'ssh -F {client} -o BatchMode=yes'
        for host in ('127.0.0.2', '127.0.0.3'):
            self.wait_until(lambda to=host: subprocess.run([*ssh.split(), to, 'true'], stdin=subprocess.DEVNULL,
                                                           stderr=subprocess.DEVNULL).returncode == 0,
                            60, f'an sshd on {host}')
        return ssh

    def test_ssh(self):
        args = ('--launcher', 'ssh', '-H', '127.0.0.2,127.0.0.3', '--ssh', self.sshd())
        launch = self.train_by(*args)
        for who in ('s0 127.0.0.2', 'w0 127.0.0.3', 'w1 127.0.0.2'):
            self.assertRegex(''.join(launch.said), rf'(?m)^\[{who}\] event=listening')
        self.ends_in_every_way(*args)

    def test_ssh_trains_on_the_copy_of_the_working_directory(self):
        ssh = self.sshd()
        for name, content in (('train-images-idx3-ubyte', idx_images(200)), ('train-labels-idx1-ubyte', idx_labels(200)),
                              ('t10k-images-idx3-ubyte', idx_images(50)), ('t10k-labels-idx1-ubyte', idx_labels(50))):
            self.write(f'data/{name}', content)
        spec = dict(launches.SPEC, data={'uri': self.path('data'), 'format': 'idx'})
        want = self.train(spec)['weights_sha256']
        # Once the last host has its copy, the original is moved away, so a path that still refers to it fails.
        moving = self.write('ssh', f'''#!/bin/sh
            {ssh} "$@"
            code=$?
            case "$*" in *127.0.0.3*tar*) mv {self.path('data')} {self.path('away')} ;; esac
            exit $code
            ''')
        os.chmod(moving, 0o755)
        with tempfile.TemporaryDirectory() as there:
            copy = os.path.join(there, 'copy of it')
            launch = self.launch(('--launcher', 'ssh', '-H', '127.0.0.2,127.0.0.3', '--ssh', moving, '--sync-dst-dir', copy), spec)
            self.assertEqual(launch.end(), 0, ''.join(launch.said))
            self.assertFalse(os.path.exists(self.path('data')))
            self.assertTrue(os.path.exists(self.path('capstan-out')))
            self.assertFalse(os.path.exists(os.path.join(copy, 'capstan-out')), 'what jobs wrote was copied')
            self.assertEqual(launch.job()['weights_sha256'], want)

    def test_mpi(self):
        if shutil.which('mpirun') is None or os.geteuid() != 0:
            self.skipTest('NOT TESTED: needs openmpi-bin and root')
        args = ['--launcher', 'mpi', '-H', '127.0.0.2,127.0.0.3', '--ssh', self.sshd(), '--interface', 'lo']
        for arg in ('--mca', 'plm_rsh_no_tree_spawn', '1', '--mca', 'btl', 'tcp,self'):
            args += ['--launcher-arg=' + arg]
        self.train_by(*args)
        self.ends_in_every_way(*args)

    def test_slurm(self):
        self.slurm()
        args = ('--launcher', 'slurm', '-H', 'n1,n2', '--interface', 'lo')
        self.train_by(*args)
        self.ends_in_every_way(*args)

    def test_a_lost_shard_is_started_again_and_the_job_ends_with_the_same_bits(self):
        spec = support.job_spec(resources={'num_workers': 2, 'num_shards': 1}, checkpoint={'every': '8 steps'})
        launch = self.launch((), spec)
        launch.wait_for('event=job_state .*to=RUNNING')
        launch.look()
        os.kill(launch.pid_of('s0'), signal.SIGKILL)
        self.assertEqual(launch.end(), 0, ''.join(launch.said))
        self.assertIn('and is started again', ''.join(launch.said))
        self.assertEqual(launch.job()['weights_sha256'], self.want)

    def test_a_lost_worker_is_taken_over_and_the_job_ends_with_the_same_bits(self):
        spec = dict(launches.SPEC, training=dict(launches.SPEC['training'], epochs=20))
        want = self.train(spec)['weights_sha256']
        launch = self.launch((), spec)
        launch.wait_for('event=job_state .*to=RUNNING')
        launch.look()
        os.kill(launch.pid_of('w1'), signal.SIGKILL)
        self.assertEqual(launch.end(), 0, ''.join(launch.said))
        self.assertRegex(''.join(launch.said), 'event=view .*generation=2')
        self.assertEqual(launch.job()['weights_sha256'], want)

    def test_after_ctrl_c_run_goes_on_with_it_to_the_same_bits(self):
        launch = self.launch((), SAVED)
        self.wait_until_saved(launch)
        launch.look()
        launch.process.send_signal(signal.SIGINT)
        self.assertEqual(launch.end(), 103, ''.join(launch.said))
        job_id = launch.job()['job_id']
        hint = launch.wait_for(rf'(?m)^capstan run --resume {job_id} (goes on from checkpoint 1-(\d+))$')
        run = self.capstan('run', '--resume', job_id, '-o', 'json')
        self.assertEqual(run.code, 0, run)
        self.assertIn(f'{job_id}  {hint[1]}\n', run.err)
        job = json.loads(run.out.splitlines()[-1])
        self.assertEqual(job['job_id'], job_id)
        self.is_as_undisturbed(job)
        # No saved step is computed again.
        step = int(hint[2])
        again = [line['step'] for line in self.step_log(job) if line['lineage'] > 1]
        self.assertEqual(again, list(range(step, 32 * EPOCHS)))

    def test_what_cannot_be_started_is_named(self):
        for args, code, message in (
                (['--launcher', 'yarn'], 2, "--resource-manager: got '', want http://HOST:PORT"),
                (['--launcher', 'yarn', '-H', 'a'], 2, '-H does not go with --launcher yarn'),
                (['--launcher', 'yarn', '--resource-manager', 'http://127.0.0.1:1'], 1, 'POST new-application: '),
                (['--launcher', 'sge'], 2, '--interface is not given'),
                (['--launcher', 'sge', '--interface', 'lo', '--shared-dir', '/nowhere'], 1, '/nowhere/capstan-launch-'),
                (['--launcher', 'ssh'], 2, '--launcher ssh needs -H'),
                (['--launcher', 'mpi', '-H', 'a:22,b'], 2, "-H: got 'a:22': only --launcher ssh takes a port"),
                (['--env', 'CAPSTAN_NOT_SET'], 2, '--env CAPSTAN_NOT_SET: it is not set here'),
                (['-H', 'a,b'], 2, '-H does not go with --launcher local'),
                (['--interface', 'nowhere0'], 1, "interface 'nowhere0' does not exist"),
                (['--launcher', 'ssh', '-H', '127.0.0.1', '--ssh', 'false'], 1, 'did not start: false ended with exit code 1'),
                (['--env', 'CAPSTAN_DEVICES=nonsense'], 1, 'every worker has ended')):
            run = self.capstan('launch', *args, self.write('job.yaml', json.dumps(launches.SPEC)))
            self.assertEqual(run.code, code, run)
            self.assertIn(message, run.err)


if __name__ == '__main__':
    support.main()
