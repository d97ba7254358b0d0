"""Services started one by one, as an operator starts them, on Unix sockets in a folder of the test."""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import time

import support

NO_SPACE = 'No space left on device'


class Service:
    """One process of ours. Its output is read until it has said where it listens, and then goes to a file."""

    def __init__(self, program, args, folder, log, before=(), env=None):
        """`before`: words before the command, to run it on another host. `env`: variables in addition to the test's own."""
        self.log = log
        with open(log, 'wb') as err:
            self.process = subprocess.Popen([*before, os.path.join(support.BIN, program), *args], cwd=folder,
                                            stdout=subprocess.PIPE, stderr=err, env=dict(os.environ, **(env or {})))
        line = b''
        deadline = time.monotonic() + 30
        while not line.endswith(b'\n'):
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))
            piece = os.read(self.process.stdout.fileno(), 4096) if ready else b''
            if not piece:
                raise AssertionError(f'{program} does not listen: {line} {self.said()}')
            line += piece
        self.http = re.search(r'http=(\S+)', line.decode())[1]

    def said(self):
        with open(self.log, errors='replace') as f:
            return f.read()

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            code = self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self.process.stdout.close()
        return code


class ServicesTest(support.TestCase):
    """start() gives a test its cluster, and capstan() then calls it."""

    def setUp(self):
        super().setUp()
        self.services = {}
        os.chmod(self.folder, 0o700)

    def tearDown(self):
        for name in sorted(self.services, reverse=True):  # in the order workers, shards, coordinator
            self.services[name].stop()
        super().tearDown()

    def start(self, workers=2, shards=1, devices=1, threads=1):
        self.start_plain_coordinator()
        for i in range(shards):
            self.start_node(f's{i}', 'capstan_param_store')
        for i in range(workers):
            self.start_worker(f'w{i}', devices, threads=threads)

    def start_plain_coordinator(self):
        self.start_one('coordinator', 'capstan_coordinator', '--state-dir', self.path('state'), '--data-root', 'file:///',
                       '--checkpoint-root', 'file:///', '--heartbeat', '200ms', '--lease', '3s')

    def start_one(self, name, program, *args, env=None):
        self.services[name] = Service(
            program, ['--listen', f'unix:{self.path(name + ".sock")}', '--http', '127.0.0.1:0', '--insecure', *args],
            self.folder, self.path(name + '.log'), env=env)

    def start_node(self, name, program, *args, env=None):
        self.start_one(name, program, '--coordinator', self.address(), '--node', name, *args, env=env)

    def start_worker(self, name, devices=1, env=None, threads=1):
        """`threads`: of all devices of a task together, with at least one each."""
        self.start_node(name, 'capstan_gpu_worker', '--devices', ','.join(['cpu'] * devices), '--cpu-threads', str(threads), env=env)

    def stop(self, name, how=signal.SIGTERM):
        return self.services.pop(name).stop(how)

    def address(self):
        return f'unix:{self.path("coordinator.sock")}'

    def capstan(self, *args, **kwargs):
        return super().capstan(*args, env={'CAPSTAN_ADDRESS': self.address(), **kwargs.pop('env', {})}, **kwargs)

    def ok(self, *args, **kwargs):
        run = self.capstan(*args, **kwargs)
        self.assertEqual(run.code, 0, run)
        return run

    def submit(self, spec, *args):
        """Submits a job and returns its id."""
        return self.ok('submit', self.write('job.yaml', json.dumps(spec)), *args).out.strip()

    def describe(self, job_id):
        return json.loads(self.ok('describe', job_id, '-o', 'json').out)

    def learned(self, job_id, samples):
        """Waits for the end of the job. It has succeeded, used so many samples, and halved its loss."""
        self.capstan('wait', job_id, timeout=180)
        job = self.describe(job_id)
        self.assertEqual(job['state'], 'SUCCEEDED', job)
        self.assertEqual(job['samples_used'], samples)
        self.assertLess(job['epochs'][-1]['train_loss'], job['epochs'][0]['train_loss'] / 2)
        return job

    def wait_for_step(self, job_id, step, seconds=60):
        def there():
            job = self.describe(job_id)
            self.assertNotIn(job['state'], ('FAILED', 'SUCCEEDED', 'CANCELLED'), job)
            return job if job['progress']['step'] >= step else None

        return self.wait_until(there, seconds, f'step {step}')

    @contextlib.contextmanager
    def paused(self):
        """Stops all tasks meanwhile, so that the job does not end before the test has looked."""
        tasks = self.tasks()
        for task in tasks:
            os.kill(task, signal.SIGSTOP)
        try:
            yield
        finally:
            for task in tasks:
                os.kill(task, signal.SIGCONT)

    def finish_after_a_kill(self, job_id, step, kill):
        """Calls kill() when the job has done `step` steps, and waits for the end of the job. Returns the job."""
        self.wait_for_step(job_id, step)
        kill()
        self.ok('wait', job_id, timeout=120)
        job = self.describe(job_id)
        # Lanes of a worker that says nothing go to others long before its lease ends.
        self.assertTrue({'WorkerLost', 'LaneReissued'} & {event['type'] for event in job['events']}, job)
        return job

    def has_one_hash(self, spec, step):
        """`spec(workers, shards)` comes to the same weights on 1 and 2 workers and shards, with 1 and 2 threads, and if a worker
        is killed after `step` steps. Returns the job of one worker and one shard."""
        alone = self.train(spec(1, 1))
        hashes = {'1 x 1': alone['weights_sha256']}
        for workers, shards in ((1, 2), (2, 1), (2, 2)):
            hashes[f'{workers} x {shards}'] = self.train(spec(workers, shards))['weights_sha256']
        self.start(workers=0, shards=2)
        for threads in (1, 2):
            self.start_worker(f'threads{threads}', threads=threads)
            job_id = self.submit(spec(1, threads))
            self.ok('wait', job_id, timeout=120)
            hashes[f'{threads} threads'] = self.describe(job_id)['weights_sha256']
            if threads == 1:
                self.stop('threads1')
        self.start_worker('victim')
        job_id = self.submit(spec(2, 2))
        job = self.finish_after_a_kill(job_id, step, lambda: self.stop('victim', signal.SIGKILL))
        hashes['killed'] = job['weights_sha256']
        print(hashes, flush=True)
        self.assertEqual(set(hashes.values()), {alone['weights_sha256']}, hashes)
        self.assertEqual(job['samples_used'], alone['samples_used'], job)
        return alone

    def small_disk(self, name, size):
        """Mounts a tmpfs of `size` ('8m') as the folder `name` of the test. Skips the test if it may not be mounted."""
        if os.geteuid() != 0:
            self.skipTest('mounts a tmpfs: needs root')
        disk = self.path(name)
        os.mkdir(disk, 0o700)
        done = subprocess.run(['mount', '-t', 'tmpfs', '-o', f'size={size},mode=700', 'capstan-test', disk],
                              capture_output=True, text=True)
        if done.returncode != 0:
            self.skipTest(f'mounts a tmpfs, which this machine refuses: {done.stderr.strip()}')
        self.addCleanup(subprocess.run, ['umount', '--lazy', disk], check=True)
        return disk

    @staticmethod
    def fill(disk):
        """Fills all free room on it, repeatedly if some was given up. Returns the file."""
        path = os.path.join(disk, 'filler')
        with open(path, 'ab', buffering=0) as f:
            for size in (65536, 4096):
                try:
                    while True:
                        f.write(b'\0' * size)
                except OSError as error:
                    assert NO_SPACE in str(error), error
        return path

    def half_saved(self, job_id):
        """The folder of a checkpoint in progress, which has no manifest and is newer than all that have one."""
        path = self.path('state', 'checkpoints', job_id)
        try:
            folders = sorted((tuple(map(int, name.split('-'))), name) for name in os.listdir(path) if name[0].isdigit())
        except FileNotFoundError:
            return None
        if not folders or os.path.exists(os.path.join(path, folders[-1][1], 'manifest.json')):
            return None
        return folders[-1][1]

    def catch_half_saved(self, job_id):
        """Polls until a checkpoint begins, because it lasts only milliseconds. Unfinished ones of an earlier lineage do not
        count."""
        old = self.half_saved(job_id)
        deadline = time.monotonic() + 60
        while True:
            folder = self.half_saved(job_id)
            if folder not in (None, old):
                return folder
            self.assertLess(time.monotonic(), deadline, 'no checkpoint came')

    def tasks(self, of='w'):
        """Pids of live tasks, which are children of the workers whose names begin with `of`."""
        workers = {s.process.pid for name, s in self.services.items() if name.startswith(of)}
        found = []
        for pid in filter(str.isdigit, os.listdir('/proc')):
            try:
                with open(f'/proc/{pid}/stat') as f:
                    state, parent = f.read().rsplit(')', 1)[1].split()[:2]
            except OSError:
                continue
            if int(parent) in workers and state != 'Z':
                found.append(int(pid))
        return found
