#!/usr/bin/env python3
"""Logistic regression on a9a against PyTorch: the same samples in the same order, from weights of 0.

    CAPSTAN_BIN=build/release/bin python3 tests/bench/torch_a9a.py
    ... --page docs/benchmarks      also writes a9a-torch-<date>.md there

A line per check, PASS or FAIL, with the figure and what is allowed; exit code 1 where one fails. PyTorch is installed where it is
not there (torch_peer.py). A dense layer of 123 features and 2 classes with softmax is logistic regression: its probability of
class 1 is the sigmoid of the difference of the logits. Plain SGD, batch 128, 10 epochs, 2 workers and 1 shard (the weights are one chunk)
on Capstan's side, float64 on PyTorch's. The optimum, by L-BFGS in float64 without a regulariser, says how far both are from the end.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import torch_peer

import support  # of tests/e2e, which torch_peer adds to the path

FEATURES, BATCH, EPOCHS, RATE = 123, 128, 10, 0.1


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--page', metavar='FOLDER', help='also write the lines there, as a9a-torch-<date>.md')
    return parser.parse_args()


def read(torch, name):
    """(features, classes) of a LibSVM file whose labels are -1 and +1."""
    with open(os.path.join(support.LIBSVM, name), encoding='ascii') as f:
        rows = [line.split() for line in f]
    features = torch.zeros(len(rows), FEATURES, dtype=torch.float64)
    for i, row in enumerate(rows):
        for pair in row[1:]:
            index, value = pair.split(':')
            features[i, int(index) - 1] = float(value)
    return features, torch.tensor([int(row[0] == '+1') for row in rows])


def capstan(folder):
    """(losses by step, the job that -o json printed)."""
    spec = support.job_spec(
        name='a9a', resources={'num_workers': 2, 'num_shards': 1, 'device': 'cpu'},
        model={'num_classes': 2, 'initializer': 'zeros',
               'graph': {'nodes': [{'name': 'flatten', 'op': 'Flatten'}, {'name': 'fc', 'op': 'Gemm', 'attributes': {'out_features': 2}},
                                   {'name': 'loss', 'op': 'SoftmaxCrossEntropyLoss'}]}},
        data={'format': 'libsvm', 'uri': support.LIBSVM, 'train_file': 'a9a', 'test_file': 'a9a.t', 'shuffle': False},
        training={'epochs': EPOCHS, 'global_batch_size': BATCH, 'optimizer': {'name': 'sgd', 'learning_rate': RATE}})
    done = subprocess.run([support.CAPSTAN, 'run', '-q', '-o', 'json', '-'], input=json.dumps(spec), cwd=folder, timeout=600,
                          capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f'capstan run: exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}')
    job = json.loads(done.stdout.splitlines()[-1])
    log = os.path.join(os.path.dirname(job['checkpoint_uri'][len('file://'):]), 'metrics.jsonl')
    with open(log, encoding='ascii') as f:
        return [json.loads(line)['loss'] for line in f], job


def network(torch):
    net = torch.nn.Linear(FEATURES, 2, dtype=torch.float64)
    for value in net.parameters():
        torch.nn.init.zeros_(value)
    return net


def accuracy(net, features, classes):
    return (net(features).argmax(1) == classes).double().mean().item()


def pytorch(torch, train, test):
    """(losses by step, mean loss of the test set, accuracy there)."""
    cross_entropy = torch.nn.functional.cross_entropy
    net, losses = network(torch), []
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for begin in range(0, len(train[0]), BATCH):
            part = slice(begin, begin + BATCH)
            optimizer.zero_grad()
            loss = cross_entropy(net(train[0][part]), train[1][part])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, cross_entropy(net(test[0]), test[1]).item(), accuracy(net, *test)


def optimum(torch, train, test):
    """(mean loss of the training set, accuracy on the test set) of the best weights."""
    net = network(torch)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=500, line_search_fn='strong_wolfe')

    def loss():
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(net(train[0]), train[1])
        value.backward()
        return value

    optimizer.step(loss)
    return loss().item(), accuracy(net, *test)


def main():
    options = parse()
    torch_peer.restart_with_torch()
    import torch
    checks = torch_peer.Checks(torch)
    train, test = read(torch, 'a9a'), read(torch, 'a9a.t')
    with tempfile.TemporaryDirectory(prefix='capstan-a9a-') as folder:
        losses, job = capstan(folder)
    want, test_loss, test_accuracy = pytorch(torch, train, test)
    last = job['epochs'][-1]
    per_epoch = len(want) // EPOCHS
    means = [(sum(values[-per_epoch:]) / per_epoch) for values in (losses, want)]
    difference = torch_peer.largest_difference(losses, want)
    checks.check(len(losses) == len(want), f'{len(losses)} steps, {len(want)} in PyTorch')
    checks.check(difference <= 1e-5, f'losses of all steps differ by at most {difference:.1e} (1e-5); mean of the last epoch {means[0]:.6f}, '
          f'PyTorch {means[1]:.6f}')
    difference = abs(last['validation_loss'] - test_loss)
    checks.check(difference <= 1e-5, f'loss of the test set {last["validation_loss"]:.6f}, PyTorch {test_loss:.6f}, difference {difference:.1e} (1e-5)')
    count = len(test[1])
    ours, theirs = round(last['validation_accuracy'] * count), round(test_accuracy * count)
    checks.check(abs(ours - theirs) <= 1, f'correct of {count} test samples: {ours} ({last["validation_accuracy"]:.4f}), PyTorch {theirs} (1 sample)')
    best_loss, best_accuracy = optimum(torch, train, test)
    checks.say(f'      the optimum of the training set: mean loss {best_loss:.6f}, test accuracy {best_accuracy:.4f}')
    if options.page:
        checks.write_page(options.page, 'a9a', 'Logistic regression on a9a beside PyTorch')
    checks.end()


if __name__ == '__main__':
    main()
