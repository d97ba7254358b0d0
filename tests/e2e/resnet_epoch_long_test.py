"""One epoch of ResNet-18 on 10 000 images of CIFAR-10 through `capstan run`. The printed lines go into docs/benchmarks/.

Two workers and two shards share the machine. The bits, and so the accuracy, are the same everywhere; the time is the machine's.
"""

import json
import math
import time

import cifar10
import support

IMAGES, TESTS, BATCH = 10000, 10000, 64
STEPS = math.ceil(IMAGES / BATCH)
WINDOW = 20  # the mean loss of this many steps counts
# Guessing is right in 0.10. An evaluation with wrong running statistics falls to about that, whatever the training loss is. A net
# that has begun to distinguish classes is well above. One epoch of a fifth of the images reaches no more.
ACCURACY = 0.25
# From the command to its end, on two cores: four times the usual 157 steps of about a second each and a minute of evaluation.
SECONDS = 900


class ResnetEpochTest(support.TestCase):

    def test_an_epoch_of_10000_images(self):
        spec = support.job_spec(
            resources={'num_workers': 2, 'num_shards': 2, 'device': 'cpu'}, model={'name': 'resnet18_v1'},
            data={'format': 'cifar10_bin', 'uri': cifar10.write_small(self.path('cifar10')), 'transforms': cifar10.AUGMENTATION},
            training={'epochs': 1, 'global_batch_size': BATCH, 'seed': 42,
                      'optimizer': {'name': 'sgd', 'learning_rate': 0.01, 'momentum': 0.9, 'weight_decay': 0.0005}})
        plan = self.capstan('validate', self.write('job.yaml', json.dumps(spec)))
        self.assertEqual(plan.code, 0, plan)
        self.assertIn(f'1 of 5 batches, {IMAGES} + {TESTS} samples', plan.out + plan.err)

        begin = time.monotonic()
        job = self.train(spec, timeout=2 * SECONDS)
        seconds = time.monotonic() - begin
        epoch, = job['epochs']
        losses = [line['loss'] for line in self.step_log(job)]
        self.assertEqual(len(losses), STEPS)
        first, last = sum(losses[:WINDOW]) / WINDOW, sum(losses[-WINDOW:]) / WINDOW
        print('| samples/s | seconds of the epoch | of the command | '
              f'loss of the first {WINDOW} steps | of the last {WINDOW} | test accuracy | weights |\n'
              '| --- | --- | --- | --- | --- | --- | --- |\n'
              f'| {epoch["samples_per_second"]:.1f} | {epoch["seconds"]:.1f} | {seconds:.1f} | {first:.4f} | {last:.4f} | '
              f'{epoch["validation_accuracy"]:.4f} | {job["weights_sha256"][:16]} |', flush=True)
        self.assertEqual(job['samples_used'], IMAGES, job)
        self.assertLess(last, first)
        self.assertLess(last, math.log(10))  # the loss of a net that gives all classes the same
        self.assertGreaterEqual(epoch['validation_accuracy'], ACCURACY)
        self.assertLessEqual(seconds, SECONDS)


if __name__ == '__main__':
    support.main()
