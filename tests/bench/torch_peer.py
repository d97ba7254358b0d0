"""Shared by the comparisons with PyTorch: an installed PyTorch, the same data and weights for both sides, losses by step.

PyTorch comes from PyPI into a virtual environment outside the tree: venv-torch under CAPSTAN_VENVS, by default ~/.cache/capstan.
The wheel for Linux does not start without NVIDIA's libraries, so it brings them: 3 GB to download, 6.5 GB on the disk.
"""

import datetime
import gzip
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), 'e2e'))
import cifar10  # noqa: E402
import lenet_table  # noqa: E402
import support  # noqa: E402
import torch_nets  # noqa: E402

PACKAGES = ('torch==2.8.0', 'numpy==2.2.6')


def python(name='torch', packages=PACKAGES):
    """A Python that has these packages."""
    folder = os.environ.get('CAPSTAN_VENVS') or os.path.expanduser('~/.cache/capstan')
    os.makedirs(folder, exist_ok=True)
    return support.python_with(name, *packages, folder=folder, seconds=1800)


def restart_with_torch():
    """Restarts the script in that Python."""
    wanted = python()
    if os.path.abspath(sys.executable) != os.path.abspath(wanted):
        os.execv(wanted, [wanted] + sys.argv)


def capstan_version():
    done = subprocess.run([support.CAPSTAN, 'version', '-o', 'json'], capture_output=True, text=True, check=True, timeout=60)
    version = json.loads(done.stdout)
    return f'{version["version"]} ({version["revision"]})'


class Checks:
    """The lines of a comparison as they are printed, and how many say FAIL."""

    def __init__(self, torch):
        self.versions = f'PyTorch {torch.__version__}, Capstan {capstan_version()}'
        self.lines, self.failed = [], 0
        print(self.versions, flush=True)

    def say(self, line):
        print(line, flush=True)
        self.lines.append(line)

    def check(self, held, text):
        self.say(f'{"PASS" if held else "FAIL"}  {text}')
        self.failed += not held

    def write_page(self, folder, name, title):
        """Writes the lines to NAME-torch-DATE.md, after a note on how they were made."""
        date = datetime.date.today().isoformat()
        path = os.path.join(folder, f'{name}-torch-{date}.md')
        os.makedirs(folder, exist_ok=True)
        with open(path, 'w', encoding='utf-8') as f:
            f.write('\n'.join([f'# {title}, {date}', '', f'{lenet_table.cpu_name()}, {len(os.sched_getaffinity(0))} cores; {self.versions}.',
                               f'Made by `tests/bench/{os.path.basename(sys.argv[0])}`, which says what is compared with what; in brackets what is '
                               f'allowed. Checks that failed: {self.failed}.', '', '```', *self.lines, '```', '']))
        print(f'written: {path}')

    def end(self):
        sys.exit(1 if self.failed else 0)


def cifar_tensors(torch, name):
    """(images, labels) of a batch of CIFAR-10; the images as bytes."""
    records = torch.frombuffer(bytearray(cifar10.read(name)), dtype=torch.uint8).view(-1, cifar10.RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].long()


def fashion_tensors(torch):
    """(images, labels) of Fashion-MNIST's training set; the images as bytes."""

    def read(name, header):
        with gzip.open(os.path.join(support.FASHION_MNIST, f'train-{name}-ubyte.gz'), 'rb') as f:
            return torch.frombuffer(bytearray(f.read()[header:]), dtype=torch.uint8)

    return read('images-idx3', 16).view(-1, 1, 28, 28), read('labels-idx1', 8).long()


def build(torch, model, seed=1):
    torch.manual_seed(seed)
    return torch_nets.build(torch, model)


def save(net, path):
    """Writes a file for `model.initial_weights`."""
    support.write_safetensors(path, [(name, list(value.shape), value.detach().float().contiguous().numpy().tobytes())
                                     for name, value in net.state_dict().items() if not name.endswith('num_batches_tracked')])


def load(torch, path):
    """Name -> tensor, from a weights.safetensors."""
    return {name: torch.frombuffer(bytearray(data), dtype=torch.float32).view(shape)
            for name, (shape, data) in support.read_safetensors(path).items()}


class Trained:
    """A finished job of Capstan: its losses by step, its weights, and what -o json printed about it."""

    def __init__(self, torch, model, weights, data, batch, steps, rate, timeout=3600):
        spec = support.job_spec(
            name='peer', resources={'num_workers': 1, 'gpus_per_worker': 1, 'device': 'cpu'}, kvstore={'type': 'local'},
            model={'name': model, 'initial_weights': weights}, data=dict(data, shuffle=False, partition='global'),
            training={'max_steps': steps, 'global_batch_size': batch, 'optimizer': {'name': 'sgd', 'learning_rate': rate}},
            checkpoint={'every': 'never'})
        with tempfile.TemporaryDirectory(prefix='capstan-peer-') as folder:
            done = subprocess.run([support.CAPSTAN, 'run', '-q', '-o', 'json', '-'], input=json.dumps(spec), cwd=folder, timeout=timeout,
                                  capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f'capstan run: exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}')
            self.job = json.loads(done.stdout.splitlines()[-1])
            checkpoint = self.job['checkpoint_uri'][len('file://'):]
            with open(os.path.join(os.path.dirname(checkpoint), 'metrics.jsonl')) as f:
                self.losses = [json.loads(line)['loss'] for line in f]
            self.weights = load(torch, os.path.join(checkpoint, 'weights.safetensors'))


def train(torch, net, images, labels, batch, steps, rate):
    """The losses of PyTorch's plain SGD over the batches in order, in the precision of the net. The last batch of an epoch may be smaller."""
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    dtype = next(net.parameters()).dtype
    losses = []
    net.train()
    for step in range(steps):
        begin = step % -(-len(labels) // batch) * batch
        part = slice(begin, begin + batch)
        optimizer.zero_grad(set_to_none=True)
        # As Capstan reads images: float32(byte) / 255.
        loss = torch.nn.functional.cross_entropy(net((images[part].float() / 255).to(dtype)), labels[part])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def first_losses(torch, model, batch, steps, rate):
    """(Capstan's losses, those of PyTorch in float64) of the first steps from the same weights."""
    with tempfile.TemporaryDirectory(prefix='capstan-losses-') as folder:
        if model.startswith('resnet'):
            cifar10.write_small(folder, batch)  # an evaluation takes longer than the steps
            data, (images, labels) = {'format': 'cifar10_bin', 'uri': folder}, cifar_tensors(torch, 'data_batch_1')
        else:
            data, (images, labels) = {'format': 'idx', 'uri': support.FASHION_MNIST}, fashion_tensors(torch)
        net = build(torch, model)
        weights = os.path.join(folder, 'first.safetensors')
        save(net, weights)
        ours = Trained(torch, model, weights, data, batch, steps, rate).losses
    return ours, train(torch, net.double(), images, labels, batch, steps, rate)


def largest_difference(ours, theirs):
    if len(ours) != len(theirs):
        raise RuntimeError(f'{len(ours)} losses, want {len(theirs)}')
    return max(abs(a - b) for a, b in zip(ours, theirs))
