"""Data of one's own: npz, csv and libsvm files, from the job file to the accuracy."""

import io
import json
import os
import struct
import zipfile

import support

SGD = {'name': 'sgd', 'learning_rate': 0.05, 'momentum': 0.9}


def table_job(workers=1, shards=1, training=None, **data):
    return support.job_spec(resources={'num_workers': workers, 'num_shards': shards, 'device': 'cpu'}, model={'name': 'mlp', 'num_classes': 2}, data=data,
                            training=training or {'epochs': 20, 'global_batch_size': 16, 'seed': 3, 'optimizer': SGD})


def samples(count, first):
    """Four features of a sample, of which the class is the sign of the first."""
    drawn = [[((first + i) * step % 17 - 8) / 8 for step in (5, 7, 11, 13)] for i in range(count)]
    return [(features, int(features[0] > 0)) for features in drawn]


TRAIN, TEST = samples(320, 0), samples(64, 1000)


def npy(descr, shape, numbers):
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b'\x93NUMPY\x01\x00' + struct.pack('<H', len(header)) + header + numbers


def npz(method):
    file = io.BytesIO()
    with zipfile.ZipFile(file, 'w', method) as archive:
        for split, rows in (('train', TRAIN), ('test', TEST)):
            floats = [number for features, _ in rows for number in features]
            archive.writestr(f'x_{split}.npy', npy('<f8', (len(rows), 4), struct.pack(f'<{len(floats)}d', *floats)))
            archive.writestr(f'y_{split}.npy', npy('<i8', (len(rows),), struct.pack(f'<{len(rows)}q', *[label for _, label in rows])))
    return file.getvalue()


def csv(rows, header=''):
    return header + ''.join(','.join(map(str, [*features, label])) + '\n' for features, label in rows)


def libsvm(rows):
    words = [[f'{i + 1}:{number}' for i, number in enumerate(features) if number != 0] for features, _ in rows]
    return ''.join(' '.join([('-1', '+1')[label], *kept]) + '\n' for kept, (_, label) in zip(words, rows))


class TablesTest(support.TestCase):

    def test_the_same_numbers_give_the_same_weights_in_every_format(self):
        os.mkdir(self.path('set'))
        for name, content in (('stored.npz', npz(zipfile.ZIP_STORED)), ('packed.npz', npz(zipfile.ZIP_DEFLATED)), ('train.csv', csv(TRAIN)),
                              ('test.csv', csv(TEST)), ('named.csv', csv(TRAIN, 'a,b,c,d,class\n')), ('train.libsvm', libsvm(TRAIN)),
                              ('test.libsvm', libsvm(TEST))):
            self.write(os.path.join('set', name), content)
        folder = self.path('set')
        hashes = set()
        for data in ({'format': 'npz', 'uri': f'{folder}/stored.npz'}, {'format': 'npz', 'uri': f'{folder}/packed.npz'},
                     {'format': 'csv', 'uri': folder, 'label_column': '-1'},
                     {'format': 'csv', 'uri': folder, 'label_column': 'class', 'train_file': 'named.csv', 'test_file': 'named.csv'},
                     {'format': 'libsvm', 'uri': folder}):
            job = self.train(table_job(**data))
            self.assertGreater(job['epochs'][-1]['validation_accuracy'], 0.95, data)
            hashes.add(job['weights_sha256'])
        self.assertEqual(len(hashes), 1)

    def test_what_is_wrong_is_named_before_anything_starts(self):
        os.mkdir(self.path('set'))
        self.write('set/train.csv', csv(TRAIN[:3]) + '1,2,x,4,0\n')
        self.write('set/test.csv', csv(TEST))
        run = self.capstan('validate', self.write('job.json', json.dumps(table_job(format='csv', uri=self.path('set'), label_column='-1'))))
        self.assertNotEqual(run.code, 0, run)
        self.assertIn("set/train.csv: line 4: column 2 'x' is no number", run.err)
        self.write('set/train.csv', csv(TRAIN))
        flipped = table_job(format='csv', uri=self.path('set'), label_column='-1', transforms=[{'random_flip': {}}])
        run = self.capstan('validate', self.write('job.json', json.dumps(flipped)))
        self.assertNotEqual(run.code, 0, run)
        self.assertIn("'data.transforms[0].random_flip' is for images, a sample of this data set is a vector of 4 features", run.err)

    def test_adult_with_two_workers_and_two_shards(self):
        job = self.train(table_job(2, 2, {'epochs': 3, 'global_batch_size': 128, 'seed': 7, 'optimizer': {**SGD, 'learning_rate': 0.02, 'lr_schedule': 'cosine'}},
                                   format='libsvm', uri=support.LIBSVM, train_file='a9a', test_file='a9a.t'))
        accuracy = job['epochs'][-1]['validation_accuracy']
        print('mlp, a9a:', accuracy, flush=True)
        self.assertEqual(job['samples_used'], 3 * 32561)
        self.assertGreater(accuracy, 0.845)  # 0.764 for the larger class alone


if __name__ == '__main__':
    support.main()
