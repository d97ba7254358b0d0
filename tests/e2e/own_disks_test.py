"""Hosts without a common disk: files of shards and tasks go to the coordinator's host over gRPC, and back."""

import contextlib
import glob
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess

import launches
import net_hosts
import support

SPEC = support.job_spec(resources={'num_workers': 2, 'num_shards': 1}, checkpoint={'every': '10 steps'},
                        training=dict(launches.SPEC['training'], epochs=100))


class Files(launches.LaunchCase):

    def events(self, job):
        """The events in the state of the run's coordinator: 'TYPE MESSAGE' for each."""
        described = self.capstan('describe', job['job_id'], '-o', 'json')
        self.assertEqual(described.code, 0, described)
        return [f'{event["type"]} {event["message"]}' for event in json.loads(described.out)['events']]

    def look_at_the_files(self, job):
        """Checks that all of the last checkpoint is on the coordinator's host and matches its manifest, and that the log is
        there, too."""
        folder = self.checkpoint(job)
        with open(os.path.join(folder, 'manifest.json')) as f:
            files = json.load(f)['files']
        self.assertIn('weights.safetensors', [file['name'] for file in files])
        for file in files:
            with open(os.path.join(folder, file['name']), 'rb') as f:
                self.assertEqual(hashlib.sha256(f.read()).hexdigest(), file['sha256'], file)
        tensors = support.read_safetensors(os.path.join(folder, 'weights.safetensors'))
        self.assertEqual(support.sha256_of(tensors), job['weights_sha256'])
        self.assertEqual(sorted({line['step'] for line in self.step_log(job)}), list(range(job['progress']['total_steps'])))
        self.assertEqual(glob.glob(self.path('capstan-out', '*', '.capstan-look-*')), [])


class SlurmTest(Files):

    def test_nodes_of_their_own_disks(self):
        self.slurm(own_disks=True)
        launch = self.train_by('--launcher', 'slurm', '-H', 'n1,n2', '--interface', 'lo',
                               spec=dict(launches.SPEC, checkpoint={'every': '10 steps'}))
        job = launch.job()
        self.assertEqual({member['files_way'] for member in job['shards'] + job['workers']}, {'grpc'})
        self.look_at_the_files(job)


