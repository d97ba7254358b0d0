#!/usr/bin/env python3
"""Samples per second of training steps on the CPU: Capstan's bare engine, PyTorch 2 at its best, MXNet. Memory of ResNet-18.

    cmake --preset bench && cmake --build --preset bench && python3 tests/bench/engine_table.py

First the losses of the first steps are compared, Capstan (`capstan run`, the same engine) with PyTorch in float64 from the same
weights and samples; where they differ there is no table. Then every round runs each configuration once, one after the other; the table
has medians over the rounds, and ratios within a round. PyTorch runs eager and compiled, contiguous and channels_last, with
fused SGD; the table has all four, and the ratio is to the best of a round, of PyTorch and MXNet alike. Capstan computes the lanes
that a job would have by default, 8 for the LeNets; a row has one lane. Inside the clock: a step on one batch that stays in memory,
forward, loss, backward, SGD; the loss is read. Memory is VmHWM of a process that trains some steps, also less what it was
before the model (PyTorch's libraries); of Capstan also over what the plan says that it takes. Writes docs/benchmarks/engine-<date>.{json,md}.

CAPSTAN_BIN names other programs. PyTorch and MXNet are installed where they are not there, each in a virtual environment (torch_peer.py).
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
os.environ.setdefault('CAPSTAN_BIN', os.path.join(ROOT, 'build/bench/bin'))
import lenet_table  # noqa: E402
import torch_peer  # noqa: E402
import torch_steps  # noqa: E402

BATCHES = {'lenet': 256, 'lenet_d2l': 256, 'resnet18_v1': 64}
MEMORY = ('resnet18_v1', 128)
# Steps, rate and allowed difference of the losses. ResNet's first steps multiply rounding errors, so its rate is small.
LOSSES = {'lenet': (6, 0.01, 1e-5), 'lenet_d2l': (6, 0.01, 1e-5), 'resnet18_v1': (6, 0.0002, 1e-3)}
MXNET = ('mxnet==1.9.1', 'numpy==1.23.5')


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--seconds', type=float, default=1.0, help='of a run, at least one step')
    parser.add_argument('--runs', type=int, default=5, help='in a round; the median counts')
    parser.add_argument('--models', default=','.join(BATCHES))
    parser.add_argument('--threads', default='1,2')
    parser.add_argument('--no-memory', action='store_true', help='leave out the memory of ResNet-18')
    parser.add_argument('--out', default=os.path.join(ROOT, 'docs/benchmarks'))
    return parser.parse_args()


def mxnet():
    """(Python, '') for MXNet, or (None, reason) if it is not available."""
    try:
        python = torch_peer.python('mxnet', MXNET)
    except (AssertionError, subprocess.SubprocessError) as error:
        return None, str(error).strip().splitlines()[-1]
    done = subprocess.run([python, '-c', 'import mxnet'], capture_output=True, text=True, timeout=300)
    return (None, done.stderr.strip().splitlines()[-1]) if done.returncode else (python, '')


def measure(command, model, batch, threads, runs, seconds):
    """The result for one configuration, which capstan_bench_engine, torch_steps.py and mxnet_steps.py write in the same form."""
    with tempfile.NamedTemporaryFile(suffix='.json') as f:
        done = subprocess.run([*command, '--model', model, '--threads', str(threads), '--batch', str(batch), '--runs', str(runs),
                               '--seconds', str(seconds), '--json', f.name], capture_output=True, text=True, timeout=3600)
        if done.returncode:
            raise RuntimeError(f'{" ".join(command)}: exit code {done.returncode}\n{done.stderr[-2000:]}')
        return json.load(open(f.name))[0]


def engine_command():
    return [os.path.join(torch_peer.support.BIN, 'capstan_bench_engine')]


def torch_command(variants):
    return [sys.executable, os.path.join(ROOT, 'tests/bench/torch_steps.py'), '--variants', ','.join(variants)]


ONE_LANE = 'Capstan, 1 lane'


def has_lanes(model):
    """Whether a job has more than one lane on a CPU, which is not so if an operator couples samples."""
    return not model.startswith('resnet')


def rounds(options, model, mxnet_python):
    """Threads -> configuration -> samples/s of each round."""
    all_rows = {threads: {} for threads in map(int, options.threads.split(','))}
    for number in range(options.rounds):
        for threads, rows in all_rows.items():
            def run(command):
                return measure(command, model, BATCHES[model], threads, options.runs, options.seconds)

            results = {'Capstan': run(engine_command())['samples_per_second']}
            if has_lanes(model):
                results[ONE_LANE] = run([*engine_command(), '--lanes', '1'])['samples_per_second']
            for variant, rate in run(torch_command(torch_steps.VARIANTS))['medians'].items():
                results[f'PyTorch, {variant}'] = rate
            if mxnet_python:
                results['MXNet'] = run([mxnet_python, os.path.join(ROOT, 'tests/bench/mxnet_steps.py')])['samples_per_second']
            for name, rate in results.items():
                rows.setdefault(name, []).append(rate)
            print(f'{model}, threads {threads}: round {number + 1} of {options.rounds}', file=sys.stderr)
    return all_rows


def over(ours, others):
    """The median over the rounds of our rate divided by the best of the others. Each is a list of rates by round."""
    return statistics.median(a / max(best) for a, best in zip(ours, zip(*others)))


def table(model, threads, rows):
    ours = rows['Capstan']
    peers = {name: values for name, values in rows.items() if not name.startswith('Capstan')}
    lines = [f'### {model}, batch {BATCHES[model]}, {threads} thread{"s" if threads > 1 else ""}', '',
             '| configuration | samples/s (median) | lowest to highest | Capstan over it |', '| --- | --- | --- | --- |']
    for name, values in rows.items():
        lines.append(f'| {name} | {statistics.median(values):,.0f} | {min(values):,.0f} to {max(values):,.0f} | {over(ours, [values]):.2f} |')
    best = max(peers, key=lambda name: statistics.median(peers[name]))
    torch = [values for name, values in peers.items() if name.startswith('PyTorch')]
    lines += ['', f'Capstan over the best peer of each round: {over(ours, peers.values()):.2f} (by medians {best}); '
              f'over the best of PyTorch: {over(ours, torch):.2f}.']
    if ONE_LANE in rows:
        lines.append(f'Lanes as by default cost {100 * (over(rows[ONE_LANE], [ours]) - 1):.1f} % of the time of one lane (allowed: 3 %).')
    return lines + ['']


def threads_table(model, all_rows):
    """Every system's rate with two threads divided by that with one."""
    if not {1, 2} <= set(all_rows):
        return []
    lines = [f'### {model}, 2 threads over 1', '', '| configuration | 2 threads over 1 |', '| --- | --- |']
    lines += [f'| {name} | {over(values, [all_rows[1][name]]):.2f} |' for name, values in all_rows[2].items()]
    return lines + ['']


