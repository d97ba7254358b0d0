"""Headless Chromium for tests, controlled through two pipes (DevTools protocol), without a port, a driver or a library."""

import base64
import json
import os
import select
import shutil
import subprocess
import time

CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser')


class Browser:
    """One page of one Chromium. Every wait has a limit, and its error says what it waited for."""

    def __init__(self, folder):
        self.folder = folder
        to_read, self._out = os.pipe()
        self._in, to_write = os.pipe()
        # The protocol's pipes are descriptors 3 and 4 of the browser.
        script = f'exec 3<&{to_read} 4>&{to_write}; exec "$0" "$@"'
        with open(os.path.join(folder, 'chromium.log'), 'wb') as log:
            self._process = subprocess.Popen(
                ['bash', '-c', script, CHROMIUM, '--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage',
                 '--hide-scrollbars', '--no-first-run', '--disable-extensions', '--disable-background-networking',
                 '--remote-debugging-pipe', f'--user-data-dir={os.path.join(folder, "profile")}', 'about:blank'],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(to_read, to_write),
                env=dict(os.environ, HOME=folder, DBUS_SESSION_BUS_ADDRESS='disabled:'))
        os.close(to_read)
        os.close(to_write)
        self._bytes = b''
        self._number = 0
        self._session = None
        self.said = []  # messages of pages on the console, including errors and policy violations
        pages = [t for t in self.call('Target.getTargets')['targetInfos'] if t['type'] == 'page']
        target = pages[0]['targetId'] if pages else self.call('Target.createTarget', url='about:blank')['targetId']
        self._session = self.call('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
        for domain in ('Page', 'Runtime', 'Log', 'Network'):
            self.call(domain + '.enable')

    def close(self):
        """Ends the browser with all its processes."""
        self._session = None
        try:
            self.call('Browser.close')
        except (AssertionError, OSError):
            pass
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def _message(self, deadline, what):
        while b'\0' not in self._bytes:
            ready, _, _ = select.select([self._in], [], [], max(0, deadline - time.monotonic()))
            piece = os.read(self._in, 1 << 16) if ready else b''
            if not piece:
                raise AssertionError(f'Chromium does not answer {what}')
            self._bytes += piece
        text, self._bytes = self._bytes.split(b'\0', 1)
        return json.loads(text)

    def call(self, method, seconds=60, **params):
        self._number += 1
        message = {'id': self._number, 'method': method, 'params': params}
        if self._session:
            message['sessionId'] = self._session
        os.write(self._out, json.dumps(message).encode() + b'\0')
        deadline = time.monotonic() + seconds
        while True:
            answer = self._message(deadline, method)
            if answer.get('id') == self._number:
                if 'error' in answer:
                    raise AssertionError(f'{method}: {answer["error"]}')
                return answer['result']
            if answer.get('method') == 'Log.entryAdded':
                self.said.append(answer['params']['entry']['text'])
            elif answer.get('method') == 'Runtime.exceptionThrown':
                self.said.append(json.dumps(answer['params']['exceptionDetails']))

    def run(self, script):
        """Returns the value of a JavaScript expression in the page."""
        result = self.call('Runtime.evaluate', expression=script, returnByValue=True, awaitPromise=True)
        if 'exceptionDetails' in result:
            raise AssertionError(f'{script}: {result["exceptionDetails"]}')
        return result['result'].get('value')

    def wait(self, script, seconds, what):
        """Waits until the expression is true in the page. An element counts as true."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if self.run(f'Boolean({script})'):
                    return
            except AssertionError:  # the page is being replaced
                pass
            if time.monotonic() > deadline:
                raise AssertionError(f'{what} not within {seconds} s; the page says {self.text()!r}')
            select.select([], [], [], 0.1)

    def text(self):
        return self.run('document.body ? document.body.innerText : ""')

    def open(self, url):
        self.call('Page.navigate', url=url)
        self.wait(f'document.readyState === "complete" && location.href.startsWith({json.dumps(url.split("#")[0])})', 60, url)

    def look(self, width, dark):
        """Simulates a screen of this width with this colour scheme."""
        self.call('Emulation.setDeviceMetricsOverride', width=width, height=844, deviceScaleFactor=1, mobile=width < 500)
        self.call('Emulation.setEmulatedMedia', features=[
            {'name': 'prefers-color-scheme', 'value': 'dark' if dark else 'light'}, {'name': 'prefers-reduced-motion', 'value': 'reduce'}])

    def picture(self, path):
        """Saves the whole page as PNG."""
        shot = self.call('Page.captureScreenshot', format='png', captureBeyondViewport=True)
        with open(path, 'wb') as f:
            f.write(base64.b64decode(shot['data']))