class OwnDisksTest(Files):

    def setUp(self):
        super().setUp()
        reason = net_hosts.why_not()
        if reason:
            self.skipTest(reason)
        self.hosts = net_hosts.Hosts(['host-a', 'host-b', 'host-c', 'operator'])
        self.addCleanup(self.hosts.close)
        self.before = self.hosts.on('operator')
        # What ssh does for a host: its network, and its own empty working directory.
        lines = ''.join(f'{self.hosts.address(name)}) on="{" ".join(self.hosts.on(name))}" ;;\n' for name in self.hosts.names)
        self.ssh = self.write('ssh', f'''#!/bin/sh
            case "$1" in
            {lines}
            esac
            shift
            exec $on unshare --mount sh -c 'mount -t tmpfs own {self.folder} && cd {self.folder} && eval "$0"' "$*"
            ''')
        os.chmod(self.ssh, 0o755)

    def by_ssh(self, spec, hosts=('host-a', 'host-b', 'host-c')):
        addresses = ','.join(self.hosts.address(host) for host in hosts)
        return self.launch(('--launcher', 'ssh', '-H', addresses, '--ssh', self.ssh), spec)

    def checkpoints(self):
        return glob.glob(self.path('capstan-out', '*', '*', 'manifest.json'))

    def test_a_shard_and_a_host_are_lost_and_the_bits_are_those_of_a_shared_folder(self):
        shared = self.train(SPEC)
        run = self.path('capstan-out', shared['job_id'])
        os.rename(run, self.path('shared'))

        launch = self.by_ssh(SPEC)
        self.wait_until(lambda: self.checkpoints() or launch.process.poll() is not None, 120, 'a checkpoint')
        self.assertTrue(self.checkpoints(), ''.join(launch.said))
        launch.look()
        os.kill(launch.pid_of('s0'), signal.SIGKILL)
        launch.wait_for('and is started again')
        launch.wait_for('event=job_state .*to=RUNNING[^$]*event=job_state .*to=RUNNING')
        lineage, generation = re.findall(r'event=view .*lineage=(\d+) generation=(\d+)', ''.join(launch.said))[-1]
        self.assertEqual(lineage, '2')
        launch.look()
        # All processes on host-b: w0, the owner of the first lanes. host-a has only the shard.
        pids = subprocess.run(['ip', 'netns', 'pids', self.hosts.on('host-b')[-1]], check=True, capture_output=True, text=True)
        # A killed process takes its children along, so read all commands before the first kill.
        commands = {pid: launches.command_of(pid) for pid in pids.stdout.split()}
        self.assertTrue(any('w0' in words for words in commands.values()), commands)
        for pid, words in commands.items():
            if '--tls-cert' in words:  # nobody is left there to remove its secrets
                folder = os.path.dirname(words[words.index('--tls-cert') + 1])
                launch.folders.discard(folder)
                self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        # A new view follows while it trains. The events show that it is for this loss.
        launch.wait_for(rf'event=view .*lineage={lineage} generation={int(generation) + 1}\b')
        self.assertEqual(launch.end(), 0, ''.join(launch.said))
        job = launch.job()
        events = self.events(job)
        self.assertLessEqual({'ShardLost shard 0', 'WorkerLost worker w0'}, {event.split(' on host')[0] for event in events}, events)
        self.assertEqual(job['state'], 'SUCCEEDED')
        self.assertEqual(job['weights_sha256'], shared['weights_sha256'])
        self.assertEqual({member['files_way'] for member in shared['shards'] + shared['workers']}, {'shared'})
        self.assertEqual({member['files_way'] for member in job['shards'] + job['workers']}, {'grpc'})
        self.assertIn('way=grpc', ''.join(launch.said))
        self.look_at_the_files(job)

    def test_residuals_travel_as_well(self):
        # Tasks write what error feedback left out, and read it where the job goes back to a checkpoint.
        spec = dict(SPEC, resources={'num_workers': 2, 'num_shards': 1, 'lanes': 4}, kvstore={'type': 'dist_sync', 'gradient_compression': '2bit'},
                    recovery={'backoff': {'initial': '0s'}})
        want = self.train(spec)
        os.rename(self.path('capstan-out', want['job_id']), self.path('shared'))
        launch = self.by_ssh(spec)
        self.wait_until(lambda: self.checkpoints() or launch.process.poll() is not None, 120, 'a checkpoint')
        self.assertTrue(self.checkpoints(), ''.join(launch.said))
        launch.look()
        os.kill(launch.pid_of('s0'), signal.SIGKILL)
        self.assertEqual(launch.end(), 0, ''.join(launch.said))
        job = launch.job()
        self.assertEqual(job['weights_sha256'], want['weights_sha256'])
        self.assertEqual({member['files_way'] for member in job['shards'] + job['workers']}, {'grpc'})
        names = set()
        for path in self.checkpoints():  # the last version needs none
            with open(path) as f:
                names |= {file['name'] for file in json.load(f)['files']}
        self.assertLessEqual({'residuals-0.safetensors', 'residuals-1.safetensors'}, names)

    def test_a_task_that_is_its_own_store(self):
        spec = dict(SPEC, resources={'num_workers': 1}, kvstore={'type': 'local'}, recovery={'backoff': {'initial': '0s'}})
        want = self.train(spec)
        os.rename(self.path('capstan-out', want['job_id']), self.path('shared'))
        launch = self.by_ssh(spec, ['host-b'])
        self.wait_until(lambda: self.checkpoints() or launch.process.poll() is not None, 120, 'a checkpoint')
        launch.look()
        service = launch.pid_of('w0')
        tasks = [pid for pid in launch.seen if (stat := launches.stat_of(pid)) and int(stat[1]) == service]
        self.assertEqual(len(tasks), 1, [launches.command_of(pid) for pid in tasks])
        os.kill(tasks[0], signal.SIGKILL)
        self.assertEqual(launch.end(), 0, ''.join(launch.said))
        job = launch.job()
        self.assertEqual(job['restarts'], 1, job)
        began = [event for event in self.events(job) if event.startswith('LineageStarted')]
        self.assertRegex('; '.join(began), r'^LineageStarted lineage 2 from checkpoint 1-\d+')
        self.assertEqual(job['weights_sha256'], want['weights_sha256'])
        self.assertEqual(job['workers'][-1]['files_way'], 'grpc')
        self.look_at_the_files(job)


if __name__ == '__main__':
    support.main()
