"""Exports pass onnx's checker and agree with onnx's evaluator. ONNX's own tests of operators, run by `capstan predict FILE.onnx`: none
computes other numbers, and docs/onnx-node-tests.md says which are refused and why. With CAPSTAN_WRITE_PAGE=1 it writes the page."""

import collections
import json
import os
import re
import subprocess

import support

WRITE = os.environ.get('CAPSTAN_WRITE_PAGE') == '1'
PAGE = os.path.join(support.ROOT, 'docs', 'onnx-node-tests.md')
VERSION = '1.17.0'  # the last ones leave the tests out of the package
INTRODUCTION = f"""# ONNX's node tests

The package `onnx` has a test for each operator in many forms: a file with one node, inputs and outputs. `tests/e2e/onnx_node_test.py` runs those of the
operators that Capstan imports by `capstan predict FILE.onnx INPUTS.npz`, and compares with 1e-4 of each number plus 1e-4
(float16: its last bit plus 1e-4). This page is made by that test, which fails if it differs:
`CAPSTAN_BIN=build/dev/bin CAPSTAN_WRITE_PAGE=1 python3 tests/e2e/onnx_node_test.py`.

Version {VERSION} of the package. **Passed** counts files as they are, and files in which the inputs behind the first one became initializers, because Capstan
takes weights and settings from the file only. Outputs behind the first one that a node does not make here, as the mask of a `Dropout`, are left out of the
comparison. **Refused** is an error that names the node. None computes other numbers.

"""


def reason_of(why):
    """A message without names and numbers, as one of a group."""
    why = re.sub(r"^(node '[^']*'|node that makes '[^']*'|value '[^']*'|tensor '[^']*'|file): ", '', why)
    why = re.sub(r"^(tensor '[^']*'|\S+\.npy): ", '', why)
    why = re.sub(r"'[^']*'", 'V', why)
    why = re.sub(r'\[[^\[\]]*\]', 'S', why)
    why = re.sub(r'(?<![A-Za-z0-9])-?\d[\d.e+]*', 'n', why)
    return why.split('\n')[0]


def table(head, rows):
    return '\n'.join([f'| {" | ".join(head)} |', '|' + '---|' * len(head), *(f'| {" | ".join(map(str, row))} |' for row in rows)]) + '\n'


def page_of(results):
    by_operator, reasons = collections.defaultdict(collections.Counter), collections.defaultdict(list)
    for one in results:
        for operator in one['operators']:
            by_operator[operator][one['result']] += 1
        if one['result'] == 'refused':
            reasons[reason_of(one['why'])].append(one)
    count = collections.Counter(one['result'] for one in results)
    passed = count['passed'] + count['passed with initializers']
    total = f'{len(results)} tests: {passed} passed ({count["passed with initializers"]} of them with initializers), {count["refused"]} refused.\n\n'
    operators = table(['Operator', 'Passed', 'With initializers', 'Refused'],
                      [(f'`{name}`', of['passed'], of['passed with initializers'], of['refused']) for name, of in sorted(by_operator.items())])
    lines = []
    for reason, ones in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        names = sorted({operator for one in ones for operator in one['operators']})
        more = ', ...' if len(names) > 3 else ''
        lines.append((len(ones), reason.replace('|', '/'), ', '.join(f'`{name}`' for name in names[:3]) + more))
    return (INTRODUCTION + total + operators + '\n## Why tests are refused\n\nV stands for a name, S for a shape and n for a number.\n\n' +
            table(['Tests', 'Reason', 'Operators'], lines))


