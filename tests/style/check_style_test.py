"""Every style rule refuses what it should, and accepts a similar text."""

import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, 'tools'))
sys.dont_write_bytecode = True
import style_rules  # noqa: E402

_loader = importlib.machinery.SourceFileLoader('check_style', os.path.join(ROOT, 'tools', 'check-style'))
check_style = importlib.util.module_from_spec(importlib.util.spec_from_loader('check_style', _loader))
_loader.exec_module(check_style)


class RuleTest(unittest.TestCase):

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = scratch.name

    def tree(self, files):
        for path, text in files.items():
            full = os.path.join(self.root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, 'w') as f:
                f.write(text)
        return style_rules.Tree(self.root, list(files))

    def refused(self, rule, path, text, **others):
        return style_rules.RULES[rule](self.tree({path: text, **others}))


class ArrowsTest(RuleTest):
    """Tests against the committed table."""

    def setUp(self):
        super().setUp()
        with open(os.path.join(ROOT, 'tests/style/arrows.txt')) as f:
            self.table = f.read()

    def check(self, path, header):
        include = f'#include {header}\n' if header[0] == '<' else f'#include "{header}"\n'
        return style_rules.arrows(self.tree({'tests/style/arrows.txt': self.table, path: include}))

    def test_refuses_each_forbidden_arrow(self):
        for path, header in (
                ('training/fold/fold.h', 'services/sync/mutex.h'),
                ('training/fold/fold.h', 'gpu_worker/engine/graph.h'),
                ('training/optim/sgd.cc', 'capstan/job/v1/job.pb.h'),
                ('training/lead/lead.cc', '<yaml-cpp/yaml.h>'),
                ('services/server/server.cc', 'training/lanes/lanes.h'),
                ('services/sync/mutex.h', '<grpcpp/grpcpp.h>'),
                ('gpu_worker/engine/plan.cc', '<grpcpp/grpcpp.h>'),
                ('gpu_worker/engine/plan.cc', '<hwy/highway.h>'),
                ('gpu_worker/engine/plan.cc', 'services/server/server.h'),
                ('gpu_worker/engine/device/open.cc', '<cuda_runtime.h>'),
                ('gpu_worker/task/task.cc', 'param_store/shard_storage.h'),
                ('gpu_worker/task/task.cc', 'coordinator/core/jobs.h'),
                ('exchange/transport/stream.cc', 'param_store/shard_storage.h'),
                ('exchange/sender/core.cc', 'exchange/transport/stream.h'),
                ('coordinator/core/jobs.cc', '<grpcpp/grpcpp.h>'),
                ('coordinator/scheduler/plan.cc', 'coordinator/core/jobs.h'),
                ('coordinator/scheduler/plan.cc', 'capstan/job/v1/job.pb.h'),
                ('coordinator/core/jobs.cc', 'coordinator/journal/journal.h'),
                ('coordinator/main.cc', 'gpu_worker/task/task.h'),
                ('client/run.cc', 'coordinator/core/jobs.h'),
                ('unheard_of/a.cc', 'training/lanes/lanes.h'),
        ):
            self.assertEqual(len(self.check(path, header)), 1, f'{path} -> {header}')

    def test_lets_the_drawn_arrows_pass(self):
        for path, header in (
                ('training/fold/fold.h', 'training/lanes/lanes.h'),
                ('training/fold/fold.h', 'services/check/check.h'),
                ('training/fold/fold.h', 'absl/status/status.h'),
                ('training/fold/fold.h', '<vector>'),
                ('training/spec/job_file.cc', '<yaml-cpp/yaml.h>'),
                ('training/spec/job_file.cc', 'capstan/job/v1/job.pb.h'),
                ('gpu_worker/engine/cpu/conv.cc', '<hwy/highway.h>'),
                ('gpu_worker/task/task.cc', 'param_store/files/job_files.h'),
                ('gpu_worker/task/task.cc', 'exchange/exchange.h'),
                ('coordinator/core/jobs.cc', 'coordinator/scheduler/plan.h'),
                ('coordinator/core/jobs_test.cc', 'gtest/gtest.h'),
                ('tests/integration/two_workers_test.cc', 'exchange/shard/shard_core.h'),
        ):
            self.assertEqual(self.check(path, header), [], f'{path} -> {header}')


