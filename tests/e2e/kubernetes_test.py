"""deploy/kubernetes, rendered by kustomize and held against the published schemas of Kubernetes (docs/deploy.md, section 4)."""

import os
import shutil
import subprocess
import sys
import unittest

import support
from kubernetes_files_test import MANIFESTS, render

VALIDATE = 'kubernetes-validate==1.37.0'
KINDS = {
    'base': {'Namespace', 'Service', 'StatefulSet', 'PersistentVolumeClaim', 'PodDisruptionBudget', 'NetworkPolicy'},
    'overlays/gpu': {'Namespace', 'Service', 'StatefulSet', 'PersistentVolumeClaim', 'PodDisruptionBudget', 'NetworkPolicy'},
    'data': {'Job', 'NetworkPolicy'},
    'data/upload': {'Pod'},
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
            rendered = render(os.path.join(MANIFESTS, folder))
            self.assertEqual({line.split()[1] for line in rendered.splitlines() if line.startswith('kind: ')}, kinds)
            for version in ('1.27', '1.34'):
                checked = subprocess.run([self.path('venv/bin/kubernetes-validate'), '-k', version, '--strict',
                                          self.write('all.yaml', rendered)], capture_output=True, text=True)
                said = checked.stdout + checked.stderr
                # Kubernetes itself does not publish the operator's kinds.
                self.assertEqual([line for line in said.splitlines()
                                  if not any(known in line for known in ('passed', 'ServiceMonitor', 'PrometheusRule'))], [], said)


if __name__ == '__main__':
    support.main()
