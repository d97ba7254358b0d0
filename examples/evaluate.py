"""The accuracy of a trained `lenet` on the test images of Fashion-MNIST or MNIST, computed by numpy alone.

    capstan checkpoint export JOB@best --out best.safetensors
    python3 evaluate.py best.safetensors data/fashion-mnist
"""

import gzip
import json
import os
import struct
import sys

import numpy as np

BATCH = 500  # images at a time


def read_weights(path):
    """Name -> array, of a safetensors file: a length, a header in JSON, the bytes of the tensors."""
    with open(path, 'rb') as f:
        size, = struct.unpack('<Q', f.read(8))
        header = json.loads(f.read(size))
        data = f.read()
    header.pop('__metadata__', None)
    return {name: np.frombuffer(data[slice(*entry['data_offsets'])], '<f4').reshape(entry['shape'])
            for name, entry in header.items()}


def read_idx(folder, name):
    """The bytes of one of the four files, plain or .gz, in the shape that it says."""
    path = os.path.join(folder, name)
    with open(path, 'rb') if os.path.exists(path) else gzip.open(path + '.gz') as f:
        rank = struct.unpack('>HBB', f.read(4))[2]
        shape = struct.unpack(f'>{rank}I', f.read(4 * rank))
        return np.frombuffer(f.read(), np.uint8).reshape(shape)


def conv(x, weight, bias):
    """x [images, in, rows, columns], weight [out, in, rows, columns]; no padding."""
    windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], axis=(2, 3))
    return np.tensordot(windows, weight, axes=((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2) + bias[:, None, None]


def max_pool(x):
    images, channels, rows, columns = x.shape
    x = x[:, :, :rows // 2 * 2, :columns // 2 * 2]
    return x.reshape(images, channels, rows // 2, 2, columns // 2, 2).max((3, 5))


def relu(x):
    return np.maximum(x, 0)


def lenet(w, x):
    """The score of each class, of images [images, 1, 28, 28] in [0, 1]."""
    for layer in ('conv1', 'conv2'):
        x = max_pool(relu(conv(x, w[layer + '.weight'], w[layer + '.bias'])))
    x = x.reshape(len(x), -1)
    for layer in ('fc1', 'fc2'):
        x = relu(x @ w[layer + '.weight'].T + w[layer + '.bias'])
    return x @ w['fc3.weight'].T + w['fc3.bias']


def main(weights, folder):
    w = read_weights(weights)
    images = read_idx(folder, 't10k-images-idx3-ubyte')[:, None]
    labels = read_idx(folder, 't10k-labels-idx1-ubyte')
    right = 0
    for i in range(0, len(images), BATCH):
        x = images[i:i + BATCH].astype(np.float32) / np.float32(255)
        right += int((lenet(w, x).argmax(1) == labels[i:i + BATCH]).sum())
    print(f'accuracy {right / len(images):.4f}: {right} of {len(images)}')


if __name__ == '__main__':
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
