"""Every example that is installed trains, and the two lines of Python that `run` prints load the weights."""

import json
import os
import re
import subprocess

import support

EXAMPLES = os.path.join(support.ROOT, 'examples')
SHORT = ['--set', 'training.max_steps=60']


class ExamplesTest(support.TestCase):

    def test_every_example_runs(self):
        names = sorted(name[:-len('.yaml')] for name in os.listdir(EXAMPLES) if name.endswith('.yaml'))
        self.assertLessEqual({'lenet', 'lenet-d2l', 'multi-gpu', 'train-mnist'}, set(names))
        for name in names:
            with self.subTest(example=name):
                with open(os.path.join(EXAMPLES, f'{name}.yaml')) as f:
                    reads_files = re.search(r'^data: .*format: idx', f.read(), re.MULTILINE)
                real = ['--set', f'data.uri={support.FASHION_MNIST}'] if reads_files else []
                run = self.capstan('run', '-o', 'json', '--example', name, *SHORT, *real)
                self.assertEqual(run.code, 0, run)
                self.assertEqual(json.loads(run.out.splitlines()[-1])['progress']['step'], 60)

    def test_data_lie_where_data_get_puts_them(self):
        os.mkdir(self.path('data'))
        for name, folder in (('train-mnist', 'mnist'), ('multi-gpu', 'fashion-mnist')):
            os.symlink(support.FASHION_MNIST, self.path('data', folder))
            plan = self.capstan('validate', '--example', name)
            self.assertEqual(plan.code, 0, plan)
            self.assertIn(f'{self.path("data", folder)}, 60000 + 10000 samples', plan.out)

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
