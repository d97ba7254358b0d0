"""Checks that pages, examples and `--help` texts name only existing commands, flags, keys of the job file, variables, metrics,
paths and tests.

`World` is what exists. `Walk` reads pages and help texts and collects complaints, each 'page:line: sentence'. docs/roadmap.md is
checked in the opposite way: things in the first columns of its tables must not exist.
"""

import collections
import concurrent.futures
import os
import re
import shlex
import subprocess
import sys

import support

sys.path.insert(0, os.path.join(support.ROOT, 'tools'))
import style_rules  # noqa: E402

ROADMAP, INTERFACE, METRICS, RELIABILITY = (f'docs/{name}.md' for name in ('roadmap', 'interface', 'metrics', 'reliability'))
SERVICES = ('capstan_coordinator', 'capstan_param_store', 'capstan_gpu_worker')
BINARIES = ('capstan', *SERVICES, 'capstan_coordinator_load')
SCRIPT_FLAGS = {'run-tests': 'tools/run_tests.py', '.ci/run': 'tools/run_tests.py'}  # the program that reads a script's flags
GENERATED = ('build/', 'deploy/compose/secrets')  # made in the tree by builds and scripts

# Flags of other programs that pages name.
FOREIGN_FLAGS = {
    'clang': ['-O1', '-Werror', '-Wthread-safety', '-fno-sanitize-recover'],
    'cmake': ['-DCAPSTAN_COMPONENTS', '--install', '--preset'],
    'cp': ['-a'],
    'curl': ['--http2-prior-knowledge'],
    'dcgm-exporter': ['--hpc-job-mapping-dir'],
    'docker': ['--profile', '-d', '-p'],
    "Hadoop's distributed shell": ['--container_memory'],
    "MXNet's launch.py": ['--p3'],
    'qsub': ['-t', '-notify'],
    'tensorboard': ['--logdir'],
}
# Files that pages name and that do not belong to this tree.
FOREIGN_FILES = {
    'a user': ['back.py', 'bad.yaml', 'f.yaml', 'fashion.yaml', 'job.yaml', 'net.py', 'net.yaml', 'docs/decisions/YYYY-MM-DD-slug.md'],
    'a host': ['config.yaml', 'capstan/two-hosts/host-b.yaml'],
    'MXNet': ['example/image-classification/train_cifar10.py', 'example/image-classification/train_mnist.py', 'launch.py',
              'tools/launch.py', 'tools/parse_log.py', 'train.py'],
}
FOREIGN_KEYS = {'Kubernetes': ['resources.limits']}
# The first column of this page's tables has another project's names.
FOREIGN_COLUMN = 'docs/from-mxnet.md'
# Variables between our own processes or of stand-ins for a card, and a name in the code.
ONNX_FILE = os.path.join(support.SHARED, 'onnx', 'mnist-pytorch-opset14.onnx')
INNER_VARIABLES = re.compile(r'CAPSTAN_(PARENT_PID|LAUNCH_BUNDLES|PLUGIN_FACTORY|FAKE_\w+)$')

MINIMAL_JOB = {
    'version': 'version: 1',
    'name': 'name: part',
    'model': 'model: {name: lenet}',
    'data': 'data: {format: synthetic_digits}',
    'training': 'training: {epochs: 1, global_batch_size: 64, optimizer: {name: sgd, learning_rate: 0.1}}',
}
GROUPS = ('resources', 'model', 'data', 'kvstore', 'training', 'evaluation', 'checkpoint', 'recovery', 'limits', 'outputs')
TOP_KEYS = {*MINIMAL_JOB, *GROUPS, 'description', 'labels'}

