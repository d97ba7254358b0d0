"""`capstan launch` through schedulers with a queue: a real Grid Engine, and a stand-in for YARN's ResourceManager."""

import contextlib
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import launches
import support

SGE_PROGRAMS = ('sge_qmaster', 'sge_execd', 'qconf', 'qsub', 'qstat', 'qdel', 'qhost', 'unshare', 'nsenter', 'setpriv', 'ip')
QUEUE = """
qname all.q
hostlist sgehost
seq_no 0
load_thresholds NONE
suspend_thresholds NONE
nsuspend 1
suspend_interval 00:05:00
priority 0
min_cpu_interval 00:05:00
processors UNDEFINED
qtype BATCH
ckpt_list NONE
pe_list NONE
rerun FALSE
slots 8
tmpdir /tmp
shell /bin/sh
prolog NONE
epilog NONE
shell_start_mode posix_compliant
starter_method NONE
suspend_method NONE
resume_method NONE
terminate_method NONE
notify 00:00:60
owner_list NONE
user_lists NONE
xuser_lists NONE
subordinate_list NONE
complex_values NONE
projects NONE
xprojects NONE
calendar NONE
initial_state default
""" + ''.join(f'{kind}_{limit} INFINITY\n' for limit in ('rt', 'cpu', 'fsize', 'data', 'stack', 'core', 'rss', 'vmem')
              for kind in ('s', 'h'))
HOST = """
hostname sgehost
load_scaling NONE
complex_values NONE
user_lists NONE
xuser_lists NONE
projects NONE
xprojects NONE
usage_scaling NONE
report_variables NONE
"""


