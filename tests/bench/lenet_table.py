#!/usr/bin/env python3
"""Samples per second of both LeNets, batch 256: bare engine, PyTorch, and the same training through the services.

    cmake --preset bench && cmake --build --preset bench && python3 tests/bench/lenet_table.py

Every round runs each configuration once, one after the other, so that a change of the machine's speed meets all of them; the
table has medians over the rounds with the lowest and highest, and ratios within a round. Inside the clock: for the engine and
PyTorch a training step on one batch that stays in memory; through the services whole epochs as the lead measures them (first
step's start to last step's decision: reading, computing, exchange, update), the first epoch and evaluation left out.
MXNet 1.9.1 from PyPI with `dist_sync` trains on one batch that stays in memory (mxnet_dist.py).
Writes docs/benchmarks/lenet-<date>.{json,md}. PyTorch is that of engine_table.py, eager and compiled, contiguous and channels_last, the best
of which counts; torch_peer.py installs it where it is not there. --torch-python takes another one (torch_steps.py says which packages).
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile

import engine_table
import torch_peer
import torch_steps

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SERVICES = {
    'local, 1 device': ({'num_workers': 1, 'gpus_per_worker': 1}, 'local'),
    'local, 2 devices': ({'num_workers': 1, 'gpus_per_worker': 2}, 'local'),
    'dist_sync, 1 worker x 1 shard': ({'num_workers': 1, 'num_shards': 1}, 'dist_sync'),
    'dist_sync, 2 workers x 2 shards': ({'num_workers': 2, 'num_shards': 2}, 'dist_sync'),
}
MXNET = 'MXNet dist_sync, 2 workers x 2 servers'
GOALS = {'lenet': 9, 'lenet_d2l': 4.5}  # times MXNet's samples per second


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--bin', default=os.path.join(ROOT, 'build/bench/bin'))
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--models', default='lenet,lenet_d2l')
    parser.add_argument('--torch-python', help='a Python that imports torch; default: that of torch_peer.py')
    parser.add_argument('--out', default=os.path.join(ROOT, 'docs/benchmarks'))
    return parser.parse_args()


def engine(options, model, threads):
    with tempfile.NamedTemporaryFile(suffix='.json') as f:
        subprocess.run([os.path.join(options.bin, 'capstan_bench_engine'), '--model', model, '--threads', str(threads), '--batch',
                        '256', '--runs', '5', '--seconds', '0.4', '--json', f.name], check=True, stdout=subprocess.DEVNULL)
        return rate(json.load(open(f.name)))


def torch(options, model, threads):
    with tempfile.NamedTemporaryFile(suffix='.json') as f:
        done = subprocess.run([options.torch_python, os.path.join(ROOT, 'tests/bench/torch_steps.py'), '--model', model, '--threads',
                               str(threads), '--variants', ','.join(torch_steps.VARIANTS), '--runs', '5', '--seconds', '0.4',
                               '--json', f.name],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        return rate(json.load(open(f.name)))


def rate(result):
    """The median samples per second of a measurement of one configuration."""
    return float(result[0]['samples_per_second'])


def services(options, model, resources, kvstore):
    folder = tempfile.mkdtemp(prefix='capstan-bench-')
    try:
        spec = {'version': 1, 'name': 'bench', 'resources': resources, 'model': {'name': model}, 'kvstore': {'type': kvstore},
                'data': {'format': 'synthetic_digits', 'train_samples': 25600 if model == 'lenet_d2l' else 102400, 'test_samples': 10},
                'training': {'epochs': 6, 'global_batch_size': 256, 'optimizer': {'name': 'sgd', 'learning_rate': 0.01}}}
        done = subprocess.run([os.path.join(options.bin, 'capstan'), 'run', '-q', '-o', 'json', '-'], input=json.dumps(spec),
                              cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        job = json.loads(done.stdout.splitlines()[-1])
        return statistics.median(epoch['samples_per_second'] for epoch in job['epochs'][1:])
    finally:
        shutil.rmtree(folder)


def mxnet(options, model):
    done = subprocess.run([options.mxnet_python, os.path.join(ROOT, 'tests/bench/mxnet_dist.py'), '--model', model],
                          capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])['samples_per_second']


def measure(options, model):
    """Configuration -> samples/s of each round."""
    rows = {}

    def add(name, call):
        rows.setdefault(name, []).append(call())

    for number in range(options.rounds):
        for threads in (1, 2):
            add(f'bare engine, {threads} thread{"s" if threads > 1 else ""}', lambda t=threads: engine(options, model, t))
            add(f'PyTorch, {threads} thread{"s" if threads > 1 else ""}', lambda t=threads: torch(options, model, t))
        for name, (resources, kvstore) in SERVICES.items():
            add(name, lambda r=resources, k=kvstore: services(options, model, r, k))
        if options.mxnet_python:
            add(MXNET, lambda: mxnet(options, model))
        print(f'{model}: round {number + 1} of {options.rounds}', file=sys.stderr)
    return rows


def table(model, rows):
    base = rows['bare engine, 2 threads']
    lines = [f'### {model}, batch 256', '', '| configuration | samples/s (median) | lowest to highest | of the bare engine, 2 threads |',
             '| --- | --- | --- | --- |']
    for name, values in rows.items():
        ratio = statistics.median(value / other for value, other in zip(values, base))
        lines.append(f'| {name} | {statistics.median(values):,.0f} | {min(values):,.0f} to {max(values):,.0f} | {ratio:.2f} |')
    lines.append('')
    for threads in ('1 thread', '2 threads'):
        ratio = statistics.median(a / b for a, b in zip(rows[f'bare engine, {threads}'], rows[f'PyTorch, {threads}']))
        lines.append(f'Bare engine over PyTorch, {threads}: {ratio:.2f}.')
    ratio = statistics.median(a / b for a, b in zip(base, rows['bare engine, 1 thread']))
    lines.append(f'Two threads over one: {ratio:.2f}.')
    if MXNET in rows:
        ratio = statistics.median(a / b for a, b in zip(rows['dist_sync, 2 workers x 2 shards'], rows[MXNET]))
        lines.append(f"`dist_sync`, 2 x 2, over MXNet's: {ratio:.2f} (goal {GOALS[model]}).")
    return lines + ['']


def cpu_name():
    with open('/proc/cpuinfo') as f:
        return next((line.split(':')[1].strip() for line in f if line.startswith('model name')), platform.processor())


def write_page(folder, name, result, lines):
    """Writes the raw numbers and the page made from them."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    with open(path + '.json', 'w') as f:
        json.dump(result, f, indent=1)
        f.write('\n')
    with open(path + '.md', 'w') as f:
        f.write('\n'.join(lines).rstrip() + '\n')
    print('\n'.join(lines))