class TextRulesTest(RuleTest):

    def test_pure_refuses_thread_lock_clock_file_and_grpc(self):
        for line in ('std::thread t;', 'std::mutex m;', 'capstan::Mutex mu_;', 'MutexLock lock(mu_);',
                     'auto t = std::chrono::steady_clock::now();', 'absl::Now();', 'time(nullptr);',
                     'FILE* f = fopen(p, q);', 'std::ifstream in(p);', '#include <fstream>', 'int d = ::open(p, 0);',
                     'grpc::Status s;', '#include "capstan/job/v1/job_service.grpc.pb.h"',
                     'std::random_device device;', 'absl::SleepFor(d);', 'std::this_thread::yield();', 'getenv(n);'):
            for path in ('training/lead/lead.cc', 'coordinator/core/jobs.h', 'coordinator/scheduler/plan.cc', 'exchange/sender/core.cc'):
                self.assertEqual(len(self.refused('pure', path, line + '\n')), 1, f'{path}: {line}')

    def test_pure_reads_code_alone_and_leaves_adapters_and_tests(self):
        words = '// std::thread is kept out\nconst char* s = "grpc::Status";\nabsl::Duration timeout;\nfile.open();\n'
        self.assertEqual(self.refused('pure', 'training/lead/lead.cc', words), [])
        self.assertEqual(self.refused('pure', 'coordinator/adapter.cc', 'std::thread t;\n'), [])
        self.assertEqual(self.refused('pure', 'training/lead/lead_test.cc', 'std::thread t;\n'), [])

    def test_the_steady_clock_is_left_to_clock(self):
        line = 'const auto start = std::chrono::steady_clock::now();\n'
        self.assertTrue(self.refused('raw_clocks', 'services/server/server.cc', line))
        self.assertEqual(self.refused('raw_clocks', 'services/clock/clock.h', line), [])
        self.assertEqual(self.refused('raw_clocks', 'gpu_worker/engine/cuda/group.cc', line), [])
        self.assertTrue(self.refused('pure', 'coordinator/core/core.cc', 'const auto now = MonotonicNow();\n'))

    def test_raw_locks_are_left_to_sync(self):
        for line in ('std::mutex mu;', 'absl::Mutex mu;', 'std::unique_lock<std::mutex> l;', 'std::condition_variable c;',
                     'absl::Notification done;'):
            self.assertTrue(self.refused('raw_locks', 'services/server/server.cc', line + '\n'), line)
        self.assertEqual(self.refused('raw_locks', 'services/sync/mutex.h', 'std::mutex mu;\n'), [])
        self.assertEqual(self.refused('raw_locks', 'services/server/server.cc', 'capstan::Mutex mu;\n'), [])

    def test_using_namespace(self):
        self.assertEqual(len(self.refused('using_namespace', 'a/b.cc', 'int x;\nusing  namespace std;\n')), 1)
        self.assertEqual(self.refused('using_namespace', 'a/b.cc', 'using absl::Status;  // no using namespace\n'), [])
        self.assertEqual(self.refused('using_namespace', 'a/b.cc', 'using namespace std::string_literals;\n'), [])

    def test_include_paths_start_at_the_root(self):
        for header in ('lanes.h', '../lanes/lanes.h', './lanes.h'):
            self.assertEqual(len(self.refused('include_paths', 'a/b.cc', f'#include "{header}"\n')), 1, header)
        self.assertEqual(self.refused('include_paths', 'a/b.cc', '#include "a/b.h"\n#include <vector>\n'), [])

    def test_length(self):
        self.assertEqual(len(self.refused('length', 'a/b.cc', '\n' * 1001)), 1)
        self.assertEqual(self.refused('length', 'a/b.cc', '\n' * 1000), [])

    def test_a_source_that_cmake_does_not_know(self):
        for text, want in (('add_library(x b.cc)', 0), ('add_library(x bb.cc)', 1), ('# b.cc', 1)):
            found = self.refused('cmake_sources', 'a/b.cc', '', **{'a/CMakeLists.txt': text})
            self.assertEqual(len(found), want, text)
        self.assertEqual(self.refused('cmake_sources', 'a/c/b.cc', '', **{'a/CMakeLists.txt': 'f(c/b.cc)'}), [])
        looks = 'file(GLOB files RELATIVE ${HERE} CONFIGURE_DEPENDS */*.cc)'
        self.assertEqual(self.refused('cmake_sources', 'a/c/b.cc', '', **{'a/CMakeLists.txt': looks}), [])
        for path in ('a/b.cc', 'a/c/d/b.cc'):
            self.assertEqual(len(self.refused('cmake_sources', path, '', **{'a/CMakeLists.txt': looks})), 1)

    def test_white_space(self):
        self.assertEqual(len(self.refused('white_space', 'a.md', 'x \ny\n')), 1)
        self.assertEqual(len(self.refused('white_space', 'a.md', 'x\ny')), 1)
        self.assertEqual(self.refused('white_space', 'a.md', 'x\ny\n'), [])

    def test_python_that_does_not_compile(self):
        self.assertEqual(len(self.refused('python_compiles', 'a/tool', '#!/usr/bin/env python3\nif True\n')), 1)
        self.assertEqual(self.refused('python_compiles', 'a/tool.py', 'x = 1\n'), [])

    def test_a_test_that_expects_nothing(self):
        def found(body, **others):
            return self.refused('assertions', 'a/b_test.cc', f'TEST(ThingTest,\n     DoesWell) {{\n{body}}}\nvoid After() {{ EXPECT_TRUE(x); }}\n',
                                **others)

        self.assertEqual(found('  Run();\n'), ['a/b_test.cc:1: ThingTest.DoesWell expects nothing: whatever happens, it passes'])
        self.assertEqual(len(found('  // EXPECT_TRUE(x);\n  Say("ASSERT_EQ");\n')), 1)
        for body in ('EXPECT_TRUE(Run());', 'if (Run()) {} else { FAIL() << 1; }', 'for (;;) { ASSERT_EQ(1, 1); }', 'After();'):
            self.assertEqual(found(body), [], body)
        # Helpers in tests/support count, helpers in other code do not.
        helper = 'void Compare(int a) {\n  ASSERT_EQ(a, 1);\n}\nvoid Both() { Compare(1); }\n'
        self.assertEqual(found('Both();', **{'tests/support/c.h': helper}), [])
        self.assertEqual(len(found('Both();', **{'a/c.h': helper})), 1)

    def test_shellcheck(self):
        self.assertTrue(self.refused('shellcheck', 'a/tool', '#!/bin/bash\nrm $1\n'))
        self.assertEqual(self.refused('shellcheck', 'a/tool', '#!/bin/bash\nrm "$1"\n'), [])

    def test_literals_and_comments_are_blanked_line_by_line(self):
        text = 'a /* x\ny */ b R"(z\n")" c \'"\' d 1\'000 // e\n#include "f.h"\n'
        code = style_rules.strip_cpp(text)
        self.assertEqual(code.count('\n'), text.count('\n'))
        self.assertEqual(code.split(), ['a', 'b', 'c', 'd', "1'000", '#include', '"f.h"'])


