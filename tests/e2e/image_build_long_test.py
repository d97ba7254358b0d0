"""The image as an operator builds it: every stage of deploy/docker/Dockerfile, including compiler and packages."""

import os
import re
import subprocess
import unittest

import debian_root
import engine
import support

EXAMPLE = ['capstan', 'run', '--example', 'lenet', '--set', 'training.epochs=1', '--set',
           'data={format: synthetic_digits, train_samples: 2000, test_samples: 500}']


class ImageBuildTest(support.TestCase):

    def test_the_image_that_is_built_from_sources_alone_trains(self):
        reason = engine.why_not()
        if reason:
            raise unittest.SkipTest(f'NOT TESTED: {reason}')
        docker = engine.Engine()
        self.addCleanup(docker.close)
        base = self.path('base.tar')
        debian_root.run('mmdebstrap', '--variant=minbase', '--include=ca-certificates', 'bookworm', base, *debian_root.SOURCES)
        docker.docker('import', base, 'localhost/debian')
        docker.docker('build', '--network', 'host', '--build-arg', 'BASE=localhost/debian', '--build-arg',
                      f'JOBS={os.cpu_count()}', '-t', 'localhost/capstan', '-f',
                      os.path.join(support.ROOT, 'deploy/docker/Dockerfile'), support.ROOT)
        # As Compose runs it: without capabilities, and with nothing writable except /tmp and the image's volume.
        said = docker.docker('run', '--rm', '--network', 'none', '--read-only', '--tmpfs', '/tmp:mode=1777', '--cap-drop', 'ALL',
                             '--workdir', '/tmp', 'localhost/capstan', *EXAMPLE)
        here = subprocess.run([support.CAPSTAN, *EXAMPLE[1:]], cwd=self.folder, capture_output=True, text=True, timeout=300)
        sha256 = re.search(r'^sha256 +([0-9a-f]{64})$', said, re.MULTILINE)[1]
        self.assertIn(sha256, here.stdout + here.stderr)


if __name__ == '__main__':
    support.main()
