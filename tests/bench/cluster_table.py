#!/usr/bin/env python3
"""What a cluster of separately started services costs and carries, as a page of docs/benchmarks/.

    cmake --preset bench && cmake --build --preset bench && python3 tests/bench/cluster_table.py      about 15 minutes
    python3 tests/bench/cluster_table.py --only submits,restart                                      the others stay as they are

The figures are functions of cluster_figures.py and straggler_figure.py, which say what is inside the clock; `--only` names them. Writes
docs/benchmarks/cluster-<date>.{json,md}; the exit code is 1 where a figure falls short.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
os.environ.setdefault('CAPSTAN_BIN', os.path.join(ROOT, 'build/bench/bin'))
import cluster_figures  # noqa: E402
import lenet_table  # noqa: E402
import straggler_figure  # noqa: E402

FIGURES = {**cluster_figures.FIGURES, 'stragglers': straggler_figure.stragglers}


def page(result):
    capstan = result['capstan']
    lines = [f'# A cluster of separate services, {result["date"]}', '',
             f'{result["cpu"]}, {result["cores"]} cores; Capstan {capstan["version"]} ({capstan["revision"]}), {capstan["compiler"]}.', '',
             'Made by `tests/bench/cluster_table.py`; all processes and the load share the one machine. "Load" is the load average before '
             'and after a figure: above 2 the cores had other work, too.', '']
    for name in FIGURES:
        figure = result['figures'].get(name)
        if figure is None:
            continue
        columns = list(figure['rows'][0])
        lines += [f'## {figure["title"]}', '', figure['says'], '', f'| {" | ".join(columns)} |', f'|{" --- |" * len(columns)}']
        lines += [f'| {" | ".join(str(row[column]) for column in columns)} |' for row in figure['rows']]
        lines.append('')
        lines += [f'- {"" if held else "**falls short**: "}{text}' for text, held in figure['claims']]
        lines += ['', f'Load {figure["load"][0]:.1f} to {figure["load"][1]:.1f}; took {figure["took"]:.0f} s.', '']
    return '\n'.join(lines).rstrip() + '\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--only', default=','.join(FIGURES))
    parser.add_argument('--out', default=os.path.join(ROOT, 'docs/benchmarks'))
    parser.add_argument('--date', default=datetime.date.today().isoformat(), help='of the page')
    options = parser.parse_args()
    unknown = set(options.only.split(',')) - set(FIGURES)
    if unknown:
        parser.error(f'--only {",".join(sorted(unknown))}: the figures are {", ".join(FIGURES)}')
    path = os.path.join(options.out, f'cluster-{options.date}')
    result = {'figures': {}}
    if os.path.exists(path + '.json'):
        with open(path + '.json') as f:
            result = json.load(f)
    version = subprocess.run([os.path.join(os.environ['CAPSTAN_BIN'], 'capstan'), 'version', '-o', 'json'], capture_output=True,
                             text=True, check=True).stdout
    result.update(date=options.date, cpu=lenet_table.cpu_name(), cores=os.cpu_count(), capstan=json.loads(version))
    held = True
    for name in options.only.split(','):
        load, begin = os.getloadavg()[0], time.monotonic()
        try:
            figure = FIGURES[name]()
        except RuntimeError as error:  # the other figures may still be measured
            held = False
            print(f'{name}: not measured: {error}', file=sys.stderr, flush=True)
            continue
        figure.update(load=[load, os.getloadavg()[0]], took=time.monotonic() - begin)
        result['figures'][name] = figure
        for text, good in figure['claims']:
            held = held and good
            print(f'{name}: {"" if good else "FALLS SHORT: "}{text}', flush=True)
        os.makedirs(options.out, exist_ok=True)
        with open(path + '.json', 'w') as f:  # at once, because a later figure may fail
            json.dump(result, f, indent=1)
            f.write('\n')
        with open(path + '.md', 'w') as f:
            f.write(page(result))
    return 0 if held else 1


if __name__ == '__main__':
    sys.exit(main())
