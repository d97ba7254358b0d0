#!/usr/bin/python3
"""Writes golden_lenet_d2l.json: losses and norms of the first 20 steps of lenet_d2l in float64, by numpy.

    /usr/bin/python3 tests/e2e/golden_record.py            writes the record beside itself

Weights, samples and rates are those of golden_test.py. It first computes lenet in the same way, and stops if the result differs
by more than 1e-9 from the record that PyTorch made (support.GOLDEN). So another implementation checks this arithmetic.
"""

import gzip
import json
import os
import sys

import numpy as np

import golden_test
import support


def images_and_labels(count):
    def read(name, header):
        with gzip.open(os.path.join(support.FASHION_MNIST, f'train-{name}-ubyte.gz'), 'rb') as f:
            return np.frombuffer(f.read()[header:], dtype=np.uint8)

    images = read('images-idx3', 16)[:count * 784].reshape(count, 1, 28, 28)
    return (images.astype(np.float32) / np.float32(255)).astype(np.float64), read('labels-idx1', 8)[:count].astype(int)


class Conv:
    """Stride 1 without margins, as matrix products over windows."""

    def __init__(self, weight, bias):
        self.parameters = [weight, bias]

    def forward(self, x):
        weight, bias = self.parameters
        self.x_shape = x.shape
        self.windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], axis=(2, 3))  # n c p q r s
        return np.tensordot(self.windows, weight, axes=((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2) + bias[:, None, None]

    def backward(self, dy):
        weight = self.parameters[0]
        self.gradients = [np.tensordot(dy, self.windows, axes=((0, 2, 3), (0, 2, 3))), dy.sum(axis=(0, 2, 3))]
        dx = np.zeros(self.x_shape)
        rows, columns = dy.shape[2:]
        for r in range(weight.shape[2]):
            for s in range(weight.shape[3]):
                dx[:, :, r:r + rows, s:s + columns] += np.tensordot(dy, weight[:, :, r, s], axes=((1,), (0,))).transpose(0, 3, 1, 2)
        return dx


class Dense:

    def __init__(self, weight, bias):
        self.parameters = [weight, bias]

    def forward(self, x):
        self.x = x.reshape(len(x), -1)
        self.x_shape = x.shape
        return self.x @ self.parameters[0].T + self.parameters[1]

    def backward(self, dy):
        self.gradients = [dy.T @ self.x, dy.sum(axis=0)]
        return (dy @ self.parameters[0]).reshape(self.x_shape)


class Relu:
    parameters = []

    def forward(self, x):
        self.open = x > 0
        return np.where(self.open, x, 0)

    def backward(self, dy):
        return np.where(self.open, dy, 0)


class Pool:
    """2 x 2 with stride 2. Of equal values the first is the largest. Extra rows and columns are dropped."""
    parameters = []

    def __init__(self, largest):
        self.largest = largest

    def forward(self, x):
        self.x_shape = x.shape
        n, c, h, w = x.shape
        squares = x[:, :, :h // 2 * 2, :w // 2 * 2].reshape(n, c, h // 2, 2, w // 2, 2).transpose(0, 1, 2, 4, 3, 5)
        squares = squares.reshape(n, c, h // 2, w // 2, 4)
        if not self.largest:
            self.shares = np.full(squares.shape, 0.25)
            return squares.mean(axis=-1)
        self.shares = np.eye(4)[squares.argmax(axis=-1)]
        return squares.max(axis=-1)

    def backward(self, dy):
        n, c, h, w = dy.shape
        dx = np.zeros(self.x_shape)
        squares = (dy[..., None] * self.shares).reshape(n, c, h, w, 2, 2).transpose(0, 1, 2, 4, 3, 5)
        dx[:, :, :2 * h, :2 * w] = squares.reshape(n, c, 2 * h, 2 * w)
        return dx


def layers_of(model):
    tensors = [np.frombuffer(data, dtype='<f4').reshape(shape).astype(np.float64) for _, shape, data in golden_test.golden_weights(model)]
    pairs = list(zip(tensors[::2], tensors[1::2]))
    layers = []
    for weight, bias in pairs[:2]:
        layers += [Conv(weight, bias), Relu(), Pool(largest=model == 'lenet')]
    for weight, bias in pairs[2:]:
        layers += [Dense(weight, bias), Relu()]
    return layers[:-1]


def record(model):
    images, labels = images_and_labels(golden_test.STEPS * golden_test.BATCH)
    layers = layers_of(model)
    before = [value for layer in layers for value in layer.parameters]
    losses = []
    for step in range(golden_test.STEPS):
        part = slice(step * golden_test.BATCH, (step + 1) * golden_test.BATCH)
        y = images[part]
        for layer in layers:
            y = layer.forward(y)
        y = y - y.max(axis=1, keepdims=True)
        logs = y - np.log(np.exp(y).sum(axis=1, keepdims=True))
        losses.append(-logs[np.arange(len(y)), labels[part]].mean())
        dy = (np.exp(logs) - np.eye(10)[labels[part]]) / len(y)
        for layer in reversed(layers):
            dy = layer.backward(dy)
        for layer in layers:
            if layer.parameters:
                layer.parameters = [value - golden_test.RATES[model] * gradient for value, gradient in zip(layer.parameters, layer.gradients)]
    first = np.frombuffer(golden_test.golden_weights(model)[0][2], dtype='<f4')[:4]
    after = [value for layer in layers for value in layer.parameters]
    return {'model': model, 'steps': golden_test.STEPS, 'lr': golden_test.RATES[model], 'batch': golden_test.BATCH,
            'made_by': f'tests/e2e/golden_record.py, numpy {np.__version__}, float64',
            'loss_float64': losses, 'first_weights': [float(value) for value in first],
            'param_norms_after_float64': [float(np.linalg.norm(value)) for value in after],
            'param_change_norms_float64': [float(np.linalg.norm(a - b)) for a, b in zip(after, before, strict=True)]}


def main():
    ours = record('lenet')
    with open(support.GOLDEN) as f:
        theirs = json.load(f)
    for key in ('loss_float64', 'param_norms_after_float64'):
        worst = max(abs(a - b) for a, b in zip(ours[key], theirs[key], strict=True))
        print(f'lenet, {key}: numpy and PyTorch differ by at most {worst:.1e} (1e-9)')
        if not worst <= 1e-9:
            sys.exit('so no record is written')
    path = golden_test.RECORDS['lenet_d2l']
    with open(path, 'w') as f:
        json.dump(record('lenet_d2l'), f, indent=1)
        f.write('\n')
    print(f'written: {path}')


if __name__ == '__main__':
    main()
