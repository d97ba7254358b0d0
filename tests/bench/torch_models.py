#!/usr/bin/env python3
"""alexnet, mobilenet_v1 and vgg16 on CIFAR-10 against PyTorch from the same weights: names, loss and gradients of the first step.

    CAPSTAN_BIN=build/release/bin python3 tests/bench/torch_models.py [MODEL ...]

A line per check, PASS or FAIL, with the figure and what is allowed; exit code 1 where one fails. torch_resnet.py says how
gradients of Capstan are found, and why ReLUs whose inputs are near 0 make those of float32 differ. So mobilenet_v1 is compared
from weights that keep every ReLU's input away from 0, too. Batch 64 of one lane, fp32 on the CPU.
"""

import os
import sys
import tempfile

import torch_peer

import cifar10  # of tests/e2e, which torch_peer adds to the path

MODELS, BATCH, RATE = ('alexnet', 'mobilenet_v1', 'vgg16'), 64, 1024.0


def relative(got, want, least=0.0):
    return ((got - want).norm() / max(want.norm().item(), least)).item()


def clear_of_zero(torch, net):
    """Shifts the normalisations, which have a ReLU behind each: half of the channels are always open, half always shut."""
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.constant_(module.weight, 0.1)
            torch.nn.init.constant_(module.bias, 1)
            with torch.no_grad():
                module.bias[::2] = -1


def compare(torch, model, folder, clear=False):
    """Prints the checks of a model. Returns how many failed."""
    images, labels = torch_peer.cifar_tensors(torch, 'data_batch_1')
    net = torch_peer.build(torch, model)
    if clear:
        clear_of_zero(torch, net)
    first = {name: value.clone() for name, value in net.state_dict().items()}
    weights = os.path.join(folder, f'{model}.safetensors')
    torch_peer.save(net, weights)
    ours = torch_peer.Trained(torch, model, weights, {'format': 'cifar10_bin', 'uri': folder}, BATCH, 1, RATE)

    def gradients(dtype, seed):
        net.to(dtype)
        net.load_state_dict(first)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for value in net.parameters():
                value += (2.0**-24 if seed else 0) * value.abs() * torch.randn(value.shape, generator=generator, dtype=dtype)
        loss, = torch_peer.train(torch, net, images, labels, BATCH, 1, 0.0)
        return loss, {name: value.grad.double() for name, value in net.named_parameters()}

    peers = [gradients(torch.float32, seed)[1] for seed in range(3)]
    loss, exact = gradients(torch.float64, 0)
    failed = 0

    def check(held, text):
        nonlocal failed
        failed += not held
        print(f'{"PASS" if held else "FAIL"}  {model}{", clear of zero" if clear else ""}, {text}', flush=True)

    shapes = {name: tuple(value.shape) for name, value in first.items() if not name.endswith('num_batches_tracked')}
    got = {name: tuple(value.shape) for name, value in ours.weights.items()}
    check(got == shapes, f'{len(got)} tensors; differing: {sorted(set(got.items()) ^ set(shapes.items())) or "none"}')
    check(abs(ours.losses[0] - loss) <= 1e-5, f'loss: {ours.losses[0]:.7f}, PyTorch {loss:.7f}, difference {abs(ours.losses[0] - loss):.1e} (1e-5)')
    # Where every ReLU is open or shut, a normalisation cancels the shift of the one before it, whose gradient is 0.
    least = 1e-3 * max(want.norm().item() for want in exact.values()) if clear else 0.0
    worst = max((relative((first[name].double() - ours.weights[name].double()) / RATE, want, least), name) for name, want in exact.items())
    theirs = [max(relative(peer[name], exact[name], least) for name in exact) for peer in peers]
    allowed = 1e-3 if clear else min(3 * max(theirs), 1e-1)
    check(worst[0] <= allowed, f'gradients: relative L2 at most {worst[0]:.1e}, of {worst[1]}; of float32 in PyTorch '
          f'{", ".join(f"{value:.1e}" for value in theirs)} ({allowed:.1e})')
    return failed


def main():
    torch_peer.restart_with_torch()
    import torch
    with tempfile.TemporaryDirectory(prefix='capstan-models-') as folder:
        cifar10.write_small(folder, BATCH)
        failed = 0
        for model in sys.argv[1:] or MODELS:
            failed += compare(torch, model, folder)
            if model == 'mobilenet_v1':
                failed += compare(torch, model, folder, clear=True)
        sys.exit(1 if failed else 0)


if __name__ == '__main__':
    main()
