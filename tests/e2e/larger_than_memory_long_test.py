"""A training set of 10 GB through services that may have 1 GiB of memory each.

The images are a sparse file: they are all 0, which costs no disk. Labels follow from the index, so that the loss is known.
RLIMIT_DATA counts what a process allocates, thread stacks included. The kernel's cache of the file does not count.
"""

import math
import os
import struct

import support

SIDE = 100
IMAGES = 1_000_000  # x 100 x 100 = 10 GB
CLASSES = 10
MEMORY = 1 << 30


class LargerThanMemoryTest(support.TestCase):

    def write_set(self, name, count):
        with open(self.path('set', f'{name}-images-idx3-ubyte'), 'wb') as f:
            f.write(struct.pack('>IIII', 0x803, count, SIDE, SIDE))
            f.truncate(16 + count * SIDE * SIDE)
        self.write(f'set/{name}-labels-idx1-ubyte', struct.pack('>II', 0x801, count) + bytes(i % CLASSES for i in range(count)))

    def test_ten_gigabytes_with_one_gibibyte(self):
        os.mkdir(self.path('set'))
        self.write_set('train', IMAGES)
        self.write_set('t10k', 1000)
        images = os.stat(self.path('set/train-images-idx3-ubyte'))
        self.assertGreater(images.st_size, 10_000_000_000)
        self.assertLess(images.st_blocks * 512, 1 << 20)
        job = self.write('job.yaml', f'''
version: 1
name: large
resources: {{num_workers: 2, num_shards: 1}}
model: {{name: mlp, initializer: zeros}}
data: {{format: idx, uri: '{self.path('set')}', reader_threads: 2}}
training: {{max_steps: 2000, global_batch_size: 256, seed: 1, optimizer: {{name: sgd, learning_rate: 1.0e-9}}}}
''')
        limited = ('prlimit', f'--data={MEMORY}')
        run = self.capstan('run', '-o', 'json', job, timeout=900, before=limited)
        self.assertEqual(run.code, 0, run)
        finished = support.json.loads(run.out.splitlines()[-1])
        self.assertEqual(finished['samples_used'], 2000 * 256, run)
        losses = [line['loss'] for line in self.step_log(finished)]
        for loss in losses:  # of a network of zeros, whatever the label
            self.assertAlmostEqual(loss, math.log(CLASSES), delta=1e-5)
        print(f'{images.st_size} bytes of images, {len(losses)} steps', flush=True)
        # The limit is a real one: a batch of 8 GB of floats does not fit.
        run = self.capstan('run', job, '--set', 'training.global_batch_size=200000', timeout=300, before=limited)
        self.assertNotEqual(run.code, 0, run)
        self.assertIn('arena: no memory for', run.err + run.out)


if __name__ == '__main__':
    support.main()
