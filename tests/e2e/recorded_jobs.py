"""Twenty small jobs of all kinds, whose hashes of weights stand in recorded_jobs.json.

    CAPSTAN_BIN=OTHER_BUILD/bin python3 tests/e2e/recorded_jobs.py     writes recorded_jobs.json beside itself, from those programs

A change of code must not change a hash. Record again only with programs from before the change, when a job is added, or when the
same change says why the bits may differ.
"""

import json
import os
import sys

import own_networks_test
import support

RECORD = os.path.join(support.ROOT, 'tests/e2e/recorded_jobs.json')
DIGITS = {'format': 'synthetic_digits', 'train_samples': 1003, 'test_samples': 100}
FEW_DIGITS = {'format': 'synthetic_digits', 'train_samples': 192, 'test_samples': 20}
FASHION = {'format': 'idx', 'uri': support.FASHION_MNIST}
NORMALIZE = {'normalize': {'mean': [0.15], 'std': [0.3]}}
SGD = {'name': 'sgd', 'learning_rate': 0.04}


def local(devices=1, **keys):
    return {'resources': {'num_workers': 1, 'gpus_per_worker': devices, 'device': 'cpu', **keys}, 'kvstore': {'type': 'local'}}


def spread(workers, shards, **keys):
    return {'resources': {'num_workers': workers, 'num_shards': shards, 'device': 'cpu', **keys}, 'kvstore': {'type': 'dist_sync'}}


def training(optimizer, batch=64, **keys):
    return {'epochs': 2, 'global_batch_size': batch, 'seed': 11, 'optimizer': optimizer, **keys}


def rate(name, **keys):
    """SGD with momentum and this schedule."""
    return {**SGD, 'momentum': 0.9, 'lr_schedule': {'name': name, **keys}}


JOBS = {
    'lenet_sgd': dict(local(), data=DIGITS, training=training(SGD)),
    'lenet_momentum': dict(spread(2, 2), data=DIGITS, training=training({**SGD, 'momentum': 0.9})),
    'lenet_lanes': dict(spread(3, 2, lanes=6), data=DIGITS, training=training({**SGD, 'momentum': 0.9}, batch=66)),
    'lenet_unequal_lanes': dict(spread(2, 1, lanes=2, lane_weights=[3, 1]), data=DIGITS, training=training(SGD)),
    'lenet_nesterov': dict(spread(2, 1), data=DIGITS, training=training({**SGD, 'momentum': 0.9, 'nesterov': True, 'weight_decay': 0.001})),
    'lenet_d2l_adam': dict(spread(1, 2), model={'name': 'lenet_d2l'}, data=DIGITS, training=training({'name': 'adam', 'learning_rate': 0.001})),
    'lenet_d2l_fashion': dict(spread(2, 2), model={'name': 'lenet_d2l', 'initializer': 'he'}, data=FASHION,
                              training=training({**SGD, 'momentum': 0.9}, max_steps=20)),
    'lenet_fashion': dict(local(2), data={**FASHION, 'reader_threads': 2}, training=training(SGD, batch=128, max_steps=20)),
    'lenet_contiguous': dict(spread(3, 1), data={**DIGITS, 'partition': 'contiguous'}, training=training(SGD)),
    'lenet_in_order': dict(spread(2, 1), data={**DIGITS, 'shuffle': False}, training=training(rate('polynomial', power=2, min_rate=0.001))),
    'lenet_elastic': dict(spread(2, 2, min_workers=1), data=DIGITS, training=training(rate('multi_step', milestones=['1 epoch', '20 steps'], factor=0.3))),
    'lenet_augmented': dict(spread(2, 2), model={'name': 'lenet', 'dropout': 0.2},
                            data={**DIGITS, 'transforms': [{'random_crop': {'padding': 2}}, {'random_flip': {}}, {'cutout': {'size': 5}}, NORMALIZE]},
                            training=training(SGD)),
    'mlp_adamw': dict(local(2), model={'name': 'mlp'}, data=DIGITS,
                      training=training({'name': 'adamw', 'learning_rate': 0.001, 'decayed': 'weights'}, gradient_clip_value=0.01)),
    'mlp_rmsprop': dict(spread(3, 2), model={'name': 'mlp', 'initializer': {'name': 'normal', 'scale': 0.05}}, data=DIGITS,
                        training=training({'name': 'rmsprop', 'learning_rate': 0.001, 'momentum': 0.9, 'centered': True})),
    'mlp_adagrad': dict(spread(1, 1), model={'name': 'mlp', 'dropout': 0.3}, data=DIGITS,
                        training=training({'name': 'adagrad', 'learning_rate': 0.01, 'weight_decay': 0.001}, gradient_clip_value=0.02)),
    'mlp_cosine': dict(local(), model={'name': 'mlp'}, data={**DIGITS, 'transforms': [{'resize': {'size': 20}}, NORMALIZE]},
                       evaluation={'every': '1 epoch'}, training=training(rate('cosine', warmup='5 steps', min_rate=0.001))),
    'mlp_one_cycle': dict(spread(2, 2), model={'name': 'mlp'}, data=FASHION, training=training(rate('one_cycle'), max_steps=30)),
    'branches': dict(spread(3, 2, lanes=4), model={'graph': {'nodes': own_networks_test.branches()}}, data={**DIGITS, 'train_samples': 640},
                     training=training(rate('step', every='1 epoch', factor=0.1))),
    'resnet18_v1': dict(spread(2, 2, lanes=3), model={'name': 'resnet18_v1', 'dropout': 0.1},
                        data={**FEW_DIGITS, 'train_samples': 96, 'transforms': [{'random_crop': {'size': 8}}, {'random_flip': {}}, NORMALIZE]},
                        training=training({**SGD, 'momentum': 0.9}, batch=48)),
    # Interrupted after its first checkpoint and continued (recorded_jobs_test.py).
    'lenet_resumed': dict(spread(2, 2), data=DIGITS, checkpoint={'every': '20 steps'},
                          training=training({'name': 'adam', 'learning_rate': 0.0005}, epochs=40)),
}


def spec(name):
    return support.job_spec(name=name.replace('_', '-'), **JOBS[name])


def record():
    """Runs every job without a disturbance, and writes down its hash."""
    runner = support.TestCase()
    hashes = {}
    for name in JOBS:
        runner.setUp()
        hashes[name] = runner.train(spec(name))['weights_sha256']
        runner.doCleanups()
        print(name, hashes[name], flush=True)
    with open(RECORD, 'w') as f:
        json.dump(hashes, f, indent=2)
        f.write('\n')


if __name__ == '__main__':
    sys.exit(record())
