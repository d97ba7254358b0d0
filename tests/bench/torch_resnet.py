#!/usr/bin/env python3
"""ResNet-18 on CIFAR-10 against PyTorch from the same weights: losses, gradients, running statistics, names, an evaluation.

    CAPSTAN_BIN=build/release/bin python3 tests/bench/torch_resnet.py
    CAPSTAN_BIN=build/release/bin python3 tests/bench/torch_resnet.py --long      1,200 steps more
    ... --page docs/benchmarks                                                    also writes resnet-torch-<date>.md there

A line per check, PASS or FAIL, with the figure and what is allowed; exit code 1 where one fails. PyTorch is installed where it
is not there (torch_peer.py). Batch 64 of one lane, samples in their order, float32(byte)/255, plain SGD, fp32 on the CPU.
Both use all cores that they are given (`taskset -c 0` in front gives one).

What is compared with:
- Losses, gradients and running statistics: PyTorch in float64.
- Gradients of Capstan: (before - after) / rate of one step. The rate is 1024, so that the weights have next to no part in what
  is rounded (2^-24 / 1024 of a weight), and a power of two, so that the product is exact.
- Gradients are compared twice. With torchvision's first weights some ReLUs of 36 million (9 in PyTorch) have an input so near 0
  that float32 decides otherwise than float64. Each such decision moves a gradient by about one element of the million that a
  layer's gradient has, which is 1e-3 of its norm: PyTorch's own float32 differs from its float64 by 3e-3. So the bound of 1e-3
  is held against weights that keep every ReLU's input away from 0 (`clear_of_zero`), and with torchvision's the differences of
  three float32 runs of PyTorch are the measure. Such decisions are few, so their number varies: 3 times the largest is
  allowed, and 1e-2 in any case.
- Names: of torchvision's resnet18, written out here; the modules of torch_nets.py are ours.
- The evaluation: weights.safetensors after 60 steps at rate 0.01, all 10 000 test samples, float32 on both sides. It counts only
  if the net tells classes apart: one that names the same class for all would agree without running statistics, too.
- --long: 200 steps at rate 0.01, the mean loss of each 50. A difference in the last bit grows over the steps, so the measure is
  five runs of PyTorch in float32 whose first weights differ by 1e-6 (normal, absolute). Of six runs that are alike, any one lies
  outside the range of the other five in one of three windows: a FAIL with "outside by n widths" below 1 is no finding.
"""

import argparse
import os
import tempfile

import torch_peer

import cifar10  # of tests/e2e, which torch_peer adds to the path

MODEL, BATCH, RATE = 'resnet18_v1', 64, 1024.0
# The names of torchvision's resnet18, without num_batches_tracked. Two blocks per stage; the first of stages 2 to 4 has a
# downsample.
NORM = ('weight', 'bias', 'running_mean', 'running_var')
NAMES = ['conv1.weight', *(f'bn1.{part}' for part in NORM), 'fc.weight', 'fc.bias']
for _stage in (1, 2, 3, 4):
    for _block in (0, 1):
        for _layer in (1, 2):
            NAMES += [f'layer{_stage}.{_block}.conv{_layer}.weight', *(f'layer{_stage}.{_block}.bn{_layer}.{part}' for part in NORM)]
    if _stage > 1:
        NAMES += [f'layer{_stage}.0.downsample.0.weight', *(f'layer{_stage}.0.downsample.1.{part}' for part in NORM)]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--long', action='store_true', help='also 200 steps against five runs of PyTorch')
    parser.add_argument('--seed', type=int, default=1, help="of the first weights")
    parser.add_argument('--page', metavar='FOLDER', help='also write the lines there, as resnet-torch-<date>.md')
    return parser.parse_args()


def relative(got, want):
    return ((got - want).norm() / want.norm()).item()


def clear_of_zero(torch, net):
    """Shifts the normalisations so that no ReLU's input is near 0. Some ReLUs are then always open and some always shut.

    A scale of 0.1 leaves 0.1 times a few deviations around the shift. After a sum with a block's input, which may be large, all
    ReLUs are open. After a sum with a downsample, which is about 1, every second one is shut. Returns a function for the
    smallest distance.
    """
    distances = []
    for name, module in net.named_modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.constant_(module.weight, 0.1)
            torch.nn.init.constant_(module.bias, 1)
            with torch.no_grad():
                if name.endswith('bn1'):
                    module.bias[::2] = -1
                elif name.endswith('.0.bn2') and not name.startswith('layer1'):
                    module.bias[::2] = -3
        elif isinstance(module, torch.nn.ReLU):
            module.register_forward_pre_hook(lambda _, inputs: distances.append(inputs[0].detach().abs().min().item()))
    return lambda: min(distances)


