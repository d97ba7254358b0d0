"""Jobs on services that were started by hand: every verb, in a pipe and as JSON, and its exit code."""

import json
import os
import re
import signal
import subprocess

import services
import support
import terminal
from damaged_input_test import idx_images, idx_labels

TIME = re.compile(r'^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$')
SGD = {'name': 'sgd', 'learning_rate': 0.04}
# Longer than any test, on any machine.
ENDLESS = support.job_spec(name='endless', training={'epochs': 100000, 'global_batch_size': 64, 'optimizer': SGD},
                           resources={'num_workers': 2, 'num_shards': 1})
SHORT = support.job_spec(name='short', resources={'num_workers': 2, 'num_shards': 1},
                         training={'epochs': 2, 'global_batch_size': 64, 'seed': 3, 'optimizer': SGD})


class ServicesByHandTest(services.ServicesTest):

    def test_a_job_from_submit_to_verify(self):
        self.start()
        job_id = self.submit(SHORT)
        self.assertRegex(job_id, r'^short-[a-z0-9]{6}$')

        watched = self.capstan('watch', job_id)
        self.assertEqual(watched.code, 0, watched)
        self.assertRegex(watched.out, r'(?m)^Epoch\[1\] Step\[32\] Speed: [\d.]+ samples/sec train-loss=')
        self.assertIn('weights = load_file(', watched.out.splitlines()[-1])
        self.assertNotIn('\033', watched.out + watched.err)
        lines = self.ok('watch', job_id, '-o', 'json').out.splitlines()
        self.assertEqual(json.loads(lines[-1])['state'], 'SUCCEEDED')

        waited = json.loads(self.ok('wait', job_id, '-o', 'json').out)
        self.assertEqual(waited['progress']['step'], 64)
        self.assertEqual(waited['samples_used'], 4000)
        self.assertEqual(self.ok('wait', job_id, '--timeout', '5s').out, '')

        job = self.describe(job_id)
        self.assertLess(set(waited), set(job))
        self.assertEqual(job['state'], 'SUCCEEDED')
        self.assertEqual([epoch['epoch'] for epoch in job['epochs']], [1, 2])
        self.assertEqual([(w['index'], w['state'], w['step']) for w in job['workers']],
                         [(0, 'FINISHED', 64), (1, 'FINISHED', 64)])
        self.assertEqual(job['spec']['data']['train_samples'], 2000)
        self.assertEqual(job['resolved']['total_steps'], 64)
        for key in ('submitted_at', 'started_at', 'finished_at'):
            self.assertRegex(job[key], TIME)
        types = [event['type'] for event in job['events']]
        self.assertEqual(types[0], 'Submitted')
        self.assertEqual(types[-1], 'Succeeded')
        metrics = json.loads(self.ok('metrics', job_id, '-o', 'json').out)
        self.assertEqual([(e['epoch'], e['step'], e['validation_accuracy']) for e in metrics['evaluations']],
                         [(e['epoch'], 32 * e['epoch'], e['validation_accuracy']) for e in job['epochs']])
        points = metrics['points']
        self.assertEqual(points[-1]['validation_loss'], job['epochs'][-1]['validation_loss'])
        for count in range(1, len(points) + 1):
            some = json.loads(self.ok('metrics', job_id, '-o', 'json', '--points', str(count)).out)['points']
            self.assertEqual((len(some), some[-1]['step']), (count, points[-1]['step']))
        self.assertIn('VAL ACC', self.ok('metrics', job_id).out)
        text = self.ok('describe', job_id).out
        self.assertIn(f'Sha256      {job["weights_sha256"]}', text)
        self.assertIn('State       SUCCEEDED', text.splitlines()[-1])

        again = self.submit(SHORT)
        yaml = self.ok('describe', job_id, '-o', 'yaml').out
        copy = self.ok('submit', '-', '-o', 'json', '--wait', stdin=yaml)
        self.assertEqual(json.loads(copy.out)['weights_sha256'], job['weights_sha256'])
        self.ok('wait', again)

        events = [json.loads(line) for line in self.ok('events', job_id, '-o', 'json').out.splitlines()]
        self.assertEqual([event['type'] for event in events], types)
        self.assertEqual({event['job_id'] for event in events}, {job_id})
        all_events = self.ok('events').out
        for known in (job_id, again):
            self.assertIn(known, all_events)
        self.assertRegex(all_events.splitlines()[0], r'^\d{4}-\d\d-\d\dT[\d:.]+Z  short-\w{6}  Submitted ')

        verified = self.ok('verify', job_id)
        self.assertIn(f'{job_id}: verified, bit for bit', verified.out)
        compared = json.loads(self.ok('verify', job_id, '-o', 'json').out.splitlines()[-1])
        self.assertTrue(compared['equal'])
        self.assertEqual(compared['reference_samples_used'], 4000)

    def test_verify_ends_with_a_code_of_its_own_where_the_weights_differ(self):
        for name, content in (('train-images-idx3-ubyte', idx_images(200)), ('train-labels-idx1-ubyte', idx_labels(200)),
                              ('t10k-images-idx3-ubyte', idx_images(50)), ('t10k-labels-idx1-ubyte', idx_labels(50))):
            self.write(f'data/{name}', content)
        self.start(workers=1)
        job_id = self.submit(support.job_spec(data={'uri': self.path('data'), 'format': 'idx'},
                                              training={'epochs': 1, 'global_batch_size': 50,
                                                        'optimizer': {'name': 'sgd', 'learning_rate': 0.04}}), '--wait')
        self.ok('verify', job_id)
        images = bytearray(idx_images(200))
        for pixel in range(16 + 784, 16 + 2 * 784):  # of the second image
            images[pixel] ^= 0xff
        self.write('data/train-images-idx3-ubyte', bytes(images))
        differs = self.capstan('verify', job_id)
        self.assertEqual(differs.code, 6, differs)
        self.assertRegex(differs.out, r'(?m)^weights  DIFFERENT$')
        self.assertRegex(differs.out, r'(?m)^samples  equal$')
        self.assertIn(f'{job_id}: NOT equal to what one process computes from the same spec', differs.out)
        compared = self.capstan('verify', job_id, '-o', 'json')
        self.assertEqual((compared.code, json.loads(compared.out.splitlines()[-1])['equal']), (6, False), compared)

    def test_list_and_nodes(self):
        self.start()
        self.assertEqual(self.ok('list').out, '')
        self.assertEqual(json.loads(self.ok('list', '-o', 'json').out), [])
        spec = dict(SHORT, labels={'team': 'vision'})
        first = self.submit(spec)
        self.ok('wait', first)
        second = self.submit(ENDLESS)
        table = self.ok('list').out.splitlines()
        self.assertRegex(table[0], r'^JOB +STATE +REASON +STEP +LOSS +AGE$')
        self.assertRegex(table[1], rf'^{second} +(PENDING|STARTING|RUNNING) ')
        self.assertRegex(table[2], rf'^{first} +SUCCEEDED +- +64/64 100% ')
        self.assertEqual(self.ok('list', '-o', 'name', '-s', 'succeeded').out, first + '\n')
        self.assertEqual(self.ok('list', '-o', 'name', '-l', 'team=vision').out, first + '\n')
        self.assertEqual(self.ok('list', '-o', 'name', '-l', 'team=vision', '--limit', '1').out, first + '\n')
        self.assertEqual(self.ok('list', '-o', 'name', '-u', 'ann').out, '')
        self.assertIn("-l gives 'team' two values", self.capstan('list', '-l', 'team=a', '-l', 'team=b').err)
        self.assertEqual(self.ok('job', 'list', '-o', 'name', '--limit', '1').out, second + '\n')
        self.assertIn('SAMPLES/S', self.ok('list', '-w').out.splitlines()[0])
        rows = json.loads(self.ok('list', '-o', 'json').out)
        self.assertEqual([row['job_id'] for row in rows], [second, first])
        self.assertEqual(rows[1]['progress'], dict(rows[1]['progress'], step=64, total_steps=64, epoch=2))

        self.wait_for_step(second, 1)
        nodes = json.loads(self.ok('node', 'list', '-o', 'json').out)
        self.assertEqual([(n['name'], n['role'], n['state'], n['busy_devices'], n['job_ids']) for n in nodes],
                         [('s0', 'param_store', 'READY', 0, [second]), ('w0', 'worker', 'READY', 1, [second]),
                          ('w1', 'worker', 'READY', 1, [second])])
        self.assertEqual(nodes[1]['devices'], ['cpu'])
        self.assertRegex(self.ok('node', 'list').out, r'(?m)^w0 +worker +READY +\S+ +1/1 +[\d.]+s ago +' + second)
        self.ok('cancel', second)

    def test_logs_are_filtered_and_followed(self):
        self.start()
        job_id = self.submit(ENDLESS)
        self.wait_for_step(job_id, 1)
        follower = subprocess.Popen([support.CAPSTAN, 'logs', '-f', job_id], stdout=subprocess.PIPE, text=True,
                                    env=dict(os.environ, CAPSTAN_ADDRESS=self.address()))
        self.addCleanup(follower.kill)
        self.ok('cancel', job_id)
        out, _ = follower.communicate(timeout=60)
        self.assertEqual(follower.returncode, 103, out)
        stored = self.ok('logs', job_id).out.splitlines()
        # Followed lines are in the order of arrival, stored lines in that of their times.
        self.assertCountEqual(out.splitlines(), stored)
        self.assertEqual(stored[0], '[c] Submitted')
        times = [line.split()[0] for line in self.ok('logs', job_id, '--timestamps').out.splitlines()]
        self.assertEqual(times, sorted(times))
        workers = self.ok('logs', job_id, '--role', 'worker').out.splitlines()
        self.assertTrue(workers)
        for line in workers:
            self.assertRegex(line, r'^\[w[01] \S+\] ')
        rank = self.ok('logs', job_id, '--rank', '1').out
        self.assertIn('[w1 ', rank)
        self.assertNotIn('[w0 ', rank)
        self.assertNotIn('[c]', rank)
        self.assertEqual(self.ok('logs', job_id, '--tail', '2').out.splitlines(), stored[-2:])
        self.assertEqual(self.ok('logs', job_id, '--grep', '^Subm').out, '[c] Submitted\n')
        # An engine that tries every way to divide a line would not end.
        self.assertEqual(self.ok('logs', job_id, '--grep', '(.+.+.+)+no such line').out, '')
        self.assertEqual(self.ok('logs', job_id, '--level', 'error').out, '')
        self.assertEqual(self.ok('logs', job_id, '--since', '1h').out.splitlines(), stored)
        self.assertRegex(self.ok('logs', job_id, '--timestamps', '--tail', '1').out, r'^\d{4}-\S+Z \[')
        line = json.loads(self.ok('logs', job_id, '-o', 'json', '--role', 'coordinator').out.splitlines()[0])
        self.assertEqual(line, {'time': line['time'], 'role': 'coordinator', 'index': 0, 'host': '', 'level': 'info',
                                'text': 'Submitted', 'dropped': 0})
        self.assertRegex(line['time'], TIME)

    def test_one_request_id_is_one_job(self):
        self.start()
        first = json.loads(self.ok('submit', '-', '-o', 'json', '--request-id', 'r1', stdin=json.dumps(SHORT)).out)
        self.assertFalse(first['existed'])
        second = json.loads(self.ok('submit', '-', '-o', 'json', '--request-id', 'r1', stdin=json.dumps(SHORT)).out)
        self.assertEqual(second, {'job_id': first['job_id'], 'existed': True})
        other = self.capstan('submit', '-', '--request-id', 'r1', stdin=json.dumps(ENDLESS))
        self.assertEqual(other.code, 4, other)
        self.assertEqual(self.ok('list', '-o', 'name').out, first['job_id'] + '\n')
        self.ok('cancel', first['job_id'])

    def test_exit_codes(self):
        self.start(workers=1)
        bad = self.capstan('submit', '-', stdin='version: 1\nname: x\nepoch: 3\n')
        self.assertEqual(bad.code, 2)
        self.assertIn("<stdin>:3:1: error: unknown field 'epoch'", bad.err)
        dry = self.capstan('submit', '-', '--dry-run', stdin=json.dumps(SHORT))
        self.assertEqual(dry.code, 0)
        self.assertIn('Plan  2 workers', dry.out)
        self.assertEqual(self.ok('list', '-o', 'name').out, '')

        absent = self.capstan('list', '--timeout', '500ms', env={'CAPSTAN_ADDRESS': f'unix:{self.path("no.sock")}'})
        self.assertEqual(absent.code, 3, absent)
        self.assertIn('no coordinator answers at unix:', absent.err)
        for args in (['describe', 'nope-1234'], ['watch', 'nope-1234'], ['wait', 'nope-1234'], ['logs', 'nope-1234'],
                     ['events', 'nope-1234'], ['cancel', 'nope-1234'], ['verify', 'nope-1234']):
            run = self.capstan(*args)
            self.assertEqual(run.code, 102, run)
            self.assertIn('no job nope-1234', run.err, run)

        # It waits for a second worker and so does not finish. Then a job whose data are missing fails.
        job_id = self.submit(SHORT)
        self.assertEqual(self.capstan('wait', job_id, '--timeout', '200ms').code, 101)
        self.assertEqual(self.capstan('--timeout', '200ms', 'wait', job_id).code, 101)  # the same at any place
        self.ok('wait', job_id, '--for', 'pending')
        near = self.capstan('describe', job_id[:-1] + '_')
        self.assertEqual(near.code, 102)
        self.assertIn(f"did you mean '{job_id}'?", near.err)
        self.assertEqual(self.capstan('verify', job_id).code, 101)
        self.assertIn('CANCELLED', self.ok('cancel', job_id).out)
        for args in (['wait', job_id], ['watch', job_id], ['wait', job_id, '--for', 'RUNNING'], ['verify', job_id]):
            self.assertEqual(self.capstan(*args).code, 103)
        missing = support.job_spec(data={'format': 'idx', 'uri': f'file://{self.path("absent")}'})
        run = self.capstan('submit', '-', '--wait', stdin=json.dumps(missing))
        self.assertEqual(run.code, 100, run)
        failed = run.out.strip()
        self.assertIn('no plan, the data is not on this host', run.err)
        watched = self.capstan('watch', failed)
        self.assertEqual(watched.code, 100)
        self.assertIn('DataMissing', watched.out)
        self.assertRegex(self.ok('describe', failed).out.splitlines()[-1], '^Root cause  .*absent')
        many = self.capstan('cancel', failed, job_id)
        self.assertEqual(many.code, 2)
        self.assertIn('-y', many.err)
        self.ok('cancel', '-y', failed, job_id)

        for args, words in ((['lsit'], "did you mean 'list'?"), (['job', 'watchh', 'x'], "did you mean 'watch'?"),
                            (['list', '--limt', '3'], "did you mean '--limit'?"), (['wait'], 'JOB'),
                            (['wait', 'x', '--for', 'DONE'], 'PENDING, STARTING'), (['list', '-s', 'x'], 'is not a state'),
                            (['logs', 'x', '--grep', '('], '--grep'), (['logs', 'x', '--role', 'y'], '--role'),
                            (['logs', 'x', '--since', 'y'], '--since'), (['list', '-o', 'yaml'], 'it has table'),
                            (['update', job_id], 'nothing to change'), (['log-level', 'loud'], 'loud'),
                            (['list', '--address', 'nowhere'], '--address'), (['list', '--timeout', '5'], '--timeout'),
                            (['list', '--address', '127.0.0.1:1'], '--insecure')):
            run = self.capstan(*args)
            self.assertEqual(run.code, 2, run)
            self.assertIn(words, run.err, run)
            self.assertEqual(run.out, '')

    def test_a_job_is_named_by_the_beginning_of_its_id_or_as_the_last(self):
        self.start(workers=0, shards=0)
        none = self.capstan('describe', '@last')
        self.assertEqual(none.code, 102, none)
        self.assertIn('@last: there is no job', none.err)
        first, other, second = [self.submit({**SHORT, 'name': name}) for name in ('twin', 'alone', 'twin')]
        self.assertEqual(self.describe('@last')['job_id'], second)
        self.assertEqual(self.describe('al')['job_id'], other)
        for args in (['describe'], ['watch'], ['wait'], ['logs'], ['metrics'], ['events'], ['cancel'], ['suspend'], ['verify'], ['shards'],
                     ['update', '--checkpoint'], ['checkpoint', 'list'], ['checkpoint', 'export']):
            several = self.capstan(*args, 'twin')
            self.assertEqual((several.code, several.out), (2, ''), several)
            self.assertIn(f"several jobs begin with 'twin': {second}, {first}", several.err)
        for args in (['logs'], ['events'], ['metrics'], ['shards'], ['checkpoint', 'list'], ['wait', '--for', 'pending']):
            self.ok(*args, 'al')
        self.assertEqual(self.ok('cancel', '-y', 'al', '@last').out, f'{other}  CANCELLED\n{second}  CANCELLED\n')
        self.assertEqual(self.describe(first)['state'], 'PENDING')

    def test_a_configuration_file_names_the_coordinator(self):
        self.start(workers=0, shards=0)
        self.write('capstan.yaml', f'address: {self.address()}\ntimeout: 5s\n')
        run = support.Run(['list', '-o', 'json'], self.folder, 30, env={'CAPSTAN_ADDRESS': ''})
        self.assertEqual((run.code, run.out), (0, '[]\n'), run)

    def test_healthcheck_and_log_level(self):
        self.start(workers=1, shards=0)
        self.assertEqual(self.ok('healthcheck').out, 'SERVING\n')
        worker = f'unix:{self.path("w0.sock")}'
        # It listens before it is registered, and is SERVING from then on.
        self.wait_until(lambda: self.capstan('healthcheck', '--address', worker).code == 0, 20, 'the registration of w0')
        self.assertEqual(json.loads(self.ok('healthcheck', '--address', worker, '-o', 'json').out),
                         {'address': worker, 'status': 'SERVING'})
        self.assertEqual(self.capstan('healthcheck', '--service', 'nonsense').code, 1)
        self.assertEqual(self.capstan('healthcheck', '--address', f'unix:{self.path("no.sock")}').code, 3)

        self.assertEqual(self.ok('log-level', 'debug').out, 'coordinator  debug\n')
        self.assertEqual(self.ok('log-level', '--node', 'w0', 'error').out, 'w0  error\n')
        self.assertEqual(self.capstan('log-level', '--node', 'w9', 'error').code, 2)

    def test_cancel_in_every_state_leaves_no_process(self):
        self.start(workers=1)
        pending = self.submit(ENDLESS)  # there is one worker, and it needs two
        self.wait_until(lambda: self.describe(pending)['state'] == 'PENDING', 20, 'PENDING')
        self.assertEqual(self.ok('cancel', pending).out, f'{pending}  CANCELLED\n')
        self.assertEqual(self.tasks(), [])

        self.start_worker('w1')
        starting = self.submit(ENDLESS)
        self.ok('cancel', starting)  # PENDING or STARTING, depending on our speed
        self.assertEqual(self.capstan('wait', starting).code, 103)
        self.wait_until(lambda: not self.tasks(), 20, 'the end of all tasks')

        running = self.submit(ENDLESS)
        self.wait_for_step(running, 3)
        self.assertEqual(len(self.tasks()), 2)
        self.assertEqual(self.ok('cancel', running).out, f'{running}  cancelling\n')
        self.assertEqual(self.capstan('wait', running).code, 103)
        self.wait_until(lambda: not self.tasks(), 20, 'the end of all tasks')
        # The devices are free again, and the next job gets them.
        self.assertEqual(self.capstan('submit', '-', '--wait', stdin=json.dumps(SHORT)).code, 0)

    def test_a_job_that_waits_says_what_for_whatever_is_shown(self):
        self.start(workers=1)
        one = {'num_workers': 1, 'num_shards': 1}
        holder = self.submit(dict(ENDLESS, resources=one))
        self.wait_for_step(holder, 1)
        words = f'PENDING  WaitingForSlots: needs 1 worker with 1 free device, 0 of 1 are free ({holder} has it)\n'
        job, said = self.write('short.yaml', json.dumps(dict(SHORT, resources=one))), self.path('said')

        def told():
            with open(said) as f:
                return f.read()

        for args in (['submit', '-f', job], ['submit', '--wait', job], ['-q', 'submit', '-f', job], ['-q', 'submit', '--wait', job]):
            with open(said, 'w') as err:
                process = subprocess.Popen([support.CAPSTAN, *args], stdout=subprocess.PIPE, stderr=err,
                                           env=dict(os.environ, CAPSTAN_ADDRESS=self.address()))
            self.wait_until(lambda: words in told(), 30, f'{args}: {words}')
            self.ok('cancel', *self.ok('list', '-s', 'PENDING', '-o', 'name').out.split())
            process.communicate(timeout=30)
            self.assertEqual(process.returncode, 103, told())
        self.ok('cancel', holder)

    def test_one_service_with_two_free_devices_is_two_workers(self):
        self.start(workers=1, devices=2)
        job = json.loads(self.ok('submit', '-', '--wait', '-o', 'json', stdin=json.dumps(SHORT)).out.splitlines()[-1])
        self.assertEqual([(worker['node'], worker['devices']) for worker in job['workers']], [('w0', [0, 1])])
        self.assertIn('gang ready: 2 workers on 1 node, 1 shard, on CPUs', self.ok('events', job['job_id']).out)
        self.start_worker('w1')
        self.start_worker('w2')
        self.wait_until(lambda: len(self.ok('node', 'list', '-o', 'name').out.split()) == 4, 20, 'all to register')
        other = json.loads(self.ok('submit', '-', '--wait', '-o', 'json', stdin=json.dumps(SHORT)).out.splitlines()[-1])
        self.assertEqual(len({worker['node'] for worker in other['workers']}), 2)  # on different nodes
        self.assertEqual(other['weights_sha256'], job['weights_sha256'])

    def test_a_service_that_gets_no_threads_ends_with_a_sentence(self):
        # The limit counts all processes of a user, and does not apply to root. So use a user without any other process.
        user = []
        if os.geteuid() == 0:
            rights = '+dac_override'  # root owns the binaries and the folder
            user = ['setpriv', '--reuid=64123', '--regid=64123', '--clear-groups', f'--inh-caps={rights}', f'--ambient-caps={rights}']
        node = ['--coordinator', self.address(), '--node', 'n']
        for program, *args in (['capstan_coordinator', '--state-dir', self.path('state')], ['capstan_param_store', *node],
                               ['capstan_gpu_worker', *node, '--devices', 'cpu']):
            def run(limit, args):
                return subprocess.run([*user, 'prlimit', f'--nproc={limit}', os.path.join(support.BIN, program), *args],
                                      cwd=self.folder, capture_output=True, text=True, timeout=30)

            done = run(8, ['--listen', f'unix:{self.path("x.sock")}', '--http', 'off', '--insecure', *args])
            self.assertEqual((done.returncode, done.stdout), (1, ''), f'{program}: {done}')
            self.assertIn(f'{program}: cannot make a thread: Resource temporarily unavailable; raise the limit of processes (ulimit -u',
                          done.stderr)
            # It is checked first of all, before anything else is made or read.
            self.assertEqual(run(8, ['--help']).returncode, 1, program)
            if user:
                self.assertEqual(run(64, ['--help']).returncode, 0, program)

    def test_top_fits_a_narrow_terminal_and_ends_with_q(self):
        self.start()
        for width in (120, 60, 40):
            top = terminal.capstan(['top', '--interval', '200ms'], cwd=self.folder, width=width,
                                   env={'CAPSTAN_ADDRESS': self.address()})
            self.addCleanup(top.kill)
            top.read_until(lambda said: said.count('coordinator ') > 3, 30)
            top.press('xq')
            self.assertEqual(top.wait(20), 0, top.said[-3000:])
            self.assertEqual(top.screen().lines(), [], top.said[-3000:])  # it removes everything that it drew

    def test_ctrl_c_detaches_from_watch_and_logs(self):
        self.start()
        job_id = self.submit(ENDLESS)
        self.wait_for_step(job_id, 1)
        for args in (['watch', job_id], ['logs', '-f', job_id]):
            process = subprocess.Popen([support.CAPSTAN, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       env=dict(os.environ, CAPSTAN_ADDRESS=self.address()))
            process.stdout.read(1)  # waits for its first output
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=30)
            self.assertEqual(process.returncode, 101, err)
            self.assertIn(b'detached', err)
        self.assertEqual(self.describe(job_id)['state'], 'RUNNING')
        self.ok('cancel', job_id)


if __name__ == '__main__':
    support.main()
