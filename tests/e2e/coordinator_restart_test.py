"""A coordinator is killed at the worst moments and started again on the state that it left on disk."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import threading
import time

import services
import support

SEED = int(os.environ.get('CAPSTAN_SEED', '1'))
DOWN_SECONDS = int(os.environ.get('CAPSTAN_DOWN_SECONDS', '10'))
JOB = support.job_spec(name='go-on', resources={'num_workers': 2, 'num_shards': 2},
                       training={'epochs': 12, 'global_batch_size': 64, 'seed': 3,
                                 'optimizer': {'name': 'sgd', 'learning_rate': 0.04, 'momentum': 0.9}})
SHORT = support.job_spec(name='short', resources={'num_workers': 2, 'num_shards': 2},
                         training={'epochs': 1, 'global_batch_size': 64, 'seed': 3,
                                   'optimizer': {'name': 'sgd', 'learning_rate': 0.04}})


class CoordinatorRestartTest(services.ServicesTest):

    def start_coordinator(self, *args):
        self.start_one('coordinator', 'capstan_coordinator', '--state-dir', self.path('state'), '--data-root', 'file:///',
                       '--checkpoint-root', 'file:///', '--heartbeat', '200ms', '--lease', '3s', *args)

    def kill_coordinator(self):
        self.assertEqual(self.stop('coordinator', signal.SIGKILL), -signal.SIGKILL)

    def steps(self, job_id):
        """The number of decided steps, from the lead's own log, so that no service has to be asked."""
        try:
            with open(self.path('state', 'checkpoints', job_id, 'metrics.jsonl')) as f:
                return len(f.readlines())
        except FileNotFoundError:
            return 0

    def wait_for_logged_step(self, job_id, step):
        self.wait_until(lambda: self.steps(job_id) >= step, 90, f'step {step} in metrics.jsonl')

    def finish(self, job_id):
        job = json.loads(self.ok('wait', job_id, '-o', 'json', timeout=180).out.splitlines()[-1])
        self.assertEqual(job['state'], 'SUCCEEDED', job)
        return job

    def test_checkpoints_of_its_absence_are_committed(self):
        self.start(workers=2, shards=2)
        job_id = self.submit({**JOB, 'training': {**JOB['training'], 'epochs': 4000}, 'checkpoint': {'every': '5 steps', 'keep_latest': 10}})
        self.wait_for_logged_step(job_id, 10)
        self.kill_coordinator()
        begin, before = time.monotonic(), self.steps(job_id)
        self.wait_until(lambda: time.monotonic() - begin > 17, 30, '17 s without a coordinator')
        tasks = self.tasks()
        for task in tasks:  # from here on no step is decided, so nothing newer is saved
            os.kill(task, signal.SIGSTOP)
        away = self.steps(job_id)
        self.start_coordinator()

        def committed():
            return [c['step'] for c in self.describe(job_id).get('checkpoints', []) if before < c['step'] <= away]
        # Written 5 and 15 s after the first checkpoint, since nobody took the files.
        self.wait_until(lambda: len(committed()) >= 2, 30, f'two checkpoints between the steps {before} and {away}')
        # The loss of a shard now costs only the steps since the last of them.
        self.assertEqual(self.stop('s1', signal.SIGKILL), -signal.SIGKILL)
        self.start_node('s1', 'capstan_param_store')
        for task in tasks:
            os.kill(task, signal.SIGCONT)
        started = self.wait_until(lambda: [event['message'] for event in self.describe(job_id)['events']
                                           if event['type'] == 'LineageStarted'], 60, 'the next lineage')
        base = re.search(r' from checkpoint 1-(\d+), restart 1 of ', started[0])
        self.assertIsNotNone(base, started)
        self.assertTrue(before < int(base[1]) <= away, (before, started, away))
        self.wait_for_step(job_id, away + 1)
        self.ok('cancel', job_id)

    def test_training_goes_on_without_it_and_ends_with_the_same_bits(self):
        self.start(workers=2, shards=2)
        undisturbed = self.finish(self.submit(JOB))

        job_id = self.submit(JOB)
        self.wait_for_logged_step(job_id, 10)
        tasks = sorted(self.tasks())
        self.kill_coordinator()
        before = self.steps(job_id)
        self.wait_for_logged_step(job_id, min(before + 60, 300))  # no coordinator is there to tell them anything
        self.start_coordinator()
        job = self.describe(job_id)
        self.assertEqual(job['state'], 'RUNNING')
        self.wait_until(lambda: self.describe(job_id)['progress']['step'] > before, 30, 'news of the lead')
        self.assertEqual(sorted(self.tasks()), tasks)  # no task was started again
        # Repeatedly, while it trains.
        draw = random.Random(SEED)
        while self.steps(job_id) < 330:
            self.kill_coordinator()
            time.sleep(draw.uniform(0, 0.5))
            self.start_coordinator()
            time.sleep(draw.uniform(0, 1.5))
        job = self.finish(job_id)
        self.assertEqual(job['weights_sha256'], undisturbed['weights_sha256'])
        self.assertEqual(job['samples_used'], undisturbed['samples_used'])
        self.assertEqual(job['generation'], 1, job)
        types = [event['type'] for event in self.describe(job_id)['events']]
        self.assertEqual(types[0], 'Submitted')
        self.assertNotIn('WorkerLost', types)
        self.assertEqual(len(self.describe(job_id)['epochs']), 12)

    def test_down_for_long(self):
        self.start(workers=2, shards=2)
        short = self.finish(self.submit(SHORT))
        spec = dict(JOB, checkpoint={'every': '50 steps', 'keep_latest': 2},
                    training=dict(JOB['training'], epochs=1000, max_steps=128 * DOWN_SECONDS))
        undisturbed = self.finish(self.submit(spec))

        job_id = self.submit(spec)
        behind = [self.submit(SHORT) for _ in range(2)]  # in the queue
        self.wait_for_logged_step(job_id, random.Random(SEED).randrange(1, 200))
        tasks = sorted(self.tasks())
        folder = self.catch_half_saved(job_id)
        self.kill_coordinator()
        print(f'seed {SEED}: killed behind step {self.steps(job_id)} while {folder} was being saved', flush=True)
        for part in range(5):
            before = self.steps(job_id)
            time.sleep(DOWN_SECONDS / 5)  # the fault itself
            now = self.steps(job_id)
            print(f'steps {before} to {now} in {DOWN_SECONDS / 5} s without a coordinator', flush=True)
            self.assertGreaterEqual(now, min(before + 1, spec['training']['max_steps']))
        self.start_coordinator()
        self.assertEqual({job['job_id'] for job in json.loads(self.ok('list', '-o', 'json').out)} & {job_id, *behind},
                         {job_id, *behind})
        if self.describe(job_id)['state'] == 'RUNNING':
            self.assertEqual(sorted(self.tasks()), tasks)  # no task was started again
        job = self.finish(job_id)
        for key in ('weights_sha256', 'samples_used'):
            self.assertEqual(job[key], undisturbed[key])
        self.assertEqual(job['lineage'], 1, job)
        for queued in behind:
            self.assertEqual(self.finish(queued)['weights_sha256'], short['weights_sha256'])

    def test_killed_while_a_job_starts_and_before_its_manifest(self):
        self.start(workers=2, shards=2)
        undisturbed = self.finish(self.submit(SHORT))
        draw = random.Random(SEED)
        for _ in range(4):
            job_id = self.submit(SHORT)
            time.sleep(draw.uniform(0, 0.3))  # in the middle of probes, lineages and tasks
            self.kill_coordinator()
            self.start_coordinator()
            self.wait_for_logged_step(job_id, 31)  # all but the last step
            time.sleep(draw.uniform(0, 0.2))
            self.kill_coordinator()
            self.start_coordinator()
            self.assertEqual(self.finish(job_id)['weights_sha256'], undisturbed['weights_sha256'])

    def test_who_follows_events_goes_on_over_restarts_and_sees_each_once(self):
        self.start_coordinator()
        jobs = [self.submit(JOB)]  # there is no node, so it waits
        path = self.path('events')
        with open(path, 'w') as out:
            follow = subprocess.Popen([support.CAPSTAN, 'events', '-f'], cwd=self.folder, stdout=out, stderr=out,
                                      env=dict(os.environ, CAPSTAN_ADDRESS=self.address()))
        self.addCleanup(follow.wait)
        self.addCleanup(follow.kill)

        def said():
            with open(path) as out:
                text = out.read()
            self.assertIsNone(follow.poll(), text)
            return [line for line in text.splitlines() if ' Submitted' in line]

        self.wait_until(lambda: len(said()) == 1, 20, 'the first event')
        for _ in range(3):
            self.assertEqual(self.stop('coordinator'), 0)
            self.start_coordinator()
            jobs.append(self.submit(JOB))
            self.wait_until(lambda: len(said()) >= len(jobs), 20, 'an event after the restart')
        self.assertEqual([line.split()[1] for line in said()], jobs)
        follow.send_signal(signal.SIGINT)
        self.assertEqual(follow.wait(20), 0)

    def test_an_accepted_submit_is_there_and_the_same_request_is_the_same_job(self):
        self.start_coordinator()
        job_file = self.write('job.yaml', json.dumps(JOB))  # there is no node, so they wait
        env = dict(os.environ, CAPSTAN_ADDRESS=self.address())
        accepted = {}

        def submit(client):
            for i in range(8):
                request = f'c{client}-{i}'
                done = subprocess.run([support.CAPSTAN, 'submit', job_file, '--request-id', request], cwd=self.folder,
                                      env=env, capture_output=True, text=True, timeout=120)
                if done.returncode == 0:
                    accepted[request] = done.stdout.strip()

        clients = [threading.Thread(target=submit, args=(client,)) for client in range(3)]
        for client in clients:
            client.start()
        draw = random.Random(SEED)
        while any(client.is_alive() for client in clients):
            time.sleep(draw.uniform(0.1, 0.8))
            self.kill_coordinator()
            self.start_coordinator()
        for client in clients:
            client.join()
        self.kill_coordinator()
        self.start_coordinator()

        self.assertGreater(len(accepted), 3)
        listed = {job['job_id'] for job in json.loads(self.ok('list', '-o', 'json').out)}
        for request, job_id in accepted.items():
            self.assertIn(job_id, listed, request)
        self.assertEqual(len(set(accepted.values())), len(accepted))
        for request in list(accepted)[:3]:  # repeated, as by a client that never got its answer
            again = self.ok('submit', job_file, '--request-id', request).out.strip()
            self.assertEqual(again, accepted[request])

    def test_a_second_coordinator_and_a_damaged_journal_are_refused(self):
        self.start_coordinator()
        job_id = self.submit(JOB)
        command = [os.path.join(support.BIN, 'capstan_coordinator'), '--listen', f'unix:{self.path("other.sock")}',
                   '--http', 'off', '--insecure', '--state-dir', self.path('state')]
        second = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=30)
        self.assertNotEqual(second.returncode, 0)
        self.assertIn('another coordinator works here', second.stderr)
        self.assertEqual(self.stop('coordinator'), 0)
        journal = self.path('state', 'journal.db')
        with open(journal, 'r+b') as f:
            content = f.read()
            f.seek(content.index(b'synthetic_digits'))
            f.write(b'S')
        damaged = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=30)
        self.assertEqual(damaged.returncode, 1)
        self.assertIn(journal, damaged.stderr)
        self.assertIn(job_id, damaged.stderr)
        with open(journal, 'r+b') as f:
            f.write(content)
        self.start_coordinator()
        self.assertEqual(self.describe(job_id)['state'], 'PENDING')

    def test_a_flipped_bit_in_the_log_of_the_journal_loses_no_job_without_a_word(self):
        self.start_coordinator()
        jobs = [self.submit(dict(JOB, name=f'waits-{i}')) for i in range(3)]
        self.kill_coordinator()
        shutil.copytree(self.path('state'), self.path('copy'))
        log = self.path('state', 'journal.db-wal')
        with open(log, 'rb') as f:
            content = f.read()

        def flip(at):
            with open(log, 'wb') as f:
                f.write(content[:at] + bytes([content[at] ^ 8]) + content[at + 1:])

        def refused(*args):
            command = [os.path.join(support.BIN, 'capstan_coordinator'), '--listen', f'unix:{self.path("other.sock")}',
                       '--http', 'off', '--insecure', '--state-dir', self.path('state'), *args]
            run = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=30)
            self.assertEqual(run.returncode, 1, run)
            self.assertIn('journal.db: lacks commits that were durable', run.stderr)
            return re.search(r'--accept-journal=\d+', run.stderr)[0]

        flip(len(content) // 3)
        fewer = refused()
        flip(len(content) - 2000)  # in the last commit
        self.assertNotEqual(refused(fewer), fewer)  # an approval for another state does not apply
        self.start_coordinator(refused())  # works until somebody repairs the journal
        listed = {job['job_id'] for job in json.loads(self.ok('list', '-o', 'json').out)}
        self.assertEqual(listed, set(jobs[:2]))
        self.kill_coordinator()

        shutil.rmtree(self.path('state'))
        shutil.move(self.path('copy'), self.path('state'))
        self.start_coordinator()
        self.assertEqual({job['job_id'] for job in json.loads(self.ok('list', '-o', 'json').out)}, set(jobs))


if __name__ == '__main__':
    support.main()