def memory():
    """Peak memory in bytes of a process that trains some steps with one thread: [peak, before the model, planned].

    Planned, of Capstan, as in `capstan model describe --batch`: the plan, the weights and a gradient; and a batch.
    """
    model, batch = MEMORY

    def run(command):
        return measure(command, model, batch, threads=1, runs=1, seconds=0.001)

    ours = run(engine_command())
    rows = {'Capstan': [ours['peak_bytes'], 0, ours['planned_bytes'] + ours['held_bytes']]}
    for variant in torch_steps.VARIANTS:
        result = run(torch_command([variant]))
        rows[f'PyTorch, {variant}'] = [result['peak_bytes'], result['peak_bytes_before'], None]
    return rows


def memory_table(rows):
    lines = [f'### Peak memory, {MEMORY[0]}, batch {MEMORY[1]}, 1 thread', '',
             '| configuration | VmHWM, MiB | less what it was before the model, MiB |', '| --- | --- | --- |']
    lines += [f'| {name} | {peak / 2**20:,.0f} | {(peak - before) / 2**20:,.0f} |' for name, (peak, before, _) in rows.items()]
    peak, _, planned = rows['Capstan']
    smallest = min(values[0] for name, values in rows.items() if name != 'Capstan')
    return lines + ['', f"Capstan's peak is {peak / smallest:.2f} of the smallest of PyTorch, and {peak / planned:.2f} of the "
                    f'{planned / 2**20:,.0f} MiB that are planned:',
                    'the arena, the weights as the kernels read them, the weights, the gradient and a batch. '
                    'A compiled variant compiles in the same process, which counts.', '']