class Comparison(torch_peer.Checks):

    def __init__(self, torch, folder, seed):
        super().__init__(torch)
        self.torch, self.folder = torch, folder
        self.small = os.path.join(folder, 'cifar10')
        cifar10.write_small(self.small, BATCH)  # an evaluation takes longer than the steps
        self.images, self.labels = torch_peer.cifar_tensors(torch, 'data_batch_1')
        self.net = torch_peer.build(torch, MODEL, seed)
        self.remember()

    def remember(self):
        """Makes the net's weights the first weights of both sides."""
        self.first = {name: value.clone() for name, value in self.net.state_dict().items()}
        self.weights = os.path.join(self.folder, 'first.safetensors')
        torch_peer.save(self.net, self.weights)

    def fresh(self, dtype, noise=0.0, relative=0.0, seed=0):
        """The net with the first weights, changed by normal noise."""
        torch = self.torch
        self.net.to(dtype)
        self.net.load_state_dict(self.first)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for value in self.net.parameters():
                value += (noise + relative * value.abs()) * torch.randn(value.shape, generator=generator, dtype=dtype)
        return self.net

    def capstan(self, steps, rate, data=None):
        return torch_peer.Trained(self.torch, MODEL, self.weights, {'format': 'cifar10_bin', 'uri': data or self.small}, BATCH, steps, rate)

    def pytorch(self, net, steps, rate):
        return torch_peer.train(self.torch, net, self.images, self.labels, BATCH, steps, rate)

    def gradients(self, net):
        """(loss, gradients) of step 0."""
        loss, = self.pytorch(net, 1, 0.0)  # at rate 0 only the gradients and the running statistics change
        return loss, {name: value.grad.double() for name, value in net.named_parameters()}

    def differences(self, ours, exact):
        """(relative L2, tensor) for Capstan's gradients, the largest last."""
        first, after = self.first, ours.weights
        return sorted((relative((first[name].double() - after[name].double()) / RATE, want), name) for name, want in exact.items())

    def first_step(self):
        torch = self.torch
        ours = self.capstan(1, RATE)
        peers = [self.gradients(self.fresh(torch.float32, relative=2.0**-24 if seed else 0, seed=seed))[1] for seed in range(3)]
        loss, exact = self.gradients(self.fresh(torch.float64))
        want = self.net.state_dict()

        shapes = {name: tuple(value.shape) for name, value in want.items() if not name.endswith('num_batches_tracked')}
        got = {name: tuple(value.shape) for name, value in ours.weights.items()}
        self.check(sorted(got) == sorted(NAMES), f"names: {len(got)} tensors, torchvision's resnet18 has {len(NAMES)}; "
                   f'differing: {sorted(set(got) ^ set(NAMES)) or "none"}')
        self.check(got == shapes, f'shapes: differing: {sorted(set(got.items()) ^ set(shapes.items())) or "none"}')

        difference = abs(ours.losses[0] - loss)
        self.check(difference <= 1e-5, f'loss of step 0: {ours.losses[0]:.7f}, PyTorch {loss:.7f}, difference {difference:.1e} (1e-5)')

        # Means are below 1 and variances go up to some tens, so the difference is relative above 1.
        worst = max((((ours.weights[name].double() - want[name]).abs() / want[name].abs().clamp(min=1)).max().item(), name)
                    for name in want if 'running' in name)
        self.check(worst[0] <= 1e-5, f'running statistics after step 0: differ by at most {worst[0]:.1e}, of {worst[1]} (1e-5)')

        worst = self.differences(ours, exact)[-1]
        theirs = [max(relative(peer[name], exact[name]) for name in exact) for peer in peers]
        self.check(worst[0] <= min(3 * max(theirs), 1e-2),
                   f'gradients of step 0, {len(exact)} tensors: relative L2 at most {worst[0]:.1e}, of {worst[1]}; '
                   f'of float32 in PyTorch {", ".join(f"{value:.1e}" for value in theirs)} (3 times the largest, and 1e-2)')

    def first_step_clear_of_zero(self):
        torch = self.torch
        self.net = torch_peer.build(torch, MODEL, seed=2)  # of seeds 1 to 3, this stays farthest from 0
        smallest = clear_of_zero(torch, self.net)
        self.remember()
        ours = self.capstan(1, RATE)
        theirs = self.gradients(self.fresh(torch.float32))[1]
        loss, exact = self.gradients(self.fresh(torch.float64))
        distance = smallest()
        # Rounding changes a ReLU's input by about 1e-6.
        self.check(distance >= 0.01, f'clear of zero: no ReLU reads a value within {distance:.2f} of 0 (0.01)')
        difference = abs(ours.losses[0] - loss)
        self.check(difference <= 1e-5,
                   f'clear of zero, loss of step 0: {ours.losses[0]:.7f}, PyTorch {loss:.7f}, difference {difference:.1e} (1e-5)')
        rows = self.differences(ours, exact)
        for value, name in reversed(rows[-3:]):
            self.say(f'      gradient of {name}: {value:.1e}, float32 of PyTorch {relative(theirs[name], exact[name]):.1e}')
        self.check(rows[-1][0] <= 1e-3, f'clear of zero, gradients of step 0, {len(rows)} tensors: relative L2 at most {rows[-1][0]:.1e}, '
                   f'of {rows[-1][1]} (1e-3)')

    def six_steps(self):
        ours = self.capstan(6, 0.0002).losses
        theirs = self.pytorch(self.fresh(self.torch.float64), 6, 0.0002)
        difference = torch_peer.largest_difference(ours, theirs)
        self.check(difference <= 1e-3, f'losses of the first 6 steps at rate 0.0002: {" ".join(f"{loss:.5f}" for loss in ours)}, '
                   f'differ by at most {difference:.1e} (1e-3)')

    def evaluation(self, steps=60):
        torch = self.torch
        ours = self.capstan(steps, 0.01, cifar10.FOLDER)
        epoch = ours.job['epochs'][-1]
        net = self.fresh(torch.float32)
        # The file has no num_batches_tracked. PyTorch accepts a state without it.
        net.load_state_dict(ours.weights)
        net.eval()
        images, labels = torch_peer.cifar_tensors(torch, 'test_batch')
        right, loss, named = 0, 0.0, torch.zeros(10, dtype=torch.long)
        with torch.inference_mode():
            for begin in range(0, len(labels), 250):
                scores, part = net(images[begin:begin + 250].float() / 255), labels[begin:begin + 250]
                answers = scores.argmax(1)
                right += (answers == part).sum().item()
                named += answers.bincount(minlength=10)
                loss += torch.nn.functional.cross_entropy(scores, part, reduction='sum').item()
        loss /= len(labels)
        count = round(epoch['validation_accuracy'] * len(labels))
        self.check(abs(count - right) <= 1, f'evaluation: {count} of {len(labels)} right, PyTorch {right} (1 apart)')
        difference = abs(epoch['validation_loss'] - loss)
        self.check(difference <= 1e-3,
                   f'evaluation: loss {epoch["validation_loss"]:.6f}, PyTorch {loss:.6f}, difference {difference:.1e} (1e-3)')
        self.check((named >= 100).sum() >= 3, f'evaluation: {(named >= 100).sum()} classes are named for 100 samples or more (3)')

    def long_run(self, steps=200, window=50):
        torch = self.torch

        def means(losses):
            return [sum(losses[begin:begin + window]) / window for begin in range(0, steps, window)]

        ours = means(self.capstan(steps, 0.01).losses)
        theirs = []
        for seed in range(5):
            theirs.append(means(self.pytorch(self.fresh(torch.float32, noise=1e-6, seed=seed), steps, 0.01)))
            self.say(f'      PyTorch, run {seed + 1}: {" ".join(f"{mean:.4f}" for mean in theirs[-1])}')
        for number, (mean, peers) in enumerate(zip(ours, zip(*theirs))):
            low, high = min(peers), max(peers)
            outside = max(low - mean, mean - high, 0) / (high - low)
            steps_of = f'steps {number * window} to {(number + 1) * window - 1} at rate 0.01'
            self.check(outside == 0, f'mean loss of {steps_of}: {mean:.4f}, five runs of PyTorch {low:.4f} to {high:.4f}'
                       f'{f", outside by {outside:.1f} widths" if outside else ""}')


def main():
    options = parse()
    torch_peer.restart_with_torch()
    import torch
    with tempfile.TemporaryDirectory(prefix='capstan-resnet-') as folder:
        comparison = Comparison(torch, folder, options.seed)
        comparison.first_step()
        comparison.six_steps()
        comparison.evaluation()
        if options.long:
            comparison.long_run()
        comparison.first_step_clear_of_zero()  # last, because it changes the first weights
    if options.page:
        comparison.write_page(options.page, 'resnet', 'ResNet-18 on CIFAR-10 against PyTorch')
    comparison.end()


if __name__ == '__main__':
    main()
