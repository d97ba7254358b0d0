"""Bad data, bad files and absurd numbers give a named error, never a crash."""

import gzip
import json
import os
import struct

import support


def idx_images(count, side=28, pixels=None):
    return struct.pack('>IIII', 0x803, count, side, side) + (pixels if pixels is not None else bytes(
        (i * 37 + i // 784) % 256 for i in range(count * side * side)))


def idx_labels(count, labels=None):
    return struct.pack('>II', 0x801, count) + bytes(labels if labels is not None else [i % 10 for i in range(count)])


class DamagedInputTest(support.TestCase):

    def data(self, **files):
        """An IDX folder of 200 + 50 images. `files` replaces the files that it names."""
        content = {'train-images-idx3-ubyte': idx_images(200), 'train-labels-idx1-ubyte': idx_labels(200),
                   't10k-images-idx3-ubyte': idx_images(50), 't10k-labels-idx1-ubyte': idx_labels(50)}
        for name, value in files.items():
            content[{'train_images': 'train-images-idx3-ubyte', 'train_labels': 'train-labels-idx1-ubyte',
                     'test_images': 't10k-images-idx3-ubyte', 'test_labels': 't10k-labels-idx1-ubyte'}[name]] = value
        for name, value in content.items():
            if value is not None:
                compressed = value[:2] == b'\x1f\x8b'
                self.write(f'data/{name}{".gz" if compressed else ""}', value)
        return self.path('data')

    def spec(self, **groups):
        return support.job_spec(data={'uri': self.path('data'), 'format': 'idx'},
                                training={'epochs': 1, 'global_batch_size': 50,
                                          'optimizer': {'name': 'sgd', 'learning_rate': 0.04}}, **groups)

    def refused(self, spec, *words):
        """The error comes before anything is started, or as the reason of the failed job."""
        run = self.capstan('run', '-o', 'json', self.write('job.yaml', json.dumps(spec)), timeout=60)
        said = run.err
        if run.code == 100:
            job = json.loads(run.out.splitlines()[-1])
            self.assertEqual(job['state'], 'FAILED', run)
            self.assertIn(job['reason'], ('InvalidSpec', 'DataMissing', 'CheckpointCorrupt'), run)
            said += job['message']
        else:
            self.assertEqual(run.code, 2, run)
        for word in words:
            self.assertIn(word, said, run)
        self.assertNotIn('signal', said, run)

    def test_the_undamaged_set_trains(self):
        self.data()
        self.train(self.spec())

    def test_absent_folder_and_absent_file(self):
        self.refused(self.spec(), 'data')
        self.data(test_labels=None)
        self.refused(self.spec(), 't10k-labels-idx1-ubyte')

    def test_truncated_images(self):
        for keep in (0, 3, 15, 16, 1000, -1):
            with self.subTest(keep=keep):
                self.data(train_images=idx_images(200)[:keep])
                self.refused(self.spec(), 'train-images-idx3-ubyte')

    def test_every_flipped_bit_of_the_header_is_refused_or_named(self):
        good = bytearray(idx_labels(200))
        for bit in range(64):
            damaged = bytearray(good)
            damaged[bit // 8] ^= 1 << (bit % 8)
            self.data(train_labels=bytes(damaged))
            run = self.capstan('validate', self.write('job.yaml', json.dumps(self.spec())))
            self.assertEqual(run.code, 2, (bit, str(run)))
            self.assertIn('train-labels-idx1-ubyte', run.err)

    def test_damaged_gzip(self):
        whole = gzip.compress(idx_images(200))
        body = bytearray(whole)
        body[len(body) // 2] ^= 0x10
        for name, damaged in {'truncated': whole[:-9], 'flipped': bytes(body), 'no gzip inside': b'\x1f\x8b' + b'nothing' * 9,
                              'bytes behind': whole + b'trailing bytes',
                              'bomb': gzip.compress(idx_images(200) + bytes(50 << 20))}.items():
            with self.subTest(name):
                self.data(train_images=damaged)
                os.path.exists(self.path('data/train-images-idx3-ubyte')) and os.remove(
                    self.path('data/train-images-idx3-ubyte'))
                self.refused(self.spec(), 'train-images-idx3-ubyte.gz')

    def test_counts_that_do_not_fit(self):
        self.data(train_labels=idx_labels(199))
        self.refused(self.spec(), '199', '200')

    def test_label_ten_of_ten_classes(self):
        self.data(train_labels=idx_labels(200, [i % 10 for i in range(199)] + [10]))
        self.refused(self.spec(), 'train-labels-idx1-ubyte', '10')

    def test_empty_set(self):
        self.data(train_images=idx_images(0), train_labels=idx_labels(0))
        self.refused(self.spec(), 'train-')

    def test_absurd_header(self):
        self.data(train_images=struct.pack('>IIII', 0x803, 2**31 - 1, 65535, 65535) + bytes(100))
        self.refused(self.spec(), 'train-images-idx3-ubyte')

    def test_batch_larger_than_the_set(self):
        self.data()
        spec = self.spec()
        spec['training']['global_batch_size'] = 201
        self.refused(spec, '201', '200')

    def test_absurd_numbers_in_the_job_file(self):
        self.data()
        for group, key, value, words in (
                ('training', 'global_batch_size', 2**31, 'training.global_batch_size'),
                ('training', 'epochs', 2**63, 'training.epochs'),
                ('training', 'epochs', 0, 'training.epochs'),
                ('resources', 'num_workers', 10000, 'resources.num_workers'),
                ('resources', 'num_shards', 200, 'num_shards'),
                ('resources', 'lanes', 51, 'lane'),
                ('model', 'num_classes', -1, 'model.num_classes'),
                ('model', 'name', 'lenet9000', 'lenet_d2l')):
            with self.subTest(f'{group}.{key}={value}'):
                spec = self.spec()
                spec[group][key] = value
                self.refused(spec, words)

    def test_duplicate_key(self):
        self.data()
        run = self.capstan('run', '-', stdin='version: 1\nname: a\nname: b\n')
        self.assertEqual(run.code, 2, run)
        self.assertIn("<stdin>:3:1: error: duplicate key 'name'", run.err)

    def weights(self):
        job = self.train(support.job_spec(training={'max_steps': 1, 'epochs': 1, 'global_batch_size': 50,
                                                    'optimizer': {'name': 'sgd', 'learning_rate': 0.04}}))
        with open(os.path.join(self.checkpoint(job), 'weights.safetensors'), 'rb') as f:
            return f.read()

    def test_damaged_initial_weights(self):
        self.data()
        whole = self.weights()
        header = struct.unpack('<Q', whole[:8])[0]
        cases = {'empty': b'', 'truncated': whole[:-4], 'longer': whole + b'1234', 'no header': whole[:7],
                 'absurd header': struct.pack('<Q', 2**63) + whole[8:],
                 'no JSON': whole[:8] + b'x' * header + whole[8 + header:],
                 'other names': whole.replace(b'conv1.weight', b'conv9.weight'),
                 'other shape': whole.replace(b'"shape":[6,1,5,5]', b'"shape":[6,5,5,1]')}
        self.assertNotEqual(cases['other shape'], whole)
        for kvstore in ('dist_sync', 'local'):
            for name, content in cases.items():
                with self.subTest(f'{name}, {kvstore}'):
                    path = self.write('start.safetensors', content)
                    self.refused(self.spec(model={'name': 'lenet', 'initial_weights': path}, kvstore={'type': kvstore}),
                                 'start.safetensors')


if __name__ == '__main__':
    support.main()
