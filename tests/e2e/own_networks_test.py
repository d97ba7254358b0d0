"""Networks defined in a job file, through the services."""

import json

import support


def node(name, op, *inputs, **attributes):
    made = {'name': name, 'op': op}
    if inputs:
        made['inputs'] = list(inputs)
    if attributes:
        made['attributes'] = attributes
    return made


def lenet():
    """The nodes of `lenet`."""
    window = {'kernel_shape': [2, 2], 'strides': [2, 2]}
    return [node('conv1', 'Conv', out_channels=6, kernel_shape=[5, 5]), node('conv1_relu', 'Relu'), node('pool1', 'MaxPool', **window),
            node('conv2', 'Conv', out_channels=16, kernel_shape=[3, 3]), node('conv2_relu', 'Relu'), node('pool2', 'MaxPool', **window),
            node('flatten', 'Flatten'), node('fc1', 'Gemm', out_features=120), node('fc1_relu', 'Relu'),
            node('fc2', 'Gemm', out_features=84), node('fc2_relu', 'Relu'), node('fc3', 'Gemm', out_features=10),
            node('loss', 'SoftmaxCrossEntropyLoss')]


def branches():
    """A graph that is not a chain, with operators that couple samples and operators that draw random numbers."""
    same = {'kernel_shape': [3, 3], 'auto_pad': 'SAME_UPPER'}
    return [node('stem', 'Conv', out_channels=6, kernel_shape=[3, 3], strides=[2, 2]), node('bn', 'BatchNormalization'),
            node('relu', 'Relu'), node('left', 'Conv', out_channels=6, bias=False, **same), node('add', 'Add', 'left', 'relu'),
            node('right', 'Conv', 'relu', out_channels=4, **same), node('gelu', 'Gelu'), node('both', 'Concat', 'add', 'gelu', 'relu', axis=1),
            node('mean', 'AveragePool', kernel_shape=[2, 2], strides=[2, 2]), node('flatten', 'Flatten'), node('dropout', 'Dropout', ratio=0.3),
            node('fc', 'Gemm', out_features=10), node('loss', 'SoftmaxCrossEntropyLoss', label_smoothing=0.1)]


class OwnNetworksTest(support.TestCase):

    def spec(self, model, resources=None, kvstore='local'):
        spec = support.job_spec(model=model, kvstore={'type': kvstore}, resources={'lanes': 4, 'device': 'cpu', **(resources or {})})
        spec['data'].update(train_samples=640, test_samples=100)
        return spec

    def test_lenet_in_nodes_comes_to_the_weights_of_lenet(self):
        named = self.train(self.spec({'name': 'lenet'}))
        written = self.train(self.spec({'graph': {'nodes': lenet()}}, {'num_workers': 2, 'num_shards': 2}, 'dist_sync'))
        self.assertEqual(written['weights_sha256'], named['weights_sha256'])

    def test_branches_have_one_hash_whoever_computes_them(self):
        hashes = set()
        for resources, kvstore in (({'gpus_per_worker': 2}, 'local'), ({'num_workers': 3, 'num_shards': 2}, 'dist_sync')):
            job = self.train(self.spec({'graph': {'nodes': branches()}}, resources, kvstore))
            self.assertEqual(job['samples_used'], 640, job)
            hashes.add(job['weights_sha256'])
        self.assertEqual(len(hashes), 1, hashes)

    def test_the_file_with_its_defaults_is_the_same_job(self):
        path = self.write('job.yaml', json.dumps(self.spec({'graph': {'nodes': branches()}})))
        whole = self.capstan('validate', '--show-defaults', path)
        self.assertEqual(whole.code, 0, whole)
        self.assertIn('op: BatchNormalization', whole.out)
        self.assertIn('"momentum": 0.1', whole.out)

    def test_mistakes_are_told_with_their_place(self):
        nodes = [node('flatten', 'Flatten'), node('fc', 'Gemm', out_feature=10), node('loss', 'SoftmaxCrossEntropyLoss')]
        run = self.capstan('validate', self.write('job.yaml', json.dumps(self.spec({'graph': {'nodes': nodes}}), indent=1)))
        self.assertEqual(run.code, 2, run)
        self.assertRegex(run.err, r"job\.yaml:\d+:\d+: error: 'model\.graph\.nodes\[1\]' is refused: node fc \(Gemm\): attribute out_feature: not known")
        nodes[1] = node('fc', 'Gemm', out_features=12)
        run = self.capstan('run', '-o', 'json', self.write('job.yaml', json.dumps(self.spec({'graph': {'nodes': nodes}}))))
        self.assertNotEqual(run.code, 0, run)
        self.assertIn("its loss reads 12 numbers, 'model.num_classes' is 10", run.out + run.err)


if __name__ == '__main__':
    support.main()
