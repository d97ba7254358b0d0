#!/usr/bin/env python3
"""GB/s of a push and pull by size: Capstan through its services, MXNet's KVStore `dist_sync`, on this machine.

    cmake --preset bench && cmake --build --preset bench && python3 tests/bench/kvstore_table.py

Every round runs `capstan bench kvstore`, once in shared memory and once over gRPC, and mxnet_kvstore.py for each number of workers and
shards, one after the other. All sum and update with SGD and momentum. GB/s is the size of the weights twice, once in each direction, over
the time of an exchange; tables have medians over the rounds, ratios are within a round. Capstan's time is that of a job without its
computing: push, wait and pull, from process to process, in shared memory or over Unix sockets, with checksums over every chunk. MXNet's
is that of push and pull in a loop, over TCP, without checksums, with one OpenMP thread in each process, which is faster here than the
default. CPU seconds are those of all processes, Capstan's with the computing of its small network. Writes
docs/benchmarks/kvstore-<date>.{json,md}.

CAPSTAN_BIN names other programs. MXNet is installed where it is not there (engine_table.py).
"""

import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
os.environ.setdefault('CAPSTAN_BIN', os.path.join(ROOT, 'build/bench/bin'))
import engine_table  # noqa: E402
import lenet_table  # noqa: E402
import torch_peer  # noqa: E402

SIZES = ('4KiB', '64KiB', '1MiB', '4MiB', '64MiB')
SHAPES = ((1, 1), (2, 2))  # workers, shards
SECONDS = 3  # of a measurement
GOALS = {'shared': 4, 'grpc': 2.2}  # times MXNet's GB/s


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--out', default=os.path.join(ROOT, 'docs/benchmarks'))
    return parser.parse_args()


