"""CIFAR-10 from the shared data, unpacked, because reading a packed file takes a second or two each time."""

import gzip
import lzma
import os

import support

FOLDER = os.environ.get('CAPSTAN_CIFAR10') or os.path.join(support.SHARED, 'cifar10')
RECORD = 1 + 3 * 32 * 32  # of the binary version: the label, then the planes
# Mean and deviation of the training images, by channel.
NORMALIZE = {'normalize': {'mean': [0.4914, 0.4822, 0.4465], 'std': [0.247, 0.2435, 0.2616]}}
AUGMENTATION = [{'random_crop': {'padding': 4}}, {'random_flip': {}}, NORMALIZE]


def read(name):
    """The bytes of a batch: 'data_batch_1' or 'test_batch'."""
    path = os.path.join(FOLDER, name + '.bin')
    for ending, opener in (('', open), ('.xz', lzma.open), ('.gz', gzip.open)):
        if os.path.exists(path + ending):
            with opener(path + ending, 'rb') as f:
                return f.read()
    raise FileNotFoundError(f'{path}: neither it nor its .xz or .gz is there; CAPSTAN_CIFAR10 names another folder')


def write_small(folder, tests=None):
    """Writes the first training batch (10 000 images) and the first `tests` test samples (None: all). Returns the folder."""
    os.makedirs(folder, exist_ok=True)
    for name, count in (('data_batch_1', None), ('test_batch', tests)):
        with open(os.path.join(folder, name + '.bin'), 'wb') as f:
            f.write(read(name)[:count and count * RECORD])
    return folder
