#!/usr/bin/env python3
"""Seconds of a push and pull with MXNet's KVStore `dist_sync`, by size: scheduler, servers and workers on this machine.

One key of float32 per size; the servers sum the workers' gradients and update with SGD and momentum, as `capstan bench kvstore` does.
Each worker pushes a gradient and pulls the weights until they are there, and computes nothing. The figures are means over the steps of
the first worker, after a third as many to warm up. Prints a JSON object: size in bytes -> {"seconds": of a step, "cpu_seconds": of all processes per step}.
"""
import argparse
import json
import os
import socket
import subprocess
import sys
import time


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--workers', type=int, default=1)
    parser.add_argument('--servers', type=int, default=1)
    parser.add_argument('--sizes', default='4096', help='bytes, separated by commas')
    return parser.parse_args()


def worker(options):
    import mxnet as mx
    store = mx.kv.create('dist_sync')
    store.set_optimizer(mx.optimizer.SGD(learning_rate=1e-6, momentum=0.9))
    for key, size in enumerate(map(int, options.sizes.split(','))):
        gradient = mx.nd.ones(size // 4) * 1e-3
        weights = mx.nd.zeros(size // 4)
        store.init(key, weights)

        def step():
            store.push(key, gradient)
            store.pull(key, out=weights)
            weights.wait_to_read()

        def steps(number):
            for _ in range(number):
                step()

        count = step_count(size)
        steps(count // 3)
        store._barrier()
        say('begin', size)
        began = time.monotonic()
        steps(count)
        say('end', size, (time.monotonic() - began) / count, count)
        store._barrier()


def step_count(size):
    """Known without a measurement, because all workers must make the same number of steps: a second or more of each size."""
    return max(30, min(3000, 3 * 10**8 // size))


def say(*words):
    print(*words, flush=True)


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


def cpu_seconds(processes):
    total = 0
    for process in processes:
        try:
            with open(f'/proc/{process.pid}/stat') as f:
                fields = f.read().rsplit(')', 1)[1].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')
    return total


def launched(script, workers, servers):
    """Runs `script` with the arguments of this process as workers of a cluster here. Yields (words, all processes) for each line of the first one."""
    # With one OpenMP thread in each process, 2 x 2 is faster on two cores than with the default.
    common = dict(os.environ, DMLC_PS_ROOT_URI='127.0.0.1', DMLC_PS_ROOT_PORT=str(free_port()), DMLC_NUM_SERVER=str(servers),
                  DMLC_NUM_WORKER=str(workers), DMLC_NODE_HOST='127.0.0.1', OMP_NUM_THREADS='1')

    def start(role, **how):
        # A scheduler or server begins to serve when MXNet is imported, and never comes back.
        command = [sys.executable, script, *sys.argv[1:]] if role == 'worker' else [sys.executable, '-c', 'import mxnet']
        return subprocess.Popen(command, env=dict(common, DMLC_ROLE=role), **how)

    others = [start('scheduler')] + [start('server') for _ in range(servers)]
    first = start('worker', stdout=subprocess.PIPE, text=True)
    others += [start('worker', stdout=subprocess.DEVNULL) for _ in range(workers - 1)]
    try:
        for line in first.stdout:
            yield line.split(), [first, *others]
        if first.wait(60):
            sys.exit(f'the worker ended with {first.returncode}')
    finally:
        for process in [first, *others]:
            process.kill()


def main():
    options = parse()
    if os.environ.get('DMLC_ROLE') == 'worker':
        return worker(options)
    result = {}
    for words, processes in launched(__file__, options.workers, options.servers):
        if words[:1] == ['begin']:
            before = cpu_seconds(processes)
        elif words[:1] == ['end']:
            cpu = cpu_seconds(processes) - before
            result[words[1]] = {'seconds': float(words[2]), 'cpu_seconds': cpu / int(words[3])}
    print(json.dumps(result))


if __name__ == '__main__':
    main()
