#!/usr/bin/env python3
"""gpt_nano on the characters of a text against PyTorch from the same weights: losses, gradients, names, an evaluation, logits.

    CAPSTAN_BIN=build/release/bin python3 tests/bench/torch_gpt.py
    ... --page docs/benchmarks                                       also writes gpt-torch-<date>.md there

A line per check, PASS or FAIL, with the figure and what is allowed; exit code 1 where one fails. PyTorch is installed where it
is not there (torch_peer.py). The network is written anew here, from Karpathy's minGPT and Radford et al. 2019, with functions of
PyTorch for attention, normalisation, Gelu and the cross-entropy, and runs in float64. One lane, windows of the text in their
order, plain SGD, float32 on Capstan's side.

- Gradients of Capstan: (before - after) / rate of one step. The rate is 1024, a power of two, so that the weights have next to no
  part in what is rounded.
- Losses: at a rate at which they fall steadily. At 0.25 a few batches after step 50 make the loss jump, and PyTorch's own float32
  then differs from its float64 by 8e-2.
- The evaluation: the weights after the last step, the whole test part of the text; the logits are those of `capstan predict`.
"""

import argparse
import csv
import json
import os
import subprocess
import tempfile

import torch_peer

import support  # of tests/e2e, which torch_peer adds to the path

LAYERS, HEADS, WIDTH = 3, 3, 48
GRADIENT_RATE = 1024.0


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--text', default=os.path.join(support.TEXT, 'input.txt'), help='default: that of the shared data')
    parser.add_argument('--length', type=int, default=64, help='characters of a sample')
    parser.add_argument('--batch', type=int, default=16)
    parser.add_argument('--steps', type=int, default=100)
    parser.add_argument('--rate', type=float, default=0.1)
    parser.add_argument('--seed', type=int, default=1, help='of the first weights')
    parser.add_argument('--page', metavar='FOLDER', help='also write the lines there, as gpt-torch-<date>.md')
    return parser.parse_args()