FLAG = re.compile(r'(?<![\w-])(--?[A-Za-z][\w-]*)')
KEY = re.compile(rf'(?<![\w./-])((?:{"|".join(GROUPS)}|optimizer)(?:\.[a-z_]+)+)(?![\w./(-])')
VARIABLE = re.compile(r'\bCAPSTAN_[A-Z0-9_]*[A-Z0-9]\b')
OURS = re.compile(r'(?<![\w/.:-])(capstan_[a-z0-9_]*[a-z0-9])\b(?![-.*]\w|_\*)')
EVENT = re.compile(r'\bevent=([a-z]\w*)')  # in a log line
TEST = re.compile(r'\b([A-Z]\w*Test)\.([A-Z]\w*)')
# AWorkerThatComesBack, LeavingTest or test_down: names of tests, as they follow the name of their file.
TEST_NAME = re.compile(r'(?<![\w.])(?=\w*[a-z])(?:[A-Z][a-z0-9]*){4,}\b|(?<![\w.])[A-Z]\w+Test\b(?!\.)|\btest_\w+')
SMALL_TEST = re.compile(r'(?<![\w/.-])(?!capstan_|[xy]_test\b)[a-z]\w*_test\b(?![.\w])')  # x_test and y_test are arrays of npz files
PATH = re.compile(r'(?<![\w$}/])[\w.*<>{},/@+-]+')
FILE = re.compile(r'\w\.(cc|h|cu|py|md|ya?ml|proto|cmake|sh)$')
MADE_UP = re.compile(r'(\b|_)foo(\b|_)|\.(crt|key|token)$|^\./')  # in examples; in no tree; in a person's working directory
WORD = re.compile(r'[a-z][a-z_/-]*$')
PREFIXES = {'sudo', 'exec', 'env', 'until', 'while', 'if', 'then', 'else', 'do', 'time', 'python3', '.', '{', '!'}

Piece = collections.namedtuple('Piece', 'page line kind text column head')  # kind: span, block or prose; head: of a table's first column


# --- Pages ---------------------------------------------------------------------------------------


def tracked():
    """Files that git has or would add, since a page may name a new file."""
    done = subprocess.run(['git', '-C', support.ROOT, 'ls-files', '-z', '--cached', '--others', '--exclude-standard'], check=True,
                          capture_output=True, text=True)
    return [path for path in done.stdout.split('\0') if path and '/corpus/' not in path]


def pages(tree):
    return {path: tree.text(path) for path in tree.paths
            if path in ('README.md', 'CONTRIBUTING.md') or re.fullmatch(r'docs/[a-z-]+\.md|examples/[\w-]+\.yaml', path)}


def spans(page, line, text, column=None, head=''):
    """A paragraph or a cell as code spans and the prose between them."""
    end = 0
    for hit in re.finditer(r'(`+)(.+?)\1', text, re.DOTALL):
        yield Piece(page, line + text.count('\n', 0, end), 'prose', text[end:hit.start()], column, head)
        yield Piece(page, line + text.count('\n', 0, hit.start()), 'span', re.sub(r'\s*\n\s*', ' ', hit[2]), column, head)
        end = hit.end()
    yield Piece(page, line + text.count('\n', 0, end), 'prose', text[end:], column, head)


def comments(page, text):
    """The comments of an example. A comment that begins with the word capstan is a command."""
    for number, line in enumerate(text.split('\n'), 1):
        comment = re.search(r'(?:^|\s)#(.*)', line)
        if comment:
            yield from spans(page, number, comment[1])
            command = re.search(r'(?<!\S)capstan .*', comment[1])
            if command:
                yield Piece(page, number, 'block', command[0], None, '')


def pieces(page, text):
    """The page as spans, blocks of code and prose, in order."""
    lines, paragraph, begin, head, i = text.split('\n'), [], 1, '', 0
    while i <= len(lines):
        line = lines[i] if i < len(lines) else ''
        fence = re.match(r'\s*```\s*(\w*)', line)
        indented = line.startswith('    ') and line.strip() and not paragraph
        if paragraph and (fence or not line.strip() or re.match(r'\||#|\s*(?:-|\d+\.) ', line)):
            yield from spans(page, begin, '\n'.join(paragraph))
            paragraph = []
        if fence or indented:
            start = i = i + 1 if fence else i
            while i < len(lines) and not re.match(r'\s*```' if fence else r' {0,3}\S', lines[i]):
                i += 1
            yield Piece(page, start + 1, 'block', '\n'.join(lines[start:i]), None, fence[1] if fence else '')
            i += 1 if fence else 0
            continue
        if line.startswith('|'):
            cells = re.split(r'(?<!\\)\|', line)[1:-1]
            if not lines[i - 1].startswith('|'):
                head = cells[0].strip()
            for column, cell in enumerate(cells):
                yield from spans(page, i + 1, cell.replace('\\|', '|').strip(), column, head)
        elif line.strip():
            begin = begin if paragraph else i + 1
            paragraph.append(line)
        i += 1


