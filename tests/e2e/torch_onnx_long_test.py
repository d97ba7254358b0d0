"""README's way from PyTorch to Capstan and back, and exports in onnxruntime."""

import json
import os
import re
import subprocess
import sys

import onnx_node_test
import support

sys.path.insert(0, os.path.join(support.ROOT, 'tests', 'bench'))
import torch_peer  # noqa: E402

README = os.path.join(support.ROOT, 'README.md')
PACKAGES = (f'onnx=={onnx_node_test.VERSION}', 'onnxruntime', 'safetensors', 'numpy')


# Attention over patches with a token and positions, which needs constants, parts of values and arithmetic on shapes.
TRANSFORMER = """
import json, math, sys
import numpy, torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width=16, heads=2):
        super().__init__()
        self.n1, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.n2, self.f1, self.f2, self.heads = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width), heads

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = (part.view(n, t, self.heads, d // self.heads).transpose(1, 2) for part in self.qkv(self.n1(x)).chunk(3, dim=-1))
        weights = (q @ k.transpose(-2, -1) / math.sqrt(d // self.heads)).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(n, t, d))
        return x + self.f2(torch.relu(self.f1(self.n2(x))))

class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch, self.block, self.head = nn.Conv2d(1, 16, 7, 7), Block(), nn.Linear(16, 10)
        self.token, self.place = nn.Parameter(torch.randn(1, 1, 16)), nn.Parameter(torch.randn(1, 17, 16))

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.size(0), -1, -1), x], 1) + self.place
        return self.head(self.block(x)[:, 0])

torch.manual_seed(0)
net, x = Transformer().eval(), torch.randn(3, 1, 28, 28)
names = dict(dynamo=False, input_names=["x"], output_names=["y"])
torch.onnx.export(net, x, "net.onnx", dynamic_axes={"x": {0: "N"}, "y": {0: "N"}}, **names)
torch.onnx.export(net, x[:1], "net1.onnx", **names)
numpy.save("x.npy", x.numpy())
numpy.save("y.npy", net(x).detach().numpy())
with open("names.json", "w") as f:
    json.dump({name: list(value.shape) for name, value in net.state_dict().items()}, f)
"""
# Tokens are whole numbers, whose rows a table has. One answer for the sample, or one at each position.
TOKENS = """
import sys
import numpy, torch
from torch import nn

class Tokens(nn.Module):
    def __init__(self, positions):
        super().__init__()
        self.embed, self.place = nn.Embedding(11, 16), nn.Embedding(8, 16)
        self.hidden, self.head, self.positions = nn.Linear(16, 32), nn.Linear(32, 11), positions

    def forward(self, x):
        x = self.embed(x) + self.place(torch.arange(8))
        x = torch.relu(self.hidden(x))
        return self.head(x if self.positions else x.mean(1))

torch.manual_seed(0)
x = torch.randint(0, 11, (5, 8))
for positions in (False, True):
    net, name = Tokens(positions).eval(), f"tokens{int(positions)}"
    torch.onnx.export(net, x, f"{name}.onnx", dynamo=False, input_names=["x"], output_names=["y"],
                      dynamic_axes={"x": {0: "N"}, "y": {0: "N"}})
    numpy.save(f"{name}.npy", net(x).detach().numpy())
numpy.save("x.npy", x.numpy())
"""
COMPARE = "import numpy, sys; a, b = map(numpy.load, sys.argv[1:]); assert a.shape == b.shape; print(abs(a - b).max())"


