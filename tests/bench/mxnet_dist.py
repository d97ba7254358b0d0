#!/usr/bin/env python3
"""Samples per second of Gluon's training with a KVStore `dist_sync` on this machine: scheduler, servers and workers.

Each worker has its part of the global batch in memory and makes the steps of mxnet_steps.py, with a Trainer whose optimizer runs at the servers.
Prints a JSON object with the samples per second of all workers together, from the steps of the first worker after a third as many to warm up.
"""
import argparse
import json
import os
import time

import mxnet_kvstore
import mxnet_steps


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--model', default='lenet', choices=['lenet', 'lenet_d2l'])
    parser.add_argument('--workers', type=int, default=2)
    parser.add_argument('--servers', type=int, default=2)
    parser.add_argument('--batch', type=int, default=256, help='of all workers together')
    parser.add_argument('--steps', type=int, default=300, help='that are measured; the same on all workers')
    return parser.parse_args()


def worker(options):
    import mxnet as mx
    from mxnet.gluon import nn

    mx.random.seed(0)
    net = mxnet_steps.build(nn, options.model)
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True, static_shape=True)
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    loss_of.hybridize(static_alloc=True, static_shape=True)
    mine = options.batch // options.workers
    images = mx.nd.random.uniform(-1, 1, shape=(mine, 1, 28, 28))
    labels = mx.nd.random.randint(0, 10, shape=(mine,)).astype('float32')
    trainer = mx.gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.01}, kvstore='dist_sync', update_on_kvstore=True)

    def steps(count):
        for _ in range(count):
            with mx.autograd.record():
                loss = loss_of(net(images), labels)
            loss.backward()
            trainer.step(options.batch)
            loss.mean().asscalar()
            mx.nd.waitall()

    steps(options.steps // 3)
    began = time.monotonic()
    steps(options.steps)
    mxnet_kvstore.say('rate', options.steps * options.batch / (time.monotonic() - began))


def main():
    options = parse()
    if os.environ.get('DMLC_ROLE') == 'worker':
        return worker(options)
    rates = [float(words[1]) for words, _ in mxnet_kvstore.launched(__file__, options.workers, options.servers) if words[:1] == ['rate']]
    print(json.dumps({'samples_per_second': rates[0]}))


if __name__ == '__main__':
    main()