def commands(text):
    """(Line from 0, words) of each simple command of a shell text. A quoted text may be a command, too."""
    lines, i = text.split('\n'), 0
    while i < len(lines):
        start, line = i, lines[i]
        while line.endswith('\\') and i + 1 < len(lines):
            i += 1
            line = line[:-1] + lines[i]
        i += 1
        line = re.sub(r'^\s*\$ |(^|\s)#\s.*', '', line)
        lexer = shlex.shlex(line, posix=True, punctuation_chars='();<>|&`')
        lexer.whitespace_split, lexer.commenters = True, ''
        try:
            words = list(lexer)
        except ValueError:  # an apostrophe
            words = re.findall(r'[^\s();<>|&`]+|[();<>|&`]+', line)
        command = []
        for word in [*words, ';']:
            if re.fullmatch(r'[();<>|&`]+', word):
                if command:
                    yield start, command
                command = []
            elif re.search(r'\s', word):
                yield from ((start, inner) for _, inner in commands(word))
                command.append('...')
            else:
                command.append(word)


def without_blocks(text):
    return re.sub(r'^```.*?^```', lambda hit: '\n' * hit[0].count('\n'), text, flags=re.MULTILINE | re.DOTALL)


def anchors(text):
    """The anchors that GitHub gives to the headings of a page."""
    return {re.sub(r'[^\w\- ]', '', title.lower()).replace(' ', '-')
            for title in re.findall(r'^#+ (.*)', without_blocks(text), re.MULTILINE)}


def braces(path):
    """a{b,c} as ab and ac."""
    hit = re.search(r'\{([^{}]*)\}', path)
    if not hit:
        return [path]
    return [one for part in hit[1].split(',') for one in braces(path[:hit.start()] + part + path[hit.end():])]


# --- What exists ---------------------------------------------------------------------------------


class Help:
    """The content of a `--help`."""

    def __init__(self, text):
        self.names = []  # all spellings of each flag
        self.values = set()  # flags that take a value
        for names, value in re.findall(r'^  (-[\w-]+(?:, ?-[\w-]+)*)(?: (?! |Excludes|Needs)(\S+))?', text, re.MULTILINE):
            self.names.append(re.split(', ?', names))
            if value:
                self.values.update(self.names[-1])
        self.flags = {name for names in self.names for name in names}
        self.text, _, below = text.partition('\nSubcommands:\n')  # sub-commands have texts of their own
        self.commands = re.findall(r'^  ([a-z-]+) ', below, re.MULTILINE)