def build(torch, vocabulary, length):
    nn, F = torch.nn, torch.nn.functional

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.c_attn = nn.Linear(WIDTH, 3 * WIDTH)
            self.c_proj = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            count, places, _ = x.shape
            parts = [part.view(count, places, HEADS, WIDTH // HEADS).transpose(1, 2) for part in self.c_attn(x).split(WIDTH, dim=2)]
            y = F.scaled_dot_product_attention(*parts, is_causal=True)
            return self.c_proj(y.transpose(1, 2).reshape(count, places, WIDTH))

    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.c_fc = nn.Linear(WIDTH, 4 * WIDTH)
            self.c_proj = nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            return self.c_proj(F.gelu(self.c_fc(x), approximate='tanh'))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.attn, self.ln_2, self.mlp = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH), Mlp()

        def forward(self, x):
            x = x + self.attn(self.ln_1(x))
            return x + self.mlp(self.ln_2(x))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.transformer = nn.ModuleDict({
                'wte': nn.Embedding(vocabulary, WIDTH), 'wpe': nn.Embedding(length, WIDTH),
                'h': nn.ModuleList(Block() for _ in range(LAYERS)), 'ln_f': nn.LayerNorm(WIDTH)})
            self.lm_head = nn.Linear(WIDTH, vocabulary, bias=False)

        def forward(self, tokens):
            parts = self.transformer
            x = parts['wte'](tokens) + parts['wpe'](torch.arange(length))
            for block in parts['h']:
                x = block(x)
            return self.lm_head(parts['ln_f'](x))

    net = Gpt()
    for name, value in net.named_parameters():  # scales and biases too, so that an exchanged one shows
        torch.nn.init.normal_(value, std=0.1 if 'wte' in name or 'wpe' in name else 0.06)
        if 'ln_' in name and name.endswith('weight'):
            value.data += 1
    return net


class Comparison(torch_peer.Checks):

    def __init__(self, torch, folder, options):
        super().__init__(torch)
        self.torch, self.options = torch, options
        os.mkdir(os.path.join(folder, 'text'))
        self.data = {'format': 'text', 'uri': os.path.join(folder, 'text'), 'sequence_length': options.length}
        with open(options.text, 'rb') as f:
            text = f.read()
        os.symlink(os.path.abspath(options.text), os.path.join(folder, 'text', 'input.txt'))
        vocabulary = sorted(set(text))
        numbers = torch.zeros(256, dtype=torch.long)
        numbers[torch.tensor(vocabulary)] = torch.arange(len(vocabulary))
        characters = numbers[torch.frombuffer(bytearray(text), dtype=torch.uint8).long()]
        held_out = int(len(text) * 0.1)
        self.train, self.test = self.windows(characters[:len(text) - held_out]), self.windows(characters[len(text) - held_out:])
        torch.manual_seed(options.seed)
        self.net = build(torch, len(vocabulary), options.length)
        self.first = {name: value.clone() for name, value in self.net.state_dict().items()}
        self.weights = os.path.join(folder, 'first.safetensors')
        torch_peer.save(self.net, self.weights)
        self.folder = folder
        self.net.double()
        self.say(f'{len(text)} characters, {len(vocabulary)} different ones; {len(self.train[0])} + {len(self.test[0])} windows of {options.length}')

    def windows(self, characters):
        """(tokens, targets), both [windows, length]."""
        length = self.options.length
        count = (len(characters) - 1) // length
        return (characters[:count * length].view(count, length), characters[1:count * length + 1].view(count, length))

    def loss(self, tokens, targets):
        return self.torch.nn.functional.cross_entropy(self.net(tokens).flatten(0, 1), targets.flatten())

    def pytorch(self, steps, rate):
        self.net.load_state_dict(self.first)
        optimizer = self.torch.optim.SGD(self.net.parameters(), lr=rate)
        losses, batch = [], self.options.batch
        for step in range(steps):
            optimizer.zero_grad(set_to_none=True)
            part = slice(step * batch, (step + 1) * batch)
            loss = self.loss(self.train[0][part], self.train[1][part])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def first_step(self):
        options = self.options
        ours = torch_peer.Trained(self.torch, 'gpt_nano', self.weights, self.data, options.batch, 1, GRADIENT_RATE)
        loss, = self.pytorch(1, 0.0)
        want = {name: value.grad for name, value in self.net.named_parameters()}
        self.check(set(ours.weights) == set(want), f'names: {len(ours.weights)} tensors; differing: {sorted(set(ours.weights) ^ set(want)) or "none"}')
        difference = abs(ours.losses[0] - loss)
        self.check(difference <= 1e-5, f'loss of step 0: {ours.losses[0]:.7f}, PyTorch {loss:.7f}, difference {difference:.1e} (1e-5)')
        worst = max((((self.first[name].double() - ours.weights[name].double()) / GRADIENT_RATE - value).norm().item() / value.norm().item(), name)
                    for name, value in want.items() if not name.endswith('c_attn.bias'))
        self.check(worst[0] <= 1e-4, f'gradients of step 0: relative L2 at most {worst[0]:.1e}, of {worst[1]} (1e-4)')
        # A bias of the keys moves all products of a query alike, so that a third of c_attn.bias has no gradient but what is rounded.
        worst = max((((self.first[name].double() - ours.weights[name].double()) / GRADIENT_RATE - value).abs().max().item(), name)
                    for name, value in want.items() if name.endswith('c_attn.bias'))
        self.check(worst[0] <= 1e-6, f'gradients of the biases of queries, keys and values: differ by at most {worst[0]:.1e}, of {worst[1]} (1e-6)')

    def steps(self):
        options, torch = self.options, self.torch
        spec = support.job_spec(
            name='peer', resources={'num_workers': 1, 'gpus_per_worker': 1, 'device': 'cpu'}, kvstore={'type': 'local'},
            model={'name': 'gpt_nano', 'initial_weights': self.weights}, data=dict(self.data, shuffle=False, partition='global'),
            training={'max_steps': options.steps, 'global_batch_size': options.batch, 'optimizer': {'name': 'sgd', 'learning_rate': options.rate}},
            checkpoint={'every': 'never'})
        run = self.capstan('run', '-q', '-o', 'json', '-', input=json.dumps(spec))
        job = json.loads(run.splitlines()[-1])
        checkpoint = job['checkpoint_uri'][len('file://'):]
        with open(os.path.join(os.path.dirname(checkpoint), 'metrics.jsonl')) as f:
            ours = [json.loads(line)['loss'] for line in f]
        theirs = self.pytorch(options.steps, options.rate)
        self.net.float()
        rounded = torch_peer.largest_difference(self.pytorch(options.steps, options.rate), theirs)
        self.net.double()
        for step in sorted({0, 1, 2, 5, 10, 20, 50, options.steps - 1}):
            if step < options.steps:
                self.say(f'      loss of step {step}: {ours[step]:.6f}, PyTorch {theirs[step]:.6f}')
        self.check(torch_peer.largest_difference(ours[:1], theirs[:1]) <= 1e-5, 'the first loss is the same (1e-5)')
        difference = torch_peer.largest_difference(ours, theirs)
        self.check(difference <= 1e-4, f'losses of {options.steps} steps of {options.batch} at rate {options.rate}: differ by at most {difference:.1e}, '
                   f'float32 of PyTorch {rounded:.1e} (1e-4)')
        self.check(theirs[-1] < theirs[0] - 0.5, f'the loss falls from {theirs[0]:.3f} to {theirs[-1]:.3f} (by 0.5)')

        self.net.load_state_dict({name: value.double() for name, value in torch_peer.load(torch, os.path.join(checkpoint, 'weights.safetensors')).items()})
        epoch, (tokens, targets), sum_of_losses, last = job['epochs'][-1], self.test, 0.0, []
        with torch.inference_mode():
            for begin in range(0, len(tokens), 64):
                part = slice(begin, begin + 64)
                sum_of_losses += self.loss(tokens[part], targets[part]).item() * len(tokens[part])
                last.append(self.net(tokens[part])[:, -1])
        last = torch.cat(last)
        loss = sum_of_losses / len(tokens)
        difference = abs(epoch['validation_loss'] - loss)
        self.check(difference <= 1e-5, f'evaluation: loss {epoch["validation_loss"]:.7f}, PyTorch {loss:.7f}, difference {difference:.1e} (1e-5)')
        right = (last.argmax(1) == targets[:, -1]).sum().item()
        count = round(epoch['validation_accuracy'] * len(tokens))
        self.check(abs(count - right) <= 1, f'evaluation: {count} of {len(tokens)} last characters right, PyTorch {right} (1 apart)')
        self.capstan('predict', '@last', '--limit', '100', '--logits', '--out', 'out.csv')
        with open(os.path.join(self.folder, 'out.csv'), newline='') as f:
            logits = torch.tensor([[float(row[f'logit_{k}']) for k in range(last.shape[1])] for row in csv.DictReader(f)], dtype=torch.float64)
        difference = (logits - last[:len(logits)]).abs().max().item()
        self.check(difference <= 1e-4, f'logits of {len(logits)} predictions: differ by at most {difference:.1e} (1e-4)')

    def capstan(self, *args, **options):
        done = subprocess.run([support.CAPSTAN, *args], cwd=self.folder, capture_output=True, text=True, timeout=3600, **options)
        if done.returncode:
            raise RuntimeError(f'capstan {args[0]}: exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}')
        return done.stdout


def main():
    options = parse()
    torch_peer.restart_with_torch()
    import torch
    with tempfile.TemporaryDirectory(prefix='capstan-gpt-') as folder:
        comparison = Comparison(torch, folder, options)
        comparison.first_step()
        comparison.steps()
    if options.page:
        comparison.write_page(options.page, 'gpt', 'gpt_nano on the characters of a text against PyTorch')
    comparison.end()


if __name__ == '__main__':
    main()
