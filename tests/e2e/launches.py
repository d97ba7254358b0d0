"""Shared by the tests of `capstan launch`: a running launch, its processes, and the check that nothing of it is left."""

import contextlib
import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

import support

SPEC = support.job_spec(resources={'num_workers': 2, 'num_shards': 1})
LONG = support.job_spec(resources={'num_workers': 2, 'num_shards': 1},
                        training={'epochs': 500, 'global_batch_size': 64, 'seed': 3,
                                  'optimizer': {'name': 'sgd', 'learning_rate': 0.001}})


def command_of(pid):
    try:
        with open(f'/proc/{pid}/cmdline', 'rb') as f:
            return f.read().decode(errors='replace').split('\0')
    except OSError:
        return []


def all_pids():
    return [int(pid) for pid in filter(str.isdigit, os.listdir('/proc'))]


def stat_of(pid):
    """Fields of /proc/PID/stat from the state on. [] for a process that has ended."""
    try:
        with open(f'/proc/{pid}/stat') as f:
            fields = f.read().rsplit(')', 1)[1].split()
    except OSError:
        return []
    return [] if fields[0] == 'Z' else fields


def start_of(pid):
    """When the process started, in ticks, since another process may get its pid later. None: there is no such process."""
    fields = stat_of(pid)
    return fields[19] if fields else None


class Launch:
    """A running launch. Its output is read as it appears."""

    def __init__(self, test, args, spec, verbose):
        file = test.write('job.yaml', json.dumps(spec))
        self.verbose = verbose
        args = ['-v', *args] if verbose else args
        self.process = subprocess.Popen(
            [*test.before, support.CAPSTAN, 'launch', '-o', 'json', *args, file], cwd=test.folder, text=True, errors='replace',
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ, **test.env))
        self.said, self.out = [], ''
        self.coordinator, self.seen, self.folders = '', {}, set()
        self.changed = threading.Condition()
        self.readers = [threading.Thread(target=self.read_err), threading.Thread(target=self.read_out)]
        for reader in self.readers:
            reader.start()

    def read_err(self):
        for line in self.process.stderr:
            with self.changed:
                self.said.append(line)
                self.changed.notify_all()

    def read_out(self):
        self.out = self.process.stdout.read()

    def wait_for(self, pattern, seconds=120):
        deadline = time.monotonic() + seconds
        with self.changed:
            while not (found := re.search(pattern, ''.join(self.said))):
                left = deadline - time.monotonic()
                assert left > 0 and self.process.poll() is None, f'no {pattern}:\n{"".join(self.said)}'
                self.changed.wait(min(left, 0.5))
            return found

    def look(self):
        """Notes all processes and private folders of this launch. Without --verbose it must be of --launcher local."""
        if self.verbose:
            self.coordinator = self.wait_for(r'\[c \S+\] event=listening grpc=(\S+)')[1]
        parents = {pid: int(stat[1]) for pid in all_pids() if (stat := stat_of(pid))}
        mine = {self.process.pid} | {pid for pid in parents if self.coordinator and self.coordinator in command_of(pid)}
        while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
            mine |= more
        if not self.verbose:
            self.coordinator = [words[words.index('--coordinator') + 1] for words in map(command_of, mine) if '--coordinator' in words][0]
        self.seen = {pid: start_of(pid) for pid in mine}
        for pid in mine:
            words = command_of(pid)
            if '--tls-cert' in words:
                self.folders.add(os.path.dirname(words[words.index('--tls-cert') + 1]))

    def pid_of(self, node):
        """The pid of a node's service."""
        for pid in self.seen:
            words = command_of(pid)
            if '--node' in words and words[words.index('--node') + 1] == node:
                return pid
        raise AssertionError(f'no {node} among {[command_of(pid) for pid in self.seen]}')

    def end(self, seconds=120):
        """Waits for its end and returns the exit code."""
        code = self.process.wait(seconds)
        for reader in self.readers:
            reader.join(seconds)
        self.process.stdout.close()
        self.process.stderr.close()
        return code

    def job(self):
        return json.loads(self.out.splitlines()[-1])


