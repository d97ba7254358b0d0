"""ONNX files as networks of jobs: `model.graph`, `model.initial_weights`, `capstan model describe` and `import`."""

import ast
import json
import math
import os
import struct
import zipfile

import support

ONNX = os.environ.get('CAPSTAN_ONNX') or os.path.join(support.SHARED, 'onnx')
MNIST = os.path.join(ONNX, 'mnist-pytorch-opset14.onnx')


def spec(model, **groups):
    return support.job_spec(**{'model': model, 'data': {'format': 'idx', 'uri': support.FASHION_MNIST},
                               'training': {'max_steps': 100, 'global_batch_size': 64, 'seed': 3,
                                            'optimizer': {'name': 'sgd', 'learning_rate': 0.02, 'momentum': 0.9}}, **groups})


def npy(shape, numbers, code='f'):
    """The bytes of a .npy file."""
    descr = f'<{"i" if code == "i" else "f"}{struct.calcsize(code)}'
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {tuple(shape)!r}, }}"
    text += ' ' * (63 - (10 + len(text)) % 64) + '\n'
    return b'\x93NUMPY\x01\x00' + struct.pack('<H', len(text)) + text.encode() + struct.pack(f'<{len(numbers)}{code}', *numbers)


def read_npy(data):
    """(shape, numbers) of an array of float32."""
    size, = struct.unpack('<H', data[8:10])
    head = ast.literal_eval(data[10:10 + size].decode())
    assert (10 + size) % 64 == 0 and head['descr'] == '<f4' and not head['fortran_order'], head
    return list(head['shape']), [number for number, in struct.iter_unpack('<f', data[10 + size:])]


