"""What the tests of ONNX files need the package onnx for. Started by them with a Python that has it:

onnx_cases.py nodes CAPSTAN FOLDER         runs `capstan predict` on the node tests of the package and prints a JSON line for each. Capstan has
                                           one batch in front of all values. So if it refuses a test as it is, the inputs behind the first one
                                           become initializers with the numbers of the test.
onnx_cases.py stored CAPSTAN FOLDER FILE.. compares the output for the input i / n with the one that FILE_output_0.pb stores.
onnx_cases.py agree CAPSTAN FOLDER FILE..  checks files with onnx.checker, and compares `capstan predict` with onnx's own evaluator, or with
                                           onnxruntime where that is installed.
"""

import glob
import json
import os
import subprocess
import sys

import numpy as np
import onnx
import onnx.backend.test
import onnx.reference
from onnx import numpy_helper

# What the import knows. A test with any other operator is not looked at.
OPERATORS = set('''Add AveragePool BatchNormalization Cast Clip Concat Constant ConstantOfShape Conv Div Dropout Equal Expand Flatten Gather Gelu Gemm
GlobalAveragePool GlobalMaxPool Identity LRN LayerNormalization LeakyRelu LogSoftmax MatMul MaxPool Mul Pad ReduceMean ReduceSum Relu Reshape
Shape Sigmoid Slice Softmax Split Sqrt Squeeze Sub Sum Tanh Transpose Unsqueeze Where'''.split())


def tensor(path):
    with open(path, 'rb') as f:
        return onnx.TensorProto.FromString(f.read())


def run(capstan, folder, model, inputs):
    """The outputs, or why they were refused."""
    files = {name: os.path.join(folder, name) for name in ('m.onnx', 'in.npz', 'out.npz')}
    onnx.save(model, files['m.onnx'])
    np.savez(files['in.npz'], **inputs)
    done = subprocess.run([capstan, 'predict', files['m.onnx'], files['in.npz'], '--out', files['out.npz'], '--threads', '1', '-q'],
                          capture_output=True, text=True, timeout=60)
    if done.returncode == 2:
        return None, done.stderr.strip().removeprefix('capstan: ').removeprefix(files['m.onnx'] + ': ').removeprefix(files['in.npz'] + ': ')
    if done.returncode != 0:
        return None, f'exit code {done.returncode}: {done.stderr.strip()}'
    with np.load(files['out.npz']) as found:
        return {name: found[name] for name in found.files}, ''


def close(found, wanted):
    """1e-4 of the number plus 1e-4. float16 and float64 are computed as float32, so the last bit of a float16 may differ."""

    def same(ours, theirs):
        rtol = 2.0**-10 if theirs.dtype == np.float16 else 1e-4
        return ours.shape == theirs.shape and np.allclose(ours, theirs.astype(np.float32), rtol=rtol, atol=1e-4)

    # Outputs that Capstan leaves out, as the mask of a Dropout, are never the first ones.
    return found is not None and next(iter(wanted)) in found and all(same(numbers, wanted[name]) for name, numbers in found.items())


def result_of(capstan, folder, case):
    model = onnx.load(os.path.join(case, 'model.onnx'))
    data = os.path.join(case, 'test_data_set_0')
    tensors = [tensor(os.path.join(data, f'input_{i}.pb')) for i in range(len(model.graph.input))]
    arrays = [numpy_helper.to_array(t) for t in tensors]
    for i, value in enumerate(model.graph.input):  # the bits of a bfloat16 are stored as whole numbers
        if value.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16 and arrays[i].dtype == np.uint16:
            arrays[i] = (arrays[i].astype(np.uint32) << 16).view(np.float32)
    names = [value.name for value in model.graph.input]
    wanted = {value.name: numpy_helper.to_array(tensor(os.path.join(data, f'output_{i}.pb'))) for i, value in enumerate(model.graph.output)}

    def as_inputs(count):
        # Capstan reads these two types. It refuses the file if the graph has others.
        return {name: np.zeros(array.shape, np.float32) if array.dtype.kind not in 'fiub' else
                array.astype(np.float64 if array.dtype == np.float64 else np.float32) for name, array in zip(names[:count], arrays)}

    found, why = run(capstan, folder, model, as_inputs(len(names)))
    if found is not None or len(names) < 2:
        return 'passed' if close(found, wanted) else 'refused' if found is None else 'failed', why
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    del fixed.graph.input[1:]
    for name, t in zip(names[1:], tensors[1:]):
        initializer = fixed.graph.initializer.add()
        initializer.CopyFrom(t)
        initializer.name = name
    found, why = run(capstan, folder, fixed, as_inputs(1))
    return 'passed with initializers' if close(found, wanted) else 'refused' if found is None else 'failed', why


