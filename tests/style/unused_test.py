"""tools/unused lists the functions that no program calls, and only those."""

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
_loader = importlib.machinery.SourceFileLoader('unused', os.path.join(ROOT, 'tools', 'unused'))
unused = importlib.util.module_from_spec(importlib.util.spec_from_loader('unused', _loader))
_loader.exec_module(unused)


class NamesTest(unittest.TestCase):

    def test_bare_names(self):
        for name, bare in (
                ('capstan::training::AddInto(double*, double const*, unsigned long)', 'AddInto'),
                ('capstan::services::MetricFamily<prometheus::Counter>::Drop(std::map<a, b> const&) const', 'Drop'),
                ('capstan::services::MetricsRegistry::FamilyNames[abi:cxx11]() const', 'FamilyNames'),
                ('capstan::client::(anonymous namespace)::Fit(int)', 'Fit'),
                ('absl::StatusOr<int> capstan::training::ChunkSum::AddFrom<capstan::X>(int)', 'AddFrom'),
                ('capstan::training::operator<<(std::ostream&, int)', None)):
            self.assertEqual(unused.bare_name(name), bare, name)

    def test_leaves_out_what_nobody_wrote(self):
        names = {'capstan::LogBuffer::LogBuffer(capstan::LogBuffer const&)', 'capstan::Sha256::Sha256(capstan::Sha256&&)',
                 'capstan::Graph::operator=(capstan::Graph&&)', 'capstan::job::v1::Job::Clear()', 'std::min(int, int)',
                 'capstan::Server::~Server()', 'capstan::Fit(int) [clone .cold]'}
        self.assertEqual(unused.unused([('a', names)], set()), [])
        written = {'capstan::Sha256::Sha256(capstan::Other const&)', 'capstan::Sha256::Update(capstan::Sha256 const&)'}
        self.assertEqual(unused.unused([('a', names | written)], set()), [('a', name) for name in sorted(written)])

    def test_a_call_is_no_declaration(self):
        for path, text, called in (
                ('a/x.cc', 'void Flag::Hide() {\n', False),
                ('a/x.cc', '\nvoid Hide(int) {\n', False),
                ('a/x.cc', 'void F() {\n  flag.Hide();\n', True),
                ('a/x.cc', 'void F() {\n  Unhide();\n', False),
                ('a/x.h', '  void Hide();\n', False),
                ('a/x.h', '  void F() { flag_.Hide(); }\n', True),
                ('a/x.h', '  int F() { return Hide(1); }\n', True)):
            self.assertEqual(unused.calls_it('Hide', [(path, text)]), called, text)


class BuildTest(unittest.TestCase):
    """A program that calls functions of a library, one of which is inlined there."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root, self.build = scratch.name, os.path.join(scratch.name, 'build')
        os.makedirs(os.path.join(self.root, 'lib'))
        library = ('namespace capstan {\n[[gnu::noinline]] int Called(int x) { return x * 3; }\nint Uncalled(int x) { return x + 1; }\n'
                   'int Inlined(int x) { return x ^ 1; }\nint Both(int x) {\n  return Called(Inlined(x));\n}\n}\n')
        self.compile('lib', 'capstan_lib', 'lib.cc', library)
        self.compile('.', 'capstan', 'main.cc', 'namespace capstan { int Both(int); }\n'
                     'int main(int argc, char**) { return capstan::Both(argc); }\n')
        subprocess.run(['git', '-C', self.root, 'init', '-q'], check=True)
        subprocess.run(['git', '-C', self.root, 'add', 'lib'], check=True)
        self.link('bin/capstan')

    def compile(self, folder, target, name, text):
        source = os.path.join(self.root, folder, name)
        with open(source, 'w') as f:
            f.write(text)
        out = os.path.join(self.build, folder, 'CMakeFiles', target + '.dir')
        os.makedirs(out)
        subprocess.run(['g++', '-O2', '-ffunction-sections', '-c', source, '-o', os.path.join(out, name + '.o')], check=True)

    def link(self, program):
        out = os.path.join(self.build, program)
        os.makedirs(os.path.dirname(out), exist_ok=True)
        objects = [path for _, path in unused.files_of(self.build)[1]]
        main = os.path.join(self.build, 'CMakeFiles', 'capstan.dir', 'main.cc.o')
        subprocess.run(['g++', '-Wl,--gc-sections', main, *[path for path in objects if path != main], '-o', out], check=True)

    def test_lists_what_no_program_holds(self):
        lines, good = unused.report(self.build, {}, list_all=False, root=self.root)
        self.assertEqual(lines, ['lib: capstan::Uncalled(int)',
                                 '1 functions that nothing calls, 0 that stay, 1 that may be inlined'])
        self.assertFalse(good)
        lines, _ = unused.report(self.build, {}, list_all=True, root=self.root)
        self.assertEqual(lines[:2], ['lib: capstan::Inlined(int)', 'lib: capstan::Uncalled(int)'])

    def test_what_stays_is_there_and_not_called(self):
        _, good = unused.report(self.build, {'capstan::Uncalled(': 'tests'}, list_all=False, root=self.root)
        self.assertTrue(good)
        lines, good = unused.report(self.build, {'Uncalled(': 'tests', 'Called(': 'tests', 'Both': 'tests'},
                                    list_all=False, root=self.root)
        self.assertEqual(lines[:-1], ['tests/style/unused.txt: Called( is called today, or is not there',
                                      'tests/style/unused.txt: Both is called today, or is not there'])
        self.assertFalse(good)

    def test_a_plugin_that_was_not_built_is_left_out(self):
        os.makedirs(os.path.join(self.root, 'gpu_worker/engine/cuda'))
        self.compile('gpu_worker/engine/cuda', 'capstan_cuda', 'x.cc', 'namespace capstan { int Uncalled(int);\n'
                     'namespace engine::cuda { int Use(int x) { return Uncalled(x); } } }\n')
        stay = {'engine::cuda::Asked(': 'tests'}
        lines, good = unused.report(self.build, stay, list_all=False, root=self.root)
        self.assertEqual(lines, ['0 functions that nothing calls, 0 that stay, 1 that may be inlined'])
        self.assertTrue(good)
        with open(os.path.join(self.build, 'bin/capstan'), 'rb') as f:
            program = f.read()
        os.makedirs(os.path.join(self.build, 'lib'), exist_ok=True)
        with open(os.path.join(self.build, 'lib/libcapstan_cuda.so'), 'wb') as f:
            f.write(program)
        lines, _ = unused.report(self.build, stay, list_all=False, root=self.root)
        self.assertEqual(lines[:-1], ['gpu_worker/engine/cuda: capstan::engine::cuda::Use(int)', 'lib: capstan::Uncalled(int)',
                                      'tests/style/unused.txt: engine::cuda::Asked( is called today, or is not there'])


if __name__ == '__main__':
    unittest.main()
