"""What ./run-tests says about skipped tests, and how it builds beside running tests."""

import contextlib
import io
import os
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), 'tools'))
sys.dont_write_bytecode = True
import run_tests  # noqa: E402

GOOGLE = """[ RUN      ] CardTest.AGroupGivesTheHostsSums
/src/tests/contract/plugin_device_contract_test.cc:91: Skipped
the contract has run on no card:
set CAPSTAN_TEST_DEVICES

[  SKIPPED ] CardTest.AGroupGivesTheHostsSums (0 ms)
[ RUN      ] CardTest.Runs
[       OK ] CardTest.Runs (1 ms)
[ RUN      ] Cpu/DeviceContractTest.Bits/Plain
/src/tests/contract/device_contract.cc:177: Skipped
promised on CPUs only

[  SKIPPED ] Cpu/DeviceContractTest.Bits/Plain, where GetParam() = 96-byte object <50-6C> (0 ms)
[  SKIPPED ] 2 tests, listed below:
[  SKIPPED ] CardTest.AGroupGivesTheHostsSums
[  SKIPPED ] Cpu/DeviceContractTest.Bits/Plain, where GetParam() = 96-byte object <50-6C>
"""

UNITTEST = """test_a (__main__.AllTest.test_a) ... ok
test_b (__main__.AllTest.test_b)
With a sentence of its own. ... skipped 'needs root'
setUpClass (__main__.SgeTest) ... skipped "NOT TESTED: there's no sge"
test_c (__main__.AllTest.test_c) ... FAIL
"""


class SkipsTest(unittest.TestCase):

    def test_cases_and_their_sentences(self):
        self.assertEqual(run_tests.skip_reasons(GOOGLE), [
            ('CardTest.AGroupGivesTheHostsSums', 'the contract has run on no card: set CAPSTAN_TEST_DEVICES'),
            ('Cpu/DeviceContractTest.Bits/Plain', 'promised on CPUs only')])
        self.assertEqual(run_tests.skip_reasons(UNITTEST), [('test_b', 'needs root'), ('setUpClass', "NOT TESTED: there's no sge")])
        self.assertEqual(run_tests.skip_reasons('[       OK ] A.B (1 ms)\nOK\n'), [])

    def test_each_skip_is_counted_and_named(self):
        report = run_tests.Report()
        report.add('contract: card_test', passed=1, skipped=2, why=run_tests.skip_reasons(GOOGLE))
        report.add('e2e: other_test', skipped=1)
        report.add('e2e: third_test', passed=3)
        self.assertEqual(report.counts(), (4, 0, 3))
        self.assertEqual(report.skips, {
            'the contract has run on no card: set CAPSTAN_TEST_DEVICES': ['contract: card_test CardTest.AGroupGivesTheHostsSums'],
            'promised on CPUs only': ['contract: card_test Cpu/DeviceContractTest.Bits/Plain'],
            'says no reason': ['e2e: other_test']})


class IdleTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(setattr, run_tests, 'LOGS', run_tests.LOGS)
        run_tests.LOGS = folder.name

    def run_until(self, idle, mark):
        """Runs a command that waits for the file `mark` and then prints its weight."""
        script = f'until [ -e {mark} ]; do sleep 0.01; done; cat /proc/self/autogroup; exit 3'
        return idle.run('one', ['timeout', '20', 'sh', '-c', script])

    def weight_after(self, change):
        idle, mark = run_tests.Idle(), os.path.join(tempfile.mkdtemp(dir=run_tests.LOGS), 'mark')
        ended = []
        thread = threading.Thread(target=lambda: ended.append(self.run_until(idle, mark)))
        thread.start()
        while idle.group is None:
            self.assertTrue(thread.is_alive())
        change(idle)
        open(mark, 'w').close()
        thread.join()
        status, log = ended[0]
        with open(log) as f:
            return status, f.read().split()[-1]

    @unittest.skipUnless(os.path.exists('/proc/self/autogroup'), 'this kernel has no groups of sessions')
    def test_a_build_beside_tests_weighs_least_until_it_is_waited_for(self):
        self.assertEqual(self.weight_after(lambda idle: None), (3, '19'))
        self.assertEqual(self.weight_after(lambda idle: idle.hurry()), (3, '0'))

    def test_what_runs_ends_with_its_caller(self):
        # By the signal, or as timeout(1) reports it after it has installed its handler.
        self.assertIn(self.weight_after(lambda idle: idle.stop())[0], (-15, 128 + 15))


