"""Targets that are numbers: the loss mean_squared_error from the job file to the predictions."""

import csv
import io
import json
import math
import os
import struct
import zipfile

import support

FEATURES, OUTPUTS, BATCH, RATE = 4, 2, 30, 0.05
SGD = {'name': 'sgd', 'learning_rate': RATE}


def f32(x):
    return struct.unpack('<f', struct.pack('<f', x))[0]


def samples(count, first):
    """Features, and targets that a line through them almost meets."""
    rows = []
    for i in range(first, first + count):
        x = [f32((i * step % 17 - 8) / 8) for step in (5, 7, 11, 13)]
        rows.append((x, [f32(x[0] - 2 * x[1] + 0.5 + (i % 3 - 1) / 16), f32(x[2] * x[3] - 1)]))
    return rows


TRAIN, TEST = samples(100, 0), samples(37, 1000)


def npy(rows):
    """A matrix of floats, or a vector of whole numbers."""
    if isinstance(rows[0], int):
        descr, shape, numbers = '<i8', f'({len(rows)},)', struct.pack(f'<{len(rows)}q', *rows)
    else:
        descr, shape, numbers = '<f4', f'({len(rows)}, {len(rows[0])})', b''.join(struct.pack(f'<{len(row)}f', *row) for row in rows)
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b'\x93NUMPY\x01\x00' + struct.pack('<H', len(header)) + header + numbers


def npz(outputs=OUTPUTS, classes=False):
    file = io.BytesIO()
    with zipfile.ZipFile(file, 'w') as archive:
        for split, rows in (('train', TRAIN), ('test', TEST)):
            archive.writestr(f'x_{split}.npy', npy([x for x, _ in rows]))
            archive.writestr(f'y_{split}.npy', npy([i % 2 for i in range(len(rows))]) if classes else npy([y[:outputs] for _, y in rows]))
    return file.getvalue()


def mean_squared_error(weights, bias, rows):
    errors = [sum(w * v for w, v in zip(weights[k], x)) + bias[k] - y[k] for x, y in rows for k in range(OUTPUTS)]
    return sum(error * error for error in errors) / len(errors)


def linear_regression(epochs):
    """The losses of plain gradient descent from weights of 0, batch after batch, by PyTorch's formula of MSELoss: a mean over samples and outputs."""
    weights, bias, losses = [[0.0] * FEATURES for _ in range(OUTPUTS)], [0.0] * OUTPUTS, []
    for _ in range(epochs):
        for begin in range(0, len(TRAIN), BATCH):
            rows = TRAIN[begin:begin + BATCH]
            losses.append(mean_squared_error(weights, bias, rows))
            for k in range(OUTPUTS):
                errors = [sum(w * v for w, v in zip(weights[k], x)) + bias[k] - y[k] for x, y in rows]
                slope = [2 / (len(rows) * OUTPUTS) * sum(e * x[j] for e, (x, _) in zip(errors, rows)) for j in range(FEATURES)]
                bias[k] -= RATE * 2 / (len(rows) * OUTPUTS) * sum(errors)
                weights[k] = [w - RATE * s for w, s in zip(weights[k], slope)]
    return losses, mean_squared_error(weights, bias, TEST)


