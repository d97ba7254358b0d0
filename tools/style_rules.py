"""The style rules that need only the text of the tree. tools/check-style runs them.

A rule is a function (Tree) -> list of problems, each 'path:line: sentence' or 'path: sentence'. Every rule has a self-test in
tests/style/check_style_test.py that shows what it refuses.
"""

import fnmatch
import os
import py_compile
import re
import subprocess
import tempfile

SOURCE = ('.cc', '.h')
MAX_LINES = 1000


class Tree:
    """The tracked files below a root, as text, read once."""

    def __init__(self, root, paths=None):
        self.root = root
        if paths is None:
            listed = subprocess.run(['git', '-C', root, 'ls-files', '-z'], check=True,
                                    capture_output=True, text=True).stdout
            paths = [p for p in listed.split('\0') if p]
        self.paths = sorted(p for p in paths if os.path.isfile(os.path.join(root, p)))
        self._text = {}
        self._code = {}

    def text(self, path):
        """The file's text. '' for a binary file."""
        if path not in self._text:
            with open(os.path.join(self.root, path), 'rb') as f:
                data = f.read()
            try:
                self._text[path] = '' if b'\0' in data else data.decode('utf-8')
            except UnicodeDecodeError:
                self._text[path] = ''
        return self._text[path]

    def code(self, path):
        """A C++ file without comments and literals. Lines keep their numbers."""
        if path not in self._code:
            self._code[path] = strip_cpp(self.text(path))
        return self._code[path]

    def cpp(self):
        return [p for p in self.paths if p.endswith(SOURCE)]

    def shell(self):
        return [p for p in self.paths if p.endswith('.sh')
                or re.match(r'#!.*\b(ba|da)?sh\b', self.text(p).split('\n', 1)[0])]

    def python(self):
        return [p for p in self.paths if p.endswith('.py')
                or re.match(r'#!.*\bpython3?\b', self.text(p).split('\n', 1)[0])]


def strip_cpp(text):
    """Blanks comments, string and character literals; keeps #include lines and line breaks."""
    token = re.compile(
        r'(?P<include>^[ \t]*#[ \t]*include[^\n]*)'
        r'|(?P<gone>//(?:\\\n|[^\n])*|/\*.*?\*/'
        r'|R"(?P<delim>[^()\\ ]{0,16})\(.*?\)(?P=delim)"'
        r'|"(?:\\.|[^"\\\n])*"'
        r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+')",
        re.MULTILINE | re.DOTALL)

    def blank(match):
        if match.group('include'):
            return match.group(0)
        return re.sub(r'[^\n]', ' ', match.group(0))

    return token.sub(blank, text)


def is_test(path):
    """Tests and fuzzers beside the code, helpers that such tests share, and everything in tests/."""
    return (path.startswith('tests/') or re.search(r'_(test|fuzz|bench)\.(cc|h)$', path) is not None or
            re.search(r'(^|/)(test|fake)_[a-z0-9_]+\.h$', path) is not None)


def matches(tree, paths, pattern, sentence):
    """One problem per line of `paths` whose code matches."""
    found = []
    for path in paths:
        for number, line in enumerate(tree.code(path).split('\n'), 1):
            hit = pattern.search(line)
            if hit:
                found.append(f'{path}:{number}: {sentence.format(hit.group(0).strip())}')
    return found


# --- Which folder may depend on which ------------------------------------------------------------

STANDARD_C = {  # headers of the C and C++ standards and of the compiler, allowed everywhere
    'assert.h', 'ctype.h', 'errno.h', 'float.h', 'limits.h', 'math.h', 'stddef.h', 'stdint.h', 'stdio.h',
    'stdlib.h', 'string.h', 'time.h', 'cpuid.h', 'immintrin.h', 'x86intrin.h', 'nmmintrin.h',
}
POSIX = re.compile(r'^(sys|netinet|arpa|linux)/|^(unistd|fcntl|pthread|signal|poll|dirent|dlfcn|spawn|sched|'
                   r'termios|netdb|ifaddrs|glob|fnmatch|getopt|pwd|ftw|syslog)\.h$')
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]')


def read_arrows(text):
    """tests/style/arrows.txt as {folder: [allowed]}."""
    table = {}
    for number, line in enumerate(text.split('\n'), 1):
        line = line.split('#', 1)[0].strip()
        if not line:
            continue
        folder, colon, allowed = line.partition(':')
        if not colon:
            raise ValueError(f'arrows.txt:{number}: want FOLDER: ALLOWED...')
        table[folder.strip()] = allowed.split()
    return table


