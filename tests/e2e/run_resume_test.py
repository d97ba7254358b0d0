"""What `capstan run` leaves: an interrupted run continues from its checkpoint to the weights of an undisturbed one, and all runs
can be looked at."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import urllib.request

import support

EPOCHS = 48
STEPS = 32 * EPOCHS  # 2000 samples, 64 per step
JOB = support.job_spec(name='kept', resources={'num_workers': 2, 'num_shards': 2, 'lanes': 8},
                       training={'epochs': EPOCHS, 'global_batch_size': 64, 'seed': 3,
                                 'optimizer': {'name': 'sgd', 'learning_rate': 0.01, 'momentum': 0.9}},
                       checkpoint={'every': '20 steps'})


class RunsTest(support.TestCase):

    def run_of(self, name='kept'):
        """The id of the only run of this name in ./capstan-out, once its folder exists."""
        runs = self.path('capstan-out')
        found = [run for run in (os.listdir(runs) if os.path.isdir(runs) else []) if run.startswith(name + '-')]
        return found[0] if found else None

    def saved(self, job_id):
        """The committed checkpoints of the run, as `<lineage>-<step>`."""
        folder = self.path('capstan-out', job_id)
        return [name for name in os.listdir(folder) if os.path.exists(os.path.join(folder, name, 'manifest.json'))]

    def is_live(self, job_id):
        with open(self.path('capstan-out', job_id, 'state', 'lock'), 'rb') as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    def start_and_save(self, spec):
        """Starts a run of this job and waits for its first checkpoint. Returns the process and the job's id."""
        process = subprocess.Popen([support.CAPSTAN, 'run', self.write('job.yaml', json.dumps(spec))], cwd=self.folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)

        def has_saved():
            self.assertIsNone(process.poll(), process.stderr.read() if process.poll() is not None else '')
            job_id = self.run_of(spec['name'])
            return job_id if job_id and self.saved(job_id) else None

        return process, self.wait_until(has_saved, 60, 'the first checkpoint')

    def kill(self, process, job_id):
        """Kills the client; all of its services end with it."""
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=10)
        self.wait_until(lambda: not self.is_live(job_id), 10, 'the end of the coordinator')


