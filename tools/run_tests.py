"""Builds and runs the tiers of ./run-tests, counts test cases, compares their seconds with tests/budgets.txt.

A tier is a list of steps over one build folder. GoogleTest cases are counted from the report that every
test binary writes, and those of Python's unittest from its last lines. Everything else (a style rule, a
script, a fuzzer) counts as one.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
JOBS = os.environ.get('CAPSTAN_JOBS') or str(min(2, os.cpu_count() or 1))
LOGS = os.path.join(ROOT, 'build', 'test-logs')
GATE = ['style', 'unit', 'contract', 'integration', 'sim', 'e2e', 'asan', 'tsan', 'fuzz']
QUICK = ['style', 'unit', 'contract', 'smoke']
# With an empty compiler cache, half of the time is spent on headers that are read again for every source.
TOGETHER = 'ON' if os.environ.get('CAPSTAN_TOGETHER') == '1' else 'OFF'
OPTIONS = {'dev': [f'-DCMAKE_UNITY_BUILD={TOGETHER}', f'-DCAPSTAN_PRECOMPILED={TOGETHER}']}
# The tests that run with a sanitizer. They start no program of ours, so such a build makes neither programs nor benchmarks.
ASAN_TIERS = ['unit', 'contract', 'integration', 'sim']
TSAN_TIERS = ['unit', 'contract', 'integration', 'tsan']  # the simulation has one thread
ASAN_TARGETS = ['tier_' + tier for tier in [*ASAN_TIERS, 'fuzz']]
TSAN_TARGETS = ['tier_' + tier for tier in TSAN_TIERS]
PROGRAMS = ['capstan', 'capstan_coordinator', 'capstan_param_store', 'capstan_gpu_worker']


def say(text):
    print(text, flush=True)


class Report:
    """Counts of test cases and seconds of parts."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.parts = {}  # seconds of each part, in the order of their start
        self.failures = []
        self.skips = {}  # reason -> the skipped tests that gave it

    def add(self, name, passed=0, failed=0, skipped=0, why=()):
        """`why`: (case, sentence) of skipped cases, as far as they gave a reason."""
        self.passed += passed
        self.failed += failed
        self.skipped += skipped
        if failed:
            self.failures.append(f'{name}: {failed} failed')
        silent = [('', 'says no reason')] if skipped and not why else []
        for case, sentence in [*why, *silent]:
            self.skips.setdefault(sentence, []).append(f'{name}{" " if case else ""}{case}')

    def counts(self):
        return self.passed, self.failed, self.skipped


class Part:
    """Times a part and prints its line."""

    def __init__(self, report, name):
        self.report, self.name = report, name

    def __enter__(self):
        self.start, self.before = time.monotonic(), self.report.counts()
        say(f'== {self.name}')
        return self

    def __exit__(self, kind, value, trace):
        seconds = time.monotonic() - self.start
        self.report.parts[self.name] = self.report.parts.get(self.name, 0.0) + seconds
        passed, failed, skipped = (now - then for now, then in zip(self.report.counts(), self.before))
        counts = f'{passed} passed, {failed} failed, {skipped} skipped, ' if passed + failed + skipped else ''
        say(f'   {self.name}: {counts}{seconds:.1f} s')


def log_path(name):
    return os.path.join(LOGS, name + '.log')


def logged(name, command, **options):
    """Runs a command with its output in a log. Returns (exit status, path of the log)."""
    path = log_path(name)
    with open(path, 'w') as log:
        log.write('$ ' + ' '.join(command) + '\n')
        log.flush()
        status = subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, **options).returncode
    return status, path


def tail(path, lines=60):
    with open(path, errors='replace') as f:
        for line in f.read().splitlines()[1:][-lines:]:
            say('   | ' + line)


# --- Building ------------------------------------------------------------------------------------


