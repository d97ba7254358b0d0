"""Every example that is installed trains, and the two lines of Python that `run` prints load the weights."""

import json
import os
import subprocess

import support

EXAMPLES = os.path.join(support.ROOT, 'examples')
SHORT = ['--set', 'training.max_steps=60']


class ExamplesTest(support.TestCase):

    def test_every_example_runs(self):
        names = sorted(name[:-len('.yaml')] for name in os.listdir(EXAMPLES) if name.endswith('.yaml'))
        self.assertIn('lenet', names)
        for name in names:
            with self.subTest(example=name):
                real = ['--set', f'data.uri={support.FASHION_MNIST}'] if 'd2l' in name else []
                run = self.capstan('run', '-o', 'json', '--example', name, *SHORT, *real)
                self.assertEqual(run.code, 0, run)
                self.assertEqual(json.loads(run.out.splitlines()[-1])['progress']['step'], 60)

    def test_the_printed_python_loads_the_weights(self):
        run = self.capstan('run', '--example', 'lenet', *SHORT)
        self.assertEqual(run.code, 0, run)
        lines = [line.strip() for line in run.out.splitlines()[-2:]]
        self.assertTrue(lines[0].startswith('from safetensors'), run.out)
        python = support.python_with('safetensors', 'safetensors', 'numpy')
        check = '\n'.join([*lines, 'print(sorted((k, v.shape, str(v.dtype)) for k, v in weights.items()))'])
        done = subprocess.run([python, '-c', check], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("('conv1.weight', (6, 1, 5, 5), 'float32')", done.stdout)
        self.assertIn("('fc3.bias', (10,), 'float32')", done.stdout)


if __name__ == '__main__':
    support.main()