class RunResumeTest(RunsTest):
    references = {}

    def check(self, job):
        """The job must end like an undisturbed run."""
        if not self.references:
            self.references['job'] = self.train(dict(JOB, name='undisturbed'))
        undisturbed = self.references['job']
        self.assertEqual(job['state'], 'SUCCEEDED', job)
        self.assertEqual(job['weights_sha256'], undisturbed['weights_sha256'], job)
        self.assertEqual(job['samples_used'], undisturbed['samples_used'], job)
        self.assertEqual(job['restarts'], 0, job)
        self.assertEqual(len(job['epochs']), EPOCHS, job)

    def test_after_ctrl_c_it_goes_on_from_its_newest_checkpoint(self):
        process, job_id = self.start_and_save(JOB)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 103, err)
        last = err.splitlines()[-1]
        self.assertRegex(last, rf'^capstan run --resume {job_id} goes on from checkpoint 1-\d+$')
        step = int(last.rsplit('-', 1)[1])

        run = self.capstan('run', '--resume', job_id[:-1], '-o', 'json')  # the beginning of only one id
        self.assertEqual(run.code, 0, run)
        self.assertIn(f'{job_id}  goes on from checkpoint 1-{step}\n', run.err)
        job = json.loads(run.out.splitlines()[-1])
        self.check(job)
        self.assertEqual(job['job_id'], job_id)
        # No saved step is computed again.
        again = [line['step'] for line in self.step_log(job) if line['lineage'] > 1]
        self.assertEqual(again, list(range(step, STEPS)))

        run = self.capstan('run', '--resume', job_id)
        self.assertEqual(run.code, 4, run)
        self.assertIn(f'job {job_id} has SUCCEEDED: nothing is left to train', run.err)

    def test_after_the_end_of_all_processes_by_its_folder(self):
        process, job_id = self.start_and_save(JOB)
        busy = self.capstan('run', '--resume', job_id)
        self.assertEqual(busy.code, 4, busy)
        self.assertIn('another coordinator works here', busy.err)
        self.kill(process, job_id)

        folder = self.path('capstan-out', job_id)
        moved = self.path('elsewhere')
        shutil.copytree(folder, moved)
        run = self.capstan('run', '--resume', moved)
        self.assertEqual(run.code, 4, run)
        self.assertIn(f'{moved}: job {job_id} saves to {os.path.realpath(folder)}; move its folder back there', run.err)

        run = self.capstan('run', '--resume', folder + '/', '-o', 'json')
        self.assertEqual(run.code, 0, run)
        self.assertRegex(run.err, rf'{job_id}  goes on from checkpoint 1-\d+\n')
        self.check(json.loads(run.out.splitlines()[-1]))

    def test_twice_interrupted(self):
        process, job_id = self.start_and_save(JOB)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        first = set(self.saved(job_id))
        process = subprocess.Popen([support.CAPSTAN, 'run', '--resume', job_id], cwd=self.folder, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        self.wait_until(lambda: set(self.saved(job_id)) - first or process.poll() is not None, 60, 'another checkpoint')
        self.kill(process, job_id)
        run = self.capstan('run', '--resume', '@last', '-o', 'json')
        self.assertEqual(run.code, 0, run)
        self.check(json.loads(run.out.splitlines()[-1]))

    def test_what_cannot_be_resumed_is_said(self):
        run = self.capstan('run', '--resume', 'nothing-x')
        self.assertEqual(run.code, 2, run)
        self.assertIn('capstan-out/nothing-x: there is no such run folder', run.err)
        self.write('capstan-out/old-1/metrics.jsonl', '{}\n')
        run = self.capstan('run', '--resume', 'old-1')
        self.assertEqual(run.code, 2, run)
        self.assertIn('capstan-out/old-1: has no state/journal.db', run.err)
        for extra in (['job.yaml'], ['--example', 'lenet'], ['--set', 'training.epochs=3']):
            run = self.capstan('run', '--resume', 'old-1', *extra)
            self.assertEqual(run.code, 2, run)
            self.assertIn('--resume continues a job as it was submitted', run.err)


class RunLookTest(RunsTest):

    def look(self, *args, **kwargs):
        """Runs a command without naming a coordinator."""
        return self.capstan(*args, **kwargs, env={'CAPSTAN_ADDRESS': '', 'XDG_CONFIG_HOME': self.path('config')})

    def json(self, *args):
        run = self.look(*args, '-o', 'json')
        self.assertEqual(run.code, 0, run)
        return json.loads(run.out)

    def files(self):
        """The present content of ./capstan-out."""
        found = {}
        for folder, _, names in os.walk(self.path('capstan-out')):
            for name in names:
                about = os.stat(os.path.join(folder, name))
                found[os.path.join(folder, name)] = about.st_size, about.st_mtime_ns
        return found

    def finished(self):
        return self.train(support.job_spec(name='done', training={'epochs': 20, 'global_batch_size': 64, 'seed': 3,
                                                                  'optimizer': {'name': 'sgd', 'learning_rate': 0.04}}))

    def test_a_finished_one_and_an_interrupted_one(self):
        done = self.finished()
        process, killed = self.start_and_save(JOB)
        self.assertEqual(self.json('describe', killed)['state'], 'RUNNING')
        self.kill(process, killed)
        before = self.files()

        listed = self.json('list', 'capstan-out')
        self.assertEqual([(job['job_id'], job['state'], job['reason']) for job in listed],
                         [(killed, 'SUSPENDED', 'Interrupted'), (done['job_id'], 'SUCCEEDED', '')])
        plain = self.look('list')
        self.assertEqual(plain.code, 0, plain)
        self.assertIn('no coordinator is configured: the runs in ./capstan-out\n', plain.err)
        self.assertEqual([line.split()[0] for line in plain.out.splitlines()], ['JOB', killed, done['job_id']])
        self.assertEqual(self.look('list', '-s', 'SUCCEEDED', '-o', 'name').out, done['job_id'] + '\n')

        for name in (done['job_id'], 'do', f'capstan-out/{done["job_id"]}/', self.path('capstan-out', done['job_id'])):
            described = self.json('describe', name)
            self.assertEqual((described['job_id'], described['weights_sha256']), (done['job_id'], done['weights_sha256']))
        self.assertRegex(self.look('describe', '@last').out, rf'(?s)^Job +{killed}\n.*capstan run --resume goes on from checkpoint 1-\d+')
        one = self.look('checkpoint', 'describe', 'do@640')
        self.assertIn(f'capstan-out/{done["job_id"]}/1-640', one.out, one)
        for name in (killed, 'capstan-out/' + killed):
            follows = self.look('events', name, '-f', timeout=30)
            self.assertEqual((follows.code, follows.out), (2, ''), follows)
            self.assertIn('capstan: -f would do nothing: a run in a folder is shown as it is now', follows.err)

        folder = f'./capstan-out/{done["job_id"]}'
        drawn = self.look('metrics', folder, '--plot')
        self.assertEqual(drawn.code, 0, drawn)
        for name in ('loss', 'accuracy', 'validation_accuracy', 'samples_per_second'):
            self.assertRegex(drawn.out, rf'(?m)^{name}  \d')
        history = self.json('metrics', folder)
        self.assertEqual(history['job_id'], done['job_id'])
        self.assertEqual([record['epoch'] for record in history['evaluations']], list(range(1, 21)))
        self.assertIn('Succeeded', self.look('events', folder).out)
        export = self.look('checkpoint', 'export', folder + '@640', '--out', self.path('weights.safetensors'))
        self.assertEqual(export.code, 0, export)
        with open(self.path('weights.safetensors'), 'rb') as a, open(self.checkpoint(done) + '/weights.safetensors', 'rb') as b:
            self.assertEqual(a.read(), b.read())
        self.assertEqual(self.files(), before)

    def test_the_status_page_over_a_folder(self):
        done = self.finished()
        page = subprocess.Popen([support.CAPSTAN, 'page'], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(page.kill)
        url = page.stdout.readline().strip()
        self.assertRegex(url, r'^http://127\.0\.0\.1:\d+/$')
        with urllib.request.urlopen(url, timeout=20) as answer:
            self.assertIn('<html', answer.read().decode())
        with urllib.request.urlopen(url + 'api/overview', timeout=20) as answer:
            self.assertIn(done['job_id'], answer.read().decode())
        with urllib.request.urlopen(f'{url}api/job?id={done["job_id"]}', timeout=20) as answer:
            self.assertIn(done['weights_sha256'], answer.read().decode())
        page.send_signal(signal.SIGINT)
        _, err = page.communicate(timeout=20)
        self.assertEqual(page.returncode, 0, err)
        self.assertIn('the runs in capstan-out, as they are now', err)
        wide = self.look('page', '--http', '0.0.0.0:0')
        self.assertEqual(wide.code, 2, wide)
        self.assertIn('--http: want a loopback address', wide.err)

    def test_a_run_that_cannot_be_read_is_named_and_hides_no_other(self):
        done = self.finished()
        self.write('capstan-out/bad-1/state/journal.db', 'no database at all' * 100)
        listed = self.look('list', 'capstan-out', '-o', 'name')
        self.assertEqual((listed.code, listed.out), (0, done['job_id'] + '\n'), listed)
        self.assertIn('capstan-out/bad-1 is not shown: its journal cannot be read', listed.err)
        self.assertNotIn(done['job_id'] + ' is not shown', listed.err)
        bad = self.look('describe', 'capstan-out/bad-1')
        self.assertEqual(bad.code, 1, bad)
        self.assertIn('capstan-out/bad-1/state/journal.db', bad.err)

    def test_where_there_is_no_run_that_is_said(self):
        self.write('capstan-out/old-1/metrics.jsonl', '{}\n')
        for words, said in ((('list', 'capstan-out'), 'capstan-out: has no run that can be viewed'),
                            (('page', 'nowhere'), 'nowhere: there is no such folder'),
                            (('describe', './capstan-out/old-1'), './capstan-out/old-1: has no state/journal.db'),
                            (('metrics', './absent'), './absent: there is no such run folder')):
            run = self.look(*words)
            self.assertEqual(run.code, 2, run)
            self.assertIn(said, run.err)


if __name__ == '__main__':
    support.main()
