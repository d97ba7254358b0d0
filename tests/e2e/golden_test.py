"""The first 20 steps of both LeNets against the committed losses of float64 reference runs, with `local`, `device` and
`dist_sync`.

The reference for lenet is PyTorch's, in the shared data. For lenet_d2l it is golden_lenet_d2l.json, made by golden_record.py.
"""

import json
import math
import os
import struct

import support

MASK = (1 << 64) - 1
LAYERS = {
    'lenet': [('conv1', [6, 1, 5, 5]), ('conv2', [16, 6, 3, 3]), ('fc1', [120, 400]), ('fc2', [84, 120]), ('fc3', [10, 84])],
    'lenet_d2l': [('conv1', [20, 1, 3, 3]), ('conv2', [50, 20, 5, 5]), ('fc1', [128, 800]), ('fc2', [10, 128])],
}
RECORDS = {'lenet': support.GOLDEN, 'lenet_d2l': os.path.join(support.ROOT, 'tests/e2e/golden_lenet_d2l.json')}
STEPS, BATCH = 20, 128
# At rate 0.04 lenet_d2l is off by 2.3e-4. From the second step on, the gradients of the second convolution and below differ by a
# fraction of 5e-4, as if an input of a ReLU were on the other side of 0, and the difference of the loss then doubles or triples per
# step. So it takes smaller steps, and the distance that each tensor has moved is compared, too.
RATES = {'lenet': 0.04, 'lenet_d2l': 0.01}


def golden_weights(model):
    """The weights that the data's README describes: one splitmix64 stream over all weight tensors, and biases of zero."""
    state, tensors = 42, []
    for layer, shape in LAYERS[model]:
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


class Golden:
    """Mix it with support.TestCase. MODEL names the network."""

    def setUp(self):
        super().setUp()
        with open(RECORDS[self.MODEL]) as f:
            self.golden = json.load(f)
        self.weights = self.path('golden.safetensors')
        support.write_safetensors(self.weights, golden_weights(self.MODEL))

    def check(self, resources, kvstore):
        job = self.train(support.job_spec(
            resources=resources,
            kvstore={'type': kvstore},
            model={'name': self.MODEL, 'initial_weights': self.weights},
            data={'uri': support.FASHION_MNIST, 'format': 'idx', 'shuffle': False, 'partition': 'global'},
            training={'max_steps': STEPS, 'global_batch_size': BATCH, 'optimizer': {'name': 'sgd', 'learning_rate': RATES[self.MODEL]}}))
        losses = [line['loss'] for line in self.step_log(job)]
        self.assertEqual(len(losses), STEPS)
        worst = max(abs(got - want) for got, want in zip(losses, self.golden['loss_float64']))
        print(f'{self.MODEL}, {kvstore} {resources}: largest difference {worst:.2e}')
        self.assertLess(worst, 1e-5)
        # The weights after the 20 steps: norms to a relative 1e-4, and for biases 1e-4 more. If two inputs of a maximum differ only
        # by rounding, the order of additions decides which gets a sample's gradient (device_golden.cc). With two lanes that changes
        # the norm of conv2.bias, 0.054, by 5e-5.
        tensors = support.read_safetensors(os.path.join(self.checkpoint(job), 'weights.safetensors'))
        first = {name: data for name, _, data in golden_weights(self.MODEL)}
        shapes = {name: shape for name, shape, _ in golden_weights(self.MODEL)}  # like the norms: weight, then bias of each layer
        self.assertEqual({name: shape for name, (shape, _) in tensors.items()}, shapes)
        norms = self.golden['param_norms_after_float64']
        self.assertEqual(len(norms), len(shapes))
        for name, want in zip(shapes, norms):
            norm = math.sqrt(sum(value * value for value, in struct.iter_unpack('<f', tensors[name][1])))
            self.assertAlmostEqual(norm, want, delta=1e-4 * want + (1e-4 if name.endswith('.bias') else 0), msg=name)
        for name, want in zip(shapes, self.golden.get('param_change_norms_float64', [])):
            pairs = zip(struct.iter_unpack('<f', tensors[name][1]), struct.iter_unpack('<f', first[name]))
            norm = math.sqrt(sum((after - before)**2 for (after,), (before,) in pairs))
            print(f'{name} has gone {norm:.6f}, want {want:.6f}')
            self.assertAlmostEqual(norm, want, delta=5e-3 * want, msg=f'change of {name}')

    def test_the_stream_is_the_documented_one(self):
        first = struct.unpack('<4f', golden_weights(self.MODEL)[0][2][:16])
        for got, want in zip(first, self.golden['first_weights']):
            self.assertAlmostEqual(got, want, delta=1e-9)

    def test_local_one_device(self):
        self.check({'num_workers': 1, 'gpus_per_worker': 1}, 'local')

    def test_dist_sync_two_workers_two_shards(self):
        self.check({'num_workers': 2, 'num_shards': 2}, 'dist_sync')


class LenetTest(Golden, support.TestCase):
    MODEL = 'lenet'

    def test_local_two_devices(self):
        self.check({'num_workers': 1, 'gpus_per_worker': 2}, 'local')

    def test_device_two_devices(self):
        self.check({'num_workers': 1, 'gpus_per_worker': 2}, 'device')


class LenetD2lTest(Golden, support.TestCase):
    MODEL = 'lenet_d2l'


if __name__ == '__main__':
    support.main()