# Every operator that a file can hold, of images [1, 28, 28].
NODES = """
  - {name: conv, op: Conv, attributes: {out_channels: 4, kernel_shape: [3, 3], strides: [2, 2], pads: [1, 0, 0, 1], group: 1, dilations: [2, 1]}}
  - {name: bn, op: BatchNormalization}
  - {name: relu, op: Relu}
  - {name: pool, op: MaxPool, attributes: {kernel_shape: [2, 2], strides: [2, 2], pads: [0, 1, 1, 0]}}
  - {name: leaky, op: LeakyRelu, attributes: {alpha: 0.2}}
  - {name: lrn, op: LRN, attributes: {size: 3}}
  - {name: clip, op: Clip, attributes: {min: -1, max: 2}}
  - {name: average, op: AveragePool, attributes: {kernel_shape: [2, 2], pads: [1, 0, 0, 1], count_include_pad: 1}}
  - {name: pad, op: Pad, attributes: {pads: [0, 1, 0, 0, 0, 1], value: 0.5}}
  - {name: part, op: Slice, attributes: {starts: [1, 7], ends: [8, 1], axes: [2, 3], steps: [1, -2]}}
  - {name: turn, op: Transpose, attributes: {perm: [2, 3, 1]}}
  - {name: norm, op: LayerNormalization}
  - {name: place, op: Parameter, attributes: {shape: [4, 5], init: initializer}}
  - {name: product, op: MatMul, inputs: [norm, place]}
  - {name: half, op: ConstantOfShape, attributes: {shape: [1], value: 0.5}}
  - {name: scaled, op: Mul, inputs: [product, half]}
  - {name: sigmoid, op: Sigmoid}
  - {name: tanh, op: Tanh, inputs: [scaled]}
  - {name: both, op: Sum, inputs: [sigmoid, tanh]}
  - {name: drop, op: Dropout}
  - {name: mean, op: ReduceMean, attributes: {axes: [3], keepdims: 0}}
  - {name: sum, op: ReduceSum, inputs: [drop], attributes: {axes: [1], keepdims: 0}}
  - {name: soft, op: Softmax, inputs: [mean]}
  - {name: log, op: LogSoftmax, inputs: [sum], attributes: {axis: 1}}
  - {name: one, op: Unsqueeze, inputs: [soft], attributes: {axes: [3]}}
  - {name: none, op: Squeeze, attributes: {axes: [3]}}
  - {name: same, op: Identity}
  - {name: shifted, op: Sub, inputs: [drop, log]}
  - {name: share, op: Div, inputs: [shifted, half]}
  - {name: flat1, op: Flatten, inputs: [same]}
  - {name: flat2, op: Flatten, inputs: [share]}
  - {name: joined, op: Concat, inputs: [flat1, flat2], attributes: {axis: 1}}
  - {name: fc, op: Gemm, attributes: {out_features: 8}}
  - {name: cube, op: Reshape, attributes: {shape: [2, 2, 2]}}
  - {name: most, op: GlobalMaxPool}
  - {name: middle, op: GlobalAveragePool, inputs: [cube]}
  - {name: added, op: Add, inputs: [most, middle]}
  - {name: row, op: Flatten}
  - {name: head, op: Gemm, attributes: {out_features: 10}}
"""
LOSS = '  - {name: loss, op: SoftmaxCrossEntropyLoss}\n'
JOB = """version: 1
name: every
data: {format: synthetic_digits, train_samples: 64, test_samples: 16}
training: {max_steps: 2, global_batch_size: 32, seed: 3, optimizer: {name: sgd, learning_rate: 0.02}}
model:
  graph:
    nodes:
"""