class Idle:
    """Runs commands only while the processors are idle, until hurry()."""

    def __init__(self):
        self.lock, self.hurried, self.group = threading.Lock(), False, None

    def run(self, name, command):
        """Like logged(), but in a session of its own, because the scheduler divides the processors among sessions."""
        with open(log_path(name), 'w') as log:
            log.write('$ ' + ' '.join(command) + '\n')
            log.flush()
            with self.lock:
                process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
                self.group = process.pid
                self.weigh(0 if self.hurried else 19)
            status = process.wait()
            with self.lock:
                self.group = None
        return status, log_path(name)

    def hurry(self):
        """Gives present and later commands normal priority."""
        with self.lock:
            self.hurried = True
            self.weigh(0)

    def stop(self):
        """Ends what runs. The terminal's interrupt does not reach another session."""
        self.signal(signal.SIGTERM)

    @contextlib.contextmanager
    def halted(self):
        """Meanwhile ninja starts no further command. Running commands, each in its own process group, run to their end."""
        self.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)

    def signal(self, number):
        with self.lock:
            if self.group is not None:
                os.killpg(self.group, number)

    def weigh(self, nice):
        if self.group is None:
            return
        try:
            with open(f'/proc/{self.group}/autogroup', 'w') as f:
                f.write(str(nice))
        except OSError:
            pass  # a kernel without them: the build competes with the tests


def unity_files(folder):
    """{path: (text, time of change)} of the files in `folder` that compile several sources together."""
    found = {}
    for directory, _, files in os.walk(folder):
        if os.path.basename(directory) == 'Unity':
            for path in (os.path.join(directory, file) for file in files if file.endswith('.cxx')):
                with open(path) as f:
                    found[path] = f.read(), os.stat(path).st_mtime
    return found


def name_sources_by_relative_paths(folder, before):
    """CMake 3.25 writes full paths into the files that compile several sources together. This makes them relative to the file,
    so that the compiler cache also finds them in a clone at another path.
    `before`: unity_files(folder) before CMake wrote them again. A file with the same sources keeps its old time.
    """
    for path, (text, _) in unity_files(folder).items():
        def relative(source, here=os.path.dirname(path)):
            return f'#include "{os.path.relpath(source[1], here)}"'

        def named(by, relative=relative):
            return re.sub(r'#include "(/[^"]*)"', relative, by)

        with open(path, 'w') as f:
            f.write(named(text))
        if path in before and named(before[path][0]) == named(text):
            os.utime(path, (before[path][1], before[path][1]))


class Builder:
    """Configures and builds presets, each target once."""

    def __init__(self, report):
        self.report, self.done, self.broken = report, set(), set()
        self.idle, self.pool, self.beside = Idle(), concurrent.futures.ThreadPoolExecutor(1), {}

    def build_beside(self, preset, targets):
        """Starts to build these targets of the preset, if that is not done already, while tests wait more than they compute."""
        if preset in self.beside:
            return
        self.beside[preset] = self.pool.submit(self.make, preset, targets, 'build-' + preset, self.idle.run)

    def make(self, preset, targets, part, run):
        """Configures, and builds those of the targets that exist. Returns (exit status, log)."""
        folder = os.path.join(ROOT, 'build', preset)
        before = unity_files(folder)
        status, log = run(part + '-configure', ['cmake', '--preset', preset, *OPTIONS.get(preset, [])])
        if status == 0:
            name_sources_by_relative_paths(folder, before)
            known = subprocess.run(['ninja', '-C', os.path.join('build', preset), '-t', 'targets', 'all'],
                                   cwd=ROOT, capture_output=True, text=True).stdout
            known = {line.split(':')[0] for line in known.splitlines()} | {'all'}
            targets = [t for t in targets if t in known]  # a tier without tests has no target
            if targets:
                status, log = run(part, ['ninja', '-C', os.path.join('build', preset), '-j', JOBS, '-k', '0', *targets])
        return status, log

    def build(self, preset, targets, part=None):
        """True if all targets are built. A failure is counted once. If they were built beside tests, only the rest of the time
        counts here."""
        if preset in self.broken:
            return False
        todo = [t for t in targets if not self.done & {(preset, t), (preset, 'all')}]
        if not todo:
            return True
        part = part or 'build-' + preset
        with Part(self.report, part):
            if preset in self.beside:
                self.idle.hurry()
                status, log = self.beside.pop(preset).result()
            else:
                status, log = self.make(preset, todo, part, logged)
            self.done.update((preset, t) for t in targets)
            if status != 0:
                self.broken.add(preset)
                with open(log, errors='replace') as f:
                    text = f.read()
                errors = [line for line in text.splitlines() if re.search(r'^FAILED: |\berror: |undefined reference', line)]
                for line in errors[:40]:
                    say('   | ' + line)
                if not errors:
                    tail(log)
                self.report.add(part, failed=1)
        return status == 0


