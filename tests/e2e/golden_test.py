"""The first 20 steps against the committed losses of a float64 reference run, through every kvstore type."""

import json
import math
import os
import struct

import support

MASK = (1 << 64) - 1
LAYERS = [('conv1', [6, 1, 5, 5]), ('conv2', [16, 6, 3, 3]), ('fc1', [120, 400]), ('fc2', [84, 120]), ('fc3', [10, 84])]


def golden_weights():
    """The weights that the data's README describes: one splitmix64 stream over all weight tensors, biases zero."""
    state, tensors = 42, []
    for layer, shape in LAYERS:
        receptive = math.prod(shape[2:])
        bound = math.sqrt(6 / (shape[1] * receptive + shape[0] * receptive))
        values = []
        for _ in range(math.prod(shape)):
            state = (state + 0x9E3779B97F4A7C15) & MASK
            z = state
            z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
            z ^= z >> 31
            values.append((2 * ((z >> 40) * 2.0**-24) - 1) * bound)
        tensors.append((f'{layer}.weight', shape, struct.pack(f'<{len(values)}f', *values)))
        tensors.append((f'{layer}.bias', [shape[0]], bytes(4 * shape[0])))
    return tensors


class GoldenTest(support.TestCase):

    def setUp(self):
        super().setUp()
        with open(support.GOLDEN) as f:
            self.golden = json.load(f)
        self.weights = self.path('golden.safetensors')
        support.write_safetensors(self.weights, golden_weights())

    def check(self, resources, kvstore):
        job = self.train(support.job_spec(
            resources=resources,
            kvstore={'type': kvstore},
            model={'name': 'lenet', 'initial_weights': self.weights},
            data={'uri': support.FASHION_MNIST, 'format': 'idx', 'shuffle': False, 'partition': 'global'},
            training={'max_steps': 20, 'global_batch_size': 128, 'optimizer': {'name': 'sgd', 'learning_rate': 0.04}}))
        losses = [line['loss'] for line in self.step_log(job)]
        self.assertEqual(len(losses), 20)
        worst = max(abs(got - want) for got, want in zip(losses, self.golden['loss_float64']))
        print(f'{kvstore} {resources}: largest difference {worst:.2e}')
        self.assertLess(worst, 1e-5)
        # The weights after the 20 steps: norms to 1e-4 relative, of biases 1e-4 more. Where two inputs of a maximum differ by rounding
        # alone, the order of additions says which one gets a sample's gradient (device_golden.cc). With two lanes that moves the norm
        # of conv2.bias, 0.054, by 5e-5.
        tensors = support.read_safetensors(os.path.join(self.checkpoint(job), 'weights.safetensors'))
        shapes = {name: shape for name, shape, _ in golden_weights()}  # weight and bias of each layer in turn, as the norms
        self.assertEqual({name: shape for name, (shape, _) in tensors.items()}, shapes)
        norms = self.golden['param_norms_after_float64']
        self.assertEqual(len(norms), len(shapes))
        for name, want in zip(shapes, norms):
            norm = math.sqrt(sum(value * value for value, in struct.iter_unpack('<f', tensors[name][1])))
            self.assertAlmostEqual(norm, want, delta=1e-4 * want + (1e-4 if name.endswith('.bias') else 0), msg=name)

    def test_the_stream_is_the_documented_one(self):
        first = struct.unpack('<4f', golden_weights()[0][2][:16])
        for got, want in zip(first, self.golden['first_weights']):
            self.assertAlmostEqual(got, want, delta=1e-9)

    def test_local_one_device(self):
        self.check({'num_workers': 1, 'gpus_per_worker': 1}, 'local')

    def test_local_two_devices(self):
        self.check({'num_workers': 1, 'gpus_per_worker': 2}, 'local')

    def test_device_two_devices(self):
        self.check({'num_workers': 1, 'gpus_per_worker': 2}, 'device')

    def test_dist_sync_two_workers_two_shards(self):
        self.check({'num_workers': 2, 'num_shards': 2}, 'dist_sync')


if __name__ == '__main__':
    support.main()
