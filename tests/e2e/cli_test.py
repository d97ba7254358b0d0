"""The command line as a person sees it: errors, exit codes, the display, Ctrl-C."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess

import support
import terminal

# Long enough to be interrupted on any machine.
ENDLESS = support.job_spec(training={'epochs': 100000, 'global_batch_size': 64,
                                     'optimizer': {'name': 'sgd', 'learning_rate': 0.04}},
                           resources={'num_workers': 2, 'num_shards': 2})


def processes_of(folder):
    """Pids of live Capstan processes that work in `folder`."""
    found = []
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            if os.readlink(f'/proc/{pid}/cwd') == folder and 'capstan' in os.readlink(f'/proc/{pid}/exe'):
                with open(f'/proc/{pid}/stat') as f:
                    if f.read().rsplit(')', 1)[1].split()[0] != 'Z':
                        found.append(int(pid))
        except OSError:
            continue
    return found


class CliTest(support.TestCase):

    def start(self, *args):
        """Starts a run in a pipe and reads its output until it has trained a step."""
        process = subprocess.Popen([support.CAPSTAN, 'run', '-v', *args], cwd=self.folder, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        logs = self.path('capstan-out')

        def trained():
            self.assertIsNone(process.poll(), process.stderr.read() if process.poll() is not None else '')
            return any('metrics.jsonl' in files and os.path.getsize(os.path.join(folder, 'metrics.jsonl'))
                       for folder, _, files in os.walk(logs))

        self.wait_until(trained, 60, 'the first step')
        return process

    def test_what_a_job_file_says_cannot_drive_the_terminal(self):
        run = self.capstan('validate', self.write('bad.yaml', 'version: 1\n"na\u009b31mme\u202e\\x1b[2J": 1\n'))
        self.assertEqual(run.code, 2, run)
        self.assertIn("unknown field 'na?31mme??[2J'", run.err)
        # This also holds for stdout if it is a terminal. A program gets the text unchanged.
        described = self.write('described.yaml', json.dumps(support.job_spec(description='a\u009b2Jb\u202ec')))
        command = [support.CAPSTAN, 'validate', '--show-defaults', described]
        shown = self.terminal(command, 80)
        self.assertEqual(shown.wait(), 0, shown.said)
        self.assertIn('description: "a?2Jb?c"', shown.said)
        self.assertIn('description: "a\u009b2Jb\u202ec"', self.capstan(*command[1:]).out)

    def test_what_an_argument_says_cannot_drive_the_terminal(self):
        for args, words in ((['validate', 'job.yaml', 'a\u009b2Jb\u202e'], "unknown command or argument 'a?2Jb?'"),
                            (['validate', '--a\u009b2Jb\u202e'], "unknown flag '--a?2Jb?'"),
                            (['-o', '\u009b2J\u202e', 'validate'], '?2J?')):
            run = self.capstan(*args)
            self.assertEqual(run.code, 2, run)
            self.assertIn(words, run.err)
            self.assertNotRegex(run.err, '[\u009b\u202e]')

    def test_what_a_service_says_cannot_drive_the_terminal(self):
        # Not in the service's log, which is clean, but in what a library in its process may write.
        for name in ('capstan_coordinator', 'capstan_param_store', 'capstan_gpu_worker'):
            service = os.path.join(support.BIN, name)
            os.chmod(self.write(f'bin/{name}', f"#!/bin/sh\nprintf 'a\\302\\2332Jb\\342\\200\\256\\n'\nexec {service} \"$@\"\n"), 0o755)
        client = shutil.copy(support.CAPSTAN, self.path('bin'))
        job = self.write('job.yaml', json.dumps(dict(self.EPOCHS, training=dict(self.EPOCHS['training'], max_steps=1))))
        run = subprocess.run([client, 'run', '-v', job], cwd=self.folder, text=True, capture_output=True, timeout=60)
        self.assertEqual(run.returncode, 0, run)
        for name in ('coordinator', 's0', 'w0'):
            self.assertIn(f'[{name}] a?2Jb?\n', run.stderr)
        self.assertNotRegex(run.stderr, '[\u009b\u202e]')

    def test_ctrl_c_cancels_with_103_and_leaves_nothing_behind(self):
        process = self.start(self.write('job.yaml', json.dumps(ENDLESS)))
        self.assertGreaterEqual(len(processes_of(self.folder)), 6)  # client, coordinator, 2 + 2 services, tasks
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 103, err[-3000:])
        self.assertIn('CANCELLED', out)
        self.wait_until(lambda: not processes_of(self.folder), 10, 'the end of all processes')

    def test_the_end_of_the_client_ends_everything(self):
        process = self.start(self.write('job.yaml', json.dumps(ENDLESS)))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=10)
        self.wait_until(lambda: not processes_of(self.folder), 10, 'the end of all processes')

    def test_a_second_signal_kills(self):
        process = self.start(self.write('job.yaml', json.dumps(ENDLESS)))
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        self.assertIn(process.returncode, (143, 130, 103, -15))
        self.wait_until(lambda: not processes_of(self.folder), 10, 'the end of all processes')

    def test_a_killed_service_fails_the_run_with_its_name(self):
        process = self.start(self.write('job.yaml', json.dumps(ENDLESS)))
        victims = []
        for pid in processes_of(self.folder):
            with open(f'/proc/{pid}/cmdline') as f:
                words = f.read().split('\0')
            if words[0].endswith('capstan_coordinator'):
                victims.append(pid)
        self.assertEqual(len(victims), 1)
        os.kill(victims[0], signal.SIGKILL)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1)
        self.assertIn('the service coordinator ended with signal 9', err)
        self.wait_until(lambda: not processes_of(self.folder), 10, 'the end of all processes')

    def test_pipe_has_one_line_per_epoch_in_mxnets_form(self):
        spec = support.job_spec(training={'epochs': 2, 'global_batch_size': 64,
                                          'optimizer': {'name': 'sgd', 'learning_rate': 0.04}})
        run = self.capstan('run', '-', stdin=json.dumps(spec))
        self.assertEqual(run.code, 0, run)
        line = re.compile(r'^Epoch\[(\d+)\] Step\[(\d+)\] Speed: [\d.]+ samples/sec train-loss=[\d.]+ train-accuracy=[\d.]+ '
                          r'validation-accuracy=[\d.]+$', re.MULTILINE)
        self.assertEqual(line.findall(run.out), [('1', '32'), ('2', '64')], run)
        self.assertNotIn('\033', run.out + run.err)
        self.assertIn('Plan  1 worker x 1 device + 1 shard, dist_sync', run.err)
        self.assertIn('weights = load_file(', run.out.splitlines()[-1])

    EPOCHS = support.job_spec(training={'epochs': 3, 'global_batch_size': 64,
                                        'optimizer': {'name': 'sgd', 'learning_rate': 0.04}})

    def terminal(self, command, width):
        found = terminal.Terminal(command, cwd=self.folder, width=width)
        self.addCleanup(found.kill)
        return found

    def test_terminal_has_a_bar_that_is_drawn_over(self):
        run = self.terminal([support.CAPSTAN, 'run', self.write('job.yaml', json.dumps(self.EPOCHS))], 80)
        self.assertEqual(run.wait(), 0, run.said[-3000:])
        self.assertIn('\033[', run.said)
        self.assertRegex(run.said, r'epoch \d/3  step \d+/96 +\d+% \[[#-]{18,24}\]  ETA')
        self.assertIn('samples/s', run.said)
        self.assertIn('SUCCEEDED', run.said)

    def test_a_narrow_terminal_keeps_the_eta_and_every_line_of_an_epoch(self):
        for width in (60, 40):
            run = self.terminal([support.CAPSTAN, 'run', self.write('job.yaml', json.dumps(self.EPOCHS))], width)
            self.assertEqual(run.wait(), 0, run.said[-3000:])
            drawn = [line for line in re.split(r'[\r\n]+', run.said) if 'RUNNING' in line and '%' in line]
            self.assertTrue(drawn, run.said)
            for line in drawn:
                self.assertRegex(line, r'ETA \S+$')
                self.assertLess(len(re.sub(r'\033\[\d*[A-Za-z]', '', line)), width)
            screen = '\n'.join(run.screen().lines())
            self.assertEqual(re.findall(r'Epoch\[(\d)\]', screen), ['1', '2', '3'], screen)
            self.assertNotIn('RUNNING', screen)  # it was removed completely

    def test_the_display_follows_the_width_of_its_window(self):
        # 45 columns have no room for the whole bar. They may have room for a short one, depending on the other words.
        whole_bar = r'\[[#-]{24}\]'
        run = self.terminal([support.CAPSTAN, 'run', self.write('job.yaml', json.dumps(ENDLESS))], 45)
        run.read_until(lambda said: 'ETA' in said)
        self.assertNotRegex(run.said, whole_bar)
        run.resize(100)
        run.read_until(lambda said: re.search(whole_bar, said), 30)
        run.press('\003')
        self.assertEqual(run.wait(), 103, run.said[-3000:])

    def test_lines_that_go_through_a_pipe_to_the_terminal_are_not_erased(self):
        self.write('job.yaml', json.dumps(self.EPOCHS))
        run = self.terminal(['bash', '-c', f'{support.CAPSTAN} run job.yaml | tee log'], 80)
        self.assertEqual(run.wait(), 0, run.said[-3000:])
        self.assertNotRegex(run.said, r'\033\[\d*[AJ]')
        with open(self.path('log')) as log:
            logged = log.read()
        for said in (run.said, logged):
            self.assertEqual(re.findall(r'Epoch\[(\d)\]', said), ['1', '2', '3'], said)

    def test_usage_errors_are_sentences_with_code_2(self):
        good = self.write('good.yaml', json.dumps(support.job_spec()))
        for args, words in ((['run'], 'a job file is needed'), (['run', 'absent.yaml'], 'absent.yaml'),
                            (['rnu', good], "did you mean 'run'?"), (['run', good, '--frobnicate'], '--frobnicate'),
                            (['run', '--example', 'nonsense'], 'there are: lenet'), (['validate', good, '--set', 'x'], 'key=value'),
                            (['validate', good, '-o', 'xml'], 'xml'), (['data', 'get'], 'NAME')):
            run = self.capstan(*args)
            self.assertEqual(run.code, 2, run)
            self.assertIn(words, run.err, run)
            self.assertEqual(run.out, '')

    def test_validate_prints_the_plan_and_all_errors_at_once(self):
        run = self.capstan('validate', self.write('good.yaml', json.dumps(support.job_spec())))
        self.assertEqual(run.code, 0, run)
        self.assertIn('32 steps/epoch (the last of 16)', run.out)
        bad = self.write('bad.yaml', 'version: 1\nname: x\nepoch: 3\ntraining:\n  epoches: 3\n')
        run = self.capstan('validate', bad)
        self.assertEqual(run.code, 2, run)
        self.assertIn("bad.yaml:3:1: error: unknown field 'epoch'", run.err)
        self.assertIn("bad.yaml:5:3: error: unknown field 'training.epoches' (did you mean 'epochs'?)", run.err)
        self.assertIn('2 errors, nothing was submitted', run.err)

    def test_what_the_data_refuse_has_its_place_and_key(self):
        text = ('version: 1\nname: x\nmodel: {name: lenet}\ndata: {format: synthetic_digits, train_samples: 100}\n'
                'training:\n  epochs: 1\n  global_batch_size: 128\n  optimizer:\n    learning_rate: 0.1\n'
                '    lr_schedule: {name: cosine, warmup: 9 epochs}\n')
        for command in ('validate', 'run', 'submit'):
            run = self.capstan(command, self.write('bad.yaml', text))
            self.assertEqual(run.code, 2, run)
            self.assertIn("bad.yaml:7:22: error: 'training.global_batch_size' is 128, the training set has 100 samples", run.err)
        run = self.capstan('validate', self.write('bad.yaml', text.replace('128', '50')))
        self.assertEqual(run.code, 2, run)
        self.assertIn("bad.yaml:10:41: error: 'training.optimizer.lr_schedule.warmup' is 18 steps, the job has 2", run.err)
        run = self.capstan('validate', self.write('bad.yaml', text.replace('  epochs', '\tepochs')))
        self.assertEqual(run.code, 2, run)
        self.assertIn("bad.yaml:6:1: error: there is a tab before 'epochs'", run.err)

    def test_a_folder_that_cannot_be_written_is_a_usage_error_with_its_key(self):
        self.write('taken', 'a file')
        job = self.write('job.yaml', json.dumps(support.job_spec(checkpoint={'storage_path': 'taken/x'}), indent=0))
        run = self.capstan('run', job)
        self.assertEqual(run.code, 2, run)
        self.assertRegex(run.err, r"job\.yaml:\d+:\d+: error: 'checkpoint\.storage_path' cannot be used: mkdir .*/taken")
        self.write('capstan-out', 'a file, too')
        run = self.capstan('run', '-', stdin=json.dumps(support.job_spec()))
        self.assertEqual(run.code, 2, run)
        self.assertIn('capstan: the runs cannot be stored here: ', run.err)

    def test_what_is_known_is_never_suggested(self):
        run = self.capstan('validate', '--example', 'lenet', 'run')
        self.assertEqual(run.code, 2, run)
        self.assertNotIn('did you mean', run.err)

    def test_flags_that_would_do_nothing_are_refused(self):
        good = self.write('good.yaml', json.dumps(support.job_spec()))
        for args, flag in ((['validate', good, '--address', 'x:1'], '--address'), (['run', good, '--insecure'], '--insecure'),
                           (['run', good, '--timeout', '5s'], '--timeout'), (['launch', good, '--tls-ca', 'x'], '--tls-ca'),
                           (['clean', '--context', 'x'], '--context'), (['version', '--token-file', 'x'], '--token-file'),
                           (['certs', 'init', 'x', '--tls-key', 'x'], '--tls-key'), (['list', '-v'], '-v'),
                           (['context', 'list', '--tls-cert', 'x'], '--tls-cert'), (['completion', 'bash', '-v'], '-v'),
                           (['data', 'get', 'mnist', '--address', 'x:1'], '--address'),
                           (['login', 'x:1', '--address', 'y:1'], '--address'), (['list', '-o', 'name', '--json'], '--json'),
                           (['list', '-w', '-o', 'json'], '--wide'), (['logs', 'x', '--timestamps', '-o', 'json'], '--timestamps'),
                           (['metrics', 'x', '--plot', '-o', 'csv'], '--plot'),
                           (['metrics', 'x', '--name', 'loss', '-o', 'json'], '--name'),
                           (['top', 'nodes', '-o', 'json'], 'nodes'), (['top', '--interval', '1s'], '--interval'),
                           (['launch', good, '--shared-dir', '/x'], '--shared-dir'), (['launch', good, '--ssh', 'x'], '--ssh'),
                           (['launch', good, '--launcher-arg=x'], '--launcher-arg'),
                           (['launch', good, '--resource-manager', 'http://x:1'], '--resource-manager'),
                           (['list', 'x', '--address', 'x:1'], '--address'), (['describe', './x', '--insecure'], '--insecure'),
                           (['events', './x', '--tls-ca', 'x'], '--tls-ca'),
                           (['checkpoint', 'list', './x', '--token-file', 'x'], '--token-file'),
                           (['checkpoint', 'export', './x@40', '--context', 'x'], '--context'),
                           (['submit', good, '--dry-run', '--address', 'x:1'], '--address'),
                           (['submit', good, '--dry-run', '--timeout', '5s'], '--timeout'),
                           (['submit', good, '--dry-run', '-o', 'name'], '-o name'), (['submit', good, '-f', '-o', 'name'], '-o name')):
            run = self.capstan(*args)
            self.assertEqual((run.code, run.out), (2, ''), run)
            self.assertIn(f'capstan: {flag} would do nothing', run.err, run)
        for args, said in ((['submit', good, '--dry-run', '--wait'], 'excludes'), (['submit', good, '--dry-run', '-f'], 'excludes'),
                           (['submit', good, '--dry-run', '--request-id', 'x'], 'excludes'),
                           (['certs', 'rotate', 'x', '--finish', '--days', '9'], '--days excludes --finish'),
                           (['certs', 'issue', 'admin', '--out', 'x', '--overlap-days', '2'], '--overlap-days requires --force'),
                           (['metrics', 'x', '-o', 'wide'], 'metrics has no -o wide; it has table, json, csv')):
            run = self.capstan(*args)
            self.assertEqual(run.code, 2, run)
            self.assertIn(said, run.err, run)

    def test_a_timeout_is_a_duration_everywhere(self):
        for args in (['list'], ['wait', 'x'], ['data', 'get', 'mnist'], ['healthcheck']):
            run = self.capstan(*args, '--timeout', '5')
            self.assertEqual(run.code, 2, run)
            self.assertIn('--timeout', run.err, run)
        run = self.capstan('data', 'get', 'mnist', '--timeout', '25h')
        self.assertEqual(run.code, 2, run)
        self.assertIn('want 1s to 24h', run.err)

    def test_defaults_print_as_a_file_that_validates(self):
        run = self.capstan('validate', '--example', 'lenet', '--show-defaults')
        self.assertEqual(run.code, 0, run)
        again = self.capstan('validate', '-', stdin=run.out)
        self.assertEqual(again.code, 0, again)

    def test_validate_prints_one_thing_on_stdout(self):
        both = self.capstan('validate', '--example', 'lenet', '--show-defaults', '-o', 'json')
        self.assertEqual(both.code, 2, both)
        self.assertIn('give one of them', both.err)
        self.assertEqual(both.out, '')
        spec = support.job_spec(data={'format': 'idx', 'uri': 'file:///nowhere/at/all'})
        elsewhere = self.capstan('validate', '-', '-o', 'json', stdin=json.dumps(spec))
        self.assertEqual(elsewhere.code, 0, elsewhere)
        self.assertIsNone(json.loads(elsewhere.out))
        self.assertIn('no plan, the data is not on this host', elsewhere.err)

    def test_values_out_of_range_come_with_unknown_keys(self):
        spec = support.job_spec(resources={'num_workers': 2, 'num_shards': 1000})
        run = self.capstan('validate', '-', stdin=json.dumps(dict(spec, epoch=3)))
        self.assertEqual(run.code, 2, run)
        self.assertIn("unknown field 'epoch'", run.err)
        self.assertIn("'resources.num_shards' must be between 1 and 256, found 1000", run.err)
        self.assertIn('2 errors, nothing was submitted', run.err)

    def test_json_and_version(self):
        version = json.loads(self.capstan('version', '--json').out)
        self.assertRegex(version['version'], r'^\d+\.\d+\.\d+$')
        plan = json.loads(self.capstan('validate', '--example', 'lenet', '-o', 'json').out)
        self.assertEqual(plan['lanes'], 8)

    def test_completion_knows_what_may_stand_there(self):
        self.write('my job.yaml', '')
        asked = ('capstan() { case "$*" in "context list -o name") echo prod ;; "node list -o name"*) echo w0 ;;\n'
                 '  "list -o name"*) echo lenet-x3n9; echo toy-a1b2 ;; esac; }\n')
        script = asked + self.capstan('completion', 'bash').out
        for words, want in ((['va'], 'validate'), (['context', 'use', 'p'], 'prod'), (['list', '--context', ''], 'prod'),
                            (['describe', 'le'], 'lenet-x3n9'), (['job', 'wait', 'to'], 'toy-a1b2'),
                            (['checkpoint', 'list', 'le'], 'lenet-x3n9'), (['watch', ''], 'lenet-x3n9 toy-a1b2 @last'),
                            (['node', 'drain', 'w'], 'w0'), (['log-level', '--node', ''], 'w0'),
                            (['run', '--example', 'mlp'], 'mlp-local'), (['run', 'my'], 'my job.yaml'), (['list', '-s', 'RUN'], 'RUNNING'),
                            (['wait', '--for', 'SUSP'], 'SUSPENDED'), (['list', '-o', 'js'], 'json'), (['completion', 'z'], 'zsh'),
                            (['launch', '-s', ''], ''), (['launch', '--launcher', 'sl'], 'slurm'), (['list', '--li'], '--limit'),
                            (['launch-n'], '')):
            typed = ' '.join(shlex.quote(word) for word in ['capstan', *words])
            done = subprocess.run(['bash', '-c', f'{script}\nCOMP_WORDS=({typed}); COMP_CWORD={len(words)}; _capstan; echo "${{COMPREPLY[@]}}"'],
                                  cwd=self.folder, capture_output=True, text=True, check=True)
            self.assertEqual((done.stdout.strip(), done.stderr), (want, ''), words)
        fish = self.capstan('completion', 'fish').out
        for line in (r" -l example -r -a '[^']*mlp-local", r"seen_subcommand_from describe' -a '\(capstan list -o name ",
                     r"seen_subcommand_from node' -a '.*\(capstan node list -o name ", r"seen_subcommand_from run' -F$",
                     r" -l state -s s -r -a '.*RUNNING"):
            self.assertRegex(fish, f'(?m){line}')
        for shell in ('bash', 'zsh'):
            subprocess.run(['bash', '-n'], input=self.capstan('completion', shell).out, text=True, check=True)

    def old_runs(self, count):
        """Makes runs that ended long ago, and a folder that is not a run."""
        for i in range(count):
            log = self.write(f'capstan-out/old{i}/metrics.jsonl', '{}\n')
            for path in (log, os.path.dirname(log)):
                os.utime(path, (1_000_000 + i, 1_000_000 + i))
        self.write('capstan-out/mine/file', 'x')

    def test_clean_removes_what_it_is_told_and_nothing_else(self):
        self.old_runs(4)
        run = self.capstan('clean')
        self.assertEqual((run.code, run.out), (2, ''), run)
        self.assertIn('give --keep N, or -y for all 4 in capstan-out; nothing was removed', run.err)
        self.assertEqual(len(os.listdir(self.path('capstan-out'))), 5)
        self.assertEqual(self.capstan('clean', '--keep', '2').out, 'removed 2 runs from capstan-out\n')
        self.assertEqual(sorted(os.listdir(self.path('capstan-out'))), ['mine', 'old2', 'old3'])
        self.assertEqual(self.capstan('clean', '-y').out, 'removed 2 runs from capstan-out\n')
        self.assertEqual(os.listdir(self.path('capstan-out')), ['mine'])

    def test_a_run_removes_none_before_it(self):
        self.old_runs(25)
        run = self.capstan('run', '--example', 'lenet', '--set', 'data.train_samples=640', '--set', 'data.test_samples=100',
                           '--set', 'training.epochs=1')
        self.assertEqual(run.code, 0, run)
        self.assertIn('capstan-out holds 25 runs; capstan clean --keep N removes all but the last N', run.err)
        self.assertEqual(len([name for name in os.listdir(self.path('capstan-out')) if name.startswith('old')]), 25)

    def test_clean_leaves_a_run_that_trains(self):
        process = self.start(self.write('job.yaml', json.dumps(ENDLESS)))
        self.old_runs(1)
        clean = self.capstan('clean', '-y')
        self.assertEqual((clean.code, clean.out), (0, 'removed 1 run from capstan-out\n'), clean)
        live = next(name for name in os.listdir(self.path('capstan-out')) if name.startswith('test-'))
        self.assertIn(f'capstan-out/{live} is kept: it is training', clean.err)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 103)
        self.assertEqual(self.capstan('clean', '-y').out, 'removed 1 run from capstan-out\n')

    def test_a_job_that_is_not_taken_leaves_no_folder(self):
        os.symlink('/nowhere/at/all', self.path('weights.safetensors'))
        run = self.capstan('run', '--example', 'lenet', '--set', 'model.initial_weights=weights.safetensors')
        self.assertEqual(run.code, 2, run)
        self.assertIn('model.initial_weights', run.err)
        self.assertEqual(os.listdir(self.path('capstan-out')), [])

    def test_without_a_coordinator_it_says_so_and_how_to_start_one(self):
        nobody = {'CAPSTAN_ADDRESS': '', 'CAPSTAN_CONTEXT': '', 'XDG_CONFIG_HOME': self.path('config')}
        for words in (['list'], ['submit', '--example', 'lenet', '-q'], ['describe', 'toy-1'], ['top'], ['doctor'], ['healthcheck']):
            run = self.capstan(*words, env=nobody)
            self.assertEqual((run.code, run.out), (2, ''), run)
            self.assertIn('capstan: no coordinator is configured. Name one by --address or CAPSTAN_ADDRESS', run.err)
            self.assertIn('  capstan_coordinator --listen unix:$D/c.sock', run.err)
            self.assertNotIn('--tls-cert', run.err)
            self.assertNotIn('capstan list capstan-out', run.err)
        # The printed commands work as they are, and suffice for the example.
        lines = [line for line in run.err.splitlines() if line.startswith('  ')]
        until = 'for i in $(seq 100); do capstan -q healthcheck 2>/dev/null && break; sleep 0.1; done'
        submit = 'timeout 60 capstan submit --example lenet --set training.max_steps=20 --wait'
        script = '\n'.join([*lines, until, 'capstan list', submit, 'echo "code $?"', 'kill $(jobs -p)', 'wait', 'rm -r "$D"'])
        path = support.BIN + os.pathsep + os.environ['PATH']
        done = subprocess.run(['bash', '-c', script], cwd=self.folder, env=dict(os.environ, **nobody, PATH=path), capture_output=True,
                              text=True, timeout=100)
        self.assertIn('code 0\n', done.stdout, done.stderr[-3000:])
        self.assertIn('no jobs', done.stderr)

    def test_no_private_folder_stays_in_tmp(self):
        before = {name for name in os.listdir('/tmp') if name.startswith('capstan-')}
        self.train(support.job_spec(training={'max_steps': 3, 'epochs': 1, 'global_batch_size': 64,
                                              'optimizer': {'name': 'sgd', 'learning_rate': 0.04}}))
        after = {name for name in os.listdir('/tmp') if name.startswith('capstan-')}
        self.assertEqual({name for name in after - before if self.left_socket(f'/tmp/{name}/c.sock')}, set())

    def left_socket(self, path):
        """Whether a socket's file exists and nobody listens there. (A run of another test may listen at its own socket.)"""
        with socket.socket(socket.AF_UNIX) as end:
            try:
                end.connect(path)
            except FileNotFoundError:
                return False
            except ConnectionRefusedError:
                return True
        return False


if __name__ == '__main__':
    support.main()
