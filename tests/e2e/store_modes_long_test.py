"""What asynchronous training and compressed gradients cost in accuracy on Fashion-MNIST. The printed rows go into docs/benchmarks/."""

import accuracy_test
import support

SEEDS = (1, 2, 3)


def lenet(seed, learning_rate=0.02, momentum=0.9):
    return support.job_spec(
        resources={'num_workers': 2, 'num_shards': 2}, model={'name': 'lenet'},
        data={'uri': support.FASHION_MNIST, 'format': 'idx'},
        training={'epochs': 10, 'global_batch_size': 256, 'seed': seed,
                  'optimizer': {'name': 'sgd', 'learning_rate': learning_rate, 'momentum': momentum}})


def plain(seed):
    return lenet(seed, learning_rate=0.2, momentum=0)


class StoreModesTest(support.TestCase):

    def mean(self, spec, **kvstore):
        """The mean over the seeds of the better of the last two epochs."""
        name, best = ' '.join(str(value) for value in kvstore.values()), []
        for seed in SEEDS:
            job = self.train({**spec(seed), 'kvstore': kvstore}, timeout=850)
            self.assertEqual(job['samples_used'], 600000)
            accuracies = [epoch['validation_accuracy'] for epoch in job['epochs']]
            best.append(max(accuracies[-2:]))
            print(f'| {name} | {seed} | {" | ".join(f"{a:.4f}" for a in accuracies)} | {best[-1]:.4f} |', flush=True)
        mean = sum(best) / len(best)
        print(f'{name}: mean {mean:.4f}', flush=True)
        return mean

    def test_asynchronous_training(self):
        # Without momentum: asynchrony acts like some (Mitliagkas et al. 2016).
        reference = self.mean(accuracy_test.d2l, type='dist_sync')
        for kvstore in ({'type': 'dist_async'}, {'type': 'dist_async', 'max_staleness': 4}):
            with self.subTest(kvstore=kvstore):
                self.assertGreaterEqual(self.mean(accuracy_test.d2l, **kvstore), reference - 0.005)

    def test_rounded_gradients(self):
        # Rounding is far below the noise of a batch.
        reference = self.mean(lenet, type='dist_sync')
        for compression in ('fp16', 'bf16', 'int8'):
            with self.subTest(compression=compression):
                self.assertGreaterEqual(self.mean(lenet, type='dist_sync', gradient_compression=compression), reference - 0.005)

    def test_error_feedback(self):
        # One point, as in Karimireddy et al. 2019, whose method has no momentum either: what is sent later acts like some.
        reference = self.mean(plain, type='dist_sync')
        for compression in ('1bit', '2bit', 'top_k'):
            with self.subTest(compression=compression):
                self.assertGreaterEqual(self.mean(plain, type='dist_sync', gradient_compression=compression), reference - 0.01)

    def test_local_steps(self):
        # A lane's momentum begins anew in each round, so it has the rate that suits training without.
        reference = self.mean(plain, type='dist_sync')
        for local_steps in (4, 16):
            with self.subTest(local_steps=local_steps):
                self.assertGreaterEqual(self.mean(plain, type='dist_sync', local_steps=local_steps), reference - 0.01)


if __name__ == '__main__':
    support.main()