class ThreatsTest(RuleTest):

    def check(self, column):
        return self.refused('threats', 'docs/security.md', f'| # | act | answer | test |\n|---|---|---|---|\n| 7 | x | y | {column} |\n',
                            **{'a_test.cc': 'TEST(BadTokenTest, IsRefused) {}\nTEST_F(HostileTest, Row7Metadata) {}\n',
                               'tests/e2e/b_test.py': '', 'tests/fuzz/CMakeLists.txt': 'capstan_fuzzer(fuzz_idx)\n'})

    def test_a_row_without_a_test_or_with_one_that_is_not_there_is_refused(self):
        for column in ('-', 'a_test: IsNotRefused', 'a_test: Row8', 'c_test.py', 'fuzz_gif', 'a_test: BadTokenTest; fuzz_gif'):
            self.assertEqual(len(self.check(column)), 1, column)
        for column in ('a_test: BadTokenTest', 'hostile: Row7; fuzz_idx', 'b_test.py'):
            self.assertEqual(self.check(column), [], column)


class ProtoCommentsTest(RuleTest):

    GOOD = """// Jobs.
syntax = "proto3";

import "a/b.proto";  // paths

// Takes jobs.
service JobService {
  // Asks for a job, slowly.
  //   NOT_FOUND  no such job
  rpc Get(GetRequest) returns (stream GetResponse) { option deadline = 1; }
}

enum Kind {                  // what a thing is
  KIND_UNSPECIFIED = 0;
  KIND_URL = 1;              // "http://..."
  // Something that lies
  // on a disk.
  KIND_FILE = 2 [deprecated = true];
}

// Asks; nothing is set.
message GetRequest {}  // Next number: 1.

// The answer.
message GetResponse {
  reserved 2, 3; reserved "old";
  option allow_alias = true;
  // How far it is.
  message Inner {
    optional int64 step = 1;  // from 0
  }
  oneof what {
    map<string, Inner> inner = 1;  // by name
    repeated a.b.C parts = 4       // by size
        [packed = true];
  }
  bytes payload
      = 5;                         // at most 1 MiB
}  // Next number: 6.
"""

    def found(self, text, path='protos/capstan/job/v1/job.proto'):
        return [line.split(': ', 1) for line in self.refused('proto_comments', path, text)]

    def test_lets_a_file_with_comments_pass(self):
        self.assertEqual(self.found(self.GOOD), [])
        kinds = [kind for _, kind, _, _ in style_rules.proto_elements(self.GOOD)]
        self.assertEqual({kind: kinds.count(kind) for kind in kinds},
                         {'service': 1, 'rpc': 1, 'enum': 1, 'enum value': 3, 'message': 3, 'field': 4})

    def test_refuses_each_element_without_its_comment(self):
        for comment, want in (
                ('// Takes jobs.\n', 'service JobService'),
                ('  // Asks for a job, slowly.\n  //   NOT_FOUND  no such job\n', 'rpc JobService.Get'),
                ('                 // what a thing is', 'enum Kind'),
                ('              // "http://..."', 'enum value Kind.KIND_URL'),
                ('  // Something that lies\n  // on a disk.\n', 'enum value Kind.KIND_FILE'),
                ('// Asks; nothing is set.\n', 'message GetRequest'),
                ('// The answer.\n', 'message GetResponse'),
                ('  // How far it is.\n', 'message GetResponse.Inner'),
                ('  // from 0', 'field GetResponse.Inner.step'),
                ('  // by name', 'field GetResponse.inner'),
                ('       // by size', 'field GetResponse.parts'),
                ('                         // at most 1 MiB', 'field GetResponse.payload')):
            self.assertIn(comment, self.GOOD)
            found = self.found(self.GOOD.replace(comment, ''))
            self.assertEqual([sentence for _, sentence in found],
                             [f'{want} has no comment right above it or at the end of its line'], comment)

    def test_names_the_line(self):
        self.assertEqual(self.found('// The answer.\nmessage A {\n  int32 b = 1;\n}\n')[0][0], 'protos/capstan/job/v1/job.proto:3')

    def test_a_comment_belongs_to_one_element(self):
        for fields, want in (
                ('  // Seconds.\n  double a = 1;\n  double b = 2;\n', ['M.b']),        # a comment belongs to the line below it
                ('  // Seconds.\n\n  double a = 1;\n', ['M.a']),                      # an empty line
                ('  double a = 1;  // seconds\n                 // of the step\n  double b = 2;\n', ['M.b']),  # more of the comment before
                ('  double a = 1; double b = 2;  // seconds\n', ['M.b']),
                ('  double a = 1;  //\n', ['M.a']), ('  double a = 1;  // 1..64\n', ['M.a']), ('  double a = 1;  // ----\n', ['M.a'])):
            found = self.found(f'// Numbers.\nmessage M {{\n{fields}}}  // Next number: 3.\n')
            self.assertEqual([sentence.split()[1] for _, sentence in found], want, fields)

    def test_a_comment_says_more_than_the_name(self):
        for comment, count in (('the step count', 1), ('Step.', 1), ('of the step count', 1), ('steps decided', 0), ('step, from 0', 0)):
            found = self.found(f'// Numbers.\nmessage M {{\n  int64 step_count = 1;  // {comment}\n}}\n')
            self.assertEqual([sentence for _, sentence in found], ['the comment of field M.step_count repeats its name'] * count, comment)

    def test_leaves_other_protos(self):
        self.assertEqual(self.found('message A {}\n', path='protos/grpc/health/v1/health.proto'), [])
        self.assertEqual(len(self.found('message A {}\n')), 1)


