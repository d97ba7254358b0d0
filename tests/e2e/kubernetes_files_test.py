"""deploy/kubernetes, rendered by kustomize: what it requests from a cluster (docs/deploy.md, section 4)."""

import json
import os
import shutil
import subprocess
import unittest

try:
    import yaml
except ImportError:
    yaml = None

import support

if yaml:
    import kustomize

MANIFESTS = os.path.join(support.ROOT, 'deploy', 'kubernetes')


FOLDERS = ('base', 'overlays/gpu', 'data', 'data/upload')


@unittest.skipUnless(yaml, 'NOT TESTED: needs python3-yaml')
class WhatIsAskedForTest(support.TestCase):

    def objects(self, folder):
        """(kind, name) -> object, for all of `folder`."""
        return {kustomize.identity(found): found for found in kustomize.objects(folder)}

    @unittest.skipUnless(shutil.which('kubectl'), 'NOT TESTED: needs a kubectl of 1.27 or later; Debian 12 has none')
    def test_kubectl_reads_the_same_out_of_the_files(self):
        for folder in (*(os.path.join(MANIFESTS, name) for name in FOLDERS), self.another_tag()):
            done = subprocess.run(['kubectl', 'kustomize', folder], capture_output=True, text=True)
            if 'unknown field "labels"' in done.stderr:
                self.skipTest('NOT TESTED: this kubectl is older than 1.27')
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(self.objects(folder), {kustomize.identity(found): found for found in yaml.safe_load_all(done.stdout)}, folder)

    def base(self):
        return self.objects(os.path.join(MANIFESTS, 'base'))

    @staticmethod
    def pod(found):
        return found['spec'] if found['kind'] == 'Pod' else found['spec']['template']['spec']

    @staticmethod
    def variables(container):
        return {variable['name']: variable.get('value') for variable in container['env']}

    def another_tag(self):
        """Makes an overlay with another tag for the images without CUDA, and returns its folder."""
        shutil.copytree(MANIFESTS, self.path('kubernetes'))
        self.write('kubernetes/mine/kustomization.yaml', json.dumps({
            'resources': ['../overlays/gpu'], 'images': [{'name': 'capstan', 'newName': 'registry.example/capstan', 'newTag': '0.3.0'}]}))
        return self.path('kubernetes/mine')

    def test_another_tag_leaves_workers_with_gpus_their_image(self):
        found = self.objects(self.another_tag())
        images = {name: self.pod(one)['containers'][0]['image'] for (kind, name), one in found.items() if kind == 'StatefulSet'}
        self.assertEqual(images, {'coordinator': 'registry.example/capstan:0.3.0', 'shard': 'registry.example/capstan:0.3.0',
                                  'worker': 'capstan-gpu:0.2.0'})
        self.assertEqual(self.pod(found['StatefulSet', 'worker'])['containers'][0]['resources']['limits']['nvidia.com/gpu'], 1)

    def test_data_gets_into_the_claim_that_workers_mount(self):
        claimed = [volume['persistentVolumeClaim'] for volume in self.pod(self.base()['StatefulSet', 'worker'])['volumes']
                   if volume['name'] == 'data']
        self.assertEqual(claimed, [{'claimName': 'data', 'readOnly': True}])
        for folder, name in (('data', ('Job', 'load-data')), ('data/upload', ('Pod', 'upload-data'))):
            found = self.objects(os.path.join(MANIFESTS, folder))
            pod = self.pod(found[name])
            self.assertIn({'name': 'data', 'persistentVolumeClaim': {'claimName': 'data'}}, pod['volumes'])
            container, = pod['containers']
            self.assertIn({'name': 'data', 'mountPath': '/data'}, container['volumeMounts'])
            self.assertEqual(container['image'], 'capstan:0.2.0')
            self.assertGreater(found[name]['spec']['activeDeadlineSeconds'], 0)
        command = self.pod(self.objects(os.path.join(MANIFESTS, 'data'))['Job', 'load-data'])['containers'][0]['command']
        self.assertEqual(command[:3], ['capstan', 'data', 'get'])
        self.assertEqual(command[command.index('--out') + 1], f'/data/{command[3]}')

    def test_a_planned_end_has_the_time_that_a_hand_over_takes(self):
        found = self.base()
        shard = self.pod(found['StatefulSet', 'shard'])
        hand_over = self.variables(shard['containers'][0])['CAPSTAN_HAND_OVER']
        self.assertGreater(shard['terminationGracePeriodSeconds'], int(hand_over.rstrip('s')) + 60)
        for name in ('shard', 'worker'):
            spec = found['StatefulSet', name]['spec']
            self.assertEqual(spec['updateStrategy'], {'type': 'RollingUpdate'})
            self.assertGreater(spec['minReadySeconds'], 0)
            self.assertGreater(self.pod(found['StatefulSet', name])['terminationGracePeriodSeconds'], 60)
            budget = found['PodDisruptionBudget', name]['spec']
            self.assertEqual((budget['maxUnavailable'], budget['unhealthyPodEvictionPolicy']), (1, 'AlwaysAllow'))
            self.assertEqual(budget['selector'], spec['selector'])

    def test_shards_and_workers_lie_on_many_machines_and_wait_for_none(self):
        found = self.base()
        for name in ('shard', 'worker'):
            spread, = self.pod(found['StatefulSet', name])['topologySpreadConstraints']
            self.assertEqual((spread['topologyKey'], spread['maxSkew'], spread['whenUnsatisfiable']),
                             ('kubernetes.io/hostname', 1, 'ScheduleAnyway'))
            self.assertEqual(spread['labelSelector'], found['StatefulSet', name]['spec']['selector'])
        term, = self.pod(found['StatefulSet', 'shard'])['affinity']['podAntiAffinity']['preferredDuringSchedulingIgnoredDuringExecution']
        self.assertEqual(term['podAffinityTerm']['labelSelector'], found['StatefulSet', 'shard']['spec']['selector'])

    def test_every_container_has_bounds_and_no_rights(self):
        for folder in FOLDERS:
            for (kind, name), one in self.objects(os.path.join(MANIFESTS, folder)).items():
                if kind not in ('StatefulSet', 'Job', 'Pod'):
                    continue
                self.assertTrue(self.pod(one)['securityContext']['runAsNonRoot'], name)
                for container in self.pod(one)['containers']:
                    resources = container['resources']
                    self.assertEqual({'cpu', 'memory'} - set(resources['requests']), set(), name)
                    self.assertIn('memory', resources['limits'], name)
                    self.assertEqual(container['securityContext']['capabilities'], {'drop': ['ALL']}, name)
                    for mount in container['volumeMounts']:  # a file that is mounted by itself never changes
                        self.assertEqual({key for key in mount if key.startswith('subPath')}, set(), f'{name} {mount}')
                for volume in self.pod(one)['volumes']:
                    if 'emptyDir' in volume:
                        self.assertIn('sizeLimit', volume['emptyDir'], f'{name} {volume["name"]}')

    def test_the_network_lets_in_who_has_to_and_nobody_dials_a_worker(self):
        policies = {name: one['spec'] for (kind, name), one in self.base().items() if kind == 'NetworkPolicy'}
        self.assertEqual(set(policies), {'coordinator', 'shard', 'metrics', 'out'})
        mine = [{'app.kubernetes.io/name': 'capstan', 'app.kubernetes.io/component': name} for name in ('coordinator', 'shard', 'worker')]

        def selects(selector, labels):
            expressions = selector.get('matchExpressions', [])
            self.assertLessEqual({one['operator'] for one in expressions}, {'In'})
            return (all(labels.get(key) == value for key, value in selector.get('matchLabels', {}).items()) and
                    all(labels.get(one['key']) in one['values'] for one in expressions))

        def let_in(target, source, port):
            return any(selects(policy['podSelector'], target) and {'port': port} in rule['ports'] and
                       any('namespaceSelector' not in peer and selects(peer['podSelector'], source) for peer in rule['from'])
                       for policy in policies.values() for rule in policy.get('ingress', []))

        coordinator, shard, worker = mine
        loader = dict(coordinator, **{'app.kubernetes.io/component': 'data'})
        for target, sources in ((coordinator, (shard, worker)), (shard, (shard, worker)), (worker, ())):
            for source in (*mine, loader):
                self.assertEqual(let_in(target, source, 'grpc'), source in sources, (target, source))
                self.assertFalse(let_in(target, source, 'metrics'))
        # All three are closed to other pods: policies of both directions select them.
        for labels in mine:
            kinds = {kind for policy in policies.values() if selects(policy['podSelector'], labels) for kind in policy['policyTypes']}
            self.assertEqual(kinds, {'Ingress', 'Egress'})
        # The allowed outgoing ports are the ports on which the services listen.
        listening = {port['containerPort'] for name in ('coordinator', 'shard')
                     for port in self.pod(self.base()['StatefulSet', name])['containers'][0]['ports'] if port['name'] == 'grpc'}
        led = {port['port'] for rule in policies['out']['egress'] if 'to' in rule for port in rule['ports']}
        self.assertEqual(led, listening)


if __name__ == '__main__':
    support.main()
