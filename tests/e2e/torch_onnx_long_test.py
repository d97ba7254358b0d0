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


class TorchTest(support.TestCase):
    def test_from_pytorch_and_back(self):
        with open(README) as f:
            section = re.search(r'^## A network from PyTorch$(.*?)^## ', f.read(), re.MULTILINE | re.DOTALL)[1]
        net, job, back, commands, printed = re.findall(r'^```(?:yaml|python)?\n(.*?)^```$', section, re.MULTILINE | re.DOTALL)
        names = re.findall(r'Save this as `(\S+?)`', section)
        for name, text in zip(names, (net, job, back), strict=True):
            self.write(name, text)
        os.mkdir(self.path('data'))
        os.symlink(support.FASHION_MNIST, self.path('data', 'fashion-mnist'))
        python = torch_peer.python()
        more = support.python_with('onnxruntime', *PACKAGES)
        site, = (path for path in [subprocess.run([more, '-c', 'import numpy, os; print(os.path.dirname(os.path.dirname(numpy.__file__)))'],
                                                  capture_output=True, text=True, check=True, timeout=60).stdout.strip()])
        path = os.pathsep.join([os.path.dirname(python), support.BIN, os.environ['PATH']])
        done = subprocess.run(['bash', '-e', '-c', commands], cwd=self.folder, capture_output=True, text=True, timeout=600,
                              env=dict(os.environ, PATH=path, PYTHONPATH=site, CAPSTAN_ADDRESS='', XDG_CONFIG_HOME=self.path('config')))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr[-4000:])
        print(done.stdout[-400:], flush=True)
        right, = re.findall(r'^PyTorch: (\d+) of 10000$', done.stdout, re.MULTILINE)
        accuracy, = re.findall(r'^accuracy  0\.\d{4}  (\d+) of them$', done.stdout, re.MULTILINE)
        # Sums in another order may decide a borderline image otherwise.
        self.assertLessEqual(abs(int(right) - int(accuracy)), 2)
        self.assertLessEqual(abs(int(re.search(r'PyTorch: (\d+) of 10000', printed)[1]) - int(right)), 2, 'README prints another figure')


class RuntimeTest(onnx_node_test.OnnxNodeTest):
    """As the test of the gate, with onnxruntime."""
    PACKAGES = ('onnxruntime', *PACKAGES)

    def test_exports_agree_with_onnx(self):
        super().test_exports_agree_with_onnx()

    test_files_give_their_stored_outputs = None
    test_nodes_compute_what_onnx_says = None


if __name__ == '__main__':
    support.main()
