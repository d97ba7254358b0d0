"""deploy/kubernetes, rendered as by kustomize, against the published schemas of Kubernetes (docs/deploy.md, section 4)."""

import os
import subprocess
import sys

import kustomize
import support
import yaml
from kubernetes_files_test import MANIFESTS

VALIDATE = 'kubernetes-validate==1.37.0'
KINDS = {
    'base': {'Namespace', 'Service', 'StatefulSet', 'PersistentVolumeClaim', 'PodDisruptionBudget', 'NetworkPolicy'},
    'overlays/gpu': {'Namespace', 'Service', 'StatefulSet', 'PersistentVolumeClaim', 'PodDisruptionBudget', 'NetworkPolicy'},
    'data': {'Job', 'NetworkPolicy'},
    'data/upload': {'Pod'},
    'monitoring': {'ConfigMap', 'PrometheusRule', 'ServiceMonitor'},
}


class KubernetesTest(support.TestCase):

    def test_manifests_are_what_the_schemas_allow(self):
        subprocess.run([sys.executable, '-m', 'venv', self.path('venv')], check=True)
        got = subprocess.run([self.path('venv/bin/pip'), 'install', '-q', VALIDATE], capture_output=True, text=True)
        if got.returncode != 0:
            self.skipTest(f'{VALIDATE} cannot be fetched: {got.stderr[-300:]}')
        for folder, kinds in KINDS.items():
            objects = list(kustomize.objects(os.path.join(MANIFESTS, folder)))
            self.assertEqual({one['kind'] for one in objects}, kinds)
            rendered = yaml.safe_dump_all(objects)
            for version in ('1.27', '1.34'):
                checked = subprocess.run([self.path('venv/bin/kubernetes-validate'), '-k', version, '--strict',
                                          self.write('all.yaml', rendered)], capture_output=True, text=True)
                said = checked.stdout + checked.stderr
                # Kubernetes does not publish the schemas of the operator's kinds.
                self.assertEqual([line for line in said.splitlines()
                                  if not any(known in line for known in ('passed', 'ServiceMonitor', 'PrometheusRule'))], [], said)


if __name__ == '__main__':
    support.main()
