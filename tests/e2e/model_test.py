"""`capstan model`: built-in networks and those of job files, without training."""

import json

import support

GRAPH = {'nodes': [{'name': 'conv', 'op': 'Conv', 'attributes': {'out_channels': 4, 'kernel_shape': [3, 3]}},
                   {'name': 'flat', 'op': 'Flatten'},
                   {'name': 'fc', 'op': 'Gemm', 'attributes': {'out_features': 10}},
                   {'name': 'loss', 'op': 'SoftmaxCrossEntropyLoss'}]}


class ModelTest(support.TestCase):
    def describe(self, *args):
        return self.capstan('model', 'describe', *args)

    def described(self, *args):
        result = self.describe(*args, '-o', 'json')
        self.assertEqual(result.code, 0, result)
        return json.loads(result.out)

    def test_list(self):
        models = {model['name']: model for model in json.loads(self.capstan('model', 'list', '-o', 'json').out)}
        self.assertEqual(models['resnet50_v1']['parameters'], 25557032)
        self.assertEqual(models['lenet']['input'], [1, 28, 28])
        table = self.capstan('model', 'list').out
        self.assertRegex(table, r'^MODEL +IMAGES +CLASSES +PARAMETERS +MFLOP +LAYERS\nalexnet +\[3, 224, 224\] +1000 +61100840 +1428 +AlexNet ')
        self.assertRegex(table, r'\ngpt_nano +\[1, 1, 64\] +65 +94224 +13\.38 +minGPT.*\nlenet +\[1, 28, 28\] +10 +60170 +0\.4634 +LeNet ')
        self.assertRegex(table, r'\nmobilenet_v1 +\[3, 224, 224\] +1000 +4231976 +1137 ')
        self.assertRegex(table, r'\nvgg16 +\[3, 224, 224\] +1000 +138357544 +3\.094e\+04 +VGG-16')

    def test_describe(self):
        lenet = self.described('lenet')
        self.assertEqual((lenet['parameters'], lenet['forward_flops'], len(lenet['nodes'])), (60170, 463440, 13))
        small = self.described('resnet18_v1', '--input', '3x32x32', '--num-classes', '10')
        self.assertEqual((small['parameters'], small['statistics']), (11173962, 9600))
        memory = self.described('lenet', '--batch', '64')['memory']
        self.assertGreater(memory['plan_bytes'], 64 * 4 * 28 * 28)
        self.assertGreaterEqual(memory['weight_and_gradient_bytes'], 8 * 60170)
        self.assertGreater(self.described('lenet', '--batch', '128')['memory']['plan_bytes'], 1.5 * memory['plan_bytes'])

    def test_a_job_file(self):
        named = self.write('named.yaml', json.dumps(support.job_spec()))
        self.assertEqual(self.described(named)['parameters'], 60170)
        far = {'format': 'idx', 'uri': 'file:///nowhere'}
        graph = self.write('graph.yaml', json.dumps(support.job_spec(model={'graph': GRAPH}, data=far)))
        described = self.described(graph, '--input', '1x5x7')
        self.assertEqual([node['output'] for node in described['nodes']], [[4, 3, 5], [60], [10], [1]])
        self.assertEqual(described['nodes'][2]['parameters'][0], {'name': 'fc.weight', 'shape': [10, 60], 'statistic': False})
        self.assertIn('the data is not on this host, so give --input: ', self.describe(graph).err)

    def test_bad_input(self):
        graph = self.write('graph.yaml', json.dumps(support.job_spec(model={'graph': GRAPH})))
        wrong = self.write('wrong.yaml', json.dumps(support.job_spec(model={'name': 'lenet', 'depth': 3})))
        for args, text in (
                (('nosuch', ), "'nosuch' is neither a file nor a model; the models are alexnet, "),
                (('lenet', '--input', '28x28'), "--input '28x28', want CHANNELSxHEIGHTxWIDTH"),
                (('lenet', '--input', '1x4x4'), 'conv1'),
                (('lenet', '--num-classes', '1'), 'classes'),
                ((graph, '--input', '1x2x9'), 'node conv (Conv): height 2'),
                ((wrong, ), "unknown field 'model.depth'"),
                (('lenet', '--batch', '0'), '--batch')):
            refused = self.describe(*args)
            self.assertEqual((refused.code, refused.out), (2, ''), refused)
            self.assertIn(text, refused.err)


if __name__ == '__main__':
    support.main()
