"""What slow and hung workers cost a job: steps/s of 3 workers x 2 shards, LeNet in 8 lanes, every service with its defaults.

    CAPSTAN_BIN=build/release/bin python3 tests/bench/stragglers.py [SECONDS]

Figures are of this machine: compare those of one run with each other. A pause is the longest step in metrics.jsonl.
"""

import json
import os
import signal
import statistics
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'e2e'))

import services  # noqa: E402
import support  # noqa: E402

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 40


class Cluster(services.ServicesTest):
    def runTest(self):
        """unittest wants one."""

    def begin(self, workers):
        self.start_one('coordinator', 'capstan_coordinator', '--state-dir', self.path('state'), '--data-root', 'file:///',
                       '--checkpoint-root', 'file:///')
        for i in range(2):
            self.start_node(f's{i}', 'capstan_param_store')
        for i in range(workers):
            self.start_worker(f'w{i}')
        job_id = self.submit(support.job_spec(
            name='stragglers', resources={'num_workers': workers, 'num_shards': 2, 'lanes': 8},
            training={'epochs': 100000, 'global_batch_size': 64, 'seed': 3, 'optimizer': {'name': 'sgd', 'learning_rate': 0.01}}))
        self.wait_for_step(job_id, 100)
        return job_id

    def steps(self, job_id):
        with open(self.path('state', 'checkpoints', job_id, 'metrics.jsonl')) as f:
            return [json.loads(line)['seconds'] for line in f if line.endswith('\n')]

    def task_of(self, worker):
        service = self.services[worker].process.pid
        with open(f'/proc/{service}/task/{service}/children') as f:
            found = [int(pid) for pid in f.read().split()]
        for thread in os.listdir(f'/proc/{service}/task'):
            with open(f'/proc/{service}/task/{thread}/children') as f:
                found += [int(pid) for pid in f.read().split()]
        return found[0]

    def rate(self, job_id, seconds):
        """(steps/s, lowest and highest of windows of a quarter, longest step)."""
        rates, begun = [], len(self.steps(job_id))
        for _ in range(4):
            before, at = len(self.steps(job_id)), time.monotonic()
            time.sleep(seconds / 4)
            rates.append((len(self.steps(job_id)) - before) / (time.monotonic() - at))
        return statistics.mean(rates), min(rates), max(rates), max(self.steps(job_id)[begun:], default=0)

    def duty(self, job_id, pid, runs, stands, seconds):
        done = threading.Event()

        def strike():
            while not done.is_set():
                os.kill(pid, signal.SIGSTOP)
                done.wait(stands)
                os.kill(pid, signal.SIGCONT)
                done.wait(runs)

        thread = threading.Thread(target=strike)
        thread.start()
        try:
            return self.rate(job_id, seconds)
        finally:
            done.set()
            thread.join()

    def owner_of_lane_0(self, job_id):
        """From the events: who had lane 0 last."""
        owner = 0
        for event in self.describe(job_id)['events']:
            for move in event['message'].split(': ', 1)[-1].split('lanes '):
                words = move.split()
                if 'go' in words and '0' in words[0].split(','):
                    owner = int(words[-1].strip(',')[1:])
        return f'w{owner}'


def told(name, figures):
    mean, low, high, pause = figures
    print(f'{name:45} {mean:6.1f} steps/s ({low:.1f} to {high:.1f}), longest step {pause:.2f} s', flush=True)


def main():
    print(support.BIN)
    for workers in (2, 3):
        cluster = Cluster()
        cluster.setUp()
        try:
            job_id = cluster.begin(workers)
            told(f'{workers} workers', cluster.rate(job_id, SECONDS / 2))
            if workers == 3:
                victim = cluster.task_of('w2')
                told('3, one runs 10 ms of every 100 ms', cluster.duty(job_id, victim, 0.01, 0.09, SECONDS))
                time.sleep(15)  # to be as good as the others again
                told('3, one runs 0.5 s of every 3.5 s', cluster.duty(job_id, victim, 0.5, 3, SECONDS))
                time.sleep(15)
                for i in range(5):
                    pid, before = cluster.task_of(cluster.owner_of_lane_0(job_id)), len(cluster.steps(job_id))
                    os.kill(pid, signal.SIGSTOP)
                    begun = time.monotonic()
                    while len(cluster.steps(job_id)) < before + 20 and time.monotonic() - begun < 60:
                        time.sleep(0.1)
                    pause = max(cluster.steps(job_id)[before:], default=time.monotonic() - begun)
                    os.kill(pid, signal.SIGCONT)
                    print(f'lane 0 hangs, time {i + 1}: a step of {pause:.2f} s', flush=True)
                    time.sleep(5)
                print(cluster.describe(job_id)['state'], cluster.describe(job_id)['generation'], 'generations')
        finally:
            cluster.tearDown()
            cluster.doCleanups()


if __name__ == '__main__':
    main()
