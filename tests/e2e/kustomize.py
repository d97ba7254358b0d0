"""`kubectl kustomize` for the features that deploy/kubernetes uses. Debian 12's kubectl is too old. kubernetes_files_test.py
compares the two if there is a kubectl. An unknown key is an error."""

import os

import yaml

# For lists, the key by which a strategic merge identifies an element.
MERGE_KEYS = {'containers': 'name', 'initContainers': 'name', 'env': 'name', 'volumes': 'name', 'volumeMounts': 'mountPath',
              'ports': 'containerPort'}
WITHOUT_NAMESPACE = ('Namespace', 'PersistentVolume', 'StorageClass', 'PriorityClass')


def objects(folder):
    """All objects of the kustomization in `folder`, in no special order."""
    with open(os.path.join(folder, 'kustomization.yaml'), encoding='utf-8') as f:
        wanted = yaml.safe_load(f)
    unknown = set(wanted) - {'apiVersion', 'kind', 'resources', 'namespace', 'labels', 'patches', 'images', 'configMapGenerator', 'generatorOptions'}
    if unknown:
        raise ValueError(f'{folder}: {unknown}')
    found = [config_map(folder, generator, wanted.get('generatorOptions')) for generator in wanted.get('configMapGenerator', [])]
    for name in wanted.get('resources', []):
        path = os.path.join(folder, name)
        if os.path.isdir(path):
            found += objects(path)
        else:
            with open(path, encoding='utf-8') as f:
                found += [one for one in yaml.safe_load_all(f) if one is not None]
    for patch in wanted.get('patches', []):
        if set(patch) != {'path'}:
            raise ValueError(f'{folder}: {patch}')
        with open(os.path.join(folder, patch['path']), encoding='utf-8') as f:
            for part in yaml.safe_load_all(f):
                target, = (i for i, one in enumerate(found) if identity(one) == identity(part))
                found[target] = merged(found[target], part)
    for one in found:
        if 'namespace' in wanted and one['kind'] not in WITHOUT_NAMESPACE:
            one['metadata']['namespace'] = wanted['namespace']
        for labels in wanted.get('labels', []):
            if set(labels) != {'pairs'}:
                raise ValueError(f'{folder}: {labels}')
            one['metadata'].setdefault('labels', {}).update(labels['pairs'])
        for image in wanted.get('images', []):
            rename(one, image)
    return found


def config_map(folder, generator, options):
    # A new name for each content would have to be changed wherever it is used.
    if set(generator) != {'name', 'files'} or set(options) != {'disableNameSuffixHash', 'labels'} or not options['disableNameSuffixHash']:
        raise ValueError(f'{folder}: {generator}, {options}')
    data = {}
    for name in generator['files']:
        with open(os.path.join(folder, name), encoding='utf-8') as f:
            data[os.path.basename(name)] = f.read()
    return {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': generator['name'], 'labels': dict(options['labels'])}, 'data': data}


def identity(one):
    return one['kind'], one['metadata']['name']


def merged(old, new, key=None):
    """Strategic merge, without its directives."""
    if isinstance(old, dict) and isinstance(new, dict):
        out = dict(old)
        for name, value in new.items():
            if value is None:
                out.pop(name, None)
            else:
                out[name] = merged(old[name], value, name) if name in old else value
        return out
    if isinstance(old, list) and isinstance(new, list) and key in MERGE_KEYS:
        by = MERGE_KEYS[key]
        changes = {one[by]: one for one in new}
        there = [one[by] for one in old]
        return ([one for one in new if one[by] not in there] +
                [merged(one, changes[one[by]]) if one[by] in changes else one for one in old])
    return new


def rename(part, image):
    """Gives all containers in `part` with this image its new name and tag."""
    if isinstance(part, list):
        for one in part:
            rename(one, image)
    elif isinstance(part, dict):
        for key, value in part.items():
            if key in ('containers', 'initContainers'):
                for container in value:
                    name, _, tag = container['image'].partition(':')
                    if name == image['name']:
                        tag = image.get('newTag', tag)
                        container['image'] = image.get('newName', name) + (f':{tag}' if tag else '')
            rename(value, image)