def below(pid):
    """CPU seconds of every process below this one, by its number."""
    parents, seconds = {}, {}
    for entry in os.listdir('/proc'):
        if not entry.isdigit():
            continue
        try:
            with open(f'/proc/{entry}/stat') as f:
                fields = f.read().rsplit(')', 1)[1].split()
        except OSError:  # it has ended
            continue
        parents[int(entry)] = int(fields[1])
        seconds[int(entry)] = (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')

    def is_below(process):
        while process in parents:
            process = parents[process]
            if process == pid:
                return True
        return False

    return {process: seconds[process] for process in parents if is_below(process)}


def capstan(size, workers, shards, transport):
    """A row of `capstan bench kvstore`, with the CPU seconds of a step."""
    how = ['--no-shared-memory'] if transport == 'grpc' else []
    process = subprocess.Popen([os.path.join(os.environ['CAPSTAN_BIN'], 'capstan'), 'bench', 'kvstore', '--sizes', size, '--workers',
                                str(workers), '--shards', str(shards), '--seconds', str(SECONDS), '-o', 'json', *how],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    samples = []  # (time, CPU seconds of all services), while all of them are there
    most = 0
    while process.poll() is None:
        now, seconds = time.monotonic(), below(process.pid)
        if len(seconds) > most:
            samples, most = [], len(seconds)
        if seconds and len(seconds) == most:
            samples.append((now, sum(seconds.values())))
        time.sleep(0.1)
    out, err = process.communicate()
    if process.returncode:
        raise RuntimeError(err)
    said = json.loads(out)
    row = said['rows'][0]
    # The last seconds of the measurement, without those in which the services end.
    late = [sample for sample in samples if samples[-1][0] - 0.8 * SECONDS < sample[0] < samples[-1][0] - 0.3]
    cpu_rate = (late[-1][1] - late[0][1]) / (late[-1][0] - late[0][0])
    exchange = sum(row[part + '_seconds'] for part in ('push', 'wait', 'pull'))
    return {'bytes': row['weight_bytes'], 'seconds': exchange, 'cpu_seconds': cpu_rate * row['step_seconds'],
            'limits': {name: said[name + '_bytes_per_second'] for name in ('copy', 'unix_socket', 'tcp')}}


def in_bytes(size):
    number, unit = re.fullmatch(r'(\d+)([KM])iB', size).groups()
    return int(number) * {'K': 1 << 10, 'M': 1 << 20}[unit]


def mxnet(python, workers, servers):
    done = subprocess.run([python, os.path.join(ROOT, 'tests/bench/mxnet_kvstore.py'), '--workers', str(workers), '--servers', str(servers),
                           '--sizes', ','.join(str(in_bytes(size)) for size in SIZES)], capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    said = json.loads(done.stdout.splitlines()[-1])
    return {size: dict(said[str(in_bytes(size))], bytes=in_bytes(size)) for size in SIZES}


def rate(row):
    return 2 * row['bytes'] / row['seconds'] / 1e9


def cpu_per_gb(row, workers):
    return row['cpu_seconds'] / (2 * row['bytes'] * workers / 1e9)


def table(workers, shards, rounds):
    lines = [f'### {workers} worker{"s" if workers > 1 else ""}, {shards} shard{"s" if shards > 1 else ""}', '',
             '| weights | shared, ms | gRPC, ms | MXNet, ms | shared, GB/s | shared over MXNet | gRPC over MXNet '
             '| CPU s per GB: shared | gRPC | MXNet |', '| --- ' * 10 + '|']
    for size in SIZES:
        rows = {what: [entry[what][size] for entry in rounds] for what in ('shared', 'grpc', 'mxnet')}

        def median(figure, what):
            return statistics.median(figure(row) for row in rows[what])

        def ratio(what):
            return statistics.median(rate(ours) / rate(theirs) for ours, theirs in zip(rows[what], rows['mxnet']))

        figures = [f'{median(lambda r: 1e3 * r["seconds"], what):.3f}' for what in rows] + [f'{median(rate, "shared"):.3f}']
        figures += [f'{ratio(what):.2f}' for what in GOALS] + [f'{median(lambda r: cpu_per_gb(r, workers), what):.2f}' for what in rows]
        lines.append(f'| {size} | {" | ".join(figures)} |')
    return lines + ['']


def main():
    options = parse()
    python, why_not = engine_table.mxnet()
    if not python:
        sys.exit(f'MXNet does not start here: {why_not}')
    result = {'date': datetime.date.today().isoformat(), 'cpu': lenet_table.cpu_name(), 'cores': os.cpu_count(),
              'capstan': torch_peer.capstan_version(), 'rounds': options.rounds, 'load_before': os.getloadavg()[0], 'shapes': {}}
    for number in range(options.rounds):
        for workers, shards in SHAPES:
            entry = {what: {size: capstan(size, workers, shards, what) for size in SIZES} for what in GOALS}
            entry['mxnet'] = mxnet(python, workers, shards)
            result['shapes'].setdefault(f'{workers}x{shards}', []).append(entry)
            print(f'{workers} x {shards}: round {number + 1} of {options.rounds}', file=sys.stderr)
    limits = {name: statistics.median(row['limits'][name] for entries in result['shapes'].values() for entry in entries
                                      for what in GOALS for row in entry[what].values()) / 1e9 for name in ('copy', 'unix_socket', 'tcp')}
    lines = [f'# Push and pull, {result["date"]}', '',
             *engine_table.wrapped(
                 f'{result["cpu"]}, {result["cores"]} cores for all processes; Capstan {result["capstan"]}; MXNet 1.9.1 from PyPI, `dist_sync`; '
                 f'rounds: {options.rounds}; load before {result["load_before"]:.1f}. This machine copies {limits["copy"]:.1f} GB/s in memory, and one '
                 f'connection carries {limits["unix_socket"]:.1f} GB/s over a Unix socket and {limits["tcp"]:.1f} GB/s over TCP on the loopback, one way.'), '',
             'Made by `tests/bench/kvstore_table.py`, which says what is inside the clock. "Shared" is shared memory, with a goal of '
             f'{GOALS["shared"]} times MXNet; gRPC has a goal of {GOALS["grpc"]}.', '']
    for workers, shards in SHAPES:
        lines += table(workers, shards, result['shapes'][f'{workers}x{shards}'])
    lenet_table.write_page(options.out, f'kvstore-{result["date"]}', result, lines)


if __name__ == '__main__':
    main()