class RegressionTest(support.TestCase):

    def setUp(self):
        super().setUp()
        self.write('set.npz', npz())

    def spec(self, workers=1, shards=1, model=None, data=None, resources=None, **training):
        """Lanes of 8 and 7 samples, and of 3 and 2 in the last step of an epoch."""
        return support.job_spec(
            resources={'num_workers': workers, 'num_shards': shards, 'device': 'cpu', 'lanes': 4, **(resources or {})},
            model=model or {'name': 'mlp', 'num_outputs': OUTPUTS}, data=data or {'format': 'npz', 'uri': self.path('set.npz'), 'shuffle': False},
            training={'epochs': 3, 'global_batch_size': BATCH, 'seed': 3, 'loss': 'mean_squared_error', 'optimizer': SGD, **training})

    def predict(self, *args):
        said = self.capstan('predict', '@last', *args)
        self.assertEqual(said.code, 0, said)
        return said.out

    def test_one_hash_for_any_number_of_workers_and_shards(self):
        hashes, losses = set(), set()
        for workers, shards in ((1, 1), (2, 1), (1, 2), (2, 2)):
            job = self.train(self.spec(workers, shards))
            hashes.add(job['weights_sha256'])
            losses.add(tuple(line['loss'] for line in self.step_log(job)))
            predicted = json.loads(self.predict('-o', 'json'))
            self.assertAlmostEqual(predicted['loss'], job['epochs'][-1]['validation_loss'], delta=1e-12)
        self.assertEqual((len(hashes), len(losses)), (1, 1))

    def test_the_losses_are_those_of_linear_regression(self):
        """In lanes of unequal sizes, and in batches of unequal sizes."""
        want, want_test = linear_regression(20)
        for resources in ({'lanes': 1}, {'lanes': 4}, {'lanes': 3, 'lane_weights': [1, 2, 5]}):
            job = self.train(self.spec(2, 1, resources={'num_workers': 2, **resources}, epochs=20,
                                       model={'num_outputs': OUTPUTS, 'initializer': 'zeros', 'layers': ['flatten', 'gemm']}))
            losses = [line['loss'] for line in self.step_log(job)]
            self.assertEqual(len(losses), 20 * math.ceil(len(TRAIN) / BATCH))
            for ours, theirs in zip(losses, want):
                self.assertAlmostEqual(ours, theirs, delta=1e-5)
            self.assertAlmostEqual(job['epochs'][-1]['validation_loss'], want_test, delta=1e-5)
            self.assertLess(losses[-1], losses[0] / 3)

    def test_a_prediction_has_the_numbers_of_the_network(self):
        job = self.train(self.spec(model={'num_outputs': OUTPUTS, 'layers': ['flatten', 'gemm']}))
        said = self.predict('--out', 'out.csv')
        last = job['epochs'][-1]
        self.assertRegex(said, rf'37 test samples\nloss +{last["validation_loss"]:.6g} +mean squared error\n$')
        self.assertNotIn('accuracy', said)
        tensors = support.read_safetensors(os.path.join(self.checkpoint(job), 'weights.safetensors'))
        weight, bias = (struct.unpack(f'<{len(data) // 4}f', data) for _, data in (tensors['fc1.weight'], tensors['fc1.bias']))
        with open(self.path('out.csv'), newline='') as f:
            rows = list(csv.DictReader(f))
        self.assertEqual(len(rows), len(TEST))
        for row, (x, y) in zip(rows, TEST):
            for k in range(OUTPUTS):
                self.assertAlmostEqual(float(row[f'target_{k}']), y[k], delta=1e-6)
                self.assertAlmostEqual(float(row[f'predicted_{k}']), sum(w * v for w, v in zip(weight[4 * k:], x)) + bias[k], delta=1e-5)
        training = json.loads(self.predict('--split', 'train', '--limit', '10', '-o', 'json'))
        self.assertEqual(sorted(training), ['checkpoint', 'job_id', 'loss', 'samples', 'split', 'step'])
        refused = self.capstan('predict', '@last', '--out', 'out.csv', '--logits')
        self.assertEqual(refused.code, 2, refused)

    def test_no_surface_says_accuracy(self):
        spec = self.spec(epochs=2)
        spec['checkpoint'] = {'every': '1 epoch', 'keep_best': 1}
        spec['outputs'] = {'metrics': {'tensorboard': True}}
        run = self.capstan('run', self.write('job.yaml', json.dumps(spec)))
        self.assertEqual(run.code, 0, run)
        self.assertRegex(run.out + run.err, r'Epoch\[2\] Step\[8\] Speed: .* train-loss=[0-9.]+ validation-loss=[0-9.]+\n')
        self.assertRegex(run.out + run.err, r'loss +[0-9.e-]+ on the test set after epoch 2\n')
        self.assertNotIn('accuracy', run.out + run.err)
        metrics = self.capstan('metrics', '@last')
        self.assertIn('VAL LOSS', metrics.out)
        self.assertNotIn('ACC', metrics.out)
        self.assertNotIn('accuracy', self.capstan('metrics', '@last', '--plot').out)
        said = json.loads(self.capstan('metrics', '@last', '-o', 'json').out)
        self.assertEqual({point['accuracy'] for point in said['points']}, {None})
        self.assertEqual({evaluation['validation_accuracy'] for evaluation in said['evaluations']}, {None})
        self.assertEqual(len(said['evaluations']), 2)
        job = json.loads(self.capstan('describe', '@last', '-o', 'json').out)
        self.assertEqual([epoch['train_accuracy'] for epoch in job['epochs']], [None, None])
        described = self.capstan('describe', '@last')
        self.assertNotIn('ccuracy', described.out)
        # The metric of a checkpoint is its loss, and the smallest is the best.
        best = json.loads(self.capstan('checkpoint', 'list', '@last', '-o', 'json').out)
        metrics = {c['step']: c['metric'] for c in best}
        self.assertEqual(metrics[8], job['epochs'][-1]['validation_loss'])
        self.assertEqual([c['step'] for c in best if c['best']], [min(metrics, key=metrics.get)])
        folder = os.path.dirname(job['checkpoint_uri'][len('file://'):])
        events = [name for name in os.listdir(folder) if 'tfevents' in name]
        self.assertEqual(len(events), 1)
        with open(os.path.join(folder, events[0]), 'rb') as f:
            written = f.read()
        self.assertIn(b'validation_loss', written)
        self.assertNotIn(b'accuracy', written)

    def test_a_loss_that_is_not_finite_is_named(self):
        """The first step makes weights whose predictions are infinite, and the second one is skipped."""
        run = self.capstan('run', self.write('job.json', json.dumps(self.spec(max_steps=2, optimizer={'name': 'sgd', 'learning_rate': 1e20}))))
        self.assertEqual(run.code, 0, run)
        self.assertRegex(run.out, r'Epoch\[1\] Step\[2\] .* train-loss=nan validation-loss=nan\n')
        self.assertIn('\nloss        nan on the test set after epoch 1\n', run.out)
        self.assertRegex(self.predict(), r'\nloss +(nan|inf)  mean squared error\n')

    def test_every_format_gives_the_same_weights(self):
        self.write('one.npz', npz(outputs=1))
        for name, rows in (('train', TRAIN), ('test', TEST)):
            self.write(f'set/{name}.csv', 'price,a,b,c,d\n' + ''.join(f'{y[0]!r},{",".join(map(repr, x))}\n' for x, y in rows))
            self.write(f'set/{name}.libsvm', ''.join(f'{y[0]!r} ' + ' '.join(f'{i + 1}:{v!r}' for i, v in enumerate(x)) + '\n' for x, y in rows))
        hashes = set()
        for data in ({'format': 'npz', 'uri': self.path('one.npz')}, {'format': 'csv', 'uri': self.path('set'), 'label_column': 'price'},
                     {'format': 'libsvm', 'uri': self.path('set')}):
            hashes.add(self.train(self.spec(model={'name': 'mlp'}, data=data))['weights_sha256'])
        self.assertEqual(len(hashes), 1)

    def test_an_exported_network_is_trained_on(self):
        job = self.train(self.spec(model={'num_outputs': OUTPUTS, 'layers': ['flatten', {'gemm': {'out_features': 8}}, 'relu', 'gemm']}))
        exported = self.capstan('model', 'export', '@last', '--out', 'net.onnx')
        self.assertEqual(exported.code, 0, exported)
        onward = self.train(self.spec(model={'graph': self.path('net.onnx'), 'initial_weights': self.path('net.onnx')}, epochs=1))
        self.assertEqual(onward['epochs'][-1]['train_accuracy'], None)
        # It begins where the other one has ended: the loss of the first batch is no more than that of the other's last epoch.
        self.assertLess(self.step_log(onward)[0]['loss'], 1.5 * job['epochs'][-1]['train_loss'])

    def test_a_file_of_one_output_is_imported_for_numbers(self):
        self.write('one.npz', npz(outputs=1))
        self.train(self.spec(model={'name': 'mlp'}, data={'format': 'npz', 'uri': self.path('one.npz')}))
        self.assertEqual(self.capstan('model', 'export', '@last', '--out', 'one.onnx').code, 0)
        path = self.path('one.onnx')
        said = self.capstan('model', 'import', 'one.onnx', '--out', 'groups.yaml', '-o', 'json')
        self.assertEqual(said.code, 0, said)
        groups = json.loads(said.out)
        self.assertEqual((groups['model'], groups['training']), ({'graph': path, 'initial_weights': path, 'num_outputs': 1}, {'loss': 'mean_squared_error'}))
        self.assertEqual([node['operator'] for node in groups['nodes']][-1], 'MeanSquaredErrorLoss')
        shown = self.capstan('model', 'import', 'one.onnx').out
        self.assertIn(', 1 output: ', shown)
        with open(self.path('groups.yaml')) as f:
            written = f.read()
        self.assertTrue(shown.endswith('\n\n' + written), shown)
        # What it has written belongs into a job file.
        rest = f'version: 1\nname: onward\ndata: {{format: npz, uri: {json.dumps(self.path("one.npz"))}}}\n'
        job = self.write('job.yaml', f'{rest}{written}  epochs: 1\n  global_batch_size: {BATCH}\n  optimizer: {json.dumps(SGD)}\n')
        self.assertEqual(self.capstan('validate', job).code, 0, self.capstan('validate', job))
        # Whoever forgets the loss is told.
        classes = self.spec(model={'graph': path, 'initial_weights': path}, data={'format': 'npz', 'uri': self.path('one.npz')})
        del classes['training']['loss']
        refused = self.capstan('validate', self.write('job.json', json.dumps(classes)))
        self.assertEqual(refused.code, 2, refused)
        self.assertIn(f"'model.graph': {path}: has 1 output, want 2 to 1000000, or 'training.loss: mean_squared_error', which takes 1\n", refused.err)

    def test_what_does_not_fit_is_named_before_anything_starts(self):
        def refused(text, spec):
            run = self.capstan('validate', self.write('job.json', json.dumps(spec)))
            self.assertNotEqual(run.code, 0, run)
            self.assertIn(text, run.err)

        self.write('classes.npz', npz(classes=True))
        refused("y_train.npy: type '<f4', want integers (classes), or 'training.loss' mean_squared_error",
                self.spec(model={'name': 'mlp'}, loss='softmax_cross_entropy'))
        refused("y_train.npy: type '<i8' (classes), want float32 or float64, as 'training.loss' is mean_squared_error",
                self.spec(data={'format': 'npz', 'uri': self.path('classes.npz')}))
        refused("y_train.npy: array of 100 x 2, 2 numbers for each sample, 'model.num_outputs' is 3", self.spec(model={'name': 'mlp', 'num_outputs': 3}))
        refused("'training.loss' is mean_squared_error, but 'data.format' synthetic_digits has classes: want npz, csv or libsvm",
                self.spec(model={'name': 'lenet'}, data={'format': 'synthetic_digits'}))
        refused("'model.num_outputs' is 2, but targets are classes", self.spec(loss='softmax_cross_entropy'))
        refused("'model.num_classes' is 10, but with the loss mean_squared_error targets are numbers", self.spec(model={'name': 'mlp', 'num_classes': 10}))


if __name__ == '__main__':
    support.main()
