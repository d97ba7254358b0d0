"""The command line's orders to and questions about a living job: text, JSON and exit codes, against real services."""

import json
import os
import re
import signal
import subprocess

import services
import support

TIME = r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z'
SGD = {'name': 'sgd', 'learning_rate': 0.04, 'momentum': 0.9}
ENDLESS = support.job_spec(name='endless', resources={'num_workers': 2, 'num_shards': 2},
                           training={'epochs': 100000, 'global_batch_size': 64, 'seed': 3, 'optimizer': SGD},
                           checkpoint={'every': '1000000 steps', 'keep_latest': 5})


def open_text(path):
    with open(path, errors='replace') as f:
        return f.read()


class OrdersTest(services.ServicesTest):

    def json(self, *args):
        return json.loads(self.ok(*args, '-o', 'json').out)

    def events(self, job_id, kind):
        return [event for event in self.describe(job_id)['events'] if event['type'] == kind]

    def saved(self, job_id, count):
        return self.wait_until(lambda: len(self.events(job_id, 'CheckpointSaved')) >= count, 60, f'checkpoint {count}')

    def test_update_and_checkpoints(self):
        self.start(workers=2, shards=2)
        job_id = self.submit(ENDLESS)
        self.wait_for_step(job_id, 3)
        self.assertEqual(self.ok('checkpoint', 'list', job_id).out, '')
        self.assertEqual(self.json('checkpoint', 'list', job_id), [])
        for verb in ('describe', 'verify'):
            early = self.capstan('checkpoint', verb, job_id)
            self.assertEqual((early.code, early.out), (2, ''), early)
            self.assertEqual(early.err, f'capstan: {job_id} has no checkpoint yet\n')

        # Each order gets a number, and later a step at which it took effect.
        self.assertEqual(self.ok('update', job_id, '--checkpoint').out,
                         f'order 1: capstan events {job_id} says at which step\n')
        self.saved(job_id, 1)
        self.assertEqual(self.json('update', job_id, '--learning-rate', '0.01', '--checkpoint'),
                         {'job_id': job_id, 'order_ids': [2, 3]})
        self.saved(job_id, 2)
        self.assertEqual(self.json('update', job_id, '--max-restarts', '7'), {'job_id': job_id, 'order_ids': []})
        applied = self.wait_until(lambda: (lambda found: found if len(found) == 3 else None)(
            self.events(job_id, 'OrderApplied')), 30, 'three applied orders')
        self.assertTrue(all(event['step'] > 0 or re.search(r'step \d+', event['message']) for event in applied), applied)
        self.assertEqual([event['message'] for event in self.events(job_id, 'OrderGiven')],
                         ['order 1: checkpoint', 'order 2: learning rate 0.01', 'order 3: checkpoint'])
        self.assertEqual([event['message'] for event in self.events(job_id, 'Updated')], ['max_restarts 7'])
        self.wait_until(lambda: self.describe(job_id)['progress'].get('learning_rate') == 0.01, 30, 'the new rate')
        synchronous = self.capstan('update', job_id, '--max-staleness', '3')
        self.assertNotEqual(synchronous.code, 0)
        self.assertIn(f"max_staleness: job {job_id} trains with kvstore 'dist_sync', want 'dist_async'", synchronous.err)
        for args, words in ((['--learning-rate', '-1'], 'learning_rate'), (['--max-restarts', '5000'], '--max-restarts')):
            run = self.capstan('update', job_id, *args)
            self.assertEqual(run.code, 2, run)
            self.assertIn(words, run.err)

        table = self.ok('checkpoint', 'list', job_id).out.splitlines()
        self.assertRegex(table[0], '^CHECKPOINT +STEP +SAMPLES +BYTES +METRIC +BEST +COMMITTED +URI$')
        listed = self.json('checkpoint', 'list', job_id)
        self.assertEqual(len(table), 1 + len(listed))
        newest = listed[0]
        self.assertGreater(newest['step'], listed[1]['step'])
        self.assertEqual(newest['id'], f'1-{newest["step"]}')
        self.assertEqual(newest['uri'], f'file://{self.path("state", "checkpoints", job_id, newest["id"])}')
        self.assertEqual(newest['size_bytes'], sum(file['size_bytes'] for file in newest['files']))
        self.assertRegex(newest['committed_at'], f'^{TIME}$')
        self.assertRegex(table[1], rf'^{newest["id"]} +{newest["step"]} +{newest["samples_used"]} +{newest["size_bytes"]} '
                         rf'.*{TIME}  {newest["uri"]}$')

        one = self.ok('checkpoint', 'describe', job_id).out
        for file in newest['files']:
            self.assertRegex(one, rf'(?m)^{re.escape(file["name"])} +{file["size_bytes"]} +{file["sha256"]}$')
        self.assertIn(f'Checkpoint  {newest["uri"]}\n', one)
        self.assertEqual(self.json('checkpoint', 'describe', job_id), newest)
        self.assertEqual(self.json('checkpoint', 'describe', job_id, listed[1]['id']), listed[1])
        self.assertEqual(self.ok('checkpoint', 'verify', job_id).out,
                         one + 'Verified    every size and hash agrees with the manifest\n')
        self.assertEqual(self.json('checkpoint', 'verify', job_id, newest['id']), newest)
        for verb in ('describe', 'verify'):
            run = self.capstan('checkpoint', verb, job_id, '9-9')
            self.assertEqual(run.code, 2, run)
            self.assertEqual(run.err, f'capstan: {job_id} has no checkpoint 9-9; capstan checkpoint list {job_id} shows '
                             'those that it has\n')
            self.assertEqual(run.out, '')

        # One flipped bit is reported by the file's name, and only for this checkpoint.
        damaged = os.path.join(newest['uri'][len('file://'):], 'shard-1.safetensors')
        with open(damaged, 'r+b') as f:
            f.seek(-9, os.SEEK_END)
            byte = f.read(1)[0]
            f.seek(-9, os.SEEK_END)
            f.write(bytes([byte ^ 1]))
        for output in ('table', 'json'):
            run = self.capstan('checkpoint', 'verify', job_id, '-o', output)
            self.assertEqual(run.code, 1, run)
            self.assertEqual(run.out, '')
            self.assertRegex(run.err, rf'{damaged}: SHA-256 is \w+, the manifest says \w+')
        self.ok('checkpoint', 'verify', job_id, listed[1]['id'])
        self.ok('cancel', job_id)

    def test_the_tensors_of_any_checkpoint_are_fetched_begun_from_and_deleted(self):
        self.start(workers=2, shards=2)
        first = support.job_spec(name='first', resources={'num_workers': 2, 'num_shards': 2}, model={'name': 'mlp'},
                                 checkpoint={'every': '20 steps', 'keep_latest': 10},
                                 data={'format': 'synthetic_digits', 'train_samples': 20000, 'test_samples': 100})
        job_id = self.submit(first, '--wait')
        job = self.describe(job_id)
        self.assertEqual(job['state'], 'SUCCEEDED')
        folder = os.path.dirname(self.checkpoint(job))

        def content(*names):
            with open(os.path.join(*names), 'rb') as f:
                return f.read()

        # Only one is written at a time, so a slow disk delays some of them.
        steps = [saved['step'] for saved in self.json('checkpoint', 'list', job_id)]
        self.assertGreaterEqual(len(steps), 3, steps)
        end, middle, begin = steps[0], steps[1], steps[-1]

        # For the last step it is byte for byte the file that the job itself wrote.
        last = self.path('last.safetensors')
        self.assertEqual(self.ok('checkpoint', 'export', job_id, '--out', last).out, f'{last}\n')
        self.assertEqual(content(last), content(folder, f'1-{end}', 'weights.safetensors'))
        self.assertEqual(self.ok('checkpoint', 'export', job_id).out, 'weights.safetensors\n')
        self.assertEqual(content(self.path('weights.safetensors')), content(last))
        early = self.json('checkpoint', 'export', f'{job_id}@{begin}', '--out', self.path('early.safetensors'))
        tensors = support.read_safetensors(early['path'])
        self.assertEqual(list(tensors), list(support.read_safetensors(last)))
        self.assertEqual((early['checkpoint'], early['step'], early['weights_sha256']),
                         (f'1-{begin}', begin, support.sha256_of(tensors)))
        self.assertNotEqual(early['weights_sha256'], job['weights_sha256'])

        # One step that is too small to change any weight ends with the initial weights.
        still = dict(max_steps=1, global_batch_size=64, optimizer={'name': 'sgd', 'learning_rate': 1e-30})
        for name, weights, kvstore in (('by-name', f'{job_id}@{begin}', 'dist_sync'), ('by-id', f'{job_id}@1-{begin}', 'local'),
                                       ('by-path', os.path.join(folder, f'1-{begin}', 'manifest.json'), 'dist_sync'),
                                       ('by-file', early['path'], 'local')):
            begun = self.submit(support.job_spec(name=name, model={'name': 'mlp', 'initial_weights': weights}, training=still,
                                                 kvstore={'type': kvstore}), '--wait')
            self.assertEqual(self.describe(begun)['weights_sha256'], early['weights_sha256'], name)
        other = self.write('job.yaml', json.dumps(support.job_spec(
            name='lenet', model={'name': 'lenet', 'initial_weights': f'{job_id}@{begin}'}, training=still)))
        self.assertEqual(self.capstan('submit', other, '--wait').code, 100)
        here = self.capstan('run', other)
        self.assertEqual(here.code, 2, here)
        self.assertIn('only `capstan submit` can look a checkpoint up by its job', here.err)

        # It has all files, each with the hash in the manifest.
        copy = self.path('copy')
        self.assertEqual(self.ok('checkpoint', 'download', f'{job_id}@{middle}', '--out', copy).out, f'{copy}\n')
        names = ['manifest.json', 'shard-0.safetensors', 'shard-1.safetensors']
        self.assertEqual(sorted(os.listdir(copy)), names)
        for name in names:
            self.assertEqual(content(copy, name), content(folder, f'1-{middle}', name), name)
        self.assertEqual(self.ok('checkpoint', 'download', f'{job_id}@{middle}', '--out', copy).err.count('exists already'), 2)
        damaged = os.path.join(folder, f'1-{middle}', 'shard-1.safetensors')
        bytes_of = content(damaged)
        with open(damaged, 'wb') as f:
            f.write(bytes_of[:-9] + bytes([bytes_of[-9] ^ 1]) + bytes_of[-8:])
        for args in (['download', '--out', self.path('bad')], ['export', '--out', self.path('bad.safetensors')]):
            run = self.capstan('checkpoint', args[0], f'{job_id}@{middle}', *args[1:])
            self.assertEqual((run.code, run.out), (1, ''), run)
            self.assertRegex(run.err, r'shard-1.safetensors: (SHA|sha)-?256 is \w+, the manifest says \w+')
        self.assertEqual(os.listdir(self.path('bad')), ['shard-0.safetensors'])
        self.assertFalse([name for name in os.listdir(self.folder) if name.startswith('bad.safetensors')])

        # A deletion needs a confirmation, is final, and never takes the checkpoint from which a job continues.
        unsure = self.capstan('checkpoint', 'delete', f'{job_id}@{begin}')
        self.assertEqual(unsure.code, 2, unsure)
        self.assertIn('give -y', unsure.err)
        self.assertEqual(self.capstan('checkpoint', 'delete', job_id, '-y').code, 2)
        gone = self.json('checkpoint', 'delete', f'{job_id}@{begin}', '-y')
        self.assertEqual((gone['checkpoint'], gone['step']), (f'1-{begin}', begin))
        self.wait_until(lambda: not os.path.exists(os.path.join(folder, f'1-{begin}')), 10, 'the end of its folder')
        self.assertEqual([saved['step'] for saved in self.json('checkpoint', 'list', job_id)], steps[:-1])
        self.assertEqual(self.stop('coordinator'), 0)
        self.start_plain_coordinator()
        self.assertEqual([saved['step'] for saved in self.json('checkpoint', 'list', job_id)], steps[:-1])
        for args in (['checkpoint', 'export', f'{job_id}@{begin}'], ['checkpoint', 'delete', f'{job_id}@{begin}', '-y'],
                     ['submit', other]):
            run = self.capstan(*args)
            self.assertEqual((run.code, run.out), (2, ''), run)
            self.assertIn(f'{job_id} has no checkpoint of step {begin}; it has those of steps {", ".join(map(str, steps[:-1]))}', run.err)
        endless = self.submit(ENDLESS)
        self.wait_for_step(endless, 3)
        self.ok('update', endless, '--checkpoint')
        self.saved(endless, 1)
        newest = self.json('checkpoint', 'list', endless)[0]
        run = self.capstan('checkpoint', 'delete', f'{endless}@{newest["step"]}', '-y')
        self.assertEqual(run.code, 4, run)
        self.assertIn('it is the newest, and the job has not ended', run.err)
        self.ok('cancel', endless)

    def test_the_checkpoints_of_a_job_go_when_its_time_is_over(self):
        self.start(workers=1, shards=1)
        training = {'epochs': 1, 'global_batch_size': 64, 'seed': 3, 'optimizer': SGD}
        stays = self.submit(support.job_spec(name='stays', training=training))
        goes = self.submit(support.job_spec(name='goes', training=training, limits={'ttl_after_finished': '5s'}))
        for job_id in (stays, goes):
            self.assertEqual(json.loads(self.ok('wait', job_id, '-o', 'json').out.splitlines()[-1])['state'], 'SUCCEEDED')
        folders = {job_id: self.path('state', 'checkpoints', job_id) for job_id in (stays, goes)}
        self.assertEqual([c['id'] for c in self.json('checkpoint', 'list', goes)], ['1-32'])
        self.assertTrue(os.path.exists(os.path.join(folders[goes], '1-32', 'weights.safetensors')))
        # The checkpoints go first, then the record. The log of its steps stays.
        self.wait_until(lambda: self.capstan('describe', goes).code == 102, 30, 'the record is forgotten')
        self.wait_until(lambda: os.listdir(folders[goes]) == ['metrics.jsonl'], 10, f'nothing of {folders[goes]} but the log of its steps')
        self.assertEqual(len(open_text(os.path.join(folders[goes], 'metrics.jsonl')).splitlines()), 32)
        self.assertEqual(self.ok('list', '-o', 'name').out, stays + '\n')
        self.ok('checkpoint', 'verify', stays)
        self.assertIn('1-32', os.listdir(folders[stays]))

    def test_suspend_resume_and_retry(self):
        self.start(workers=2, shards=2)
        job_id = self.submit(dict(ENDLESS, recovery={'max_restarts': 0}))
        early = self.capstan('retry', job_id)
        self.assertEqual(early.code, 4, early)
        self.assertIn('did not fail and was not cancelled', early.err)
        self.assertEqual(self.capstan('resume', job_id).code, 4)
        self.wait_for_step(job_id, 3)
        self.assertEqual(self.ok('suspend', job_id).out, f'{job_id}  suspending: saves first\n')
        answer = self.json('suspend', job_id)  # again
        self.assertEqual(answer['job_id'], job_id)
        self.assertEqual(self.ok('wait', job_id, '--for', 'SUSPENDED').code, 0)
        at = self.describe(job_id)['progress']['step']
        self.assertEqual(self.ok('resume', job_id).out, f'{job_id}  PENDING\n')
        self.wait_for_step(job_id, at + 3)
        self.ok('update', job_id, '--checkpoint')
        self.saved(job_id, 2)

        # No restart is left, so it fails, and a person puts it back into the queue.
        self.assertEqual(self.stop('s0', signal.SIGKILL), -signal.SIGKILL)
        self.assertEqual(self.capstan('wait', job_id).code, 100)
        newest = self.json('checkpoint', 'list', job_id)[0]
        self.start_node('s0', 'capstan_param_store')
        again = self.ok('retry', job_id)
        self.assertEqual(again.out, f'{job_id}  PENDING\n')
        self.assertIn(f'from {newest["uri"]}', again.err)
        self.wait_for_step(job_id, newest['step'] + 3)
        self.assertEqual(self.ok('cancel', job_id).out.split()[0], job_id)
        self.assertEqual(self.capstan('wait', job_id).code, 103)
        self.assertEqual(self.json('retry', job_id), {'job_id': job_id, 'state': 'PENDING'})
        self.wait_for_step(job_id, newest['step'] + 3)
        types = [event['type'] for event in self.describe(job_id)['events']]
        self.assertEqual(types.count('Retried'), 2)
        self.ok('cancel', job_id)
        self.assertEqual(self.capstan('wait', job_id).code, 103)
        for verb in ('suspend', 'resume'):
            run = self.capstan(verb, job_id)
            self.assertEqual(run.code, 4, run)
            self.assertIn(job_id, run.err)

    def test_events_are_followed_and_log_levels_change_while_running(self):
        self.start(workers=2, shards=2)
        job_id = self.submit(ENDLESS)
        env = dict(os.environ, CAPSTAN_ADDRESS=self.address())
        followers = [subprocess.Popen([support.CAPSTAN, 'events', *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      text=True, env=env) for args in (['-f', job_id], ['-f', job_id, '-o', 'json'])]
        for follower in followers:
            self.addCleanup(follower.kill)
        everything = subprocess.Popen([support.CAPSTAN, 'events', '-f', '-o', 'json'], stdout=subprocess.PIPE, text=True,
                                      env=env)
        self.addCleanup(everything.kill)
        self.wait_for_step(job_id, 3)
        self.ok('update', job_id, '--checkpoint')
        self.saved(job_id, 1)

        # Running services change at once: one logs the end of its task, the other is silent.
        self.assertEqual(self.json('log-level', 'debug', '--node', 'w0'), {'node': 'w0', 'level': 'debug'})
        self.assertEqual(self.ok('log-level', 'error', '--node', 'w1').out, 'w1  error\n')
        self.assertEqual(self.json('log-level', 'error'), {'node': '', 'level': 'error'})
        self.assertEqual(self.ok('log-level', 'info').out, 'coordinator  info\n')
        self.assertEqual(self.capstan('log-level', 'debug', '--node', 'nobody').code, 2)

        self.ok('cancel', job_id)
        text, as_json = [follower.communicate(timeout=60)[0].splitlines() for follower in followers]
        self.assertEqual([follower.returncode for follower in followers], [0, 0])
        stored = [json.loads(line) for line in self.ok('events', job_id, '-o', 'json').out.splitlines()]
        self.assertEqual([json.loads(line) for line in as_json], stored)
        self.assertEqual(text, self.ok('events', job_id).out.splitlines())
        self.assertEqual((stored[0]['type'], stored[-1]['type']), ('Submitted', 'Cancelled'))
        for event, line in zip(stored, text):
            self.assertEqual(set(event), {'job_id', 'time', 'type', 'step', 'message'})
            self.assertRegex(event['time'], f'^{TIME}$')
            self.assertRegex(line, rf'^{event["time"]}  {job_id}  {event["type"]} ')
        self.assertIn('CheckpointSaved', [event['type'] for event in stored])
        everything.send_signal(signal.SIGINT)
        out, _ = everything.communicate(timeout=30)
        self.assertEqual(everything.returncode, 0)
        self.assertIn(stored[-1], [json.loads(line) for line in out.splitlines()])
        self.wait_until(lambda: not self.tasks(), 30, 'the end of all tasks')
        self.wait_until(lambda: 'event=task_ended' in self.services['w0'].said(), 30, 'its word')
        self.assertEqual((self.stop('w0'), self.stop('w1')), (0, 0))
        self.assertNotIn('event=task_ended', open_text(self.path('w1.log')))


if __name__ == '__main__':
    support.main()
