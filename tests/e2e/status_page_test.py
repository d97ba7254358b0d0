"""The status page in a real browser: it shows the coordinator's history, only with a token, and never runs anybody's text."""

import http.client
import json
import math
import os
import re
import unittest
import urllib.parse

import browser
import services
import support

# It runs until it is cancelled, so that a fast machine is not done before the browser has looked.
SPEC = support.job_spec(name='shown', resources={'num_workers': 2, 'num_shards': 1},
                        data={'format': 'synthetic_digits', 'train_samples': 4000, 'test_samples': 500},
                        training={'epochs': 100000, 'global_batch_size': 64, 'optimizer': {'name': 'sgd', 'learning_rate': 0.02}})
HOSTILE = '<img src=x onerror="document.title=`owned`">'
PICTURES = os.environ.get('CAPSTAN_PICTURES')  # a folder that keeps the pictures, for a person to look at


@unittest.skipUnless(browser.CHROMIUM, 'needs chromium')
class StatusPageTest(services.ServicesTest):

    def setUp(self):
        super().setUp()
        self.ok('certs', 'init', 'ca')
        for role in ('admin', 'client', 'worker'):
            self.ok('certs', 'issue', role, '--ca', 'ca', '--name', 'ann', '--host', 'h', '--out', role)
        self.start_one('coordinator', 'capstan_coordinator', '--state-dir', self.path('state'), '--data-root', 'file:///',
                       '--checkpoint-root', 'file:///', '--heartbeat', '200ms', '--lease', '3s',
                       '--tokens', self.path('ca', 'tokens.json'))
        self.web = self.services['coordinator'].http
        self.start_node('s0', 'capstan_param_store')
        for name in ('w0', 'w1'):
            self.start_worker(name)
        self.browser = browser.Browser(self.folder)
        self.addCleanup(self.browser.close)

    def token(self, role):
        with open(self.path(role, f'{role}.token')) as f:
            return f.read().strip()

    def ask(self, path, method='GET', body=None, **headers):
        connection = http.client.HTTPConnection(self.web, timeout=20)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, answer.headers, text

    def sign_in(self):
        self.browser.open(f'http://{self.web}/')
        self.browser.run(f'document.getElementById("token").value = {json.dumps(self.token("admin"))}; document.forms[0].submit()')
        self.browser.wait('document.documentElement.dataset.round > 0', 60, 'the page behind the form')

    def show(self, job_id):
        self.browser.run(f'location.hash = {json.dumps("#/job/" + job_id)}')
        self.browser.wait('document.getElementById("loss")', 60, 'the page of the job')

    def curve(self, name):
        return [tuple(p) for p in json.loads(self.browser.run(f'document.getElementById("{name}").dataset.points || "[]"'))]

    def history(self, job_id):
        return json.loads(self.ok('metrics', job_id, '-o', 'json').out)['points']

    def drawn_values(self, name):
        """The values of the drawn line, from its coordinates and axes, and the size of a pixel."""
        path, axes = self.browser.run(
            f'(() => {{ const svg = document.querySelector("#{name} svg"); '
            'return [svg.querySelector("path.s0").getAttribute("d"), {...svg.dataset}]; })()')
        left, right, top, bottom, first, last, low, high = (
            float(axes[k]) for k in ('left', 'right', 'top', 'bottom', 'firstStep', 'lastStep', 'low', 'high'))
        points = [tuple(map(float, p)) for p in re.findall(r'[ML]([\d.-]+) ([\d.-]+)', path)]
        return ([(first + (x - left) / (right - left) * (last - first), low + (bottom - y) / (bottom - top) * (high - low))
                 for x, y in points], (last - first) / (right - left), (high - low) / (bottom - top))

    def test_the_curves_are_the_history_and_the_page_keeps_up(self):
        job_id = self.submit(SPEC)
        self.sign_in()
        self.assertIn(job_id, self.browser.text())
        self.show(job_id)
        self.browser.wait('JSON.parse(document.getElementById("loss").dataset.points || "[]").length >= 8', 90, 'eight points of the loss')
        self.assertIn('RUNNING', self.browser.text())
        self.assertIn('Restarts', ' '.join(self.facts()))
        self.assertNotIn('Skipped', ' '.join(self.facts()))
        seen = dict(self.curve('loss'))
        known = {p['step']: p['loss'] for p in self.history(job_id)}
        for step, loss in seen.items():
            self.assertEqual(loss, known[step], f'step {step}')
        self.pictures()

        self.ok('cancel', job_id)
        self.assertEqual(self.capstan('wait', job_id).code, 103)
        self.browser.wait('document.querySelector("#head .chip").textContent === "CANCELLED"', 60, 'the end of the job, by itself')
        points = self.history(job_id)
        for name, key in (('loss', 'loss'), ('accuracy', 'accuracy'), ('speed', 'samples_per_second')):
            want = [(p['step'], p[key]) for p in points if p[key] is not None]
            self.assertEqual(self.curve(name), want, name)
            drawn, pixel_x, pixel_y = self.drawn_values(name)
            self.assertEqual(len(drawn), len(want))
            for (step, value), (x, y) in zip(want, drawn):
                self.assertLess(abs(x - step), pixel_x, name)
                self.assertLess(abs(y - value), pixel_y, name)
        # Both match what the lead wrote at each step.
        folder = os.path.join(self.path('state', 'checkpoints'), job_id)
        with open(os.path.join(folder, 'metrics.jsonl')) as f:
            log = {line['step'] + 1: line['loss'] for line in map(json.loads, f)}
        for p in points:
            self.assertTrue(math.isclose(p['loss'], log[p['step']], rel_tol=1e-7), (p, log[p['step']]))
        parts = [p for p in points if p['step_seconds']]
        self.assertTrue(parts)
        for p in parts:
            named = sum(v for k, v in p.items() if k.endswith('_seconds') and k != 'step_seconds')
            self.assertLess(abs(named - p['step_seconds']), 0.05 * p['step_seconds'], p)
        text = self.browser.text()
        for word in ('Workers', 'Shards', 'w1', 's0', 'cpu', 'Cancelled', 'forward and backward', 'Submitted'):
            self.assertIn(word, text)
        self.assertEqual([line for line in self.browser.said if '401' not in line and 'Password forms' not in line], [])

        # The terminal shows the same, and so does a new coordinator.
        plot = self.ok('metrics', job_id, '--plot', '--name', 'loss', env={'LC_ALL': 'C'}).out
        self.assertIn('*', plot)
        self.assertIn(f'{points[-1]["step"]}\n', plot)
        lines = self.ok('metrics', job_id, '-o', 'csv', '--name', 'loss').out.splitlines()
        self.assertEqual(lines[0], 'step,time,loss')
        self.assertEqual(len(lines), len(points) + 1)
        self.assertEqual(self.capstan('metrics', job_id, '--name', 'los').code, 2)
        self.assertEqual(self.capstan('metrics', 'nobody-abcd').code, 102)
        self.assertEqual(self.ask('/api/job?id=nobody-abcd', Authorization='Bearer ' + self.token('client'))[0], 404)

    def facts(self):
        return self.browser.run('[...document.querySelectorAll("#head .facts > *")].map((fact) => fact.textContent)')

    def test_steps_that_were_skipped_are_shown(self):
        # Such a rate makes loss and gradient infinite. The third such step in a row ends the job.
        job_id = self.submit(dict(SPEC, training=dict(SPEC['training'], optimizer={'name': 'sgd', 'learning_rate': 1e30})))
        self.assertEqual(self.capstan('wait', job_id).code, 100)
        job = self.describe(job_id)
        self.assertEqual(job['reason'], 'NonFiniteLoss', job)
        skipped = job['progress']['skipped_steps']
        self.assertGreaterEqual(skipped, 2, job)
        self.sign_in()
        self.show(job_id)
        self.browser.wait('document.querySelector("#head .facts")', 60, 'what is known of the job')
        self.assertIn(f'Skipped steps{skipped} not finite', self.facts())

    def test_a_job_whose_targets_are_numbers_has_no_accuracy(self):
        for name, count in (('train', 400), ('test', 40)):
            self.write(f'set/{name}.csv', ''.join(f'{i % 7 / 7},{i % 5},{i % 7}\n' for i in range(count)))
        busy = self.submit(SPEC)
        spec = {**SPEC, 'name': 'price', 'model': {'name': 'mlp'}, 'data': {'format': 'csv', 'uri': self.path('set')}}
        spec['training'] = {**SPEC['training'], 'loss': 'mean_squared_error'}
        job_id = self.submit(spec)
        self.sign_in()
        self.show(job_id)
        self.browser.wait('document.querySelector("#head .facts")', 60, 'what is known of the job')
        self.assertIn('PENDING', self.browser.text())  # it waits for the slots of the other one, and has no loss
        self.assertEqual([fact for fact in self.facts() if 'Loss' in fact or 'Accuracy' in fact], ['Loss– training', 'Loss– test set'])
        hidden = 'document.getElementById("accuracy").closest("[hidden]") !== null'
        self.assertTrue(self.browser.run(hidden))
        self.ok('cancel', busy)
        self.browser.wait('/Loss[0-9.]+ test set, epoch [0-9]+/.test([...document.querySelectorAll("#head .facts > *")].map((f) => f.textContent).join())', 90,
                          'the loss of the test set')
        self.assertNotIn('Accuracy', ' '.join(self.facts()))
        self.assertTrue(self.browser.run(hidden))
        self.show(busy)
        self.browser.wait('document.querySelector("#head h1").textContent === ' + json.dumps(busy), 60, 'the page of the other job')
        self.assertIn('Accuracy', ' '.join(self.facts()))
        self.assertFalse(self.browser.run(hidden))

    def pictures(self):
        """At the width of a phone and of a desktop, light and dark: nothing overflows, and all text is readable."""
        for width in (390, 1280):
            for dark in (False, True):
                self.browser.look(width, dark)
                self.browser.run('new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))')
                self.assertLessEqual(self.browser.run('document.documentElement.scrollWidth'), width)
                if PICTURES:
                    self.browser.picture(os.path.join(PICTURES, f'status-page-{width}-{"dark" if dark else "light"}.png'))
                for ink, ground in (('text', 'card'), ('text', 'ground'), ('faint', 'card'), ('faint', 'ground'), ('link', 'card'),
                                    ('good', 'good-ground'), ('bad', 'bad-ground'), ('warn', 'warn-ground'), ('busy', 'busy-ground'),
                                    ('bad', 'card'), ('warn', 'card'), ('accent-text', 'accent')):
                    contrast = self.contrast(ink, ground)
                    self.assertGreaterEqual(contrast, 3.0 if ink == 'accent-text' else 4.5, (ink, ground, dark))

    def contrast(self, ink, ground):
        """By WCAG 2.1, of two of the page's colours."""
        def luminance(name):
            text = self.browser.run(f'getComputedStyle(document.documentElement).getPropertyValue("--{name}")').strip().lstrip('#')
            text = ''.join(2 * c for c in text) if len(text) == 3 else text
            parts = [int(text[i:i + 2], 16) / 255 for i in (0, 2, 4)]
            red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
            return 0.2126 * red + 0.7152 * green + 0.0722 * blue
        low, high = sorted((luminance(ink), luminance(ground)))
        return (high + 0.05) / (low + 0.05)

    def test_without_a_token_there_is_a_form_and_nothing_else(self):
        for path in ('/', '/page.js', '/api/overview', '/api/job?id=x'):
            for headers in ({}, {'Cookie': 'capstan_token=capstan_forged'}, {'Authorization': f'Bearer {self.token("worker")}'}):
                status, _, text = self.ask(path, **headers)
                self.assertEqual(status, 401, (path, headers))
                self.assertNotIn('jobs', text)
        status, headers, text = self.ask('/')
        self.assertIn('type="password"', text)
        policy = headers['Content-Security-Policy']
        self.assertIn("default-src 'none'; script-src 'self'; style-src 'self'", policy)
        self.assertNotIn('unsafe', policy)
        self.assertEqual(headers['X-Content-Type-Options'], 'nosniff')
        form = {'Content-Type': 'application/x-www-form-urlencoded'}
        status, headers, _ = self.ask('/login', 'POST', 'token=capstan_forged', **form)
        self.assertEqual((status, headers['Set-Cookie']), (401, None))
        status, headers, _ = self.ask('/login', 'POST', 'token=' + urllib.parse.quote(self.token('client')), **form)
        self.assertEqual((status, headers['Location']), (303, '/'))
        self.assertRegex(headers['Set-Cookie'], '^capstan_token=capstan_[^;]+; Path=/; HttpOnly; SameSite=Strict$')
        cookie = {'Cookie': headers['Set-Cookie'].split(';')[0]}
        self.assertEqual(self.ask('/api/overview', **cookie)[0], 200)
        # A job without an owner. Only an admin may see its log lines.
        job_id = self.submit(support.job_spec(name='mine'))
        for role, shown in (('client', False), ('admin', True)):
            status, _, text = self.ask(f'/api/job?id={job_id}', Authorization='Bearer ' + self.token(role))
            self.assertEqual((status, json.loads(text)['log_is_shown'], bool(json.loads(text)['log'])), (200, shown, shown))
        self.assertIn('Max-Age=0', self.ask('/logout', 'POST', '', **form, **cookie)[1]['Set-Cookie'])
        # A withdrawn token is refused at the next request, and the page shows the form again.
        self.sign_in()
        self.assertEqual(self.browser.run('document.cookie'), '')  # scripts cannot see it
        with open(self.path('ca', 'tokens.json'), 'w') as f:
            json.dump({'version': 1, 'tokens': []}, f)
        self.assertEqual(self.ask('/api/overview', **cookie)[0], 401)
        self.browser.wait('document.getElementById("token")', 60, 'the form')

    def test_a_link_to_a_job_survives_signing_in(self):
        job_id = self.submit(SPEC)
        self.browser.open(f'http://{self.web}/#/job/{job_id}')
        self.browser.wait('document.getElementById("token")', 60, 'the form')
        for token, there in (('capstan_forged', '.error'), (self.token('admin'), '#loss')):  # a mistyped token loses nothing
            self.browser.run(f'document.getElementById("token").value = {json.dumps(token)}; document.forms[0].submit()')
            # Complete, because before the form's script has run, the form does not have the fragment.
            self.browser.wait(f'document.readyState === "complete" && document.querySelector("{there}")', 60, there)
        self.assertEqual(self.browser.run('location.pathname + location.hash'), f'/#/job/{job_id}')
        self.ok('cancel', job_id)

    def test_text_of_others_is_never_more_than_text(self):
        refused = self.capstan('submit', self.write('bad.yaml', json.dumps(dict(SPEC, name=HOSTILE))))
        self.assertEqual(refused.code, 2, refused)
        # A failure's message, its event and its log line contain the path in the job file.
        job_id = self.submit(support.job_spec(name='shown', data={'format': 'idx', 'uri': f'file:///tmp/{HOSTILE}'}))
        self.capstan('wait', job_id)
        self.sign_in()
        self.show(job_id)
        self.browser.wait(f'document.querySelector("#head .message")?.textContent.includes({json.dumps(HOSTILE)})', 60, 'the hostile message')
        self.is_inert()
        # Anything else that a coordinator could ever answer, with every text hostile.
        self.browser.run(f'''(() => {{
          const real = window.fetch, hostile = {json.dumps(HOSTILE)};
          const poisoned = (x, key) => typeof x === 'string' ? (/time|_at$/.test(key) ? x : hostile) :
            Array.isArray(x) ? x.map((y) => poisoned(y, key)) :
            x && typeof x === 'object' ? Object.fromEntries(Object.entries(x).map(([k, v]) => [k, poisoned(v, k)])) : x;
          window.fetch = async (...what) => new Response(JSON.stringify(poisoned(await (await real(...what)).json(), '')));
        }})()''')
        self.browser.wait(f'document.querySelector("h1").textContent === {json.dumps(HOSTILE)}', 60, 'the hostile name')
        self.is_inert()
        self.browser.run('location.hash = "#/"')
        self.browser.wait(f'document.querySelector("#jobs a")?.textContent === {json.dumps(HOSTILE)}', 60, 'the hostile list')
        self.is_inert()

    def is_inert(self):
        self.assertIn(HOSTILE, self.browser.text())
        self.assertEqual(self.browser.run('document.querySelectorAll("main img").length'), 0)
        self.assertNotEqual(self.browser.run('document.title'), 'owned')
        self.assertEqual([line for line in self.browser.said if '401' not in line and 'Password forms' not in line], [])


if __name__ == '__main__':
    support.main()