def _below(path, folder):
    return path == folder or path.startswith(folder + '/')


def may_include(table, path, header):
    """None if `path` may include `header`, else the row of the table that forbids it."""
    rows = [f for f in table if f not in ('everybody', 'tests_beside_code') and _below(path, f)]
    if not rows:
        return 'no row for this folder'
    row = max(rows, key=len)
    allowed = table[row] + table.get('everybody', [])
    if is_test(path):
        allowed = allowed + table.get('tests_beside_code', [])
    if '.' not in os.path.basename(header) and '/' not in header:
        return None  # <vector>
    if header in STANDARD_C:
        return None
    for name in allowed:
        if name == '*' or (name == '.' and _below(header, row)):
            return None
        if name == '<posix>' and POSIX.search(header):
            return None
        if _below(header, name.strip('<>')):
            return None
    return f'{row}: ' + ' '.join(table[row])


def arrows(tree):
    table = read_arrows(tree.text('tests/style/arrows.txt'))
    found = []
    for path in tree.cpp():
        for number, line in enumerate(tree.code(path).split('\n'), 1):
            include = INCLUDE.match(line)
            if include:
                row = may_include(table, path, include.group(2))
                if row:
                    found.append(f'{path}:{number}: may not include {include.group(2)} (arrows.txt: {row})')
    return found


def include_paths(tree):
    """Our headers are included by their path from the root of the tree."""
    found = []
    for path in tree.cpp():
        for number, line in enumerate(tree.code(path).split('\n'), 1):
            include = INCLUDE.match(line)
            if include and include.group(1) == '"' and (
                    '/' not in include.group(2) or include.group(2).startswith('.')):
                found.append(f'{path}:{number}: include "{include.group(2)}" by its path from the root')
    return found


# --- What pure code must not contain -------------------------------------------------------------

_NO_NAME_BEFORE = r'(?<![\w.>:])'
IMPURE = re.compile('|'.join([
    # threads and locks
    r'std::j?thread\b', r'std::async\b', r'std::this_thread\b', r'\bpthread_\w+',
    r'<(thread|mutex|shared_mutex|condition_variable|future|stop_token|semaphore|latch|barrier)>',
    r'std::(recursive_|shared_|timed_|recursive_timed_)?mutex\b', r'std::condition_variable\w*',
    r'std::(lock_guard|unique_lock|scoped_lock|shared_lock)\b', r'\bMutex(Lock)?\b', r'\bCondVar\b',
    r'services/sync/',
    # clocks and sleeps
    r'_clock::now\b', r'std::chrono::\w+_clock\b', r'absl::Now\b', r'absl::GetCurrentTimeNanos\b', r'\bMonotonicNow\b',
    r'\b(clock_gettime|gettimeofday|nanosleep|usleep)\b', r'(std::|::)time\(', r'\btime\((nullptr|NULL|0)\)',
    r'\bsleep_(for|until)\b', r'\bSleepFor\b',
    # files and the environment
    r'\bfopen\b', r'<(fstream|filesystem)>', r'std::(i|o)?fstream\b', r'std::filesystem\b',
    _NO_NAME_BEFORE + r'(::)?(open|openat|mmap|unlink|rename)\(', r'<(unistd|fcntl)\.h>', r'<sys/[a-z]+\.h>',
    r'\bgetenv\b',
    # gRPC
    r'\bgrpc::', r'\bgrpcpp/', r'\.grpc\.pb\.h',
    # random numbers that are not the job's
    r'\brandom_device\b', r'\babsl::(Insecure)?BitGen\b', _NO_NAME_BEFORE + r'(std::)?s?rand\(',
]))


def is_pure(path):
    return path.startswith(('training/', 'coordinator/scheduler/', 'exchange/sender/', 'exchange/shard/', 'exchange/task/')) or 'core' in path.split('/')[:-1]


def pure(tree):
    """No thread, lock, clock, file, gRPC or foreign random number in training/, core/ and scheduler/ folders."""
    paths = [p for p in tree.cpp() if is_pure(p) and not is_test(p)]
    return matches(tree, paths, IMPURE, '{} has no place in training/, core/ or scheduler/')


RAW_LOCK = re.compile(r'std::(recursive_|shared_|timed_|recursive_timed_|shared_timed_)?mutex\b'
                      r'|std::condition_variable\w*|std::(lock_guard|unique_lock|scoped_lock|shared_lock)\b'
                      r'|absl::(Mutex|CondVar)\w*|absl::(Notification|BlockingCounter|Barrier)\b|\bpthread_mutex\w*')