def main():
    options = parse()
    options.torch_python = options.torch_python or torch_peer.python()
    options.mxnet_python, why_not = engine_table.mxnet()
    if why_not:
        print(f'MXNet does not start here: {why_not}', file=sys.stderr)
    torch_version = subprocess.run([options.torch_python, '-c', 'import torch; print(torch.__version__)'], capture_output=True,
                                   text=True).stdout.strip()
    version = subprocess.run([os.path.join(options.bin, 'capstan'), 'version', '-o', 'json'], capture_output=True,
                             text=True).stdout
    result = {'date': datetime.date.today().isoformat(), 'cpu': cpu_name(), 'cores': os.cpu_count(), 'capstan': json.loads(version),
              'torch': torch_version, 'rounds': options.rounds, 'load_before': os.getloadavg()[0], 'rows': {}}
    lines = [f'# LeNet on the CPU, {result["date"]}', '',
             f'{result["cpu"]}, {result["cores"]} cores; Capstan {result["capstan"]["version"]} ({result["capstan"]["revision"]}), '
             f'{result["capstan"]["compiler"]}; PyTorch {torch_version}; {options.rounds} rounds; load before {result["load_before"]:.1f}.',
             '', 'Made by `tests/bench/lenet_table.py`, which says what is inside the clock.', '']
    for model in options.models.split(','):
        rows = measure(options, model)
        result['rows'][model] = rows
        lines += table(model, rows)
    write_page(options.out, f'lenet-{result["date"]}', result, lines)


if __name__ == '__main__':
    main()
