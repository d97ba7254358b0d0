"""Makes the files that a version leaves on disk, once before its release, for kept_state_test.py of every later version.

    python3 tests/kept/keep.py tests/kept/VERSION/state.tar.xz

A cluster of the binaries in build/dev/bin (or CAPSTAN_BIN) trains jobs to different states and is killed. The archive is its
folder: journal, checkpoints, data, and expected.json with the expected result of each job. ends.json beside the archive has the
weights of the jobs that later versions finish, by today's engine. So it changes when the engine's bits change.
"""

import io
import json
import os
import signal
import struct
import sys
import tarfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'e2e'))

import services  # noqa: E402
import support  # noqa: E402

# Journals contain absolute paths, so the state is made and read at one place. A process that works there holds the lock.
PLACE = '/tmp/capstan-kept-state'
LOCK = PLACE + '.lock'


def idx(shape, payload):
    return struct.pack(f'>I{len(shape)}I', 0x800 + len(shape), *shape) + payload


def write_data(folder):
    """Images of 4 x 4: one bright pixel shows the class, and the others are noise."""
    os.makedirs(folder)
    state = 7
    for split, count in (('train', 400), ('t10k', 100)):
        images, labels = bytearray(), bytearray()
        for i in range(count):
            labels.append(i % 10)
            for pixel in range(16):
                state = (state * 1103515245 + 12345) & 0x7fffffff
                images.append(255 if pixel == i % 10 else (state >> 16) % 64)
        for name, shape, payload in (('images-idx3', (count, 4, 4), images), ('labels-idx1', (count,), labels)):
            with open(os.path.join(folder, f'{split}-{name}-ubyte'), 'wb') as f:
                f.write(idx(shape, bytes(payload)))


def job(name, **groups):
    spec = {'version': 1, 'name': name, 'resources': {'num_workers': 2, 'num_shards': 2, 'lanes': 4},
            'model': {'name': 'mlp'}, 'data': {'format': 'idx', 'uri': f'file://{PLACE}/data'},
            'training': {'epochs': 1000, 'max_steps': 2000, 'global_batch_size': 32, 'seed': 3,
                         'optimizer': {'name': 'sgd', 'learning_rate': 0.02, 'momentum': 0.9}},
            'checkpoint': {'every': '100 steps', 'keep_latest': 1}}
    for group, keys in groups.items():
        spec[group] = dict(spec.get(group, {}), **keys)
    return spec


class Keep(services.ServicesTest):

    archive = ''

    def start_all(self):
        self.start_one('coordinator', 'capstan_coordinator', '--state-dir', os.path.join(PLACE, 'state'), '--data-root',
                       'file:///', '--checkpoint-root', 'file:///', '--heartbeat', '200ms', '--lease', '3s')
        for name in ('s0', 's1'):
            self.start_node(name, 'capstan_param_store')
        for name in ('w0', 'w1'):
            self.start_worker(name)

    def finish(self, job_id):
        return json.loads(self.ok('wait', job_id, '-o', 'json').out.splitlines()[-1])

    def test_keep(self):
        os.mkdir(PLACE, 0o700)
        write_data(os.path.join(PLACE, 'data'))
        self.start_all()
        expected = {}
        local = {'resources': {'num_workers': 1, 'num_shards': 1}, 'kvstore': {'type': 'local'}}
        ended = self.submit(job('ended'))
        end = self.finish(ended)
        expected[ended] = {'was': 'SUCCEEDED', 'weights_sha256': end['weights_sha256']}
        local_end = self.finish(self.submit(job('same', **local)))['weights_sha256']
        failed = self.submit(job('failed', training={'optimizer': {'learning_rate': 1e30}}))
        self.assertEqual(self.capstan('wait', failed).code, 100)
        expected[failed] = {'was': 'FAILED', 'reason': 'NonFiniteLoss'}

        for name, groups, sha256 in (('suspended', {}, end['weights_sha256']), ('alone', local, local_end)):
            job_id = self.submit(job(name, **groups))
            self.wait_for_step(job_id, 150)
            self.ok('suspend', job_id)
            self.ok('wait', job_id, '--for', 'SUSPENDED')
            expected[job_id] = {'was': 'SUSPENDED', 'weights_sha256': sha256}
        waiting = self.submit(job('waiting', resources={'num_workers': 9}))
        expected[waiting] = {'was': 'PENDING'}
        cancelled = self.submit(job('cancelled', resources={'num_workers': 9}))
        self.ok('cancel', cancelled)
        expected[cancelled] = {'was': 'CANCELLED'}
        running = self.submit(job('running'))
        self.wait_until(lambda: json.loads(self.ok('checkpoint', 'list', running, '-o', 'json').out), 60, 'a checkpoint')
        expected[running] = {'was': 'RUNNING', 'weights_sha256': end['weights_sha256']}
        for name in ('coordinator', 'w0', 'w1', 's0', 's1'):
            self.stop(name, signal.SIGKILL)
        with tarfile.open(self.archive, 'x:xz') as archive:
            text = json.dumps(expected, indent=1).encode()
            info = tarfile.TarInfo('expected.json')
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
            # Leaves out files that are locked while they are open, and files that nobody reads again.
            skipped = ('journal.db-shm', 'metrics.jsonl', 'weights.safetensors')
            archive.add(PLACE, '.', filter=lambda entry: None if entry.name.endswith(skipped) else entry)


if __name__ == '__main__':
    Keep.archive = os.path.abspath(sys.argv.pop())
    unittest.main()
