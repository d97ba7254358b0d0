"""Every installed example trains. The two lines of Python that `run` prints load the weights, and README's code for the best
version gets Capstan's accuracy."""

import json
import os
import re
import subprocess

import cifar10
import support

README = os.path.join(support.ROOT, 'README.md')
EXAMPLES = os.path.join(support.ROOT, 'examples')
# Settings of cifar10_dist.py, as in docs/from-mxnet.md.
DIST = ['--set', 'resources.num_workers=2', '--set', 'kvstore.type=dist', '--set', 'training.epochs=5', '--set',
        'training.optimizer={name: adam, learning_rate: 0.001}', '--set', 'model.initializer=xavier', '--set', 'data.transforms=null']


def short(steps):
    return ['--set', f'training.max_steps={steps}']


class ExamplesTest(support.TestCase):

    def test_every_example_runs(self):
        names = sorted(name[:-len('.yaml')] for name in os.listdir(EXAMPLES) if name.endswith('.yaml'))
        self.assertLessEqual({'lenet', 'lenet-d2l', 'multi-gpu', 'train-cifar10', 'train-mnist'}, set(names))
        for name in names:
            with self.subTest(example=name):
                with open(os.path.join(EXAMPLES, f'{name}.yaml')) as f:
                    reads = re.findall(r'\bformat: (\w+)', f.read())[-1]  # comments contain some, too
                steps, real = 60, []
                if reads == 'idx':
                    real = ['--set', f'data.uri={support.FASHION_MNIST}']
                elif reads == 'libsvm':
                    real = ['--set', f'data.uri={support.LIBSVM}']
                elif reads == 'text':
                    steps, real = 2, ['--set', f'data.uri={self.path("text")}']
                    self.write('text/input.txt', 'To be, or not to be, that is the question:\n' * 200)
                elif reads == 'cifar10_bin':  # a residual network, with a second per step
                    steps, real = 2, ['--set', f'data.uri={cifar10.write_small(self.path("cifar10"), tests=16)}']
                run = self.capstan('run', '-o', 'json', '--example', name, *short(steps), *real)
                self.assertEqual(run.code, 0, run)
                self.assertEqual(json.loads(run.out.splitlines()[-1])['progress']['step'], steps)

    def test_data_lie_where_data_get_puts_them(self):
        os.mkdir(self.path('data'))
        for name, folder in (('train-mnist', 'mnist'), ('multi-gpu', 'fashion-mnist')):
            os.symlink(support.FASHION_MNIST, self.path('data', folder))
            plan = self.capstan('validate', '--example', name)
            self.assertEqual(plan.code, 0, plan)
            self.assertIn(f'{self.path("data", folder)}, 60000 + 10000 samples', plan.out)
        cifar10.write_small(self.path('data', 'cifar10'), tests=16)
        for sets, words in (([], '1 worker x 1 device, device'), (DIST, '2 workers x 1 device + 1 shard, dist_sync')):
            plan = self.capstan('validate', '--example', 'train-cifar10', *sets)
            self.assertEqual(plan.code, 0, plan)
            self.assertIn(f'{self.path("data", "cifar10")}, 1 of 5 batches, 10000 + 16 samples', plan.out)
            self.assertIn(words, plan.out)

    def test_the_printed_python_loads_the_weights(self):
        run = self.capstan('run', '--example', 'lenet', *short(60))
        self.assertEqual(run.code, 0, run)
        lines = [line.strip() for line in run.out.splitlines()[-2:]]
        self.assertTrue(lines[0].startswith('from safetensors'), run.out)
        python = support.python_with('safetensors', 'safetensors', 'numpy')
        check = '\n'.join([*lines, 'print(sorted((k, v.shape, str(v.dtype)) for k, v in weights.items()))'])
        done = subprocess.run([python, '-c', check], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("('conv1.weight', (6, 1, 5, 5), 'float32')", done.stdout)
        self.assertIn("('fc3.bias', (10,), 'float32')", done.stdout)

    def test_numpy_comes_to_the_accuracy_of_the_best_version(self):
        with open(README) as f:
            section = re.search(r'^## The best version, in numpy$(.*?)^## ', f.read(), re.MULTILINE | re.DOTALL)[1]
        job, commands, printed = re.findall(r'^```(?:yaml)?\n(.*?)^```$', section, re.MULTILINE | re.DOTALL)
        name = re.search(r'`(\S+\.yaml)`', section)[1]
        self.assertIn(f'capstan run {name}\n', commands)
        self.write(name, job)
        os.mkdir(self.path('data'))
        os.symlink(support.FASHION_MNIST, self.path('data', 'fashion-mnist'))
        os.symlink(EXAMPLES, self.path('examples'))
        python = support.python_with('safetensors', 'safetensors', 'numpy')
        path = os.pathsep.join([os.path.dirname(python), support.BIN, os.environ['PATH']])
        done = subprocess.run(['bash', '-e', '-c', commands + 'echo $best\n'], cwd=self.folder, capture_output=True, text=True,
                              timeout=200, env=dict(os.environ, PATH=path, CAPSTAN_ADDRESS='', XDG_CONFIG_HOME=self.path('config')))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr[-4000:])
        said, best = done.stdout.splitlines()[-2:]
        print(said, flush=True)
        right, images = map(int, re.fullmatch(r'accuracy 0\.\d{4}: (\d+) of (\d+)', said).groups())
        told = int(re.fullmatch(r'accuracy 0\.\d{4}: (\d+) of 10000\n', printed)[1])
        self.assertLessEqual(abs(told - right), 1, 'README prints another figure')

        def ask(*args):
            run = self.capstan(*args, '-o', 'json')
            self.assertEqual(run.code, 0, run)
            return json.loads(run.out)

        folder = best.removesuffix('@best')
        kept = [checkpoint for checkpoint in ask('checkpoint', 'list', folder) if checkpoint['best']]
        self.assertEqual(len(kept), 1, kept)
        self.assertEqual(kept[0]['metric'], max(epoch['validation_accuracy'] for epoch in ask('describe', folder)['epochs']))
        # Sums in another order may decide one borderline image otherwise.
        self.assertEqual(images, 10000)
        self.assertLessEqual(abs(right - round(kept[0]['metric'] * images)), 1, kept)
        self.assertEqual(ask('checkpoint', 'export', best, '--out', 'again.safetensors')['checkpoint'], kept[0]['id'])


if __name__ == '__main__':
    support.main()
