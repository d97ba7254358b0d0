"""ONNX files as networks of jobs: `model.graph`, `model.initial_weights`, `capstan model describe`."""

import json
import os

import support

ONNX = os.environ.get('CAPSTAN_ONNX') or os.path.join(support.SHARED, 'onnx')
MNIST = os.path.join(ONNX, 'mnist-pytorch-opset14.onnx')


def spec(model, **groups):
    return support.job_spec(**{'model': model, 'data': {'format': 'idx', 'uri': support.FASHION_MNIST},
                               'training': {'max_steps': 100, 'global_batch_size': 64, 'seed': 3,
                                            'optimizer': {'name': 'sgd', 'learning_rate': 0.02, 'momentum': 0.9}}, **groups})


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