class UnityTest(unittest.TestCase):

    def test_sources_that_are_compiled_together_are_named_by_relative_paths(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, 'Unity'))
            path = os.path.join(folder, 'Unity', 'unity_0_cxx.cxx')

            def generated(source, time):
                """Writes what CMake generates at this time. Returns (the text afterwards, its time of change)."""
                before = run_tests.unity_files(folder)
                with open(path, 'w') as f:
                    f.write(f'/* generated */\n#include "{run_tests.ROOT}/{source}"\n#include <vector>\n')
                os.utime(path, (time, time))
                run_tests.name_sources_by_relative_paths(folder, before)
                with open(path) as f:
                    return f.read(), os.stat(path).st_mtime

            text, first = generated('training/a.cc', 100)
            source = os.path.relpath(os.path.join(run_tests.ROOT, 'training/a.cc'), os.path.join(folder, 'Unity'))
            self.assertEqual(text, f'/* generated */\n#include "{source}"\n#include <vector>\n')
            self.assertTrue(source.startswith('../'), source)
            self.assertEqual(generated('training/a.cc', 200), (text, first))
            text, changed = generated('training/b.cc', 300)
            self.assertIn('training/b.cc"', text)
            self.assertGreater(changed, first)
            # A file with full paths that was already compiled keeps its time.
            with open(path, 'w') as f:
                f.write(f'/* generated */\n#include "{run_tests.ROOT}/training/a.cc"\n#include <vector>\n')
            os.utime(path, (changed + 50, changed + 50))
            self.assertEqual(generated('training/a.cc', changed + 60)[1], changed + 50)


class BudgetsTest(unittest.TestCase):

    def failures(self, seconds, compiled, total):
        report = run_tests.Report()
        report.parts = dict(seconds)
        environment = os.environ.pop('CAPSTAN_NO_BUDGETS', None)
        try:
            with contextlib.redirect_stdout(io.StringIO()) as said:
                run_tests.check_budgets(report, compiled, total)
        finally:
            if environment is not None:
                os.environ['CAPSTAN_NO_BUDGETS'] = environment
        return report.failures, said.getvalue()

    def test_a_part_over_its_budget_is_marked_and_one_over_twice_of_it_fails(self):
        cold, warm = run_tests.read_budgets()['build-tsan']
        total = run_tests.read_budgets()['total'][1]
        failed, said = self.failures({'build-tsan': warm - 1}, 0, total - 1)
        self.assertEqual(failed, [])
        self.assertNotRegex(said, 'over|OVER')
        failed, said = self.failures({'build-tsan': warm + 1}, 0, total - 1)
        self.assertEqual(failed, [])
        self.assertRegex(said, r'build-tsan .* over the budget')
        self.assertEqual(self.failures({'build-tsan': 2 * warm + 1}, 0, total - 1)[0], ['budget of build-tsan: 1 failed'])
        self.assertEqual(self.failures({'build-tsan': 2 * cold - 1}, 0.5, total - 1)[0], [])
        self.assertEqual(self.failures({}, 0, 2 * total + 1)[0], ['budget of total: 1 failed'])
        self.assertEqual(self.failures({'unknown': 1}, 0, None)[0], ['budget of unknown: 1 failed'])


class TidyTest(unittest.TestCase):

    def test_clang_tidy_reads_beside_the_tests_of_the_gate(self):
        report = run_tests.Report()
        with tempfile.TemporaryDirectory() as folder:
            self.addCleanup(setattr, run_tests, 'LOGS', run_tests.LOGS)
            run_tests.LOGS = folder
            tiers = run_tests.Tiers(report, run_tests.GATE, False, False)
            result = os.path.join(folder, 'tidy.json')
            script = 'import json, sys; json.dump({"clang_tidy": ["a.cc: one problem"]}, open(sys.argv[1], "w"))'
            tiers.style_command = lambda name, options: [sys.executable, '-c', script, result]
            with contextlib.redirect_stdout(io.StringIO()):
                tiers.begin_tidy()
                tiers.end_tidy()
        self.assertEqual(report.failures, ['style: clang_tidy: 1 failed'])
        self.assertFalse(run_tests.Tiers(report, ['style'], False, False).tidy_beside)


if __name__ == '__main__':
    unittest.main()