def raw_locks(tree):
    paths = [p for p in tree.cpp() if not p.startswith('services/sync/')]
    return matches(tree, paths, RAW_LOCK, '{}: use capstan::Mutex, MutexLock, CondVar (services/sync)')


def raw_clocks(tree):
    """No direct use of clocks. Exceptions: the engine's plug-ins, which have no Abseil, and benchmarks."""
    paths = [p for p in tree.cpp() if not p.startswith(('services/clock/', 'gpu_worker/engine/', 'tests/bench/'))]
    return matches(tree, paths, re.compile(r'\bsteady_clock\b'), '{}: use capstan::MonotonicNow (services/clock)')


def using_namespace(tree):
    return matches(tree, tree.cpp(),
                   re.compile(r'\busing\s+namespace\s+(?!std::\w*literals\s*;)'), '{}: name what is used')


# --- Files ---------------------------------------------------------------------------------------


def length(tree):
    found, scripts = [], set(tree.shell() + tree.python())
    for path in tree.paths:
        if path.endswith(SOURCE + ('.proto', '.cmake')) or path in scripts:
            count = tree.text(path).count('\n')
            if count > MAX_LINES:
                found.append(f'{path}: {count} lines, at most {MAX_LINES}: split it')
    return found


def cmake_sources(tree):
    """Each .cc file is named in the CMakeLists.txt of its folder or of one above, or is in a folder that the build searches."""
    globs = {p: re.findall(r'file\(GLOB [^)]*?CONFIGURE_DEPENDS ([^)]*)\)', tree.text(p)) for p in tree.paths
             if os.path.basename(p) == 'CMakeLists.txt'}
    words = {p: set(re.findall(r'[\w./-]+', re.sub(r'#.*', '', tree.text(p))))
             for p in tree.paths if os.path.basename(p) == 'CMakeLists.txt'}
    found = []
    for path in tree.cpp():
        if not path.endswith('.cc'):
            continue
        folder, listed = os.path.dirname(path), False
        while True:
            cmake = os.path.join(folder, 'CMakeLists.txt')
            name = os.path.relpath(path, folder or '.')
            listed = listed or name in words.get(cmake, ())
            listed = listed or any(fnmatch.fnmatch(name, glob) and name.count('/') == glob.count('/')
                                   for line in globs.get(cmake, ()) for glob in line.split())
            if listed or not folder:
                break
            folder = os.path.dirname(folder)
        if not listed:
            found.append(f'{path}: no CMakeLists.txt of its folder or above names it')
    return found


def white_space(tree):
    found = []
    for path in tree.paths:
        if '/corpus/' in path:
            continue  # a fuzzer's inputs may contain anything
        text = tree.text(path)
        for number, line in enumerate(text.split('\n'), 1):
            if line != line.rstrip():
                found.append(f'{path}:{number}: white space at the end of the line')
        if text and not text.endswith('\n'):
            found.append(f'{path}: no line break at the end')
    return found


def python_compiles(tree):
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        for path in tree.python():
            try:
                py_compile.compile(os.path.join(tree.root, path), os.path.join(scratch, 'out.pyc'), path, True)
            except py_compile.PyCompileError as e:
                found.append(f'{path}: {e.msg.strip()}')
    return found


def shellcheck(tree):
    paths = tree.shell()
    if not paths:
        return []
    done = subprocess.run(['shellcheck', '-x', '-f', 'gcc', *paths], cwd=tree.root, capture_output=True, text=True)
    return (done.stdout + done.stderr).strip().splitlines() if done.returncode else []


ASSERTION = re.compile(r'\b(?:EXPECT|ASSERT)_[A-Z]|\b(?:FAIL|ADD_FAILURE)\b')
TEST_BODY = re.compile(r'^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\) (?=\{)', re.MULTILINE)
FUNCTION_BODY = re.compile(r'\b([A-Za-z_]\w*)(?:\([^;{}]*\)(?: const)?(?: override)? (?=\{)| = \[[^;{}]*(?=\{))')

CALL = re.compile(r'(?<![.>])\b(\w+)\(')  # not a method of a named object


def block(code, start):
    """The block that begins at `start`, up to its closing brace."""
    depth = 0
    for brace in re.compile(r'[{}]').finditer(code, start):
        depth += 1 if brace.group() == '{' else -1
        if depth == 0:
            return code[start:brace.end()]
    return code[start:]


