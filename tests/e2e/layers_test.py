"""`model.layers` and the larger built-in models: the weights of the named model, and equal bits on any cluster."""

import json

import services
import support

LENET = [{'conv': {'out_channels': 6, 'kernel_shape': 5}}, 'relu', {'max_pool': {'kernel_shape': 2, 'strides': 2}},
         {'conv': {'out_channels': 16, 'kernel_shape': 3}}, 'relu', {'max_pool': {'kernel_shape': 2, 'strides': 2}},
         'flatten', {'gemm': {'out_features': 120}}, 'relu', {'gemm': {'out_features': 84}}, 'relu', 'gemm']
MLP = ['flatten', {'gemm': {'out_features': 128}}, 'relu', {'gemm': {'out_features': 64}}, 'relu', 'gemm']


class LayersTest(services.ServicesTest):
    def spec(self, model, **groups):
        return support.job_spec(**{'model': model, 'kvstore': {'type': 'local'}, 'resources': {'num_workers': 1},
                                   'data': {'format': 'synthetic_digits', 'train_samples': 640, 'test_samples': 20}, **groups})

    def test_a_list_trains_as_the_named_model(self):
        for name, layers in (('lenet', LENET), ('mlp', MLP)):
            named = self.train(self.spec({'name': name}))
            self.assertEqual(self.train(self.spec({'layers': layers}))['weights_sha256'], named['weights_sha256'], name)
            # The graph that the list stands for, as the client shows it.
            shown = self.capstan('validate', '--show-defaults', self.write('list.yaml', json.dumps(self.spec({'layers': layers}))))
            self.assertEqual(shown.code, 0, shown)
            self.assertIn('  graph:\n', shown.out)
            ran = self.capstan('run', self.write('graph.yaml', shown.out), '-o', 'json')
            self.assertEqual(ran.code, 0, ran)
            self.assertIn(named['weights_sha256'], ran.out, name)

    def test_a_mistake_is_named_with_its_place(self):
        text = json.dumps(self.spec({'name': 'NET'})).replace('"name": "NET"', '"layers": [flatten, {gemm: {out_feature: 3}}]')
        refused = self.capstan('validate', self.write('job.yaml', text))
        self.assertEqual(refused.code, 2, refused)
        self.assertRegex(refused.err, r"job.yaml:1:\d+: error: 'model.layers\[1\].gemm.out_feature' is unknown \(did you mean 'out_features'\?\)")

    def test_mobilenet_has_one_hash(self):
        """Depthwise convolutions and batch normalisation of two lanes, on images of 16 x 16."""
        def spec(kvstore, workers, devices=1, **shards):
            return self.spec(
                {'name': 'mobilenet_v1'}, kvstore={'type': kvstore},
                resources={'lanes': 2, 'device': 'cpu', 'num_workers': workers, 'gpus_per_worker': devices, **shards},
                data={'format': 'synthetic_digits', 'train_samples': 96, 'test_samples': 10, 'transforms': [{'random_crop': {'size': 16}}]},
                training={'epochs': 2, 'global_batch_size': 32, 'seed': 5, 'optimizer': {'name': 'sgd', 'learning_rate': 0.02}})

        alone = self.has_one_hash(lambda workers, shards: spec('dist_sync', workers, num_shards=shards), step=1)
        self.assertEqual(alone['samples_used'], 192, alone)
        for kvstore, devices in (('local', 1), ('device', 2)):
            self.assertEqual(self.train(spec(kvstore, 1, devices))['weights_sha256'], alone['weights_sha256'], kvstore)


if __name__ == '__main__':
    support.main()