# --- CTest ---------------------------------------------------------------------------------------


def unittest_counts(output):
    """The cases of a script of Python's unittest. (0, 0, 0) for any other output."""
    ran = re.findall(r'^Ran (\d+) tests? in ', output, re.MULTILINE)
    if not ran:
        return 0, 0, 0
    verdict = re.findall(r'^(?:OK|FAILED)(?: \((.*)\))?$', output, re.MULTILINE)
    numbers = dict(re.findall(r'(\w+)=(\d+)', verdict[-1] if verdict else ''))
    failed = int(numbers.get('failures', 0)) + int(numbers.get('errors', 0))
    skipped = int(numbers.get('skipped', 0))
    return max(0, int(ran[-1]) - failed - skipped), failed, skipped


def skip_reasons(output):
    """[(case, sentence)] of skipped cases of GoogleTest or unittest."""
    found = [(case, ' '.join(said.split())) for said, case in
             re.findall(r'^\S+:\d+: Skipped\n(.*?)\n*^\[  SKIPPED \] (\S+?),? ', output, re.MULTILINE | re.DOTALL)]
    for case, quote, said in re.findall(r'^(\w+) \([^\n]*\)(?:\n[^\n]*)? \.\.\. skipped ([\'"])(.*)\2$', output, re.MULTILINE):
        found.append((case, said.replace('\\n', ' ').strip()))
    return found


def run_ctest(report, preset, labels, jobs, name, environment=None, only=None, select=()):
    """Runs the entries with one of the labels and counts their cases. `select`: further options of ctest."""
    results = tempfile.mkdtemp(prefix='capstan-results-')
    junit = os.path.join(results, 'ctest.xml')
    os.mkdir(os.path.join(results, 'gtest'))
    command = ['ctest', '--test-dir', os.path.join('build', preset), '-L', f'^({"|".join(labels)})$', '-j', str(jobs),
               '--output-on-failure', '--output-junit', junit, '--no-tests=ignore',
               '--test-output-size-passed', '65536', '--test-output-size-failed', '262144']
    if only:
        command += ['-R', only]
    command += select
    env = dict(os.environ, GTEST_OUTPUT=f'json:{results}/gtest/', **(environment or {}))
    _, log = logged(name, command, env=env)

    cases = {}
    for file in os.listdir(os.path.join(results, 'gtest')):
        with open(os.path.join(results, 'gtest', file)) as f:
            try:
                suites = json.load(f).get('testsuites', [])
            except ValueError:
                continue  # the binary died while it wrote, and CTest counts it as failed
        counts = [0, 0, 0]
        for case in (case for suite in suites for case in suite['testsuite']):
            if case.get('failures'):
                counts[1] += 1
            elif case.get('result') == 'SKIPPED':
                counts[2] += 1
            elif case.get('status') == 'RUN':
                counts[0] += 1
        cases.setdefault(re.sub(r'(_\d+)?\.json$', '', file), []).append(counts)

    if not os.path.exists(junit):
        report.add(name, failed=1)
        tail(log)
        return
    bad = False
    for entry in xml.etree.ElementTree.parse(junit).getroot().iter('testcase'):
        test, status = entry.get('name'), entry.get('status')
        counted = cases.get('capstan_' + test)
        passed, failed, skipped = counted.pop() if counted else unittest_counts(entry.findtext('system-out') or '')
        if not passed + failed + skipped:
            passed, skipped = int(status == 'run'), int(status in ('notrun', 'disabled'))
        if status == 'fail' and not failed:
            failed, passed = 1, (passed if counted is not None else 0)  # a crash, a leak or a race at the end
        why = skip_reasons(entry.findtext('system-out') or '') if skipped else ()
        report.add(f'{name}: {test}', passed, failed, skipped, why)
        bad = bad or failed
    if bad:
        tail(log, 120)
    shutil.rmtree(results)


