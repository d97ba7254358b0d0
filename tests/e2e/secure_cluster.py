"""Separate services, each a process on loopback TCP, with or without mutual TLS."""

import os
import re
import signal
import subprocess
import threading

import support


class Credentials:
    """A CA of its own in `folder`/ca, and a certificate and a token for each role."""

    def __init__(self, folder, hosts=('127.0.0.1',), tls=True):
        self.folder, self.hosts, self.tls = folder, hosts, tls
        if tls:
            self.certs('init', self.path('ca'))
            for role in ('coordinator', 'param_store', 'worker'):
                self.issue(role)
            self.issue('client', '--name', 'ann')

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def certs(self, *args):
        subprocess.run([support.CAPSTAN, '-q', 'certs', *args], check=True)

    def issue(self, role, *args):
        hosts = [arg for host in self.hosts for arg in ('--host', host)]
        self.certs('issue', role, '--ca', self.path('ca'), *hosts, '--out', self.path(role), *args)

    def credentials(self, role):
        """The flags for a service of that role, or for the command line."""
        if not self.tls:
            return ['--insecure']
        stem = self.path(role, role)
        return ['--tls-cert', stem + '.crt', '--tls-key', stem + '.key', '--tls-ca', self.path(role, 'ca.crt'),
                '--token-file', stem + '.token']


class SecureCluster(Credentials):
    """One coordinator, `shards` shards and `workers` workers. `said` has all their output."""

    def __init__(self, folder, workers=1, shards=1, tls=True, coordinator_args=()):
        super().__init__(folder, tls=tls)
        self.said, self.members = [], []
        address = self.start('coordinator', 'capstan_coordinator', '--state-dir', self.path('state'), '--data-root',
                             'file:///', '--checkpoint-root', folder, *coordinator_args)
        self.address = address
        for i in range(shards):
            self.start('param_store', 'capstan_param_store', '--coordinator', address, '--node', f's{i}',
                       '--checkpoint-root', folder)
        for i in range(workers):
            self.start('worker', 'capstan_gpu_worker', '--coordinator', address, '--node', f'w{i}', '--devices', 'cpu')

    def listen(self):
        return '127.0.0.1:0'

    def start(self, role, binary, *args):
        """Starts a service. Returns its gRPC address once it listens."""
        command = [os.path.join(support.BIN, binary), '--listen', self.listen(), *self.credentials(role), '--http',
                   '127.0.0.1:0', *args]
        if self.tls and role != 'worker':
            command += ['--tokens', self.path('ca', 'tokens.json')]
        return self.begin(command)

    def begin(self, command):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   errors='replace')
        listening, binary = threading.Event(), os.path.basename(command[0])
        found = []

        def read():
            for line in process.stdout:
                self.said.append(line)
                match = re.match(r'event=listening grpc=(\S+) http=(\S+)', line)
                if match:
                    found.extend(match.groups())
                    listening.set()
            listening.set()

        thread = threading.Thread(target=read)
        thread.start()
        self.members.append((process, thread, found))
        if not listening.wait(60) or not found:
            raise AssertionError(f'{binary} does not listen:\n{"".join(self.said)}')
        return found[0]

    def kill(self, number):
        """Kills a member. Later members then have lower numbers."""
        process, thread, found = self.members.pop(number)
        process.kill()
        process.wait()
        thread.join()
        process.stdout.close()
        return [process.args[0], '--listen', found[0], *process.args[3:]]  # with which begin() starts it again, at the same address

    def addresses(self):
        return [found[0] for _, _, found in self.members]

    def http_addresses(self):
        return [found[1] for _, _, found in self.members]

    def pids(self):
        """Of the services and their tasks."""
        return [process.pid for process, _, _ in self.members] + self.tasks()

    def tasks(self):
        return [task for process, _, _ in self.members for task in self.children(process.pid)]

    @staticmethod
    def children(pid):
        """The children of all its threads, since a child belongs to the thread that started it."""
        found = []
        for thread in os.listdir(f'/proc/{pid}/task'):
            try:
                with open(f'/proc/{pid}/task/{thread}/children') as f:
                    found += [int(child) for child in f.read().split()]
            except FileNotFoundError:
                pass  # the thread has ended
        return found

    def client(self):
        """Global flags of the command line."""
        return ['--address', self.address, *self.credentials('client')]

    def stop(self):
        for process, _, _ in reversed(self.members):
            process.send_signal(signal.SIGTERM)
        for process, thread, _ in self.members:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            thread.join()
            process.stdout.close()
