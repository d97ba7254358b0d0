#!/usr/bin/env python3
"""Samples per second of the same training steps in MXNet's Gluon: as torch_steps.py, hybridized with static memory.

MXNet keeps images contiguous; with oneDNN it chooses the layouts inside by itself, so there is one variant. Its last version,
1.9.1, wants numpy below 1.24; with that it starts on Python 3.11.
"""
import argparse
import json
import os
import statistics
import sys
import time


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lenet", choices=["lenet", "lenet_d2l", "resnet18_v1"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--runs", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--json", help="also write the result to this file")
    return parser.parse_args()


def build(nn, name):
    net = nn.HybridSequential()
    if name == "lenet":
        net.add(nn.Conv2D(6, 5, activation="relu"), nn.MaxPool2D(2), nn.Conv2D(16, 3, activation="relu"), nn.MaxPool2D(2), nn.Flatten(),
                nn.Dense(120, activation="relu"), nn.Dense(84, activation="relu"), nn.Dense(10))
    elif name == "lenet_d2l":
        net.add(nn.Conv2D(20, 3, activation="relu"), nn.AvgPool2D(2), nn.Conv2D(50, 5, activation="relu"), nn.AvgPool2D(2), nn.Flatten(),
                nn.Dense(128, activation="relu"), nn.Dense(10))
    else:
        resnet18(nn, net)
    return net


def resnet18(nn, net):
    """Not Gluon's own, whose stem for small images has no normalisation and whose blocks have biases."""

    class Block(nn.HybridBlock):

        def __init__(self, width, stride, reshapes):
            super().__init__()
            with self.name_scope():
                self.body = nn.HybridSequential()
                self.body.add(nn.Conv2D(width, 3, stride, 1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"),
                              nn.Conv2D(width, 3, 1, 1, use_bias=False), nn.BatchNorm())
                self.shortcut = nn.HybridSequential()
                if reshapes:
                    self.shortcut.add(nn.Conv2D(width, 1, stride, use_bias=False), nn.BatchNorm())

        def hybrid_forward(self, F, x):
            return F.Activation(self.body(x) + self.shortcut(x), act_type="relu")

    net.add(nn.Conv2D(64, 3, 1, 1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
    for stage, width in enumerate((64, 128, 256, 512)):
        net.add(Block(width, 2 if stage else 1, stage > 0), Block(width, 1, False))
    net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(10))


def main():
    options = parse()
    if os.environ.get("OMP_NUM_THREADS") != str(options.threads):
        os.environ["OMP_NUM_THREADS"] = str(options.threads)  # read at start
        os.execv(sys.executable, [sys.executable] + sys.argv)
    import mxnet as mx
    from mxnet.gluon import nn

    mx.random.seed(0)
    net = build(nn, options.model)
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True, static_shape=True)
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    loss_of.hybridize(static_alloc=True, static_shape=True)
    shape = (3, 32, 32) if options.model.startswith("resnet") else (1, 28, 28)
    images = mx.nd.random.uniform(-1, 1, shape=(options.batch, *shape))
    labels = mx.nd.random.randint(0, 10, shape=(options.batch,)).astype("float32")
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01}, kvstore=None)

    def step():
        with mx.autograd.record():
            loss = loss_of(net(images), labels)
        loss.backward()
        trainer.step(options.batch)
        value = loss.mean().asscalar()
        mx.nd.waitall()
        return value

    for _ in range(3):
        step()
    start = time.perf_counter()
    step()
    count = max(1, int(options.seconds / (time.perf_counter() - start)))
    rates = []
    for _ in range(options.runs):
        start = time.perf_counter()
        for _ in range(count):
            step()
        rates.append(count * options.batch / (time.perf_counter() - start))
    result = {"system": f"MXNet {mx.__version__}", "model": options.model, "threads": options.threads, "batch": options.batch,
              "dtype": "float32", "samples_per_second": statistics.median(rates), "runs": rates,
              "medians": {"hybridized": statistics.median(rates)}}
    print(f"{result['system']:42} {options.model:11} {options.threads} threads  batch {options.batch}  "
          f"{result['samples_per_second']:9.0f} samples/s", flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump([result], file, indent=1)


if __name__ == "__main__":
    main()