def wrapped(text):
    """Wraps the text to the lines of a page."""
    return textwrap.wrap(text, 160, break_long_words=False, break_on_hyphens=False)


def compare_losses(torch, models):
    """Model -> [largest difference, allowed]. Ends the program if they differ by more."""
    differences = {}
    for model in models:
        steps, rate, allowed = LOSSES[model]
        ours, theirs = torch_peer.first_losses(torch, model, BATCHES[model], steps, rate)
        differences[model] = [torch_peer.largest_difference(ours, theirs), allowed]
        if not differences[model][0] <= allowed:
            sys.exit(f'{model}: losses differ by {differences[model][0]:.1e} (allowed {allowed:.0e}), so no table: '
                     f'{ours}, PyTorch {theirs}')
        print(f'{model}: losses of {steps} steps differ by {differences[model][0]:.1e} (allowed {allowed:.0e})', file=sys.stderr)
    return differences


def main():
    options = parse()
    torch_peer.restart_with_torch()
    import torch
    models = options.models.split(',')
    if unknown := set(models) - set(BATCHES):
        sys.exit(f'no model {", ".join(sorted(unknown))}, have {", ".join(BATCHES)}')
    mxnet_python, why_not = mxnet()
    result = {'date': datetime.date.today().isoformat(), 'cpu': lenet_table.cpu_name(), 'cores': os.cpu_count(),
              'capstan': torch_peer.capstan_version(), 'torch': torch.__version__, 'mxnet': '1.9.1' if mxnet_python else why_not,
              'rounds': options.rounds, 'load_before': os.getloadavg()[0], 'losses': compare_losses(torch, models), 'rows': {}}
    lines = [f'# Training steps on the CPU, {result["date"]}', '',
             *wrapped(f'{result["cpu"]}, {result["cores"]} cores; Capstan {result["capstan"]}; PyTorch {result["torch"]} from PyPI, '
                      f'fused SGD; {"MXNet 1.9.1 from PyPI; " if mxnet_python else ""}fp32; rounds: {options.rounds}; '
                      f'load before {result["load_before"]:.1f}.'), '',
             'Made by `tests/bench/engine_table.py`, which says what is inside the clock.', '']
    if not mxnet_python:
        lines += [f'MXNet 1.9.1 is not in the table, for it does not start here: `{why_not}`.', '']
    lines += [*wrapped('Losses of the first steps, Capstan against PyTorch in float64: ' + '; '.join(
        f'{model} {LOSSES[model][0]} steps at rate {LOSSES[model][1]}, within {value:.1e} (allowed {allowed:.0e})'
        for model, (value, allowed) in result['losses'].items()) + '.'), '']
    for model in models:
        all_rows = rounds(options, model, mxnet_python)
        for threads, rows in all_rows.items():
            result['rows'][f'{model}, {threads}'] = rows
            lines += table(model, threads, rows)
        lines += threads_table(model, all_rows)
    if not options.no_memory:
        result['memory'] = memory()
        lines += memory_table(result['memory'])
    lenet_table.write_page(options.out, f'engine-{result["date"]}', result, lines)


if __name__ == '__main__':
    main()