def nodes(capstan, folder):
    cases = os.path.join(os.path.dirname(onnx.backend.test.__file__), 'data', 'node')
    for case in sorted(glob.glob(os.path.join(cases, '*'))):
        if not glob.glob(os.path.join(case, 'test_data_set_0', '*.pb')):
            continue
        model = onnx.load(os.path.join(case, 'model.onnx'))
        operators = sorted({node.op_type for node in model.graph.node})
        if not set(operators) <= OPERATORS:
            continue
        tensors = all(value.type.HasField('tensor_type') for value in [*model.graph.input, *model.graph.output])
        result, why = result_of(capstan, folder, case) if tensors else ('refused', 'a sequence or an optional value')
        print(json.dumps({'case': os.path.basename(case), 'operators': operators, 'result': result, 'why': why}), flush=True)


def sample_of(model, least=0.0, samples=1):
    weights = {initializer.name for initializer in model.graph.initializer}
    value, = (value for value in model.graph.input if value.name not in weights)
    shape = [samples, *(dim.dim_value for dim in value.type.tensor_type.shape.dim[1:])]
    count = int(np.prod(shape))
    if any(node.op_type == 'Gather' for node in model.graph.node):  # tokens
        return {value.name: (np.arange(count) % 7).astype(np.float32).reshape(shape)}
    return {value.name: (np.arange(count) / count + least).astype(np.float32).reshape(shape)}


def stored(capstan, folder, *files):
    for file in files:
        model = onnx.load(file)
        found, why = run(capstan, folder, model, sample_of(model))
        wanted = numpy_helper.to_array(tensor(file.removesuffix('.onnx') + '_output_0.pb'))
        assert found is not None, (file, why)
        numbers, = found.values()
        assert numbers.shape == wanted.shape and np.allclose(numbers, wanted, rtol=1e-4, atol=1e-4), (file, numbers, wanted)
        print(f'{os.path.basename(file)}: as stored, largest difference {np.abs(numbers - wanted).max():.1e}')


def agree(capstan, folder, *files):
    try:
        import onnxruntime
    except ImportError:
        onnxruntime = None
    for file in files:
        model = onnx.load(file)
        onnx.checker.check_model(model, full_check=True)
        inputs = sample_of(model, least=-0.5, samples=3)
        found, why = run(capstan, folder, model, inputs)
        assert found is not None, (file, why)
        if onnxruntime:
            session = onnxruntime.InferenceSession(file, providers=['CPUExecutionProvider'])
        else:
            session = onnx.reference.ReferenceEvaluator(model)
        for value, numbers in zip(model.graph.output, session.run(None, inputs)):
            ours = found[value.name]
            assert ours.shape == numbers.shape and np.allclose(ours, numbers, rtol=1e-4, atol=1e-4), (file, value.name, ours, numbers)
            print(f'{os.path.basename(file)}: {value.name} {list(ours.shape)} as in {"onnxruntime" if onnxruntime else "onnx"}, largest difference '
                  f'{np.abs(ours - numbers).max():.1e}')


if __name__ == '__main__':
    {'nodes': nodes, 'stored': stored, 'agree': agree}[sys.argv[1]](*sys.argv[2:])