class GridEngineTest(launches.LaunchCase):
    """A cluster of one host in namespaces of its own, because Grid Engine refuses a host whose name resolves to 127.0.0.1."""

    env = {'SGE_ROOT': '/var/lib/gridengine', 'SGE_CELL': 'default', 'SGE_QMASTER_PORT': '6444', 'SGE_EXECD_PORT': '6445',
           'SGE_ND': '1', 'PATH': '/usr/sbin:' + os.environ['PATH']}  # SGE_ND: the services stay in the foreground

    @classmethod
    def setUpClass(cls):
        if os.geteuid() != 0 or any(shutil.which(program, path=cls.env['PATH']) is None for program in SGE_PROGRAMS):
            raise unittest.SkipTest('NOT TESTED: needs gridengine-master, gridengine-exec, gridengine-client and root')
        super().setUpClass()
        folder = tempfile.TemporaryDirectory(prefix='capstan-sge-')
        cls.addClassCleanup(folder.cleanup)
        os.chmod(folder.name, 0o755)  # readable for the service's user
        cls.spool = os.path.join(folder.name, 'spool')

        def file(name, content):
            path = os.path.join(folder.name, name)
            with open(path, 'w') as f:
                f.write(content)
            return path

        hosts = file('hosts', '127.0.0.1 localhost\n10.78.0.1 sgehost\n')
        holder = subprocess.Popen(
            ['unshare', '--mount', '--uts', '--net', 'sh', '-ec', f'''
                hostname sgehost
                mount --bind {hosts} /etc/hosts
                for of in lib spool; do
                  cp -a /var/$of/gridengine {folder.name}/$of
                  mount --bind {folder.name}/$of /var/$of/gridengine
                done
                echo sgehost >/var/lib/gridengine/default/common/act_qmaster
                ip link set lo up
                ip link add br0 type bridge
                ip addr add 10.78.0.1/24 dev br0
                ip link set br0 up
                echo made
                exec sleep infinity'''], stdout=subprocess.PIPE, text=True)
        cls.addClassCleanup(cls.end_of, holder)
        if holder.stdout.readline() != 'made\n':
            raise AssertionError('no host for Grid Engine, see above')
        cls.before = ('nsenter', '--target', str(holder.pid), '--mount', '--uts', '--net')

        cls.start('setpriv', '--reuid', 'sgeadmin', '--regid', 'sgeadmin', '--init-groups', 'sge_qmaster')
        cls.until(lambda: cls.call('qconf', '-sh').returncode == 0, 'the qmaster')
        settings = cls.call('qconf', '-sconf', 'global').stdout
        for name, value in (('min_uid', '0'), ('min_gid', '0')):  # in this test, root submits jobs
            settings = re.sub(rf'(?m)^{name} .*$', f'{name} {value}', settings)
        scheduling = re.sub(r'(?m)^schedule_interval .*$', 'schedule_interval 0:0:1', cls.call('qconf', '-ssconf').stdout)
        for flag, name, content in (('-Mconf', 'global', settings), ('-Msconf', 'scheduling', scheduling), ('-Ae', 'host', HOST),
                                    ('-Aq', 'queue', QUEUE)):
            if flag == '-Aq':
                cls.call('qconf', '-as', 'sgehost')
            done = cls.call('qconf', flag, file(name, content.lstrip()))
            if done.returncode != 0:
                raise AssertionError(f'qconf {flag}: {done.stdout}{done.stderr}')
        cls.start('sge_execd')
        cls.until(lambda: re.search(r'(?m)^all\.q@sgehost +B +0/0/8 +[0-9.]+ +\S+ *$', cls.call('qstat', '-f').stdout), 'a queue that is up')

    @classmethod
    def call(cls, *command):
        return subprocess.run([*cls.before, *command], env=dict(os.environ, **cls.env), capture_output=True, text=True, timeout=60)

    @classmethod
    def start(cls, *command):
        process = subprocess.Popen([*cls.before, *command], env=dict(os.environ, **cls.env), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        cls.addClassCleanup(cls.end_of, process)

    @staticmethod
    def end_of(process):
        process.kill()
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()

    @classmethod
    def until(cls, condition, what):
        deadline = time.monotonic() + 120
        while not condition():
            if time.monotonic() > deadline:
                said = ''.join(cls.call(*command).stdout for command in (('qstat', '-f', '-explain', 'aAcE'), ('qhost',)))
                raise AssertionError(f'{what}: not within 120 s\n{said}')
            time.sleep(0.2)

    def nothing_is_left(self, launch):
        super().nothing_is_left(launch)
        self.until(lambda: self.call('qstat').stdout == '', 'an empty queue')

    @property
    def args(self):
        # An absolute path, since nsenter begins at the root of the file system.
        return '--launcher', 'sge', '--interface', 'br0', '--shared-dir', self.folder

    def test_trains_and_ends_in_every_way(self):
        launch = self.train_by(*self.args)
        self.assertRegex(''.join(launch.said), r'(?m)^\[qsub\] job \d+ with 3 tasks is submitted')
        for name in ('s0', 'w0', 'w1'):
            self.assertRegex(''.join(launch.said), rf'(?m)^\[{name} sgehost\] event=listening')
        self.ends_in_every_way(*self.args)

    def test_what_others_see_of_the_job_has_no_secret(self):
        launch = self.running(*self.args)
        secrets = self.secrets(launch)
        job = re.search(r'\[qsub\] job (\d+)', ''.join(launch.said))[1]
        seen = self.call('qstat', '-j', job).stdout
        self.assertIn('rank.sh', seen)
        for root, _, names in os.walk(self.spool):  # contains the job's script and environment
            for name in names:
                with open(os.path.join(root, name), errors='replace') as f:
                    seen += f.read()
        self.assertIn('#!/bin/sh\nrank=$((SGE_TASK_ID - 1))', seen)
        meeting, = [name for name in os.listdir(self.folder) if name.startswith('capstan-launch-')]
        self.assertEqual(os.stat(self.path(meeting)).st_mode & 0o777, 0o700)
        self.assertEqual({name for name in os.listdir(self.path(meeting))}, {'rank.sh', '0.out', '1.out', '2.out'})
        with open(self.path(meeting, 'rank.sh')) as f:
            seen += f.read()
        for pid in launch.seen:
            with open(f'/proc/{pid}/environ', errors='replace') as f:
                seen += f.read()
        for secret in secrets:
            self.assertNotIn(secret, seen)

    def test_a_job_that_is_deleted_ends_the_launch(self):
        launch = self.running(*self.args)
        self.call('qdel', re.search(r'\[qsub\] job (\d+)', ''.join(launch.said))[1])
        self.assertEqual(launch.end(), 1, ''.join(launch.said))
        self.assertIn('has ended: exit code 0', ''.join(launch.said))  # it was not killed, thanks to qsub -notify

    def test_a_job_that_waits_in_the_queue_is_taken_back(self):
        launch = self.launch((*self.args, '--launcher-arg=-h'))
        launch.wait_for(r'\[qsub\] job \d+')
        launch.look()
        self.assertIn('qw', self.call('qstat').stdout)
        launch.process.send_signal(signal.SIGINT)
        self.assertEqual(launch.end(), 130, ''.join(launch.said))


# What the distributed shell's ApplicationMaster does when java is called.
APPLICATION_MASTER = """
import argparse, os, signal, subprocess, sys
assert sys.argv[1:3] == ['-Xmx256m', 'org.apache.hadoop.yarn.applications.distributedshell.ApplicationMaster'], sys.argv
flags = argparse.ArgumentParser()
for name in ('container_memory', 'container_vcores', 'priority', 'num_containers'):
    flags.add_argument('--' + name, type=int, required=True)
count = flags.parse_args(sys.argv[3:]).num_containers
command = open('shellCommands').read()
containers = []
signal.signal(signal.SIGTERM, lambda *_: None)  # its containers get it too, and end first
for number in range(1, count + 1):
    os.mkdir(f'container{number}')
    containers.append(subprocess.Popen(
        ['bash', '-c', f'exec /bin/bash -c "{command}  1>stdout 2>stderr"'], cwd=f'container{number}', stdin=subprocess.DEVNULL,
        env={'PATH': os.environ['PATH'], 'YARN_SHELL_ID': str(number)}))
sys.exit(max(container.wait() for container in containers))
"""


class ResourceManager(http.server.BaseHTTPRequestHandler):
    """The calls of YARN's REST interface that a launch makes. A real one would refuse what this one refuses."""

    ID = 'application_1404198295326_0003'
    folder = None
    application = None  # its process, in its own process group
    submitted = None
    killed = False
    master = APPLICATION_MASTER
    calls = []

    @classmethod
    def end(cls):
        """Ends it like a node manager, which would wait less long."""
        for number, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 30)):
            if cls.application is None or cls.application.poll() is not None:
                return
            os.killpg(cls.application.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                cls.application.wait(seconds)

    def answer(self, status, body=None):
        text = json.dumps(body).encode() if body is not None else b''
        self.send_response(status)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def called(self):
        path, _, query = self.path.partition('?')
        type(self).calls.append(f'{self.command} {path}')
        body = self.rfile.read(int(self.headers.get('Content-Length') or 0))
        return path.removeprefix('/ws/v1/cluster/apps'), json.loads(body) if body else None, query == 'user.name=root'

    def do_POST(self):
        path, body, known = self.called()
        manager = type(self)
        if not known:
            self.answer(401)
        elif path == '/new-application':
            self.answer(200, {'application-id': self.ID, 'maximum-resource-capability': {'memory': 8192, 'vCores': 32}})
        elif path == '' and body['application-id'] == self.ID and self.headers['Content-Type'] == 'application/json':
            manager.submitted = body
            command = body['am-container-spec']['commands']['command']
            java = os.path.join(self.folder, 'bin', 'java')
            os.makedirs(os.path.dirname(java))
            with open(java, 'w') as f:
                f.write(f'#!{sys.executable}\n{self.master}')
            os.chmod(java, 0o755)
            command = command.replace('{{JAVA_HOME}}', self.folder).replace('<LOG_DIR>', self.folder)
            manager.application = subprocess.Popen(['bash', '-c', f'exec /bin/bash -c "{command}"'], cwd=self.folder,
                                                   stdin=subprocess.DEVNULL, start_new_session=True)
            self.answer(202)
        else:
            self.answer(400)

    def do_GET(self):
        self.called()
        ended = self.application is not None and self.application.poll() is not None
        state = 'KILLED' if self.killed else 'FINISHED' if ended else 'RUNNING'
        self.answer(200, {'app': {'id': self.ID, 'state': state, 'diagnostics': 'of the stand-in'}})

    def do_PUT(self):
        path, body, known = self.called()
        if path != f'/{self.ID}/state' or body != {'state': 'KILLED'} or not known:
            self.answer(400)
            return
        type(self).killed = True
        self.end()
        self.answer(202, body)

    def log_message(self, *_):
        pass


class YarnTest(launches.LaunchCase):

    def resource_manager(self):
        """Starts a new one and returns the flags for a launch."""
        folder = tempfile.TemporaryDirectory(prefix='capstan-yarn-')
        self.addCleanup(folder.cleanup)
        manager = type('Manager', (ResourceManager,), {'folder': folder.name, 'calls': []})
        server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), manager)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(lambda: (server.shutdown(), thread.join(), server.server_close(), manager.end()))
        return manager, ('--launcher', 'yarn', '--resource-manager', f'http://127.0.0.1:{server.server_address[1]}')

    def test_trains(self):
        manager, args = self.resource_manager()
        launch = self.train_by(*args)
        self.assertRegex(''.join(launch.said), rf'(?m)^\[yarn\] job {manager.ID} with 3 tasks is submitted')
        for name in ('s0', 'w0', 'w1'):
            self.assertRegex(''.join(launch.said), rf'(?m)^\[{name} \S+\] event=listening')
        self.assertEqual(manager.submitted['max-app-attempts'], 1)
        self.assertEqual(manager.calls[:2], ['POST /ws/v1/cluster/apps/new-application', 'POST /ws/v1/cluster/apps'])

    def test_ctrl_c_ends_the_ranks_and_then_the_application(self):
        manager, args = self.resource_manager()
        launch = self.running(*args)
        self.no_secret_in_an_argument_list(launch)
        told = json.dumps(manager.submitted)
        for secret in self.secrets(launch):
            self.assertNotIn(secret, told)
        launch.process.send_signal(signal.SIGINT)
        self.assertEqual(launch.end(), 103, ''.join(launch.said))
        self.nothing_is_left(launch)
        self.assertTrue(manager.killed)

    def test_an_application_that_does_not_start_ends_the_launch(self):
        manager, args = self.resource_manager()
        manager.master = 'raise SystemExit(1)'
        launch = self.launch(args)
        self.assertEqual(launch.end(), 1, ''.join(launch.said))
        self.assertIn('[yarn] the application is FINISHED: of the stand-in', ''.join(launch.said))


if __name__ == '__main__':
    support.main()