class TorchTest(support.TestCase):
    def python(self, *args):
        """Runs PyTorch's Python with the other packages."""
        more = support.python_with('onnxruntime', *PACKAGES)
        site = subprocess.run([more, '-c', 'import numpy, os; print(os.path.dirname(os.path.dirname(numpy.__file__)))'], capture_output=True,
                              text=True, check=True, timeout=60).stdout.strip()
        path = os.pathsep.join([os.path.dirname(torch_peer.python()), support.BIN, os.environ['PATH']])
        done = subprocess.run(args, cwd=self.folder, capture_output=True, text=True, timeout=600,
                              env=dict(os.environ, PATH=path, PYTHONPATH=site, CAPSTAN_ADDRESS='', XDG_CONFIG_HOME=self.path('config')))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr[-4000:])
        return done.stdout

    def test_a_transformer_from_pytorch(self):
        self.python('python3', '-W', 'ignore', '-c', TRANSFORMER)
        for name in ('net.onnx', 'net1.onnx'):  # any batch, and one
            self.assertEqual(self.capstan('predict', name, 'x.npy', '--out', 'out.npy').code, 0)
            difference = float(self.python('python3', '-c', COMPARE, 'out.npy', 'y.npy'))
            print(f'{name}: largest difference {difference:.1e}', flush=True)
            self.assertLess(difference, 1e-5)
            both = {'graph': self.path(name), 'initial_weights': self.path(name)}
            job = self.train(support.job_spec(model=both, data={'format': 'synthetic_digits', 'train_samples': 640, 'test_samples': 32}))
            losses = [line['loss'] for line in self.step_log(job)]
            self.assertLess(losses[-1], losses[0])
            # Layers over the patches are products and sums in the file. Their weights come back under PyTorch's names, in its layout.
            tensors = support.read_safetensors(os.path.join(self.checkpoint(job), 'weights.safetensors'))
            with open(self.path('names.json')) as f:
                layers = {tensor: shape for tensor, shape in json.load(f).items() if '.' in tensor}
            self.assertEqual({tensor: tensors[tensor][0] for tensor in layers if tensor in tensors}, layers)

    def test_an_embedding_from_pytorch(self):
        self.python('python3', '-W', 'ignore', '-c', TOKENS)
        self.write('text/input.txt', 'abcdefghijk' * 60)
        for name, loss in (('tokens0', 'SoftmaxCrossEntropyLoss'), ('tokens1', 'SequenceCrossEntropyLoss')):
            # The file's input is of int64, and so is the array.
            said = self.capstan('predict', f'{name}.onnx', 'x.npy', '--out', 'out.npy')
            self.assertEqual(said.code, 0, said)
            difference = float(self.python('python3', '-c', COMPARE, 'out.npy', f'{name}.npy'))
            print(f'{name}: largest difference {difference:.1e}', flush=True)
            self.assertLess(difference, 1e-5)
            self.assertIn(loss, self.capstan('model', 'import', f'{name}.onnx').out)
            both = {'graph': self.path(f'{name}.onnx'), 'initial_weights': self.path(f'{name}.onnx')}
            job = self.train(support.job_spec(
                model={**both, 'num_classes': 11}, data={'format': 'text', 'uri': self.path('text'), 'sequence_length': 8},
                training={'max_steps': 40, 'global_batch_size': 32, 'seed': 3, 'optimizer': {'name': 'adam', 'learning_rate': 0.01}}))
            losses = [line['loss'] for line in self.step_log(job)]
            self.assertLess(losses[-1], 0.5 * losses[0], name)

    def test_from_pytorch_and_back(self):
        with open(README) as f:
            section = re.search(r'^## A network from PyTorch$(.*?)^## ', f.read(), re.MULTILINE | re.DOTALL)[1]
        net, job, back, commands, printed = re.findall(r'^```(?:yaml|python)?\n(.*?)^```$', section, re.MULTILINE | re.DOTALL)
        names = re.findall(r'Save this as `(\S+?)`', section)
        for name, text in zip(names, (net, job, back), strict=True):
            self.write(name, text)
        os.mkdir(self.path('data'))
        os.symlink(support.FASHION_MNIST, self.path('data', 'fashion-mnist'))
        said = self.python('bash', '-e', '-c', commands)
        print(said[-400:], flush=True)
        right, = re.findall(r'^PyTorch: (\d+) of 10000$', said, re.MULTILINE)
        accuracy, = re.findall(r'^accuracy  0\.\d{4}  (\d+) of them$', said, re.MULTILINE)
        # Sums in another order may decide a borderline image otherwise.
        self.assertLessEqual(abs(int(right) - int(accuracy)), 2)
        self.assertLessEqual(abs(int(re.search(r'PyTorch: (\d+) of 10000', printed)[1]) - int(right)), 2, 'README prints another figure')


class RuntimeTest(onnx_node_test.OnnxNodeTest):
    """As the test of the gate, with onnxruntime."""
    PACKAGES = ('onnxruntime', *PACKAGES)

    def test_exports_agree_with_onnx(self):
        super().test_exports_agree_with_onnx()

    test_an_export_is_trained_on = None
    test_files_give_their_stored_outputs = None
    test_nodes_compute_what_onnx_says = None


if __name__ == '__main__':
    support.main()
