"""`capstan predict`: a checkpoint's network on the samples of its job and on others."""

import csv
import json

import services
import support


def spec(**groups):
    return support.job_spec(**{'data': {'format': 'synthetic_digits', 'train_samples': 1000, 'test_samples': 500}, **groups})


class PredictTest(support.TestCase):
    def predict(self, *args):
        return self.capstan('predict', '@last', *args)

    def accuracy_of_training(self):
        return json.loads(self.capstan('metrics', '@last', '-o', 'json').out)['evaluations'][-1]

    def test_the_accuracy_of_the_training(self):
        job = self.train(spec(training={**spec()['training'], 'epochs': 3}))
        said = self.predict('-o', 'json', '--out', 'out.csv', '--logits')
        self.assertEqual(said.code, 0, said.err)
        result, evaluated = json.loads(said.out), self.accuracy_of_training()
        self.assertEqual((result['job_id'], result['split'], result['samples']), (job['job_id'], 'test', 500))
        self.assertEqual(result['accuracy'], evaluated['validation_accuracy'])  # to the sample
        self.assertGreater(result['accuracy'], 0.3)
        self.assertAlmostEqual(result['loss'], evaluated['validation_loss'], delta=1e-6)

        with open(self.path('out.csv'), newline='') as f:
            rows = list(csv.DictReader(f))
        self.assertEqual([int(row['sample']) for row in rows], list(range(500)))
        self.assertEqual(sum(row['label'] == row['predicted'] for row in rows), result['correct'])
        for row in rows:
            logits = [float(row[f'logit_{i}']) for i in range(10)]
            self.assertEqual(logits.index(max(logits)), int(row['predicted']))
            self.assertGreaterEqual(float(row['probability']), 0.1)
        for one in result['classes']:
            mine = [row for row in rows if int(row['label']) == one['class']]
            self.assertEqual((len(mine), sum(row['predicted'] == row['label'] for row in mine)), (one['samples'], one['correct']))

        table = self.predict('--split', 'train', '--limit', '100', '--batch', '7', '--threads', '1')
        self.assertEqual(table.code, 0, table.err)
        self.assertRegex(table.out, r'^test-\w+@1-\d+  100 training samples\naccuracy  0\.\d{4}  \d+ of them\nloss      [\d.e-]+\n\nCLASS +SAMPLES ')

    def test_samples_of_another_folder(self):
        data = {'format': 'idx', 'uri': support.FASHION_MNIST}
        self.train(spec(data=data, training={**spec()['training'], 'max_steps': 100}))
        there = json.loads(self.predict('-o', 'json', '--limit', '700').out)
        named = json.loads(self.predict('-o', 'json', '--limit', '700', '--data', support.FASHION_MNIST).out)
        self.assertEqual(named, there)
        nowhere = self.predict('--data', 'nowhere')
        self.assertEqual(nowhere.code, 2)
        self.assertIn(f'the samples must be on this host: {self.path("nowhere")}/', nowhere.err)

    def test_bad_input(self):
        self.train(spec())
        for args, code, text in (
                (('--logits', ), 2, '--logits would do nothing: it adds columns to the file of --out'),
                (('--data', '/nowhere'), 2, '--data would do nothing: the samples of synthetic_digits are drawn from the seed'),
                (('--device', 'cuda:9'), 2, '--device cuda:9: '),
                (('--device', 'tpu'), 2, '--device tpu: '),
                (('--split', 'other'), 2, '--split'),
                (('--limit', '0'), 2, '--limit'),
                (('--out', '/nowhere/out.csv'), 1, '/nowhere/out.csv')):
            refused = self.predict(*args)
            self.assertEqual(refused.code, code, (args, refused.err))
            self.assertIn(text, refused.err)
            self.assertEqual(refused.out, '')
        step = self.capstan('predict', '@last@7')
        self.assertEqual(step.code, 2)
        self.assertIn('has no checkpoint of step 7', step.err)


class ClusterTest(services.ServicesTest):
    def test_a_job_of_a_cluster(self):
        self.start(workers=1, shards=1)
        job = self.submit(spec(), '--wait')
        result = json.loads(self.ok('predict', job, '-o', 'json').out)
        evaluated = json.loads(self.ok('metrics', job, '-o', 'json').out)['evaluations'][-1]
        self.assertEqual((result['samples'], result['accuracy']), (500, evaluated['validation_accuracy']))


if __name__ == '__main__':
    support.main()
