"""deploy/grafana and deploy/prometheus: the files by themselves, then every query against a cluster that trains."""

import copy
import json
import os
import shutil
import subprocess
import sys
import unittest

import support

DEPLOY = os.path.join(support.ROOT, 'deploy')
DASHBOARDS = os.path.join(DEPLOY, 'grafana', 'dashboards')
RULES = os.path.join(DEPLOY, 'prometheus')
SDK = 'grafana-foundation-sdk==1769699379!11.6.0'


def dashboards():
    """Name -> dashboard."""
    found = {}
    for name in sorted(os.listdir(DASHBOARDS)):
        with open(os.path.join(DASHBOARDS, name), encoding='utf-8') as f:
            found[name] = json.load(f)
    return found


class FilesTest(support.TestCase):

    def test_the_json_is_what_the_generator_writes(self):
        check = subprocess.run([sys.executable, os.path.join(DEPLOY, 'grafana', 'generate.py'), '--check'],
                               capture_output=True, text=True, timeout=60)
        self.assertEqual(check.returncode, 0, check.stderr)

    def test_the_published_schema_takes_all_of_the_json(self):
        python = support.python_with('grafana', SDK)
        schema = [python, os.path.join(support.ROOT, 'tests', 'e2e', 'grafana_schema.py')]
        files = [os.path.join(DASHBOARDS, name) for name in dashboards()]
        done = subprocess.run([*schema, *files], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        # It does look: a misspelt key, and an option that panels of this kind do not have.
        wrong = copy.deepcopy(dashboards()['capstan-job.json'])
        wrong['panels'][1]['transparant'] = True
        next(panel for panel in wrong['panels'] if panel['type'] == 'stat')['options']['colour'] = 'red'
        done = subprocess.run([*schema, self.write('wrong.json', json.dumps(wrong))], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn('.transparant is not in the schema', done.stderr)
        self.assertIn('.options.colour is not in the schema', done.stderr)

    def test_every_panel_says_what_it_shows(self):
        names = set()
        for name, dashboard in dashboards().items():
            self.assertEqual(f'{dashboard["uid"]}.json', name)
            self.assertEqual(dashboard['templating']['list'][0]['type'], 'datasource')
            ids = [panel['id'] for panel in dashboard['panels']]
            self.assertEqual(len(ids), len(set(ids)), name)
            for panel in dashboard['panels']:
                if panel['type'] == 'row':
                    continue
                self.assertTrue(panel['description'], panel['title'])
                if panel['type'] != 'text':
                    self.assertTrue(panel['fieldConfig']['defaults']['unit'], panel['title'])
                    self.assertTrue(panel['fieldConfig']['defaults']['thresholds']['steps'], panel['title'])
                    self.assertEqual(panel['datasource']['uid'], '${datasource}', panel['title'])
                names.add(panel['title'])
        self.assertGreater(len(names), 40)

    @unittest.skipUnless(shutil.which('promtool'), 'NOT TESTED: needs promtool; Debian has it in the package prometheus')
    def test_promtool_takes_configuration_and_rules_and_every_alert_fires_and_resolves(self):
        for arguments in (['check', 'config', 'prometheus.yml'], ['check', 'rules', 'recording.yml', 'alerts.yml'],
                          ['test', 'rules', 'rules_test.yml']):
            done = subprocess.run(['promtool', *arguments], cwd=RULES, capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(os.path.join(RULES, 'rules_test.yml'), encoding='utf-8') as f:
            tested = f.read()
        with open(os.path.join(RULES, 'alerts.yml'), encoding='utf-8') as f:
            alerts = [line.split('alert:')[1].strip() for line in f if 'alert:' in line]
        self.assertGreaterEqual(len(alerts), 8)
        for alert in alerts:
            # Before, while and after it fires.
            self.assertGreaterEqual(tested.count(f'alertname: {alert}'), 3, alert)


if __name__ == '__main__':
    support.main()
