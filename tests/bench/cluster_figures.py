"""Costs and limits of a cluster of separately started services. cluster_table.py calls one function per figure.

Every function returns a dict: `title`, `rows` (dicts with the same keys, the columns of its table), `claims` (pairs of a
sentence and whether it held), `says` (what the time includes). Two things that are compared run in turns, so that a change of
the machine's speed affects both, and CPU seconds are given beside wall seconds.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), 'e2e'))
import secure_cluster  # noqa: E402
import support  # noqa: E402

WIRES = {'tls': 'mutual TLS', 'tcp': 'plaintext TCP', 'unix': 'Unix sockets'}
LOAD = os.path.join(support.BIN, 'capstan_coordinator_load')


class Cluster(secure_cluster.SecureCluster):
    """A cluster in a folder of its own, over one of WIRES. Each worker has one thread on its own core."""

    def __init__(self, wire, workers=0, shards=0, state=None, coordinator_args=()):
        self.wire = wire
        self.home = tempfile.TemporaryDirectory(prefix='capstan-bench-')
        super().__init__(self.home.name, workers, shards, tls=wire == 'tls',
                         coordinator_args=[*coordinator_args, *(['--state-dir', state] if state else [])])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        self.home.cleanup()

    def listen(self):
        return f'unix:{self.path(str(len(self.members)) + ".sock")}' if self.wire == 'unix' else super().listen()

    def credentials(self, role):
        return [] if self.wire == 'unix' else super().credentials(role)

    def start(self, role, binary, *args):
        return super().start(role, binary, *args, *(['--cpu-threads', '1'] if role == 'worker' else []))

    def start_worker(self, name):
        self.start('worker', 'capstan_gpu_worker', '--coordinator', self.address, '--node', name, '--devices', 'cpu')

    def load(self, role, *args):
        """Yields the lines that the load prints, as they appear."""
        command = [LOAD, args[0], '--address', self.address, *self.credentials(role), *map(str, args[1:])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                yield json.loads(line)
        if process.returncode:
            raise RuntimeError(f'{" ".join(command)}: exit code {process.returncode}')

    def capstan(self, *args, stdin=None):
        done = subprocess.run([support.CAPSTAN, *self.client(), *args], input=stdin, capture_output=True, text=True,
                              cwd=self.folder)
        if done.returncode:
            raise RuntimeError(f'capstan {" ".join(args)}: {done.stdout}{done.stderr}{"".join(self.said[-40:])}')
        return done.stdout

    def submit(self, spec):
        return self.capstan('submit', '-', stdin=json.dumps(spec)).strip()

    def reach(self, job_id, step, seconds=3600):
        deadline = time.monotonic() + seconds
        while (job := json.loads(self.capstan('describe', job_id, '-o', 'json')))['progress']['step'] < step:
            if job['state'] in ('FAILED', 'SUCCEEDED', 'CANCELLED') or time.monotonic() > deadline:
                raise RuntimeError(f'not at step {step:,} within {seconds} s: {job}')
            time.sleep(0.5)

    def finish(self, job_id):
        job = json.loads(self.capstan('wait', job_id, '-o', 'json').splitlines()[-1])
        if job['state'] != 'SUCCEEDED':
            raise RuntimeError(f'{job}{"".join(self.said[-40:])}')
        return job

    def step_log(self, job_id):
        with open(self.path('state', 'checkpoints', job_id, 'metrics.jsonl')) as f:
            return [json.loads(line) for line in f if line.endswith('\n')]  # the last line may be half written

    def await_no_task(self):
        deadline = time.monotonic() + 60
        while len(self.pids()) > len(self.members):
            if time.monotonic() > deadline:
                raise RuntimeError('a task does not end')
            time.sleep(0.05)

    def coordinator(self):
        return self.members[0][0]


def cpu_seconds(*pids, children=False):
    """User and system CPU seconds. `children`: includes children that have ended."""
    ticks = 0
    for pid in pids:
        with open(f'/proc/{pid}/stat') as f:
            ticks += sum(map(int, f.read().rsplit(')', 1)[1].split()[11:15 if children else 13]))
    return ticks / os.sysconf('SC_CLK_TCK')


def fdatasync_ms(folder):
    """The median time of a durable append of 8 KiB, which is the least that one commit costs on this disk."""
    with tempfile.NamedTemporaryFile(dir=folder) as f:
        times = []
        for _ in range(200):
            f.write(b'x' * 8192)
            f.flush()
            begin = time.monotonic()
            os.fdatasync(f.fileno())
            times.append(time.monotonic() - begin)
    return 1e3 * statistics.median(times)


def low_to_high(values, digits=1):
    return f'{min(values):,.{digits}f} to {max(values):,.{digits}f}'


def submits(rounds=3):
    rates, rows = {}, []
    for turn in range(rounds):
        for wire in ('unix', 'tls'):
            for clients, jobs in ((1, 1000), (32, 6000)):
                with Cluster(wire) as cluster:
                    begin = cpu_seconds(cluster.coordinator().pid)
                    got, = cluster.load('client', 'submit', '--clients', clients, '--count', jobs)
                    got['cpu_us'] = 1e6 * (cpu_seconds(cluster.coordinator().pid) - begin) / jobs
                    rates.setdefault((wire, clients), []).append(got)
        print(f'submits: round {turn + 1} of {rounds}', file=sys.stderr)
    for (wire, clients), got in rates.items():
        rows.append({'wire': WIRES[wire], 'clients': clients,
                     'submits/s (median)': f'{statistics.median(g["per_second"] for g in got):,.0f}',
                     'lowest to highest': low_to_high([g['per_second'] for g in got], 0),
                     'p99 ms': f'{statistics.median(g["p99_ms"] for g in got):.1f}',
                     'CPU of the coordinator, us each': f'{statistics.median(g["cpu_us"] for g in got):.0f}'})
    claims = []
    for clients, want in ((1, 250), (32, 2000)):
        for wire in ('unix', 'tls'):
            rate = statistics.median(g['per_second'] for g in rates[wire, clients])
            claims.append((f'{rate:,.0f} durable submits a second over {WIRES[wire]} with {clients} '
                           f'client{"s" if clients > 1 else ""}, want {want:,}', rate >= want))
    return {'title': 'Durable submits', 'rows': rows, 'claims': claims,
            'says': f'`capstan_coordinator_load submit` against a coordinator with an empty state folder: SQLite with synchronous=FULL, '
                    f'one commit for all calls that wait. An fdatasync of 8 KiB takes {fdatasync_ms(tempfile.gettempdir()):.2f} ms here.'}


def nodes(seconds=30, count=1000):
    rows, claims = [], []
    for wire in ('unix', 'tls'):
        # A heartbeat's time ends with the order to end an unknown task. Without this flag that order comes only after a minute.
        with Cluster(wire, coordinator_args=['--accept-journal', '0']) as cluster:
            pid = cluster.coordinator().pid
            lines = cluster.load('worker', 'nodes', '--count', count, '--seconds', seconds)
            registered = next(lines)
            begin, at = cpu_seconds(pid), time.monotonic()
            next(lines)
            share = 100 * (cpu_seconds(pid) - begin) / (time.monotonic() - at)
            got = next(lines)
        print(f'nodes: {wire}', file=sys.stderr)
        rows.append({'wire': WIRES[wire], 'nodes': count, 'all registered after, s': f'{registered["seconds"]:.1f}',
                     'heartbeats': f'{count * seconds:,}', 'with an answer': f'{got["answered"]:,}',
                     'p50 ms': got['p50_ms'], 'p99 ms': got['p99_ms'], 'longest ms': got['max_ms'],
                     'CPU of the coordinator, % of a core': f'{share:.1f}'})
        claims.append((f'{share:.1f} % of a core for {count} nodes over {WIRES[wire]}, at most 25', share <= 25))
        claims.append((f'p99 of a heartbeat {got["p99_ms"]} ms over {WIRES[wire]}, want < 50', got['p99_ms'] < 50))
        claims.append((f'{got["answered"]} of {got["asked"]} answered over {WIRES[wire]}, {got["late"]} of {count * seconds} not sent in '
                       'time', got['answered'] == got['asked'] and got['late'] == 0))
    return {'title': '1 000 nodes at 1 Hz', 'rows': rows, 'claims': claims,
            'says': '`capstan_coordinator_load nodes`: a connection each, heartbeats spread over the second, one in ten '
                    'with an answer (the order to stop a task that nobody knows): from the moment at which it was due to that answer.'}


def restart(rounds=3, jobs=10000):
    times = []
    with tempfile.TemporaryDirectory(prefix='capstan-bench-') as state:
        with Cluster('unix', state=state) as cluster:
            for _ in cluster.load('client', 'submit', '--clients', 32, '--count', jobs):
                pass
            for _ in range(rounds):
                cluster.coordinator().kill()
                cluster.coordinator().wait()
                cluster.members[0][1].join()
                cluster.members[0][0].stdout.close()
                begin = time.monotonic()
                cluster.members.clear()
                cluster.start('coordinator', 'capstan_coordinator', '--data-root', 'file:///', '--state-dir', state)
                listens = time.monotonic() - begin
                listed = json.loads(cluster.capstan('list', '--limit', '1', '-o', 'json').splitlines()[-1])
                answers = time.monotonic() - begin
                if not listed:
                    raise RuntimeError('no job is there any more')
                times.append({'listens': listens, 'answers': answers, 'cpu': cpu_seconds(cluster.coordinator().pid)})
            size = os.path.getsize(os.path.join(state, 'journal.db'))
    print('restart', file=sys.stderr)
    median = {key: statistics.median(t[key] for t in times) for key in times[0]}
    return {'title': f'Restart with {jobs:,} jobs', 'says': 'kill -9, started again: until it listens, and until a client has its answer. '
            f'The journal has {size / 2**20:.1f} MiB.',
            'rows': [{'jobs': f'{jobs:,}', 'listens after, s': f'{median["listens"]:.2f}', 'answers after, s': f'{median["answers"]:.2f}',
                      'lowest to highest': low_to_high([t['answers'] for t in times], 2), 'CPU s': f'{median["cpu"]:.2f}'}],
            'claims': [(f'back after {median["answers"]:.2f} s, want < 3', median['answers'] < 3)]}


D2L = support.job_spec(name='bench', resources={'num_workers': 2, 'num_shards': 2}, model={'name': 'lenet_d2l'},
                       data={'format': 'synthetic_digits', 'train_samples': 12800, 'test_samples': 10})
D2L['training'].update(global_batch_size=256, epochs=1000, optimizer={'name': 'sgd', 'learning_rate': 0.01})


def with_steps(spec, steps, **groups):
    spec = dict(json.loads(json.dumps(spec)), **groups)
    spec['training']['max_steps'] = steps
    return spec


def checkpoints(rounds=8, steps=200, skipped=20):
    plain = with_steps(D2L, steps)
    saving = with_steps(D2L, steps, checkpoint={'every': '10 steps'})
    seconds, cpu, hashes = {False: [], True: []}, {False: [], True: []}, set()
    with Cluster('unix', 2, 2) as cluster:
        for turn in range(rounds):
            for saves in (False, True) if turn % 2 == 0 else (True, False):
                # The tasks have ended by then. Their time is in their parents' sums of waited-for children.
                before = cpu_seconds(*cluster.pids(), children=True)
                job = cluster.finish(cluster.submit(saving if saves else plain))
                seconds[saves].append(statistics.mean(line['seconds'] for line in cluster.step_log(job['job_id'])[skipped:]))
                cluster.await_no_task()
                cpu[saves].append(cpu_seconds(*cluster.pids(), children=True) - before)
                hashes.add(job['weights_sha256'])
            print(f'checkpoints: round {turn + 1} of {rounds}', file=sys.stderr)
    if len(hashes) != 1:
        raise RuntimeError('checkpoints changed the weights')
    costs = [100 * (b / a - 1) for a, b in zip(seconds[False], seconds[True])]
    cost = statistics.median(costs)
    rows = [{'checkpoints': name, 'step ms (median of the runs\' means)': f'{1e3 * statistics.median(seconds[saves]):.2f}',
             'lowest to highest': low_to_high([1e3 * s for s in seconds[saves]], 2),
             'CPU s of all processes (median)': f'{statistics.median(cpu[saves]):.2f}'}
            for saves, name in ((False, 'none'), (True, 'every 10 steps'))]
    return {'title': 'Checkpoints every 10 steps', 'rows': rows,
            'claims': [(f'{cost:+.1f} % of the step time ({low_to_high(costs)} in {rounds} pairs), at most 3.5', cost <= 3.5)],
            'says': f'`lenet_d2l`, batch 256, 2 workers x 2 shards, the mean of steps {skipped} to {steps} in `metrics.jsonl`, pairs in turns, '
                    'same seed, same weights.'}


def kills(rounds=3, every=60.0, still=20.0, away=1.0):
    """One job. Minutes with a kill near their beginning alternate with undisturbed stretches."""
    with Cluster('unix', 2, 2) as cluster:
        job_id = cluster.submit(with_steps(D2L, 1000000))
        cluster.reach(job_id, 100)

        def rate(seconds, disturb=lambda: None):
            begin, first = time.monotonic(), len(cluster.step_log(job_id))
            disturb()
            time.sleep(max(0, begin + seconds - time.monotonic()))
            return (len(cluster.step_log(job_id)) - first) / (time.monotonic() - begin)

        def kill():
            time.sleep(every / 6)
            process, thread, _ = cluster.members.pop()
            process.kill()
            process.wait()
            thread.join()
            process.stdout.close()
            time.sleep(away)  # a service manager takes this long to start it again
            cluster.start_worker('w1')

        quiet, disturbed = [rate(still)], []
        for turn in range(rounds):
            disturbed.append(rate(every, kill))
            quiet.append(rate(still))
            print(f'kills: {turn + 1} of {rounds}', file=sys.stderr)
        lost = sum(event['type'] == 'WorkerLost' for event in
                   json.loads(cluster.capstan('describe', job_id, '-o', 'json'))['events'])
        cluster.capstan('cancel', job_id, '-y')
        cluster.await_no_task()
    if lost != rounds:
        raise RuntimeError(f'{rounds} workers were killed, {lost} were lost')
    shares = [200 * d / (before + after) for d, before, after in zip(disturbed, quiet, quiet[1:])]
    return {'title': 'A worker killed every minute',
            'rows': [{'stretch': f'{still:g} s undisturbed, {len(quiet)} times', 'steps/s': low_to_high(quiet)},
                     {'stretch': f'{every:g} s with a kill, {rounds} times', 'steps/s': low_to_high(disturbed)}],
            'claims': [(f'{statistics.median(shares):.1f} % of the throughput before and after it ({low_to_high(shares)} in {rounds} minutes), '
                        'want >= 90', statistics.median(shares) >= 90)],
            'says': f'`lenet_d2l`, batch 256, 2 workers x 2 shards, lease 5 s: `kill -9` of one worker service and so of its task, started '
                    f'again after {away:g} s. Steps decided in the time, from `metrics.jsonl` of one job.'}


def tls(rounds=5, steps=150, skipped=30):
    rows, claims = [], []
    jobs = {'lenet_d2l, batch 256': with_steps(D2L, steps), 'lenet, batch 64': with_steps(D2L, 2 * steps, model={'name': 'lenet'})}
    jobs['lenet, batch 64']['training']['global_batch_size'] = 64
    clusters = {}
    try:
        for wire in WIRES:
            clusters[wire] = Cluster(wire, 2, 2)
        for name, spec in jobs.items():
            times, cpu, hashes = {wire: [] for wire in WIRES}, {wire: [] for wire in WIRES}, set()
            order = list(WIRES)
            for turn in range(rounds):
                for wire in order[turn % 3:] + order[:turn % 3]:
                    cluster = clusters[wire]
                    before = cpu_seconds(*cluster.pids(), children=True)
                    job_id = cluster.submit(spec)
                    job = cluster.finish(job_id)
                    cluster.await_no_task()
                    cpu[wire].append(cpu_seconds(*cluster.pids(), children=True) - before)
                    times[wire].append(1e3 * statistics.median(line['seconds'] for line in cluster.step_log(job_id)[skipped:]))
                    hashes.add(job['weights_sha256'])
                print(f'tls: {name}, round {turn + 1} of {rounds}', file=sys.stderr)
            if len(hashes) != 1:
                raise RuntimeError('the weights differ')
            base = statistics.median(times['tcp'])
            rows += [{'job': name, 'wire': WIRES[wire], 'step ms (median)': f'{statistics.median(got):.2f}',
                      'lowest to highest': low_to_high(got, 2),
                      'CPU s of the whole job': f'{statistics.median(cpu[wire]):.2f}',
                      'of plaintext TCP': f'{statistics.median(a / b for a, b in zip(got, times["tcp"])):.2f}'}
                     for wire, got in times.items()]
            claims.append((f'{name}: a step takes {100 * (statistics.median(times["tls"]) / base - 1):+.0f} % with TLS', True))
    finally:
        for cluster in clusters.values():
            cluster.__exit__()
    return {'title': 'The price of TLS', 'rows': rows, 'claims': claims,
            'says': '2 workers x 2 shards on loopback; the median `seconds` of `metrics.jsonl` without the first steps; three clusters live side by '
                    'side, their jobs take turns; same weights by all.'}


class Sampler(threading.Thread):
    """Samples RSS in MiB, descriptors and threads of processes once a second until it is stopped."""

    def __init__(self, names):
        super().__init__()
        self.names, self.samples, self.over = names, {name: [] for name in names.values()}, threading.Event()

    def run(self):
        while not self.over.wait(1):
            for pid, name in self.names.items():
                try:
                    with open(f'/proc/{pid}/statm') as f:
                        rss = int(f.read().split()[1]) * os.sysconf('SC_PAGE_SIZE') / 2**20
                    descriptors, threads = len(os.listdir(f'/proc/{pid}/fd')), len(os.listdir(f'/proc/{pid}/task'))
                except FileNotFoundError:
                    continue  # the job is ending
                self.samples[name].append((time.monotonic(), rss, descriptors, threads))

    def stop(self):
        self.over.set()
        self.join()


def endurance(steps=200000):
    spec = with_steps(D2L, steps, model={'name': 'mlp'}, checkpoint={'every': '1000 steps'})
    spec['training']['global_batch_size'] = 32
    spec['data']['train_samples'] = 32 * steps // 1000  # an epoch has one thousandth of the steps
    with Cluster('unix', 2, 2) as cluster:
        job_id = cluster.submit(spec)
        cluster.reach(job_id, steps // 10)
        names = {}
        for process, _, _ in cluster.members:
            name = os.path.basename(process.args[0])
            number = sum(other.startswith(name) for other in names.values())
            names[process.pid] = f'{name} {number}'
            for child in cluster.children(process.pid):
                names[child] = f'task of {name} {number}'
        sampler = Sampler(names)
        sampler.start()
        cluster.reach(job_id, steps - 50)
        sampler.stop()
        job = cluster.finish(job_id)
        seconds = sum(line['seconds'] for line in cluster.step_log(job_id))
    print('endurance', file=sys.stderr)
    rows, claims, series = [], [], {}
    for name, got in sampler.samples.items():
        got = got[:-2]  # without the end of the job
        quarter = max(1, len(got) // 4)
        rss = [statistics.median(g[1] for g in part) for part in (got[:quarter], got[2 * quarter:3 * quarter], got[-quarter:])]
        slope = 1024 * statistics.linear_regression([g[0] for g in got[len(got) // 2:]], [g[1] for g in got[len(got) // 2:]]).slope
        slope *= 1000 * seconds / steps  # KiB per second -> KiB per 1 000 steps
        most = [tuple(max(g[i] for g in part) for i in (2, 3)) for part in (got[:quarter], got[-quarter:])]
        rows.append({'process': name, 'RSS MiB, first quarter': f'{rss[0]:.1f}', 'third': f'{rss[1]:.1f}', 'last': f'{rss[2]:.1f}',
                     'second half, KiB in 1 000 steps': f'{slope:+.1f}', 'descriptors at most': f'{most[0][0]}, then {most[1][0]}',
                     'threads at most': f'{most[0][1]}, then {most[1][1]}'})
        steady = slope < 64 and most[1][0] <= most[0][0] + 2 and most[1][1] <= most[0][1] + 2
        claims.append((f'{name}: {slope:+.1f} KiB in 1 000 steps, descriptors {most[0][0]} and {most[1][0]}, threads {most[0][1]} and '
                       f'{most[1][1]}', steady))
        series[name] = [round(g[1], 2) for g in got[::max(1, len(got) // 40)]]
    return {'title': f'{steps:,} steps', 'rows': rows, 'claims': claims, 'rss_mib': series,
            'says': f'`mlp`, batch 32, 2 workers x 2 shards, a checkpoint every 1 000 steps: {job["progress"]["step"]:,} steps in {seconds:.0f} s. '
                    f'Sampled once a second from step {steps // 10:,} on; medians of quarters. A process grows if it takes 64 KiB or more in '
                    '1 000 steps of the second half, or more descriptors or threads.'}


FIGURES = {'submits': submits, 'nodes': nodes, 'restart': restart, 'checkpoints': checkpoints, 'kills': kills, 'tls': tls,
           'endurance': endurance}
