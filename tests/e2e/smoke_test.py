"""One small job through every process, the end-to-end test of `./run-tests --quick`."""

import json
import os

import support


class SmokeTest(support.TestCase):

    def test_two_workers_two_shards_train_and_leave_whole_files(self):
        job = self.train(support.job_spec(resources={'num_workers': 2, 'num_shards': 2}))
        self.assertEqual(job['progress']['step'], 32)  # ceil(2000 / 64)
        self.assertEqual(job['samples_used'], 2000)
        self.assertEqual(len(job['epochs']), 1)
        self.assertGreater(job['epochs'][0]['validation_accuracy'], 0.3)

        folder = self.checkpoint(job)
        self.assertEqual(sorted(os.listdir(folder)),
                         ['manifest.json', 'shard-0.safetensors', 'shard-1.safetensors', 'weights.safetensors'])
        weights = support.read_safetensors(os.path.join(folder, 'weights.safetensors'))
        self.assertEqual(list(weights), [f'{layer}.{kind}' for layer in ('conv1', 'conv2', 'fc1', 'fc2', 'fc3')
                                         for kind in ('weight', 'bias')])
        self.assertEqual(weights['conv1.weight'][0], [6, 1, 5, 5])
        self.assertEqual(weights['fc1.weight'][0], [120, 400])
        self.assertEqual(support.sha256_of(weights), job['weights_sha256'])
        with open(os.path.join(folder, 'manifest.json')) as f:
            manifest = json.load(f)
        self.assertEqual(manifest['weights_sha256'], job['weights_sha256'])

        steps = self.step_log(job)
        self.assertEqual([line['step'] for line in steps], list(range(32)))
        self.assertEqual(sum(line['samples'] for line in steps), 2000)
        self.assertEqual(set(steps[0]), {'lineage', 'step', 'epoch', 'loss', 'learning_rate', 'samples', 'seconds'})
        self.assertLess(steps[-1]['loss'], steps[0]['loss'])


if __name__ == '__main__':
    support.main()