# --- Tiers ---------------------------------------------------------------------------------------


class Tiers:

    def __init__(self, report, tiers, quick, long):
        self.report, self.quick, self.long = report, quick, long
        self.builder = Builder(report)
        self.has_asan = 'asan' in tiers
        self.tidy_beside = tiers == GATE  # clang-tidy reads beside tests that wait, and not within style
        self.tidy = None  # its result to come

    def style(self):
        with Part(self.report, 'style'):
            status, log = logged('style-selftest', [sys.executable, 'tests/style/check_style_test.py', '-v'])
            with open(log) as f:
                text = f.read()
            ran = re.search(r'^Ran (\d+) tests?', text, re.MULTILINE)
            bad = len(re.findall(r'\.\.\. (?:FAIL|ERROR)$', text, re.MULTILINE)) or int(status != 0)
            self.report.add('style self-tests', passed=max(0, int(ran.group(1)) - bad) if ran else 0, failed=bad)
            if bad:
                tail(log)
            options = ['--all'] if self.long else ['--no-tidy'] if self.tidy_beside else \
                ['--tidy-max', '4', '--tidy-seconds', '60'] if self.quick else []
            self.count_rules('style', logged('style', self.style_command('style', options)))

    @staticmethod
    def style_command(name, options):
        """The command of a run of tools/check-style. count_rules() of the same name reads its result."""
        result = os.path.join(LOGS, name + '.json')
        if os.path.exists(result):
            os.remove(result)
        return [sys.executable, 'tools/check-style', '--json', result, *options]

    def count_rules(self, name, ended):
        tail(ended[1], 200)
        result = os.path.join(LOGS, name + '.json')
        if os.path.exists(result):
            with open(result) as f:
                for rule, problems in json.load(f).items():
                    self.report.add(f'style: {rule}', passed=int(not problems), failed=int(bool(problems)))
        else:
            self.report.add(name, failed=1)

    def begin_tidy(self):
        if self.tidy_beside and self.tidy is None:
            command = self.style_command('tidy', ['--only', 'clang_tidy', '--tidy-seconds', '300'])
            self.tidy = self.builder.pool.submit(self.builder.idle.run, 'tidy', command)

    def end_tidy(self):
        if self.tidy_beside:
            self.begin_tidy()
            with Part(self.report, 'tidy'):
                self.builder.idle.hurry()
                self.count_rules('tidy', self.tidy.result())

    def dev(self, tier, jobs, beside=False):
        """`beside`: its tests leave a processor free for the build of asan."""
        # Tests of real binaries need all of them.
        targets = ['tier_' + tier] if tier in ('unit', 'contract', 'integration', 'sim') else ['all']
        if not self.quick and tier == 'unit':
            targets = ['all']  # builds everything now, so that its time is in one line
        if self.builder.build('dev', targets):
            if beside:
                self.begin_tidy()
            if beside and self.has_asan:
                self.builder.build_beside('asan', ASAN_TARGETS)
            with Part(self.report, tier):
                run_ctest(self.report, 'dev', [tier], jobs, tier)

    def unit(self):
        self.dev('unit', JOBS)

    def contract(self):
        self.dev('contract', JOBS)

    def integration(self):
        self.dev('integration', 1, beside=True)

    def sim(self):
        self.dev('sim', 1, beside=True)

    def e2e(self):
        """Tests that time something run alone. The others wait more than they compute, so there is one more of them than of processors, and a
        build runs beside them."""
        if not self.builder.build('dev', ['all']):
            return self.end_tidy()
        with Part(self.report, 'e2e'):
            with self.builder.idle.halted():
                run_ctest(self.report, 'dev', ['e2e'], 1, 'e2e-timed', select=['-L', '^timed$'])
            # No other build: tests with a sanitizer leave no time, and wait for the disk.
            if self.has_asan:
                self.builder.build_beside('asan', ASAN_TARGETS)
            run_ctest(self.report, 'dev', ['e2e'], int(JOBS) + 1, 'e2e', select=['-LE', '^timed$'])
        self.end_tidy()

    def smoke(self):
        """The end-to-end tests with `smoke` in their names, with only the programs that they run."""
        listed = subprocess.run(['ctest', '--test-dir', 'build/dev', '-N', '-L', '^e2e$', '-R', 'smoke'], cwd=ROOT,
                                capture_output=True, text=True).stdout
        tests = re.findall(r'Test +#\d+: (\S+)', listed)
        if tests and self.builder.build('dev', [*PROGRAMS, *('capstan_' + t for t in tests)]):
            with Part(self.report, 'smoke'):
                run_ctest(self.report, 'dev', ['e2e'], 1, 'smoke', only='smoke')

    def long_tests(self):
        self.dev('long', 1)

    def asan(self):
        if self.builder.build('asan', ASAN_TARGETS):
            with Part(self.report, 'asan'):
                run_ctest(self.report, 'asan', ASAN_TIERS, JOBS, 'asan', {
                    'ASAN_OPTIONS': 'detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1',
                    'UBSAN_OPTIONS': 'print_stacktrace=1:halt_on_error=1', 'CAPSTAN_SANITIZED': 'address',
                    'CAPSTAN_SIM_SEEDS': '200'})

    def tsan(self):
        if self.builder.build('tsan', TSAN_TARGETS):
            with Part(self.report, 'tsan'):
                options = ('ignore_noninstrumented_modules=1:suppressions='
                           f'{ROOT}/tests/support/tsan/suppressions.txt')
                run_ctest(self.report, 'tsan', TSAN_TIERS, JOBS, 'tsan', {
                    'TSAN_OPTIONS': options, 'CAPSTAN_SANITIZED': 'thread'})

    def fuzz(self):
        if not self.builder.build('asan', ['tier_fuzz'], part='build-fuzz'):
            return
        seconds = 3 if self.quick else 120 if self.long else 20
        with Part(self.report, 'fuzz'):
            folder = os.path.join(ROOT, 'build/asan/fuzz')
            fuzzers = sorted(f for f in os.listdir(folder) if os.access(os.path.join(folder, f), os.X_OK)) \
                if os.path.isdir(folder) else []
            # A fuzzer has one thread, so as many run at once as there are jobs.
            with concurrent.futures.ThreadPoolExecutor(int(JOBS)) as pool:
                runs = [pool.submit(self.fuzz_one, os.path.join(folder, f), f, seconds) for f in fuzzers]
                for run in concurrent.futures.as_completed(runs):
                    for name, status, log in run.result():
                        self.report.add(name, passed=int(status == 0), failed=int(status != 0))
                        if status:
                            tail(log, 40)

    def fuzz_one(self, binary, fuzzer, seconds):
        """Replays the committed corpus, then searches from it in a scratch copy. Returns names, exit statuses and logs."""
        corpus = os.path.join(ROOT, 'tests/fuzz/corpus', re.sub('^capstan_', '', fuzzer))
        scratch = tempfile.mkdtemp(prefix='capstan-fuzz-')
        found = os.path.join(ROOT, 'build', 'fuzz-findings', fuzzer)
        os.makedirs(found, exist_ok=True)
        seeds = [os.path.join(corpus, f) for f in sorted(os.listdir(corpus))] if os.path.isdir(corpus) else []
        done = []
        limits = ['-timeout=10', '-rss_limit_mb=2048', f'-artifact_prefix={found}/']
        for name, command in (('replay', [binary, *limits, *seeds] if seeds else None),
                              ('search', [binary, *limits, f'-max_total_time={seconds}', '-print_final_stats=1', scratch,
                                          *([corpus] if seeds else [])])):
            if not command:
                continue
            status, log = logged(f'{fuzzer}-{name}', command)
            done.append((f'{fuzzer} {name}', status, log))
            with open(log, errors='replace') as f:
                runs = re.search(r'stat::number_of_executed_units: +(\d+)', f.read())
            if runs:
                say(f'   {fuzzer}: {runs.group(1)} runs in {seconds} s')
        shutil.rmtree(scratch)
        return done


