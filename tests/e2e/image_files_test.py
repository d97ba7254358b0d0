"""JPEG and PNG files in folders and in RecordIO files, from the job file to the weights."""

import io
import json
import os
import random
import struct
import zipfile

import pictures
import support

CLASSES = ('ant', 'bee', 'cat')
SGD = {'name': 'sgd', 'learning_rate': 0.02, 'momentum': 0.9}


def draw(rng, label, height, width):
    """Noise that is brighter in the channel of the class."""
    return [[tuple(rng.randrange(160, 256) if c == label else rng.randrange(96) for c in range(3)) for _ in range(width)] for _ in range(height)]


def npy(descr, shape, numbers):
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b'\x93NUMPY\x01\x00' + struct.pack('<H', len(header)) + header + numbers


class ImageFilesTest(support.TestCase):

    def setUp(self):
        super().setUp()
        rng = random.Random(11)
        # In the order in which a folder gives them: by class, then by name.
        self.images = {split: [(label, draw(rng, label, 12, 10)) for label in range(len(CLASSES)) for _ in range(count)]
                       for split, count in (('train', 16), ('test', 4))}

    def write_folder(self, name, make, ending):
        for split, labelled in self.images.items():
            for i, (label, image) in enumerate(labelled):
                self.write(os.path.join(name, split, CLASSES[label], f'{i:03}.{ending}'), make(image))
        return self.path(name)

    def write_rec(self, name, make, indexed):
        for split, labelled in self.images.items():
            file, index = pictures.rec([(label, make(image)) for label, image in labelled])
            self.write(os.path.join(name, f'{split}.rec'), file)
            if indexed:
                self.write(os.path.join(name, f'{split}.idx'), index)
        return self.path(name)

    def write_npz(self, name):
        file = io.BytesIO()
        with zipfile.ZipFile(file, 'w') as archive:
            for split, labelled in self.images.items():
                pixels = bytes(pixel[c] for _, image in labelled for c in range(3) for row in image for pixel in row)
                archive.writestr(f'x_{split}.npy', npy('|u1', (len(labelled), 3, 12, 10), pixels))
                archive.writestr(f'y_{split}.npy', npy('|u1', (len(labelled),), bytes(label for label, _ in labelled)))
        return self.write(name, file.getvalue())

    def job(self, workers=1, **data):
        return support.job_spec(resources={'num_workers': workers, 'num_shards': 1, 'lanes': 4, 'device': 'cpu'},
                                model={'name': 'mlp', 'num_classes': len(CLASSES)}, data=data,
                                training={'epochs': 12, 'global_batch_size': 16, 'seed': 5, 'optimizer': SGD})

    def test_the_same_pixels_give_the_same_weights_in_every_format(self):
        def mixed(image):
            return pictures.png(image, filters=(1, 2, 0))

        shape = [3, 12, 10]
        folder = self.write_folder('folder', mixed, 'png')
        os.rename(os.path.join(folder, 'test'), os.path.join(folder, 'val'))
        hashes = {}
        for name, data in (('folder', {'format': 'image_folder', 'uri': folder, 'shape': shape}),
                           ('rec', {'format': 'rec', 'uri': self.write_rec('rec', pictures.png, False), 'shape': shape}),
                           ('rec and idx', {'format': 'rec', 'uri': self.write_rec('indexed', pictures.png, True), 'shape': shape, 'reader_threads': 3}),
                           ('npz', {'format': 'npz', 'uri': self.write_npz('set.npz')})):
            job = self.train(self.job(**data))
            self.assertEqual(job['samples_used'], 12 * 48)
            self.assertGreater(job['epochs'][-1]['validation_accuracy'], 0.9, name)
            hashes[name] = job['weights_sha256']
            said = self.capstan('predict', '@last', '-o', 'json')
            self.assertEqual(said.code, 0, said)
            self.assertEqual(json.loads(said.out)['accuracy'], job['epochs'][-1]['validation_accuracy'], name)
        self.assertEqual(len(set(hashes.values())), 1, hashes)

    def test_jpeg_files_give_the_same_weights_with_and_without_vector_units(self):
        self.images = {split: labelled[::2] for split, labelled in self.images.items()}
        folder = self.write_folder('folder', pictures.jpeg, 'jpg')
        data = {'format': 'image_folder', 'uri': folder, 'transforms': [{'random_flip': {}}]}
        hashes = set()
        for size in ([3, 12, 10], [3, 8, 8], [3, 5, 5]):  # as they are, resized, decoded at half the size
            spec = self.write('job.yaml', json.dumps(self.job(**data, shape=size)))
            of_size = set()
            for env in ({}, {'JSIMD_FORCENONE': '1'}, {'JSIMD_FORCESSE2': '1'}):
                run = self.capstan('run', '-o', 'json', spec, env=env)
                self.assertEqual(run.code, 0, run)
                of_size.add(json.loads(run.out.splitlines()[-1])['weights_sha256'])
            self.assertEqual(len(of_size), 1, size)
            hashes |= of_size
        self.assertEqual(len(hashes), 3)

    def test_what_is_wrong_is_named_before_anything_starts(self):
        self.images = {split: labelled[::2] for split, labelled in self.images.items()}
        folder = self.write_folder('folder', pictures.png, 'png')
        rec = self.write_rec('rec', pictures.png, False)

        def refused(message, classes=3, **data):
            spec = self.job(**data)
            spec['model']['num_classes'] = classes
            run = self.capstan('validate', self.write('job.yaml', json.dumps(spec)))
            self.assertNotEqual(run.code, 0, run)
            self.assertIn(message, run.err)

        run = self.capstan('validate', self.write('job.yaml', json.dumps(self.job(format='image_folder', uri=folder))))
        self.assertEqual(run.code, 0, run)
        self.assertIn('24 + 6 samples', run.out + run.err)
        self.assertIn('19276163 parameters', run.out + run.err)  # 128 for each of 3 x 224 x 224, and the rest
        refused(f'{folder}/train: holds 3 classes, but model.num_classes is 10', classes=10, format='image_folder', uri=folder)
        refused(f'{rec}/train.rec: record at offset ', classes=2, format='rec', uri=rec)
        refused("'data.shape' takes 1 or 3 channels for 'rec', found 2", format='rec', uri=rec, shape=[2, 4, 4])
        self.write('folder/train/ant/read.me', '')
        refused(f'{folder}/train/ant/read.me: want names that end in .jpg, .jpeg or .png', format='image_folder', uri=folder)

    def test_a_damaged_image_ends_the_job_by_its_name(self):
        self.images = {split: labelled[::2] for split, labelled in self.images.items()}
        folder = self.write_folder('folder', pictures.jpeg, 'jpg')
        path = self.path('folder', 'train', 'bee', '010.jpg')
        with open(path, 'rb') as f:
            whole = f.read()
        self.write(path, whole[:-40])
        run = self.capstan('run', self.write('job.yaml', json.dumps(self.job(format='image_folder', uri=folder, shape=[3, 8, 8]))))
        self.assertNotEqual(run.code, 0, run)
        self.assertIn('DataMissing', run.out + run.err)
        self.assertIn(f'{path}: JPEG: Premature end of JPEG file', run.out + run.err)


if __name__ == '__main__':
    support.main()