class NamesTest(RuleTest):

    WORDS = '# A comment.\n\nEpochOrder EpochPermutation\n\\bRank\\b Worker, or Member\nJobService\\W+ListNodes AdminService\n'

    def old(self, path, text):
        return self.refused('old_words', path, text, **{'tests/style/old_words.txt': self.WORDS})

    def test_an_old_name_is_refused_in_code_comments_and_pages(self):
        self.assertEqual(self.old('training/a.h', 'int x;\nEpochOrder MakeIt();\n'),
                         ["training/a.h:2: 'EpochOrder' is an old name, today EpochPermutation"])
        self.assertEqual(len(self.old('training/a.cc', '// As MakeEpochOrders has it.\n')), 1)
        self.assertEqual(self.old('docs/a.md', 'The class Rank.\n'), ["docs/a.md:1: 'Rank' is an old name, today Worker, or Member"])
        self.assertEqual(len(self.old('tests/e2e/a_test.py', "call('/capstan.job.v1.JobService/ListNodes')\n")), 1)
        self.assertEqual(len(self.old('client/a.cc', 'Rank a;\nRank b;\n')), 2)

    def test_the_new_name_and_what_only_contains_an_old_one_are_accepted(self):
        self.assertEqual(self.old('training/a.h', 'EpochPermutation MakeIt();\nint RankOf();\nAdminService/ListNodes\n'), [])

    def test_pages_that_tell_of_the_past_may_use_old_names(self):
        for path in ('docs/CHANGELOG.md', 'docs/decisions/2026-11-21-a.md', 'tests/kept/0.1.0/a.json'):
            self.assertEqual(self.old(path, 'EpochOrder\n'), [], path)

    def test_every_line_of_the_committed_list_refuses_something(self):
        with open(os.path.join(ROOT, style_rules.OLD_WORDS)) as f:
            words = style_rules.read_old_words(f.read())
        self.assertGreater(len(words), 10)
        for pattern, new in words:
            self.assertTrue(new, pattern)
            self.assertFalse(pattern.search(new), f'{pattern.pattern} refuses its own replacement')

    def same(self, path, text):
        return self.refused('one_name', path, text, **{'a/first.h': 'namespace a {\nclass Strand final : public Base {\n};\n}\n'})

    def test_two_classes_of_one_name_are_refused(self):
        for text in ('class Strand {\n};\n', 'struct Strand {};\n', 'enum class Strand { kA };\n', 'class Strand : public B {\n};\n'):
            self.assertEqual(self.same('b/second.h', text),
                             ['b/second.h: Strand is also a class of a/first.h: one of them needs another name'], text)

    def test_declarations_nested_classes_sources_and_tests_are_no_second_class(self):
        self.assertEqual(self.same('b/second.h', 'class Strand;\n// class Strand {\nclass B {\n  struct Strand {};\n};\n'), [])
        self.assertEqual(self.same('b/second.cc', 'class Strand {\n};\n'), [])
        self.assertEqual(self.same('b/test_second.h', 'class Strand {\n};\n'), [])
        several = {'a/config.h': 'struct Config {};\n', 'b/config.h': 'struct Config {};\n'}
        self.assertEqual(style_rules.one_name(self.tree(several)), [])


