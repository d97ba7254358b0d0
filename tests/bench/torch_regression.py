#!/usr/bin/env python3
"""The loss mean_squared_error against PyTorch's MSELoss: the same samples in the same order, from the same weights.

    CAPSTAN_BIN=build/release/bin python3 tests/bench/torch_regression.py
    ... --page docs/benchmarks      also writes regression-torch-<date>.md there

A line per check, PASS or FAIL, with the figure and what is allowed; exit code 1 where one fails. PyTorch is installed where it is
not there (torch_peer.py). Two networks, a linear one and one with a hidden layer, predict 3 numbers from 13 features: 50 steps of plain SGD
with batches of 30, in 4 lanes of 8 and 7 samples, by 2 workers and 1 shard on Capstan's side, in float64 on PyTorch's. The last
batch of each epoch has 10 samples. Then the loss of the test set, and what `capstan predict` says of it.
"""

import argparse
import io
import json
import os
import struct
import subprocess
import tempfile
import zipfile
from collections import OrderedDict

import torch_peer

import support  # of tests/e2e, which torch_peer adds to the path

FEATURES, HIDDEN, OUTPUTS = 13, 24, 3
TRAIN, TEST, BATCH, STEPS, RATE = 250, 60, 30, 50, 0.05
ALLOWED = 1e-5


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--page', metavar='FOLDER', help='also write the lines there, as regression-torch-<date>.md')
    return parser.parse_args()


def draw(torch):
    """((features, targets) to train on, those of the test set), in float32."""
    torch.manual_seed(5)
    x = torch.randn(TRAIN + TEST, FEATURES)
    y = torch.sin(x @ torch.randn(FEATURES, OUTPUTS)) + x @ torch.randn(FEATURES, OUTPUTS) / 4 + 0.1 * torch.randn(TRAIN + TEST, OUTPUTS)
    return (x[:TRAIN], y[:TRAIN]), (x[TRAIN:], y[TRAIN:])


def write_npz(path, train, test):
    with zipfile.ZipFile(path, 'w') as archive:
        for split, arrays in (('train', train), ('test', test)):
            for name, array in zip('xy', arrays):
                header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {tuple(array.shape)}, }}\n".encode()
                file = io.BytesIO()
                file.write(b'\x93NUMPY\x01\x00' + struct.pack('<H', len(header)) + header + array.contiguous().numpy().tobytes())
                archive.writestr(f'{name}_{split}.npy', file.getvalue())


def network(torch, hidden):
    linear = torch.nn.Linear
    torch.manual_seed(7)
    if not hidden:
        return torch.nn.Sequential(OrderedDict(fc1=linear(FEATURES, OUTPUTS)))
    return torch.nn.Sequential(OrderedDict(fc1=linear(FEATURES, HIDDEN), relu1=torch.nn.ReLU(), fc2=linear(HIDDEN, OUTPUTS)))


def run(folder, *words, stdin=None):
    done = subprocess.run([support.CAPSTAN, *words], input=stdin, cwd=folder, timeout=600, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f'capstan {words[0]}: exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}')
    return done.stdout


def capstan(folder, hidden):
    """(losses by step, loss of the test set, that of `predict`) from first.safetensors."""
    layers = ['flatten', {'gemm': {'out_features': HIDDEN}}, 'relu', 'gemm'] if hidden else ['flatten', 'gemm']
    spec = support.job_spec(
        name='regression', resources={'num_workers': 2, 'num_shards': 1, 'lanes': 4, 'device': 'cpu'},
        model={'num_outputs': OUTPUTS, 'layers': layers, 'initial_weights': os.path.join(folder, 'first.safetensors')},
        data={'format': 'npz', 'uri': os.path.join(folder, 'set.npz'), 'shuffle': False},
        training={'max_steps': STEPS, 'global_batch_size': BATCH, 'loss': 'mean_squared_error', 'optimizer': {'name': 'sgd', 'learning_rate': RATE}})
    job = json.loads(run(folder, 'run', '-q', '-o', 'json', '-', stdin=json.dumps(spec)).splitlines()[-1])
    log = os.path.join(os.path.dirname(job['checkpoint_uri'][len('file://'):]), 'metrics.jsonl')
    with open(log, encoding='ascii') as f:
        losses = [json.loads(line)['loss'] for line in f]
    return losses, job['epochs'][-1]['validation_loss'], json.loads(run(folder, 'predict', '@last', '-o', 'json'))['loss']


def pytorch(torch, net, train, test):
    """(losses by step, loss of the test set)."""
    criterion, losses = torch.nn.MSELoss(reduction='mean'), []
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    per_epoch = -(-TRAIN // BATCH)
    for step in range(STEPS):
        begin = step % per_epoch * BATCH
        part = slice(begin, begin + BATCH)
        optimizer.zero_grad()
        loss = criterion(net(train[0][part]), train[1][part])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, criterion(net(test[0]), test[1]).item()


def main():
    options = parse()
    torch_peer.restart_with_torch()
    import torch
    checks = torch_peer.Checks(torch)
    train, test = draw(torch)
    for hidden in (False, True):
        name = f'{FEATURES} to {HIDDEN} to {OUTPUTS}' if hidden else f'{FEATURES} to {OUTPUTS}'
        net = network(torch, hidden)
        with tempfile.TemporaryDirectory(prefix='capstan-regression-') as folder:
            write_npz(os.path.join(folder, 'set.npz'), train, test)
            torch_peer.save(net, os.path.join(folder, 'first.safetensors'))
            losses, evaluated, predicted = capstan(folder, hidden)
        want, want_test = pytorch(torch, net.double(), *[tuple(array.double() for array in part) for part in (train, test)])
        difference = torch_peer.largest_difference(losses, want)
        checks.check(difference <= ALLOWED, f'{name}: the first {STEPS} losses, {want[0]:.6f} to {want[-1]:.6f}, differ by at most {difference:.1e} ({ALLOWED})')
        difference = abs(evaluated - want_test)
        checks.check(difference <= ALLOWED, f'{name}: loss of the test set {evaluated:.6f}, PyTorch {want_test:.6f}, difference {difference:.1e} ({ALLOWED})')
        difference = abs(predicted - evaluated)
        checks.check(difference <= 1e-12, f'{name}: `capstan predict` says {predicted:.6f}, difference from the evaluation {difference:.1e} (1e-12)')
    if options.page:
        checks.write_page(options.page, 'regression', 'Mean squared error beside PyTorch')
    checks.end()


if __name__ == '__main__':
    main()