def assertions(tree):
    """Each test has an expectation, in itself or in a helper that it calls from its own file or from shared files."""
    code = {path: tree.code(path) for path in tree.cpp() if is_test(path)}

    def helpers(paths):
        """Names of functions that contain an expectation."""
        bodies = [(hit.group(1), block(code[path], hit.end())) for path in paths for hit in FUNCTION_BODY.finditer(code[path])
                  if hit.group(1) not in ('if', 'for', 'while', 'switch', 'catch', 'TEST', 'TEST_F', 'TEST_P')]
        names = set()
        for _ in range(3):  # helpers of helpers
            names |= {name for name, body in bodies if ASSERTION.search(body) or names.intersection(CALL.findall(body))}
        return names

    shared = helpers([path for path in code if not path.endswith('_test.cc')])
    found = []
    for path, text in code.items():
        own = None
        for hit in TEST_BODY.finditer(text):
            body = block(text, hit.end())
            if ASSERTION.search(body) or shared.intersection(CALL.findall(body)):
                continue
            own = helpers([path]) if own is None else own
            if not own.intersection(CALL.findall(body)):
                line = text.count('\n', 0, hit.start()) + 1
                found.append(f'{path}:{line}: {hit.group(1)}.{hit.group(2)} expects nothing: whatever happens, it passes')
    return found


def threats(tree):
    """Each row in the table of threats names tests, and these exist."""
    path, found = 'docs/security.md', []
    if path not in tree.paths:
        return found
    tests = {test: tree.text(test) for test in tree.paths if is_test(test)}
    everything = '\n'.join(tests.values())
    for number, line in enumerate(tree.text(path).split('\n'), 1):
        if not re.match(r'\| \d', line):
            continue
        column = line.rstrip('| ').split('|')[-1]
        names = re.findall(r'\b(?:Rows?\d\w*|(?:[A-Z][a-z]*\d*){3,}|\w+\.py|fuzz_\w+)', column)
        for name in names or [column]:
            there = (any(test.endswith('/' + name) for test in tree.paths) if name.endswith('.py') else
                     name in tree.text('tests/fuzz/CMakeLists.txt') if name.startswith('fuzz_') else
                     re.search(rf'[ (]{re.escape(name)}', everything))
            if not there:
                found.append(f'{path}:{number}: no test is named {name.strip()}')
    return found


# --- Protos --------------------------------------------------------------------------------------

_PROTO_BLOCK = re.compile(r'(message|enum|service|oneof)\s+(\w+)$')
_PROTO_RPC = re.compile(r'rpc\s+(\w+)')
_PROTO_VALUE = re.compile(r'(\w+)\s*=\s*-?\w+')
_PROTO_FIELD = re.compile(r'(?:(?:optional|repeated|required)\s+)?(?:map\s*<[^>]*>|[\w.]+)\s+(\w+)\s*=\s*\d+')
_PROTO_KINDS = ('message', 'enum', 'service')  # kinds of blocks; a oneof needs no comment


def proto_elements(text):
    """(line, kind, full name, text of its comments) of each message, field, enum, enum value, service and rpc.

    Its comments are the one at the end of the line where it begins or where its declaration ends, and the lines right above it
    with the same indent. A comment belongs to one element.
    """
    code, comments = [], {}  # comments: by line, (indent, or None after code; text)
    for number, line in enumerate(text.split('\n'), 1):
        bare = re.sub(r'"(?:\\.|[^"\\])*"', lambda hit: '"' + ' ' * (len(hit.group()) - 2) + '"', line)
        before, slashes, _ = bare.partition('//')
        if slashes:
            comments[number] = (None if before.strip() else len(before), line[len(before) + 2:].strip())
        code.append(before.ljust(len(line)))
    source, taken = '\n'.join(code), set()

    def comment_of(first, last, indent):
        texts, above = [], first - 1
        while above not in taken and comments.get(above, (None,))[0] == indent:
            taken.add(above)
            texts.insert(0, comments[above][1])
            above -= 1
        for number in (first, last):
            if number not in taken and number in comments and comments[number][0] is None:
                taken.add(number)
                texts.append(re.sub(r'Next number: .*', '', comments[number][1]))
        return ' '.join(texts)

    found, scopes, begin = [], [], 0
    for end in re.finditer(r'[{};]', source):
        statement = source[begin:end.start()].strip()
        start = end.start() - len(source[begin:end.start()].lstrip())
        begin = end.end()
        names = [name for _, name in scopes]
        first, last = source.count('\n', 0, start) + 1, source.count('\n', 0, end.start()) + 1
        indent = start - source.rfind('\n', 0, start) - 1
        block, scope = _PROTO_BLOCK.match(statement), scopes[-1][0] if scopes else None
        kind, hit = None, None
        if block:
            kind, hit = block.group(1), block.group(2)
        elif scope == 'service' and _PROTO_RPC.match(statement):
            kind, hit = 'rpc', _PROTO_RPC.match(statement).group(1)
        elif re.match(r'(reserved|option|extensions)\b', statement):
            pass
        elif scope == 'enum' and _PROTO_VALUE.match(statement):
            kind, hit = 'enum value', _PROTO_VALUE.match(statement).group(1)
        elif scope in ('message', 'oneof') and _PROTO_FIELD.match(statement):
            kind, hit = 'field', _PROTO_FIELD.match(statement).group(1)
        if kind and kind != 'oneof':
            found.append((first, kind, '.'.join([*filter(None, names), hit]), comment_of(first, last, indent)))
        if end.group() == '{':
            scopes.append((kind, hit if kind in _PROTO_KINDS else ''))
        elif end.group() == '}' and scopes:
            scopes.pop()
    return found