class CompilerRulesTest(RuleTest):

    def test_clang_format(self):
        with open(os.path.join(ROOT, '.clang-format')) as f:
            style = f.read()
        self.assertEqual(len(check_style.clang_format(self.tree({'.clang-format': style, 'a/b.cc': 'int  x ;\n'}))), 1)
        self.assertEqual(check_style.clang_format(self.tree({'.clang-format': style, 'a/b.cc': 'int x;\n'})), [])

    def test_thread_safety_needs_its_flag_in_every_command(self):
        good = 'clang++ -Wthread-safety -Werror=thread-safety -c a.cc'
        self.assertEqual(check_style.thread_safety(None, {'a.cc': good}), [])
        self.assertEqual(len(check_style.thread_safety(None, {'a.cc': good, 'b.cc': 'clang++ -Wall -c b.cc'})), 1)
        disarmed = good + ' -Wno-thread-safety-analysis'
        self.assertEqual(len(check_style.thread_safety(None, {'a.cc': disarmed})), 1)

    def tidy(self, text):
        with open(os.path.join(ROOT, '.clang-tidy')) as f:
            checks = f.read()
        self.tree({'.clang-tidy': checks, 'training/b.cc': text})
        command = {'directory': self.root, 'file': 'training/b.cc', 'command': 'clang++ -std=c++20 -c training/b.cc'}
        with open(os.path.join(self.root, 'compile_commands.json'), 'w') as f:
            json.dump([command], f)
        return check_style.tidy_one(self.root, self.root, 'training/b.cc')

    def test_clang_tidy(self):
        base = 'struct B { virtual ~B() = default; virtual void F(); };\n'
        self.assertTrue(self.tidy(base + 'struct D : B { void F(); };\n'))
        self.assertEqual(self.tidy(base + 'struct D : B { void F() override; };\n'), [])

    def test_tidy_passes_an_unchanged_source_over_and_a_changed_header_not(self):
        os.environ['CAPSTAN_CACHE_DIR'] = os.path.join(self.root, 'cache')
        self.addCleanup(os.environ.pop, 'CAPSTAN_CACHE_DIR')

        def mark(header, flags='-O1'):
            self.tree({'.clang-tidy': '', 'a/b.cc': '#include "a/b.h"\n', 'a/b.h': header})
            return check_style.TidyCache(self.root).mark('a/b.cc', f'clang++ {flags} {self.root}/a/b.cc')

        self.assertEqual(mark('int x;\n'), mark('int x;\n'))
        self.assertNotEqual(mark('int x;\n'), mark('int y;\n'))
        self.assertNotEqual(mark('int x;\n'), mark('int x;\n', '-O2'))

    def test_changed_sources_newest_first_and_a_header_stands_for_its_source(self):
        def git(*args):
            subprocess.run(['git', '-C', self.root, '-c', 'user.name=t', '-c', 'user.email=t@t', *args],
                           check=True, capture_output=True)

        git('init', '-q')
        for path in ('a/old.cc', 'a/first.cc', 'a/second.h'):
            self.tree({path: ''})
            git('add', '.')
            git('commit', '-q', '-m', path)
        paths, since = check_style.changed_sources(self.root, 'HEAD~2')
        self.assertEqual((paths, since), (['a/second.h', 'a/first.cc'], 'HEAD~2'))
        commands = {'a/old.cc': '', 'a/first.cc': '', 'a/second_test.cc': ''}
        self.assertEqual(check_style.sources_of(paths, commands), ['a/second_test.cc', 'a/first.cc'])


if __name__ == '__main__':
    unittest.main()