class OnnxTest(support.TestCase):
    def test_it_trains_from_the_weights_of_the_file(self):
        both = {'graph': MNIST, 'initial_weights': MNIST}
        job = self.train(spec(both))
        tensors = support.read_safetensors(os.path.join(self.checkpoint(job), 'weights.safetensors'))
        self.assertEqual({name: shape for name, (shape, _) in tensors.items()}, {
            'conv1.weight': [8, 1, 3, 3], 'conv1.bias': [8], 'conv2.weight': [16, 8, 3, 3], 'conv2.bias': [16],
            'conv3.weight': [24, 16, 3, 3], 'conv3.bias': [24], 'fc1.weight': [32, 11616], 'fc1.bias': [32], 'fc2.weight': [10, 32], 'fc2.bias': [10]})
        self.assertEqual(json.loads(self.capstan('predict', '@last', '-o', 'json', '--limit', '1000').out)['samples'], 1000)
        losses = [line['loss'] for line in self.step_log(job)]
        self.assertLess(sum(losses[-10:]), 0.9 * sum(losses[:10]))
        # The same bits on two workers and two shards.
        more = self.train(spec(both, resources={'num_workers': 2, 'num_shards': 2}))
        self.assertEqual(more['weights_sha256'], job['weights_sha256'])
        # From random weights it begins elsewhere.
        anew = self.train(spec({'graph': MNIST}))
        self.assertNotEqual(self.step_log(anew)[0]['loss'], losses[0])

    def test_what_is_wrong_is_named(self):
        bad = self.write('bad.onnx', b'\x08\x07\x12')
        for model, text in (
                ({'graph': 'nowhere.onnx'}, f"error: 'model.graph': open {self.path('nowhere.onnx')}: No such file"),
                ({'graph': 'net.pb'}, "error: 'model.graph': 'net.pb', want a group of keys, or the name of an ONNX file, which ends with .onnx"),
                ({'graph': bad}, f"error: 'model.graph': {bad}: "),
                ({'graph': os.path.join(ONNX, 'super_resolution-ir1.onnx')}, 'names no operator set, want one of 6 to 25'),
                ({'graph': os.path.join(ONNX, 'light_squeezenet.onnx')},
                 "'model.graph' is refused: it is made for images of [3, 224, 224], the data set has [1, 28, 28]"),
                ({'graph': MNIST, 'num_classes': 12}, "'model.graph' is refused: its loss reads 10"),
                ({'graph': MNIST, 'name': 'lenet'}, "'model.graph' and 'model.name' exclude each other")):
            refused = self.capstan('validate', self.write('job.yaml', json.dumps(spec(model))))
            self.assertEqual(refused.code, 2, refused)
            self.assertIn(text, refused.err)
        other = self.capstan('run', self.write('job.yaml', json.dumps(spec({'name': 'lenet', 'initial_weights': MNIST}))))
        self.assertEqual(other.code, 100, other)
        self.assertIn('has no tensor', other.err)

    def test_export(self):
        job = self.train(spec({'graph': MNIST, 'initial_weights': MNIST}))
        written = self.capstan('model', 'export', '@last', '--out', 'out.onnx', '-o', 'json')
        self.assertEqual(written.code, 0, written)
        said = json.loads(written.out)
        self.assertEqual((said['job_id'], said['path'], said['size_bytes']), (job['job_id'], 'out.onnx', os.path.getsize(self.path('out.onnx'))))
        # A job of no steps beyond the first, at a rate that changes no weight, has the weights of the file.
        still = {'max_steps': 1, 'global_batch_size': 64, 'seed': 3, 'optimizer': {'name': 'sgd', 'learning_rate': 1e-30}}
        back = self.train(spec({'graph': self.path('out.onnx'), 'initial_weights': self.path('out.onnx')}, training=still))
        self.assertEqual(back['weights_sha256'], job['weights_sha256'])
        missing = self.capstan('model', 'export', '@last@77')
        self.assertEqual(missing.code, 2, missing)
        self.assertIn('has no checkpoint of step 77', missing.err)
        nowhere = self.capstan('model', 'export', '@last', '--out', '/nowhere/out.onnx')
        self.assertEqual(nowhere.code, 1, nowhere)

    def npz(self, name, **arrays):
        with zipfile.ZipFile(self.path(name), 'w', zipfile.ZIP_DEFLATED) as archive:
            for array, data in arrays.items():
                archive.writestr(f'{array}.npy', data)
        return self.path(name)

    def test_predict_of_a_file(self):
        # As in training/onnx/onnx_files_test.cc, there before the LogSoftmax.
        logits = [-1.6046551, -1.3872546, -0.87038338, -0.38585269, -1.0151992, -0.26657468, -0.91077936, -0.68263698, -0.092176944, -0.62832522]
        total = math.log(sum(math.exp(logit) for logit in logits))
        image = [i * 37 % 101 / 100 for i in range(784)]
        described = self.capstan('predict', MNIST, self.npz('none.npz', wrong=npy([1], [0])), '--out', 'out.npz')
        self.assertEqual(described.code, 2, described)
        name = described.err.rsplit("want '", 1)[1].split("'")[0]  # the message names the file's input
        for samples, batch, code in ((1, 64, 'f'), (5, 2, 'd')):
            inputs = self.npz('in.npz', **{name: npy([samples, 1, 28, 28], image * samples, code)})
            said = self.capstan('predict', MNIST, inputs, '--out', 'out.npz', '--batch', str(batch), '-o', 'json')
            self.assertEqual(said.code, 0, said)
            output = json.loads(said.out)
            self.assertEqual((output['samples'], output['path'], len(output['outputs'])), (samples, 'out.npz', 1))
            with zipfile.ZipFile(self.path('out.npz')) as archive:
                self.assertIsNone(archive.testzip())
                self.assertEqual(archive.namelist(), [output['outputs'][0]['name'] + '.npy'])
                shape, numbers = read_npy(archive.read(archive.namelist()[0]))
            self.assertEqual((shape, output['outputs'][0]['shape']), ([samples, 10], [samples, 10]))
            for i, number in enumerate(numbers):
                self.assertAlmostEqual(number, logits[i % 10] - total, delta=1e-4)
        # One input and one output may be .npy files. A name that ends otherwise is a file if it exists.
        os.symlink(MNIST, self.path('network'))
        with open(self.path('in.npy'), 'wb') as f:
            f.write(npy([1, 1, 28, 28], image))
        said = self.capstan('predict', 'network', 'in.npy', '--out', 'out.npy')
        self.assertEqual(said.code, 0, said)
        self.assertRegex(said.out, r'^out\.npy\nOUTPUT +SHAPE\n\S+ +\[1, 10\]\n$')
        with open(self.path('out.npy'), 'rb') as f:
            self.assertEqual(read_npy(f.read())[1], numbers[:10])

    def test_what_predict_refuses_of_a_file(self):
        def array(name, data):
            with open(self.path(name), 'wb') as f:
                f.write(data)
            return name

        good = array('good.npy', npy([1, 1, 28, 28], [0.5] * 784))
        for args, code, text in (
                ((MNIST, ), 2, 'needs a file with its inputs: capstan predict'),
                ((MNIST, good), 2, '--out is needed: the .npz or .npy file for the outputs'),
                ((MNIST, good, '--out', 'out.csv'), 2, '--out out.csv: want a name that ends with .npz or .npy'),
                ((MNIST, 'nowhere.npy', '--out', 'out.npy'), 2, 'nowhere.npy'),
                ((MNIST, array('short.npy', npy([1, 1, 28, 27], [0.5] * 756)), '--out', 'out.npy'), 2, 'array of [1, 1, 28, 27], want [N, 1, 28, 28]'),
                ((MNIST, array('none.npy', npy([0, 1, 28, 28], [])), '--out', 'out.npy'), 2, ': 0 samples, want at least 1'),
                ((MNIST, array('whole.npy', npy([1, 1, 28, 28], [1 << 25] * 784, 'i')), '--out', 'out.npy'), 2, 'number 0 is beyond 2^24'),
                ((MNIST, array('inf.npy', npy([1, 1, 28, 28], [math.inf] * 784)), '--out', 'out.npy'), 2, 'number 0 is not finite as float32'),
                ((MNIST, good, '--out', 'out.npy', '--limit', '5'), 2, '--limit would do nothing: it is for the samples of a job'),
                ((MNIST, good, '--out', 'out.npy', '--address', 'h:1'), 2, '--address'),
                ((MNIST, good, '--out', 'out.npy', '--device', 'tpu'), 2, '--device tpu: '),
                ((MNIST, good, '--out', '/nowhere/out.npy'), 1, '/nowhere/out.npy'),
                ((self.write('bad.onnx', b'\x08\x07\x12'), good, '--out', 'out.npy'), 2, 'bad.onnx: file: not an ONNX model'),
                (('nowhere.onnx', good, '--out', 'out.npy'), 2, 'open nowhere.onnx: No such file'),
                (('@last', good, '--out', 'out.npy'), 2, "'good.npy' would do nothing: '@last' is no ONNX file")):
            refused = self.capstan('predict', *args)
            self.assertEqual(refused.code, code, (args, refused.err))
            self.assertIn(text, refused.err, args)
            self.assertEqual(refused.out, '')
        self.assertFalse([name for name in os.listdir(self.folder) if name.startswith('out.')])

    def test_import(self):
        said = self.capstan('model', 'import', MNIST, '--out', 'model.yaml', '-o', 'json')
        self.assertEqual(said.code, 0, said)
        model = json.loads(said.out)['model']
        self.assertEqual(model, {'graph': MNIST, 'initial_weights': MNIST, 'num_classes': 10})
        self.assertIn("The file's last node, LogSoftmax, is left out", said.err)
        # What it has written is the group of a job file.
        rest = {name: group for name, group in spec(None, training={
            'max_steps': 2, 'global_batch_size': 64, 'optimizer': {'name': 'sgd', 'learning_rate': 0.02}}).items() if name != 'model'}
        with open(self.path('model.yaml')) as f:
            job = self.write('job.yaml', f.read() + ''.join(f'{name}: {json.dumps(group)}\n' for name, group in rest.items()))
        ran = self.capstan('run', job, '-o', 'json')
        self.assertEqual(ran.code, 0, ran)
        self.assertEqual(json.loads(ran.out.splitlines()[-1])['state'], 'SUCCEEDED')
        os.symlink(MNIST, self.path('net.onnx'))
        shown = self.capstan('model', 'import', 'net.onnx')
        self.assertEqual(shown.code, 0, shown)
        self.assertTrue(shown.out.startswith(self.capstan('model', 'describe', 'net.onnx').out), shown.out)
        self.assertIn(f'model:\n  graph: "{self.path("net.onnx")}"\n', shown.out)
        for args, code, text in ((('lenet', ), 2, 'lenet: want an ONNX file, whose name ends with .onnx'),
                                 (('nowhere.onnx', ), 2, 'open nowhere.onnx: No such file'),
                                 ((self.write('bad.onnx', b'\x08\x07\x12'), ), 2, 'bad.onnx: file: not an ONNX model'),
                                 (('net.onnx', '--out', '/nowhere/model.yaml'), 1, '/nowhere/model.yaml')):
            refused = self.capstan('model', 'import', *args)
            self.assertEqual((refused.code, refused.out), (code, ''), refused)
            self.assertIn(text, refused.err)

    def test_describe(self):
        described = json.loads(self.capstan('model', 'describe', MNIST, '-o', 'json').out)
        self.assertEqual((described['parameters'], described['input'], described['nodes'][0]['name']), (376802, [1, 28, 28], 'conv1'))
        squeeze = json.loads(self.capstan('model', 'describe', os.path.join(ONNX, 'light_squeezenet.onnx'), '-o', 'json').out)
        self.assertEqual(squeeze['parameters'], 1235496)  # as published
        self.assertIn("The file's last node, LogSoftmax, is left out: the loss contains it.", self.capstan('model', 'describe', MNIST).err)
        refused = self.capstan('model', 'describe', MNIST, '--input', '1x28x28')
        self.assertIn('--input would do nothing: an ONNX file says it', refused.err)


if __name__ == '__main__':
    support.main()
