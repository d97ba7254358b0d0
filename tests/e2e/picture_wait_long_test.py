"""ResNet-18 from folders of JPEG photographs: the share of a step that the device waits for its images.

The worker has one thread that computes and one that reads files, decodes and resizes. The bound of 2 % is that of a person who
asks whether image files must be converted before training.
"""

import json
import os
import random

import pictures
import support

WIDTH, HEIGHT = 500, 375
SIDE = 32  # of the images that the network sees
CLASSES, PER_CLASS, DIFFERENT = 10, 128, 8
STEPS, BATCH = 40, 32
FIRST = 2  # steps until the reader is ahead do not count
SHARE = 0.02


def photograph(rng):
    """Smooth colours with grain: as many coefficients as a photograph of this quality has."""
    base = [rng.randrange(60, 190) for _ in range(3)]
    slope = [rng.uniform(-0.2, 0.2) for _ in range(6)]
    return [[tuple(max(0, min(255, int(base[c] + slope[c] * x + slope[3 + c] * y + rng.gauss(0, 6)))) for c in range(3))
             for x in range(WIDTH)] for y in range(HEIGHT)]


class PictureWaitTest(support.TestCase):

    def write_folders(self):
        """Few photographs under many names, because the reader decodes each file anew."""
        rng = random.Random(3)
        files = [self.write(f'different/{i}.jpg', pictures.jpeg(photograph(rng), step=12)) for i in range(DIFFERENT)]
        for split, count in (('train', PER_CLASS), ('test', 2)):
            for label in range(CLASSES):
                folder = self.path('set', split, f'class{label}')
                os.makedirs(folder)
                for i in range(count):
                    os.link(files[(label + i) % DIFFERENT], os.path.join(folder, f'{i:04}.jpg'))
        return self.path('set'), sum(os.path.getsize(file) for file in files) // DIFFERENT

    def test_the_device_does_not_wait_for_photographs(self):
        folder, size = self.write_folders()
        spec = support.job_spec(
            resources={'num_workers': 1, 'lanes': 1, 'device': 'cpu'}, kvstore={'type': 'local'},
            model={'name': 'resnet18_v1'}, data={'format': 'image_folder', 'uri': folder, 'shape': [3, SIDE, SIDE], 'reader_threads': 1},
            training={'max_steps': STEPS, 'global_batch_size': BATCH, 'optimizer': {'name': 'sgd', 'learning_rate': 0.01}})
        run = self.capstan('run', '-o', 'json', self.write('job.yaml', json.dumps(spec)), timeout=1200, env={'CAPSTAN_CPU_THREADS': '1'})
        self.assertEqual(run.code, 0, run)
        points = json.loads(self.capstan('metrics', '@last', '-o', 'json').out)['points'][FIRST:]
        self.assertEqual(len(points), STEPS - FIRST)
        waited, seconds = (sum(point[name] for point in points) for name in ('data_wait_seconds', 'step_seconds'))
        print(f'{WIDTH} x {HEIGHT} pixels in {size} bytes, {BATCH} images a step, {BATCH * len(points) / seconds:.1f} images/s, '
              f'waited {100 * waited / seconds:.2f} % of {seconds:.1f} s', flush=True)
        self.assertLess(waited, SHARE * seconds)



if __name__ == '__main__':
    support.main()