# --- Budgets -------------------------------------------------------------------------------------

# Machines with two cores differ: the same gate has taken 1.0 to 1.6 times its seconds.
TOLERANCE = 2


def read_budgets():
    budgets = {}
    with open(os.path.join(ROOT, 'tests/budgets.txt')) as f:
        for line in f:
            words = line.split('#')[0].split()
            if words:
                budgets[words[0]] = (float(words[1]), float(words[2]))
    return budgets


def cache_counts():
    """(found, not found) of the compiler cache so far."""
    try:
        text = subprocess.run(['ccache', '--print-stats'], capture_output=True, text=True).stdout
    except OSError:
        return 0, 0
    stats = dict(line.split('\t') for line in text.splitlines() if '\t' in line)
    hits = sum(int(stats.get(k, 0)) for k in ('direct_cache_hit', 'preprocessed_cache_hit'))
    return hits, int(stats.get('cache_miss', 0))


def check_budgets(report, compiled, total):
    """Prints the table. A part over TOLERANCE times its budget is a failure. `compiled`: the share of objects not found in the
    cache.

    A build counts as cold if half of the objects are compiled, since a cache of other commits still has the small objects.
    """
    compiled = min(1.0, 2 * compiled)
    budgets = {part: warm + compiled * (cold - warm) for part, (cold, warm) in read_budgets().items()}
    enforce = os.environ.get('CAPSTAN_NO_BUDGETS') != '1'
    say(f'\n{"part":<16}{"seconds":>9}{"budget":>9}   ({100 * compiled:.0f} % of the way from warm to cold)')
    rows = list(report.parts.items()) + ([('total', total)] if total is not None else [])
    for part, seconds in rows:
        budget = budgets.get(part)
        over = budget is not None and seconds > TOLERANCE * budget
        mark = '  no budget in tests/budgets.txt' if budget is None else '  OVER' if over else \
            '  over the budget' if seconds > budget else ''
        say(f'{part:<16}{seconds:9.1f}{f"{budget:.1f}" if budget is not None else "-":>9}{mark}')
        if (over or budget is None and part != 'smoke') and enforce:
            report.add(f'budget of {part}', failed=1)


