"""The reference job with three seeds. The printed lines go into docs/benchmarks/."""

import accuracy_test
import support


class AccuracyLongTest(accuracy_test.AccuracyTest):

    def test_d2l_lenet_on_fashion_mnist(self):
        for seed in (1, 2, 3):
            with self.subTest(seed=seed):
                self.check_d2l(seed, floor=0.82)


if __name__ == '__main__':
    support.main()
