"""deploy/kubernetes, rendered by kustomize and held against the published schemas of Kubernetes (docs/deploy.md, section 4)."""

import os
import shutil
import subprocess
import sys
import unittest

import support

VALIDATE = 'kubernetes-validate==1.37.0'
KINDS = {
    'base': {'Namespace', 'Service', 'StatefulSet', 'PersistentVolumeClaim', 'PodDisruptionBudget'},
    'overlays/gpu': {'Namespace', 'Service', 'StatefulSet', 'PersistentVolumeClaim', 'PodDisruptionBudget'},
    'monitoring': {'ConfigMap', 'PrometheusRule', 'ServiceMonitor'},
}


@unittest.skipUnless(shutil.which('kubectl'), 'kubectl is not installed (Debian 12 has none that knows `kustomize`)')
class KubernetesTest(support.TestCase):

    def test_manifests_are_what_the_schemas_allow(self):
        subprocess.run([sys.executable, '-m', 'venv', self.path('venv')], check=True)
        got = subprocess.run([self.path('venv/bin/pip'), 'install', '-q', VALIDATE], capture_output=True, text=True)
        if got.returncode != 0:
            self.skipTest(f'{VALIDATE} cannot be fetched: {got.stderr[-300:]}')
        for folder, kinds in KINDS.items():
            done = subprocess.run(['kubectl', 'kustomize', os.path.join(support.ROOT, 'deploy/kubernetes', folder)],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual({line.split()[1] for line in done.stdout.splitlines() if line.startswith('kind: ')}, kinds)
            for version in ('1.27', '1.34'):
                checked = subprocess.run([self.path('venv/bin/kubernetes-validate'), '-k', version, '--strict',
                                          self.write('all.yaml', done.stdout)], capture_output=True, text=True)
                said = checked.stdout + checked.stderr
                # Kubernetes itself does not publish the operator's kinds.
                self.assertEqual([line for line in said.splitlines()
                                  if not any(known in line for known in ('passed', 'ServiceMonitor', 'PrometheusRule'))], [], said)
        gpu = subprocess.run(['kubectl', 'kustomize', os.path.join(support.ROOT, 'deploy/kubernetes/overlays/gpu')],
                             capture_output=True, text=True).stdout
        self.assertEqual(gpu.count('nvidia.com/gpu: 1'), 1)
        self.assertEqual(gpu.count('image: capstan:0.1.0-gpu'), 1)
        self.assertEqual(gpu.count('image: capstan:0.1.0\n'), 2)


if __name__ == '__main__':
    support.main()
