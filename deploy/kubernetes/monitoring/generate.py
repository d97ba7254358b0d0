#!/usr/bin/env python3
"""Writes rules.yaml beside this file: the rules of deploy/prometheus as a PrometheusRule for the Prometheus operator.

    deploy/kubernetes/monitoring/generate.py            writes rules.yaml
    deploy/kubernetes/monitoring/generate.py --check    fails if it differs from what would be written

The file is committed. To change a rule, change deploy/prometheus and run this script. Needs only Python's standard library.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
RULES = os.path.join(HERE, '..', '..', 'prometheus')
FILE = os.path.join(HERE, 'rules.yaml')
HEAD = '''# Written by generate.py of this folder from deploy/prometheus/recording.yml and alerts.yml: change those.
# An operator with a ruleSelector wants its labels here too: `labels` in an overlay's kustomization.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: capstan
  labels: {app.kubernetes.io/name: capstan}
spec:
  groups:
'''


def groups(name):
    """The lines below `groups:` of a rule file."""
    with open(os.path.join(RULES, name), encoding='utf-8') as f:
        head, found, rest = f.read().partition('groups:\n')
    if not found or any(line and not line.startswith('#') for line in head.splitlines()):
        sys.exit(f'deploy/prometheus/{name}: want comments, then `groups:` alone')
    return rest


def content():
    lines = (groups('recording.yml') + groups('alerts.yml')).splitlines()
    return HEAD + ''.join(f'  {line}\n' if line else '\n' for line in lines)


def main(arguments):
    if arguments not in ([], ['--check']):
        sys.exit(__doc__)
    if not arguments:
        with open(FILE, 'w', encoding='utf-8') as f:
            f.write(content())
        return
    with open(FILE, encoding='utf-8') as f:
        if f.read() != content():
            sys.exit('deploy/kubernetes/monitoring/rules.yaml is not what generate.py beside it writes')


if __name__ == '__main__':
    main(sys.argv[1:])