def main():
    started = time.time()
    parser = argparse.ArgumentParser(prog='./run-tests', description=__doc__)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument('--quick', action='store_true')
    choice.add_argument('--long', action='store_true')
    choice.add_argument('--only', action='append', choices=GATE + ['long'], metavar='TIER')
    args = parser.parse_args()
    tiers = args.only or (QUICK if args.quick else GATE + ['long'] if args.long else GATE)

    os.makedirs(LOGS, exist_ok=True)
    report = Report()
    begun = float(os.environ.get('CAPSTAN_STARTED') or started)
    report.parts['packages'] = max(0.0, started - begun)
    before = cache_counts()
    runner = Tiers(report, tiers, args.quick, args.long)
    try:
        for tier in tiers:
            getattr(runner, 'long_tests' if tier == 'long' else tier)()
    finally:
        runner.builder.idle.stop()
    hits, misses = (now - then for now, then in zip(cache_counts(), before))
    say(f'\ncompiler cache: {hits} found, {misses} compiled')
    check_budgets(report, misses / max(1, hits + misses), time.time() - begun if not args.only and not args.quick and not args.long else None)
    if report.failures:
        say('\nfailed (logs in build/test-logs):')
        for line in report.failures:
            say('  ' + line)
    if report.skips:
        say('\nskipped:')
        for sentence, cases in sorted(report.skips.items()):
            say(f'  {sentence}')
            for case in cases:
                say(f'    {case}')
    say(f'{report.passed} passed, {report.failed} failed, {report.skipped} skipped')
    return 1 if report.failed else 0


if __name__ == '__main__':
    sys.exit(main())