class LaunchCase(support.TestCase):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, 'job.yaml')
            with open(file, 'w') as f:
                json.dump(SPEC, f)
            run = support.Run(['run', '-o', 'json', file], folder, 120)
            assert run.code == 0, run
            cls.want = json.loads(run.out.splitlines()[-1])['weights_sha256']

    env = {}  # of the launcher, in addition to ours
    before = ()  # the words before its command

    def launch(self, args, spec=SPEC, verbose=True):
        launch = Launch(self, args, spec, verbose)

        def stop():
            if launch.process.poll() is None:
                launch.process.kill()
            launch.end()
            self.nothing_is_left(launch)

        self.addCleanup(stop)
        return launch

    def nothing_is_left(self, launch):
        """Checks that no process of the launch is left, none that has its coordinator's address, and no folder."""
        def left():
            pids = [pid for pid, start in launch.seen.items() if start_of(pid) == start]
            pids += [pid for pid in all_pids() if launch.coordinator and launch.coordinator in command_of(pid)]
            folders = [folder for folder in launch.folders if os.path.exists(folder)]
            return folders + glob.glob(self.path('capstan-launch-*')) + [command_of(pid) for pid in pids]

        try:
            self.wait_until(lambda: not left(), 60, 'the end of all')
        except AssertionError as e:
            raise AssertionError(f'{e}: {left()}\n{"".join(launch.said[-50:])}') from e

    def train_by(self, *args, spec=SPEC):
        """Trains the small job. Returns its launch after its end."""
        launch = self.launch(args, spec)
        launch.look()
        self.assertEqual(launch.end(), 0, ''.join(launch.said))
        self.assertEqual(launch.job()['weights_sha256'], self.want)
        return launch

    def running(self, *args):
        """Starts a job that does not end by itself. Returns once it trains."""
        launch = self.launch(args, LONG)
        launch.wait_for('event=job_state .*to=RUNNING')
        launch.look()
        self.assertEqual(len(launch.folders), 4, launch.folders)  # c, s0, w0, w1
        return launch

    def secrets(self, launch):
        secrets = []
        for folder in launch.folders:
            for name in os.listdir(folder):
                if name.endswith(('.token', '.key')):
                    with open(os.path.join(folder, name)) as f:
                        secrets += [line for line in f.read().splitlines() if not line.startswith('-----')]
        self.assertGreaterEqual(len(secrets), 10)
        return secrets

    def no_secret_in_an_argument_list(self, launch):
        everything = ' '.join(word for pid in all_pids() for word in command_of(pid))
        self.assertIn(launch.coordinator, everything)
        for secret in self.secrets(launch):
            self.assertNotIn(secret, everything)

    def ends_in_every_way(self, *args):
        """Loses a worker and presses Ctrl-C, then kills another launch with SIGKILL. Nothing may be left of either."""
        launch = self.running(*args)
        self.no_secret_in_an_argument_list(launch)
        os.kill(launch.pid_of('w1'), signal.SIGKILL)
        launch.wait_for(r'\[w1 \S+\] the service ended with signal 9')
        launch.wait_for('event=view .*generation=2')
        self.assertIsNone(launch.process.poll())
        launch.process.send_signal(signal.SIGINT)
        self.assertEqual(launch.end(), 103, ''.join(launch.said))
        self.assertEqual(launch.job()['state'], 'CANCELLED')
        self.nothing_is_left(launch)

        launch = self.running(*args)
        launch.process.kill()
        launch.end()
        self.nothing_is_left(launch)

    def slurm(self, own_disks=False):
        """A cluster of two nodes, n1 and n2, on this host. Launches find it through their environment.

        own_disks: each node sees a private, empty folder instead of this test's folder.
        """
        programs = ('munged', 'slurmctld', 'slurmd', 'srun', 'sinfo')
        if os.geteuid() != 0 or any(shutil.which(p, path='/usr/sbin:' + os.environ['PATH']) is None for p in programs):
            self.skipTest('NOT TESTED: needs slurm-wlm, munge and root')
        folder = tempfile.TemporaryDirectory(prefix='capstan-slurm-')
        self.addCleanup(folder.cleanup)
        f = folder.name
        os.makedirs(f'{f}/state')
        with open(f'{f}/munge.key', 'wb') as key:
            os.fchmod(key.fileno(), 0o400)
            key.write(os.urandom(1024))
        ports = []
        with contextlib.ExitStack() as taken:
            for _ in range(3):
                free = taken.enter_context(socket.socket())
                free.bind(('127.0.0.1', 0))
                ports.append(free.getsockname()[1])
        host, config = socket.gethostname(), f'{f}/slurm.conf'
        with open(config, 'w') as file:
            file.write(f"""
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={f}/munge.sock
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=10
MpiDefault=none
SlurmctldPidFile={f}/slurmctld.pid
SlurmdPidFile={f}/%n.pid
SlurmdSpoolDir={f}/%n
StateSaveLocation={f}/state
SlurmctldLogFile={f}/slurmctld.log
SlurmdLogFile={f}/%n.log
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4
PartitionName=test Nodes=n1,n2 Default=YES State=UP
""")
        env = dict(os.environ, SLURM_CONF=config, PATH='/usr/sbin:' + os.environ['PATH'])
        node = ['unshare', '--mount', 'sh', '-c', f'mount -t tmpfs own {self.folder} && exec "$0" "$@"'] if own_disks else []
        for command in (['munged', '--force', '--foreground', '--socket', f'{f}/munge.sock', '--key-file',
                         f'{f}/munge.key', '--pid-file', f'{f}/munge.pid', '--log-file', f'{f}/munge.log',
                         '--seed-file', f'{f}/munge.seed'],
                        ['slurmctld', '-D', '-i'], [*node, 'slurmd', '-D', '-N', 'n1'], [*node, 'slurmd', '-D', '-N', 'n2']):
            daemon = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL)
            self.addCleanup(lambda process=daemon: (process.kill(), process.wait(30)))
            self.slurmd = daemon  # of n2, the last one started
            if command[0] == 'munged':
                self.wait_until(lambda: os.path.exists(f'{f}/munge.sock'), 60, 'munged')

        self.env = {'SLURM_CONF': config}
        self.wait_until(lambda: self.slurm_nodes() == ['idle', 'idle'], 60, 'two idle nodes')

    def slurm_nodes(self):
        """The states of n1 and n2."""
        states = subprocess.run(['sinfo', '-h', '-N', '-o', '%t'], env=dict(os.environ, **self.env), capture_output=True, text=True)
        return states.stdout.split()
