"""The cost of slow and hung workers for a job, as a figure of cluster_table.py like those of cluster_figures.py."""

import json
import os
import signal
import statistics
import sys
import threading
import time

import cluster_figures
from cluster_figures import support

WORKERS = 3
KINDS = {  # seconds for which a slow worker's task runs and is stopped
    '10 ms of every 100 ms': (0.01, 0.09),
    '0.5 s of every 3.5 s': (0.5, 3.0),
}


class Duty(threading.Thread):
    """Stops a process and continues it, again and again, until end()."""

    def __init__(self, pid, runs, stands):
        super().__init__()
        self.pid, self.runs, self.stands, self.over = pid, runs, stands, threading.Event()
        self.start()

    def run(self):
        while not self.over.is_set():
            os.kill(self.pid, signal.SIGSTOP)
            self.over.wait(self.stands)
            os.kill(self.pid, signal.SIGCONT)
            self.over.wait(self.runs)

    def end(self):
        self.over.set()
        self.join()


def stragglers(seconds=40.0, still=20.0, recovers=15.0, hangs=5):
    """One job. Undisturbed stretches alternate with stretches in which the task of one worker is stopped and continued."""
    spec = cluster_figures.with_steps(cluster_figures.D2L, 1000000, model={'name': 'lenet'},
                                      resources={'num_workers': WORKERS, 'num_shards': 2, 'lanes': 8})
    spec['training']['global_batch_size'] = 64
    rows, claims = [], []
    with cluster_figures.Cluster('unix', WORKERS, 2) as cluster:
        job_id = cluster.submit(spec)
        cluster.reach(job_id, 100)

        def rate(length):
            """(steps a second, longest step in seconds)."""
            begin, first = time.monotonic(), len(cluster.step_log(job_id))
            time.sleep(length)
            lines = cluster.step_log(job_id)[first:]
            return len(lines) / (time.monotonic() - begin), max((line['seconds'] for line in lines), default=length)

        def task(rank):
            services = [process.pid for process, _, _ in cluster.members[-WORKERS:]]
            return cluster.children(services[rank])[0]

        quiet = [rate(still)]
        for name, (runs, stands) in KINDS.items():
            duty = Duty(task(WORKERS - 1), runs, stands)
            try:
                disturbed, longest = rate(seconds)
            finally:
                duty.end()
            time.sleep(recovers)  # until the worker is as fast as the others again
            quiet.append(rate(still))
            costs = statistics.mean(got[0] for got in quiet[-2:]) / disturbed
            rows.append({'one of three tasks runs': name, 'steps/s before and after': cluster_figures.low_to_high([q[0] for q in quiet[-2:]]),
                         'with it': f'{disturbed:.1f}', 'longest step s': f'{longest:.2f}'})
            claims.append((f'a task that runs {name}: a step takes {costs:.2f} x the undisturbed one, at most 1.5', costs <= 1.5))
            print(f'stragglers: {name}', file=sys.stderr)
        pauses = []
        for _ in range(hangs):
            events = json.loads(cluster.capstan('describe', job_id, '-o', 'json'))['events']
            pid, begun = task(support.owner_of_lane_0(events)), time.monotonic()
            first = len(cluster.step_log(job_id))
            os.kill(pid, signal.SIGSTOP)
            while len(cluster.step_log(job_id)) < first + 20:
                if time.monotonic() - begun > 60:
                    raise RuntimeError('20 steps took more than a minute while the owner of lane 0 hung')
                time.sleep(0.1)
            os.kill(pid, signal.SIGCONT)
            pauses.append(max(line['seconds'] for line in cluster.step_log(job_id)[first:]))
            time.sleep(5)
        job = json.loads(cluster.capstan('describe', job_id, '-o', 'json'))
        cluster.capstan('cancel', job_id, '-y')
        cluster.await_no_task()
    if job['state'] != 'RUNNING' or job.get('restarts', 0):
        raise RuntimeError(f'the job is {job["state"]} after {job.get("restarts")} restarts')
    rows.append({'one of three tasks runs': f'not at all, {hangs} times (it has lane 0)', 'steps/s before and after': f'{quiet[-1][0]:.1f}',
                 'with it': '-', 'longest step s': cluster_figures.low_to_high(pauses, 2)})
    claims.append((f'the pauses are {", ".join(f"{pause:.2f}" for pause in pauses)} s: the last is at most twice the first, or under 4 s',
                   pauses[-1] <= max(2 * pauses[0], 4)))
    return {'title': 'Slow and hung workers', 'rows': rows, 'claims': claims,
            'says': f'`lenet`, batch 64, 8 lanes, {WORKERS} workers x 2 shards: the task of one worker is stopped and continued by signals. '
                    'Steps decided in the time and the longest of them, from `metrics.jsonl` of one job.'}