class OnnxNodeTest(support.TestCase):
    PACKAGES = ('onnx', f'onnx=={VERSION}', 'numpy')

    def cases(self, *args):
        python = support.python_with(*self.PACKAGES)
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'onnx_cases.py')
        done = subprocess.run([python, script, args[0], support.CAPSTAN, self.folder, *args[1:]], capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        return done.stdout

    def test_exports_agree_with_onnx(self):
        gelu = NODES.replace('op: Identity', 'op: Gelu').replace('count_include_pad: 1', 'dilations: [2, 1]')
        for name, nodes in (('set17', NODES), ('set20', gelu)):
            job = JOB + ''.join(f'  {line}\n' for line in (nodes.strip('\n') + '\n' + LOSS).splitlines())
            run = self.capstan('run', self.write('job.yaml', job))
            self.assertEqual(run.code, 0, run)
            self.assertEqual(self.capstan('model', 'export', '@last', '--out', f'{name}.onnx').code, 0)
        # A language model has the logits of each position as its output, and reads tokens.
        self.write('text/input.txt', 'to be or not to be. ' * 40)
        language = support.job_spec(model={'name': 'gpt_nano'}, kvstore={'type': 'local'}, resources={'num_workers': 1},
                                    data={'format': 'text', 'uri': self.path('text'), 'sequence_length': 8},
                                    training={'max_steps': 5, 'global_batch_size': 16, 'optimizer': {'name': 'adam', 'learning_rate': 0.01}})
        self.train(language)
        self.assertEqual(self.capstan('model', 'export', '@last', '--out', 'language.onnx').code, 0)
        said = self.cases('agree', self.path('set17.onnx'), self.path('set20.onnx'), self.path('language.onnx'))
        print(said, flush=True)
        self.assertEqual(said.count('largest difference'), 3)
        self.assertIn('language.onnx: output [3, 8, 8]', said)
        # It comes back as the same network, with the same loss.
        both = {'graph': self.path('language.onnx'), 'initial_weights': self.path('language.onnx')}
        still = {**language['training'], 'max_steps': 1, 'optimizer': {'name': 'sgd', 'learning_rate': 1e-30}}
        validated = json.loads(self.capstan('metrics', '@last', '-o', 'json').out)['evaluations'][-1]['validation_loss']
        self.train({**language, 'model': both, 'training': still})
        again = json.loads(self.capstan('metrics', '@last', '-o', 'json').out)['evaluations'][-1]['validation_loss']
        self.assertAlmostEqual(again, validated, delta=1e-5)

    def test_an_export_is_trained_on(self):
        """A Parameter and a ConstantOfShape come back from a file, one with its weights and one within the job."""
        job = JOB + ''.join(f'  {line}\n' for line in (NODES.strip('\n') + '\n' + LOSS).splitlines())
        first = self.train_text(job)
        self.assertEqual(self.capstan('model', 'export', '@last', '--out', 'net.onnx').code, 0)
        still = re.sub('learning_rate: [0-9.]+', 'learning_rate: 1e-30', JOB[:JOB.index('model:')]) + 'model: {graph: net.onnx, initial_weights: net.onnx}\n'
        again = self.train_text(still + 'resources: {num_workers: 2, num_shards: 2}\n')
        self.assertEqual(first['place.weight'][0], [4, 5])
        self.assertEqual({name: tensor for name, tensor in first.items() if 'running' not in name},
                         {name: tensor for name, tensor in again.items() if 'running' not in name})

    def train_text(self, text):
        run = self.capstan('run', self.write('job.yaml', text))
        self.assertEqual(run.code, 0, run)
        self.assertEqual(self.capstan('checkpoint', 'export', '@last', '--out', 'out.safetensors').code, 0)
        return support.read_safetensors(self.path('out.safetensors'))

    def test_files_give_their_stored_outputs(self):
        folder = os.path.join(support.SHARED, 'onnx')
        if not os.path.isdir(folder):
            self.skipTest(f'no {folder}')
        print(self.cases('stored', *(os.path.join(folder, f'light_{name}.onnx') for name in ('squeezenet', 'bvlc_alexnet'))), flush=True)

    def test_nodes_compute_what_onnx_says(self):
        results = [json.loads(line) for line in self.cases('nodes').splitlines()]
        self.assertGreater(len(results), 200)
        page = page_of(results)
        print(page[len(INTRODUCTION):], flush=True)
        failed = [one for one in results if one['result'] == 'failed' or one['why'].startswith('exit code')]
        self.assertEqual(failed, [])
        if WRITE:
            with open(PAGE, 'w') as f:
                f.write(page)
        with open(PAGE) as f:
            self.assertEqual(f.read(), page, 'docs/onnx-node-tests.md is outdated: CAPSTAN_WRITE_PAGE=1')


if __name__ == '__main__':
    support.main()