def proto_comments(tree):
    """Each element of the wire contract has a comment that says more than its name. An enum's *_UNSPECIFIED needs none."""
    found = []
    for path in tree.paths:
        if not path.startswith('protos/capstan/') or not path.endswith('.proto'):
            continue
        for line, kind, name, comment in proto_elements(tree.text(path)):
            if kind == 'enum value' and name.endswith('_UNSPECIFIED'):
                continue
            words = set(re.findall(r'[a-z]+', comment.lower())) - {'a', 'an', 'the', 'its', 'of'}
            own = set(re.findall(r'[a-z]+', re.sub(r'([A-Z])', r' \1', name.split('.')[-1]).lower()))
            if not words:
                found.append(f'{path}:{line}: {kind} {name} has no comment right above it or at the end of its line')
            elif words <= own:
                found.append(f'{path}:{line}: the comment of {kind} {name} repeats its name')
    return found


# --- Names ---------------------------------------------------------------------------------------

OLD_WORDS = 'tests/style/old_words.txt'
TELLS_OF_THE_PAST = ('docs/CHANGELOG.md', 'docs/decisions/', 'docs/benchmarks/', 'tests/kept/', 'tests/style/')


def read_old_words(text):
    """[(pattern, what took its place)] of the lines `OLD NEW...`."""
    lines = [line.split(None, 1) for line in text.splitlines() if line.strip() and not line.startswith('#')]
    return [(re.compile(line[0]), line[1].strip()) for line in lines]


def old_words(tree):
    """No name that was given up, in code, comments and pages."""
    words = read_old_words(tree.text(OLD_WORDS))
    found = []
    for path in tree.paths:
        if path.startswith(TELLS_OF_THE_PAST) or '/corpus/' in path:
            continue
        text = tree.text(path)
        for pattern, new in words:
            for hit in pattern.finditer(text):
                line = text.count('\n', 0, hit.start()) + 1
                found.append(f'{path}:{line}: {hit.group(0)!r} is an old name, today {new}')
    return found


CLASS = re.compile(r'^(?:class|struct|enum|enum class) (?:ABSL_\w+ |CAPSTAN_\w+(?:\([^)]*\))? )?([A-Z]\w*)(?: final)?\s*(?:: [^;{]*)?\{', re.MULTILINE)
# Every service has a Config and a Service, and every core the same kinds of events and options. The scheduler sees the coordinator's
# nodes and devices as plain data. The coordinator and a worker each have their own view of a job and a task.
IN_SEVERAL_FOLDERS = {'Config', 'CoreOptions', 'Device', 'Job', 'Node', 'Service', 'Task', 'Tick'}


def one_name(tree):
    """No two classes of one name in headers."""
    places = {}
    for path in tree.paths:
        if path.endswith('.h') and not is_test(path):
            for name in CLASS.findall(tree.code(path)):
                places.setdefault(name, []).append(path)
    return [f'{paths[-1]}: {name} is also a class of {paths[0]}: one of them needs another name'
            for name, paths in sorted(places.items()) if len(paths) > 1 and name not in IN_SEVERAL_FOLDERS]


RULES = {
    'arrows': arrows,
    'include_paths': include_paths,
    'pure': pure,
    'raw_locks': raw_locks,
    'raw_clocks': raw_clocks,
    'using_namespace': using_namespace,
    'length': length,
    'cmake_sources': cmake_sources,
    'white_space': white_space,
    'python_compiles': python_compiles,
    'shellcheck': shellcheck,
    'assertions': assertions,
    'threats': threats,
    'proto_comments': proto_comments,
    'old_words': old_words,
    'one_name': one_name,
}
