"""Shared by the end-to-end tests: the binaries, job files, runs, safetensors."""

import hashlib
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get('CAPSTAN_BIN') or os.path.join(ROOT, 'build', 'dev', 'bin')
CAPSTAN = os.path.join(BIN, 'capstan')
SHARED = os.path.join(os.path.dirname(ROOT), 'shared', 'data')
FASHION_MNIST = os.environ.get('CAPSTAN_DATA') or os.path.join(SHARED, 'fashion-mnist')
LIBSVM = os.environ.get('CAPSTAN_LIBSVM') or os.path.join(SHARED, 'libsvm')
TEXT = os.environ.get('CAPSTAN_TEXT') or os.path.join(SHARED, 'tinyshakespeare')
GOLDEN = os.environ.get('CAPSTAN_GOLDEN') or os.path.join(SHARED, 'golden', 'lenet-fashion-mnist.json')


class Run:
    """One finished call of the command line."""

    def __init__(self, args, cwd, timeout, stdin=None, env=None, before=()):
        self.args = args
        done = subprocess.run([*before, CAPSTAN, *args], cwd=cwd, timeout=timeout, input=stdin, text=True, errors='replace',
                              capture_output=True, env=dict(os.environ, **(env or {})))
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    def __str__(self):
        return f'capstan {" ".join(self.args)}\nexit code {self.code}\n{self.out}\n{self.err[-4000:]}'


class TestCase(unittest.TestCase):
    """Gives every test its own working directory."""

    maxDiff = 4000

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix='capstan-e2e-')
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def write(self, name, content):
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'wb' if isinstance(content, bytes) else 'w') as f:
            f.write(content)
        return path

    def wait_until(self, condition, seconds, what):
        """Waits for the first true value of condition() and returns it."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            if time.monotonic() > deadline:
                self.fail(f'{what} not within {seconds} s\n{self.what_was_said()}')
            time.sleep(0.05)
        return value

    def what_was_said(self):
        """Output that helps to find out why something did not happen."""
        return ''

    def capstan(self, *args, timeout=120, stdin=None, env=None, before=()):
        return Run(list(args), self.folder, timeout, stdin, env, before)

    def train(self, spec, timeout=120):
        """Runs a job file (a dict, since YAML accepts JSON) to its end. Returns the job that -o json prints last."""
        run = self.capstan('run', '-o', 'json', self.write('job.yaml', json.dumps(spec)), timeout=timeout)
        self.assertEqual(run.code, 0, run)
        job = json.loads(run.out.splitlines()[-1])
        self.assertEqual(job['state'], 'SUCCEEDED', run)
        return job

    def checkpoint(self, job):
        self.assertTrue(job['checkpoint_uri'].startswith('file:///'), job)
        return job['checkpoint_uri'][len('file://'):]

    def step_log(self, job):
        with open(os.path.join(os.path.dirname(self.checkpoint(job)), 'metrics.jsonl')) as f:
            return [json.loads(line) for line in f]


def job_spec(**groups):
    """A small LeNet job on synthetic digits. `groups` replace the groups that they name."""
    spec = {
        'version': 1,
        'name': 'test',
        'resources': {'num_workers': 1, 'num_shards': 1},
        'model': {'name': 'lenet'},
        'data': {'format': 'synthetic_digits', 'train_samples': 2000, 'test_samples': 500},
        'kvstore': {'type': 'dist_sync'},
        'training': {'epochs': 1, 'global_batch_size': 64, 'seed': 3,
                     'optimizer': {'name': 'sgd', 'learning_rate': 0.04, 'momentum': 0.9}},
    }
    spec.update(groups)
    return spec


def read_safetensors(path):
    """Name -> (shape, little-endian fp32 bytes), in the order of the bytes in the file."""
    with open(path, 'rb') as f:
        size, = struct.unpack('<Q', f.read(8))
        header = json.loads(f.read(size))
        payload = f.read()
    header.pop('__metadata__', None)
    tensors = {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]['data_offsets'][0]):
        begin, end = entry['data_offsets']
        assert entry['dtype'] == 'F32', entry
        tensors[name] = (entry['shape'], payload[begin:end])
    return tensors


def write_safetensors(path, tensors):
    """`tensors`: list of (name, shape, bytes)."""
    header, offset = {}, 0
    for name, shape, data in tensors:
        header[name] = {'dtype': 'F32', 'shape': shape, 'data_offsets': [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    with open(path, 'wb') as f:
        f.write(struct.pack('<Q', len(text)) + text + b''.join(data for _, _, data in tensors))


def sha256_of(tensors):
    digest = hashlib.sha256()
    for _, data in tensors.values():
        digest.update(data)
    return digest.hexdigest()


def owner_of_lane_0(events):
    """The rank of the worker with lane 0. Each event says which lanes go from whom to whom."""
    owner = 0
    for event in events:
        for lanes, taker in re.findall(r'lanes ([0-9,]+) go from w[0-9]+ to w([0-9]+)', event['message']):
            if '0' in lanes.split(','):
                owner = int(taker)
    return owner


def python_with(name, *packages, folder=os.path.join(ROOT, 'build'), seconds=300):
    """A Python that has these packages of PyPI, in a virtual environment that later runs find again."""
    venv = os.path.join(folder, f'venv-{name}')
    python, ready = os.path.join(venv, 'bin', 'python'), os.path.join(venv, 'ready')
    wanted = ' '.join(packages)
    if not os.path.exists(ready) or open(ready).read() != wanted:
        subprocess.run([sys.executable, '-m', 'venv', '--clear', venv], check=True, timeout=120)
        pip = subprocess.run([python, '-m', 'pip', 'install', '-q', '--disable-pip-version-check', *packages],
                             stderr=subprocess.PIPE, text=True, timeout=seconds)
        if re.search('NewConnectionError|ConnectTimeoutError|name resolution|Network is unreachable', pip.stderr):
            raise unittest.SkipTest(f'NOT TESTED: no package index can be reached for {wanted}\n{pip.stderr}')
        if pip.returncode != 0:
            raise AssertionError(f'pip install {wanted}\n{pip.stderr}')
        with open(ready, 'w') as f:
            f.write(wanted)
    return python


def main():
    if not os.access(CAPSTAN, os.X_OK):
        sys.exit(f'{CAPSTAN} is not there: build first, or set CAPSTAN_BIN')
    unittest.main()
