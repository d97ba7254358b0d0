"""A text, from its characters to a language model: `data.format: text`, the model gpt_nano and the loss of a sequence."""

import csv
import json
import math
import os

import services
import support

TEXT = 'the cat sat on the mat; the dog sat on the cat. '
CHARACTERS = len(set(TEXT))
ADAM = {'name': 'adam', 'learning_rate': 0.01}


def node(name, op, inputs=None, **attributes):
    return {'name': name, 'op': op, **({'inputs': inputs} if inputs else {}), **({'attributes': attributes} if attributes else {})}


def token_net(length, width=12):
    """A network that sees each character alone."""
    return [node('table', 'Parameter', shape=[CHARACTERS, width], init='initializer'), node('tokens', 'Flatten', ['input']),
            node('rows', 'Gather', ['table', 'tokens']), node('head', 'Linear', ['rows'], out_features=CHARACTERS),
            node('loss', 'SequenceCrossEntropyLoss', ['head', 'input'])]


class TextTest(support.TestCase):

    def setUp(self):
        super().setUp()
        self.write('text/input.txt', TEXT * 40)

    def spec(self, workers=1, shards=1, model=None, data=None, **training):
        return support.job_spec(
            resources={'num_workers': workers, 'num_shards': shards, 'device': 'cpu', 'lanes': 2},
            model=model or {'name': 'gpt_nano', 'initializer': {'name': 'normal', 'scale': 0.02}},
            data={'format': 'text', 'uri': self.path('text'), 'sequence_length': 8, **(data or {})},
            training={'max_steps': 12, 'global_batch_size': 16, 'seed': 3, 'optimizer': ADAM, **training})

    def test_a_sample_has_one_label_and_a_loss_at_each_position(self):
        job = self.train(self.spec())
        shapes = {name: shape for name, (shape, _) in support.read_safetensors(os.path.join(self.checkpoint(job), 'weights.safetensors')).items()}
        self.assertEqual(shapes['transformer.wte.weight'], [CHARACTERS, 48])
        self.assertEqual(shapes['transformer.h.2.mlp.c_proj.weight'], [48, 192])
        self.assertEqual(shapes['lm_head.weight'], [CHARACTERS, 48])
        said = self.capstan('predict', '@last', '-o', 'json', '--out', 'out.csv', '--logits')
        self.assertEqual(said.code, 0, said)
        result = json.loads(said.out)
        evaluated = json.loads(self.capstan('metrics', '@last', '-o', 'json').out)['evaluations'][-1]
        self.assertEqual(result['accuracy'], evaluated['validation_accuracy'])
        # The text repeats and its last tenth is the test set. The label is the character after each window.
        text = TEXT * 40
        test = text[len(text) - len(text) // 10:]
        vocabulary = sorted(set(text))
        with open(self.path('out.csv'), newline='') as f:
            rows = list(csv.DictReader(f))
        self.assertEqual([int(row['label']) for row in rows], [vocabulary.index(test[i + 8]) for i in range(0, len(test) - 8, 8)])
        self.assertEqual(sum(name.startswith('logit_') for name in rows[0]), CHARACTERS)
        self.write('other/input.txt', 'abc' * 100)
        other = self.capstan('predict', '@last', '--data', self.path('other'))
        self.assertEqual(other.code, 2, other)
        self.assertIn(f'a text of 3 different characters, {job["job_id"]} was trained on one of {CHARACTERS}', other.err)

    def test_an_exported_network_is_the_same(self):
        """Nodes, memory and bits: a file has no Linear, so each must be found again in a product and a sum."""
        self.train(self.spec())
        self.assertEqual(self.capstan('model', 'export', '@last', '--out', 'net.onnx').code, 0)
        path = self.path('net.onnx')

        def described(what):
            said = json.loads(self.capstan('model', 'describe', what, '--batch', '32', '-o', 'json').out)
            return said['memory'], sorted(node['operator'] for node in said['nodes'])

        self.assertEqual(described('net.onnx'), described(self.write('job.json', json.dumps(self.spec()))))
        named, own = (self.train(self.spec(model={**model, 'initial_weights': path})) for model in ({'name': 'gpt_nano'}, {'graph': path}))
        self.assertEqual(own['weights_sha256'], named['weights_sha256'])

    def test_a_network_of_ones_own_learns_what_follows_a_character(self):
        job = self.train(self.spec(model={'graph': {'nodes': token_net(8)}}, max_steps=150, optimizer={**ADAM, 'learning_rate': 0.05}))
        # The least loss of a network that sees one character: the entropy of the next one.
        pairs = list(zip(TEXT, TEXT[1:] + TEXT[0]))
        entropy = -sum(math.log(pairs.count(pair) / TEXT.count(pair[0])) for pair in pairs) / len(pairs)
        loss = job['epochs'][-1]['validation_loss'] if job['epochs'] else self.step_log(job)[-1]['loss']
        self.assertGreater(loss, entropy - 0.05)
        self.assertLess(loss, entropy + 0.1)

    def test_what_does_not_fit_is_named_before_anything_starts(self):
        def refused(text, **keys):
            run = self.capstan('validate', self.write('job.json', json.dumps(self.spec(**keys))))
            self.assertNotEqual(run.code, 0, run)
            self.assertIn(text, run.err)

        refused(f'text/input.txt: the text has {CHARACTERS} different characters, model.num_classes is 9, want {CHARACTERS}',
                model={'name': 'gpt_nano', 'num_classes': 9})
        refused("'data.transforms' are for images", data={'transforms': [{'random_flip': {}}]})
        refused("'data.sequence_length' must be between 1 and 16384", data={'sequence_length': 0})
        refused('the test set has 192 characters, want at least 201', data={'sequence_length': 200})
        plan = self.capstan('validate', self.write('job.json', json.dumps(self.spec())))
        self.assertEqual(plan.code, 0, plan)
        self.assertIn(f'{self.path("text")}, 215 + 23 samples', plan.out)


class TextOfServicesTest(services.ServicesTest):
    spec = TextTest.spec

    def setUp(self):
        super().setUp()
        self.write('text/input.txt', TEXT * 40)

    def test_one_hash_for_any_number_of_workers_shards_and_threads(self):
        job = self.has_one_hash(lambda workers, shards: self.spec(workers, shards, max_steps=300), step=20)
        losses = [line['loss'] for line in self.step_log(job)]
        self.assertAlmostEqual(losses[0], math.log(CHARACTERS), delta=0.1)
        self.assertLess(losses[11], losses[0] - 0.5)


if __name__ == '__main__':
    support.main()