class World:

    def __init__(self):
        self.tree = style_rules.Tree(support.ROOT, tracked())
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            helps = {name: pool.submit(self.read_helps, name) for name in BINARIES if os.path.exists(os.path.join(support.BIN, name))}
            self.folders = {''}
            for path in self.tree.paths:
                while path := os.path.dirname(path):
                    self.folders.add(path)
            self.everything = self.folders.union(self.tree.paths)
            self.names = {path.rsplit('/', 1)[-1] for path in self.everything}
            self.top = {path for path in self.folders if path and '/' not in path}
            python = set(self.tree.python())
            self.scripts = {path: self.flags_of_script(path) for path in sorted(python.union(self.tree.shell()))
                            if os.access(os.path.join(support.ROOT, path), os.X_OK) or path.startswith(('tests/bench/', 'tools/'))}
            self.read_sources(python)
            self.programs = {name: said.result() for name, said in helps.items()}
        for name in SERVICES:
            self.variables_of_binaries.update(re.findall(r'variable (CAPSTAN_\w+)', self.programs[name][()].text))
        self.variables |= self.variables_of_binaries
        self.variables_of_binaries = {name for name in self.variables_of_binaries if not INNER_VARIABLES.match(name)}

    @staticmethod
    def read_helps(name):
        """Words of a command of the program -> Help."""
        found, ask = {}, [()]
        while ask:
            path = ask.pop()
            done = subprocess.run([os.path.join(support.BIN, name), *path, '--help'], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, (name, path, done)
            found[path] = Help(done.stdout)
            if path != ('job',):  # `job list` is `list`
                ask += [(*path, word) for word in found[path].commands]
        found.update({('job', word): found[(word,)] for word in found[('job',)].commands} if ('job',) in found else {})
        return found

    def flags_of_script(self, path):
        text = self.tree.text(SCRIPT_FLAGS.get(path, path))
        found = {'-h', '--help'}
        for call in re.findall(r'add_argument\(([^)]*)', text):
            found.update(re.findall(r'[\'"](--?[a-z][\w-]*)[\'"]', call))
        for case in re.findall(r'^\s*(-[-\w| ]+)\)', text, re.MULTILINE):
            found.update(re.split(r'\s*\|\s*', case))
        if len(found) == 2:  # no parser, so the text is the head of the script
            head = re.match(r'(?:#.*\n)+|(?:#.*\n)?"""(?:.|\n)*?"""', text)
            found.update(FLAG.findall(head[0] if head else ''))
        return found

    def read_sources(self, python):
        """Collects metrics, variables, targets and tests from the text of the tree."""
        self.metrics, self.variables, self.variables_of_binaries, self.targets = set(), set(), set(), set(BINARIES)
        self.events = set()  # any quoted word
        self.tests = collections.defaultdict(set)  # path -> suites, names and suite.name
        for path in self.tree.paths:
            text = self.tree.text(path)
            if path.endswith(('.cc', '.h', '.cu')):
                names = re.findall(r'"(CAPSTAN_[A-Z0-9_]+)"', text)
                self.variables.update(names, re.findall(r'# *define +(CAPSTAN_\w+)', text))
                if style_rules.is_test(path):
                    for suite, name in re.findall(r'\b(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)', text):
                        self.tests[path].update((suite, name, f'{suite}.{name}'))
                else:
                    self.variables_of_binaries.update(names)
                    self.events.update(re.findall(r'"([a-z][a-z_]*)"', text))
                    self.metrics.update(re.findall(r'\b(?:Counter|Gauge|Histogram)\(\s*"(\w+)"', text))
                    for process, grpc in re.findall(r'Single\(\s*"(process_\w+)"|\{"(grpc_(?:server|client)_\w+)", "', text):
                        self.metrics.add(process or grpc)
            elif path.endswith(('CMakeLists.txt', '.cmake')):
                self.variables.update(VARIABLE.findall(text))
                self.targets.update(re.findall(r'\bcapstan_\w+', text))
                for name in re.findall(r'\b(?:capstan_\w+|add_\w+)\(\s*(\w+)', text):
                    self.targets.update((name, f'capstan_{name}'))
            elif path in python:
                self.variables.update(re.findall(r'environ(?:\.get\(|\[)[\'"](CAPSTAN_[A-Z0-9_]+)', text))
                self.tests[path].update(re.findall(r'def (test_\w+)', text))
            elif not path.endswith('.md'):
                self.variables.update(re.findall(r'\$\{?(CAPSTAN_[A-Z0-9_]+)', text))

    def helps(self):
        """Command -> its Help, and that of its program."""
        return {' '.join((name, *path)): (said, helps[()]) for name, helps in self.programs.items() for path, said in helps.items()}

    @staticmethod
    def validate(text, *sets):
        """(Exit code, standard error) of `capstan validate`."""
        done = subprocess.run([support.CAPSTAN, 'validate', '-', *(part for one in sets for part in ('--set', one))], input=text,
                              capture_output=True, text=True, timeout=60, cwd=os.path.join(support.ROOT, 'docs'))
        return done.returncode, done.stderr

    def matches(self, path):
        """Whether this is a path of the tree from its root. * stands for any part of a name."""
        pattern = re.compile('[^/]*'.join(map(re.escape, path.split('*'))))
        return path in self.everything or ('*' in path and any(pattern.fullmatch(there) for there in self.everything))

    def exists(self, path):
        """The same, from any folder."""
        if '/' not in path and '*' not in path:
            return path in self.names
        return self.matches(path) or any(self.matches(f'{folder}/{path}') for folder in self.folders)


# --- The walk ------------------------------------------------------------------------------------


class Walk:
    """Of pages (path -> text) and of help texts (command -> Help, and that of its program)."""

    def __init__(self, world, texts, helps=()):
        self.world, self.complaints = world, []
        self.keys = collections.defaultdict(list)  # key -> places
        self.named = set()  # all flags, files, keys, metrics, variables and commands that pages name
        self.texts = texts
        for page, text in texts.items():
            self.test_files, self.key, self.key_with_values = [], None, None
            if page.endswith('.md'):
                self.links(page, text)
            for piece in (pieces if page.endswith('.md') else comments)(page, text):
                self.piece(piece)
        for command, said in dict(helps).items():
            self.help(f'{command} --help', *said)
        self.unknown_keys()

    def say(self, piece, sentence, line=0):
        self.complaints.append(f'{piece.page}:{piece.line + line}: {sentence}')

    def piece(self, piece):
        if piece.column == 0 and piece.page == FOREIGN_COLUMN:
            return
        if piece.column == 0 and piece.page == ROADMAP:
            self.future(piece)
            return
        if piece.kind == 'block':
            self.block(piece)
        elif piece.kind == 'span':
            self.span(piece, piece.text)
        else:
            for flag in re.findall(r'(?<!\S)--[a-z][\w-]*', piece.text):
                self.bare_flag(piece, flag)
        self.names(piece)
        for line, text in enumerate(piece.text.split('\n')):
            self.variables_and_tests(piece, text, line)
        if piece.page == RELIABILITY:
            self.promise(piece)

    # Commands and flags

    def block(self, piece):
        if piece.head in ('', 'sh', 'bash'):
            for line, words in commands(piece.text):
                self.command(piece, words, line)
        if piece.head == 'yaml':
            top = re.findall(r'^([a-z_]+):', piece.text, re.MULTILINE)
            if top and TOP_KEYS.issuperset(top):
                text = piece.text.replace('graph: net.onnx', f'graph: {ONNX_FILE}')  # a user's file
                code, said = self.world.validate('\n'.join([text, *(MINIMAL_JOB[key] for key in MINIMAL_JOB if key not in top)]))
                if code != 0:
                    self.say(piece, f'capstan validate refuses this job: {said.strip()}')

    def span(self, piece, text):
        if re.match(r'--?[A-Za-z]', text):
            text = re.sub(r'"[^"]*"|\'[^\']*\'', '', text)
            for flag in FLAG.findall(text) if text.startswith('--') else [FLAG.match(text)[0]]:
                self.bare_flag(piece, flag)
        elif re.search(r'\[|<|\| -', text) or not any(self.program(words) for _, words in commands(text)):
            self.synopsis(piece, text)
        else:
            for _, words in commands(text):
                self.command(piece, words)

    def program(self, words):
        """(Name, its arguments) if it is a command line of ours, else None."""
        words = list(words)
        while words and (words[0] in PREFIXES or re.match(r'[A-Za-z_]\w*=', words[0])):
            words.pop(0)
        if not words:
            return None
        if words[0] == 'as' and len(words) > 1:  # a function in docs/deploy.md
            return 'capstan', words[2:]
        path, name = re.sub(r'^\./', '', words[0]), os.path.basename(words[0])
        if name in self.world.programs and (path == name or '/bin/' in path):
            return name, words[1:]
        for script in self.world.scripts:
            if script == path or (path != words[0] and script.endswith('/' + path)) or (
                    path == f'capstan-gpu/{name}' and script == f'tests/gpu/{name}'):
                return script, words[1:]
        return None

    def command(self, piece, words, line=0):
        ours = self.program(words)
        if ours is None:
            return
        name, args = ours
        if name in self.world.scripts:
            for flag in FLAG.findall(' '.join(args)):
                if flag not in self.world.scripts[name]:
                    self.say(piece, f'{name} has no flag {flag}', line)
            return
        helps, path, flags, i = self.world.programs[name], (), [], 0
        while i < len(args):
            flag = FLAG.match(args[i].lstrip('['))
            if flag:
                flags.append(flag[0])
                if flag[0] in helps[path].values | helps[()].values and '=' not in args[i]:
                    i += 1
                    if flag[0] == '--example' and i < len(args):
                        self.example(piece, args[i], line)
            elif helps[path].commands and WORD.match(args[i]):
                if args[i] not in helps[path].commands:
                    self.say(piece, f'{" ".join((name, *path))} has no command {args[i]}', line)
                    return
                path = (*path, args[i])
            i += 1
        self.named.add((piece.page, path))
        for flag in flags:
            self.named.add((piece.page, flag))
            if flag not in helps[path].flags | helps[()].flags:
                self.say(piece, f'{" ".join((name, *path))} has no flag {flag}', line)

    def example(self, piece, name, line):
        if re.fullmatch(r'[a-z0-9-]+', name) and not self.world.matches(f'examples/{name}.yaml'):
            self.say(piece, f'there is no example {name}', line)

    def synopsis(self, piece, text):
        """A span that is not a plain command line: `list [-w]`, `node drain/undrain NODE`, `pack --data DIR`, or something else."""
        helps, paths, words = self.world.programs['capstan'], [()], text.split()
        for word in words[1:] if words[0] == 'capstan' else words:
            parts = word.split('/')
            if not WORD.match(word) or not any(helps[path].commands for path in paths):
                break
            below = [(*path, part) for path in paths for part in parts if part in helps[path].commands]
            if len(below) < len(parts):
                if paths != [()] or words[0] == 'capstan':
                    self.say(piece, f'{" ".join(("capstan", *paths[0]))} has no command {word}')
                break
            paths = below
        may = {' '.join(('capstan', *path)): helps[path].flags | helps[()].flags for path in paths if path}
        self.named.update((piece.page, path) for path in paths)
        may.update({script: flags for script, flags in self.world.scripts.items() if os.path.basename(script) == words[0]})
        for flag in FLAG.findall(re.sub(r'"[^"]*"', '', text)):
            self.named.add((piece.page, flag))
            if not may:
                self.bare_flag(piece, flag)
            elif not any(flag in flags for flags in may.values()):
                self.say(piece, f'{" or ".join(may)} has no flag {flag}')

    def anybodys(self, flag):
        return any(flag in one.flags for helps in self.world.programs.values() for one in helps.values()) or any(
            flag in flags for flags in self.world.scripts.values())

    def bare_flag(self, piece, flag):
        self.named.add((piece.page, flag))
        if self.anybodys(flag):
            return
        self.named.add(flag)
        if not any(flag in flags for flags in FOREIGN_FLAGS.values()):
            self.say(piece, f'no program of ours has the flag {flag}')

    def help(self, place, said, root):
        piece = Piece(place, 1, 'span', said.text, None, '')
        for line, text in enumerate(said.text.split('\n')):
            for flag in FLAG.findall(text):
                if flag not in said.flags | root.flags:
                    self.say(piece, f'mentions the flag {flag}, which it does not have', line)
            for span in re.findall(r'`([^`]+)`', text):
                self.span(piece._replace(line=line + 1), span)
        self.names(piece)

    # Keys, metrics, targets, paths

    def names(self, piece):
        for line, text in enumerate(piece.text.split('\n')):
            if 'unknown field' not in text and piece.head != 'python':  # skips an example of a mistake
                for key in KEY.findall(text):
                    self.named.add(key)
                    if not FILE.search(key) and not any(key in keys for keys in FOREIGN_KEYS.values()):
                        self.keys[re.sub('^optimizer', 'training.optimizer', key)].append(f'{piece.page}:{piece.line + line}')
            for name in OURS.findall(text):
                family = re.sub('_(bucket|sum|count)$', '', name)
                if not {family, name} & self.world.metrics and name not in self.world.targets:
                    self.say(piece, f'there is neither a metric nor a target {name}', line)
            for word in PATH.findall(re.sub(r'\]\([^)]*\)', '', text)):  # links are checked elsewhere
                self.path(piece, re.sub('[.,@]+$', '', word), line)

    def unknown_keys(self):
        if self.keys:
            ends = [key for key in sorted(self.keys) if not any(other.startswith(key + '.') for other in self.keys)]
            _, said = self.world.validate('\n'.join(MINIMAL_JOB.values()), *(f'{key}=surely-not' for key in ends))
            unknown = re.findall(r"unknown field '([^']+)'", said)
            for key, places in self.keys.items():
                if any(key == one or key.startswith(one + '.') for one in unknown):
                    self.complaints += [f'{place}: the job file has no key {key}' for place in places]

    def path(self, piece, word, line):
        if MADE_UP.search(word) or word.startswith(('/', '-')) or '...' in word or word.startswith(GENERATED):
            return
        if '/' in word and word.split('/')[0] in self.world.top:
            there = self.world.matches
        elif FILE.search(word):
            there = self.world.exists
        else:
            return
        if not all(there(re.sub(r'<[^>]*>', '*', one).rstrip('/')) for one in braces(word)):
            self.named.add(word)
            if not any(word in files for files in FOREIGN_FILES.values()):
                self.say(piece, f'there is no {word}', line)

    def links(self, page, text):
        text = without_blocks(text)
        for hit in re.finditer(r'\]\(([^)\s]+)\)', text):
            target, _, anchor = hit[1].partition('#')
            place = f'{page}:{text.count(chr(10), 0, hit.start()) + 1}'
            if re.match(r'\w+:', target):
                continue
            target = os.path.normpath(os.path.join(os.path.dirname(page), target)) if target else page
            if target not in self.world.everything and target not in self.texts:
                self.complaints.append(f'{place}: the link {hit[1]} leads nowhere')
            elif anchor and anchor not in anchors(self.texts.get(target) or self.world.tree.text(target)):
                self.complaints.append(f'{place}: {target} has no heading #{anchor}')

    # Variables, log lines and tests

    def variables_and_tests(self, piece, text, line):
        for name in VARIABLE.findall(text):
            self.named.add(name)
            if name not in self.world.variables:
                self.say(piece, f'nothing reads the variable {name}', line)
        for name in EVENT.findall(text):
            if name not in self.world.events:
                self.say(piece, f'nothing logs event={name}', line)
        for name in TEST.findall(text):
            if not any('.'.join(name) in names for names in self.world.tests.values()):
                self.say(piece, f'there is no test {".".join(name)}', line)
        for name in SMALL_TEST.findall(text) if piece.kind != 'prose' else ():
            if name not in self.world.targets and not MADE_UP.search(name):
                self.say(piece, f'there is no test {name}', line)

    def promise(self, piece):
        """docs/reliability.md names files of tests and then tests, which are of those files or of a file named earlier under the
        same head."""
        tests = self.world.tests
        if piece.kind == 'prose' and '**' in piece.text:
            self.test_files = []
        if piece.kind == 'span' and re.search(r'_test\.(cc|py)$', piece.text):
            self.test_files.append('/' + piece.text)
        files = {'span': ['.cc', '.py'], 'prose': self.test_files, 'block': []}[piece.kind]
        for name in TEST_NAME.findall(piece.text) if files else ():
            if not any(name in tests[path] for path in list(tests) if ('/' + path).endswith(tuple(files))):
                self.say(piece, f'there is no test {name}' + (f' in {files[-1][1:]}' if piece.kind == 'prose' else ''))

    # The roadmap

    def future(self, piece):
        """A cell of a first column in the roadmap. The things that it names must not exist."""
        if piece.kind == 'span' and piece.head == 'Key':
            if self.key_with_values or ': ' in piece.text:
                self.future_key(piece, *(self.key_with_values, piece.text) if self.key_with_values else piece.text.split(': ', 1))
            else:
                self.key = piece
        elif piece.kind == 'prose':  # after a key come a colon and its values, another key, or nothing
            if self.key and piece.text.startswith(':'):
                self.key_with_values = self.key.text
            elif self.key:
                self.future_key(self.key, self.key.text, 'surely-not')
            if not re.match('[:,]', piece.text):
                self.key_with_values = None
            self.key = None
        elif piece.head == 'Command':
            self.future_command(piece)
        else:
            there = [flag for flag in FLAG.findall(piece.text) if self.anybodys(flag)]
            there += [name for name in OURS.findall(piece.text) if name in self.world.metrics]
            there += [piece.text] if FILE.search(piece.text) and self.world.exists(piece.text) else []
            for name in there:
                self.say(piece, f'{name} is there')

    def future_key(self, piece, key, value):
        _, said = self.world.validate('\n'.join(MINIMAL_JOB.values()), f'{key}={value}')
        if not re.search(rf"'{re.escape(key)}'.* is not supported in this version", said):
            self.say(piece, f'{key} is not refused by name, with the value {value}')

    def future_command(self, piece):
        helps, path, words = self.world.programs['capstan'], (), piece.text.split()
        while words and words[0] in helps[path].commands:
            path = (*path, words.pop(0))
        flags = FLAG.findall(' '.join(words))
        if path and (not flags or helps[path].flags.intersection(flags)) and not (words and helps[path].commands):
            self.say(piece, f'{piece.text} is there')
