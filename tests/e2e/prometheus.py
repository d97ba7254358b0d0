"""A Prometheus of a test: loopback, a port chosen by the system, data in the test's folder."""

import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request


def get(address, path):
    with urllib.request.urlopen(f'http://{address}{path}', timeout=10) as answer:
        return answer.read().decode()


class Prometheus:
    """`config` is the text of prometheus.yml. It ends with the test."""

    def __init__(self, test, config):
        log = test.path('prometheus.log')
        with open(log, 'wb') as out:
            process = subprocess.Popen(
                ['prometheus', f'--config.file={test.write("prometheus.yml", config)}',
                 f'--storage.tsdb.path={test.path("tsdb")}', '--web.listen-address=127.0.0.1:0'], stdout=out, stderr=out)
        test.addCleanup(process.wait)
        test.addCleanup(process.kill)
        deadline = time.monotonic() + 60
        while True:
            with open(log, errors='replace') as f:
                said = f.read()
            listens = re.search(r'msg="Listening on" address=(\S+)', said)
            if listens:
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f'prometheus does not listen\n{said}')
            time.sleep(0.05)
        self.address = listens[1]

    def api(self, path, **parameters):
        """The data of an answer. None while there is no answer."""
        try:
            return json.loads(get(self.address, f'/api/v1/{path}?{urllib.parse.urlencode(parameters, doseq=True)}'))['data']
        except OSError:
            return None

    def query(self, expression):
        """[(labels, number), ...]. It is an error if Prometheus refuses the expression."""
        path = '/api/v1/query?' + urllib.parse.urlencode({'query': expression})
        try:
            answer = json.loads(get(self.address, path))
        except urllib.error.HTTPError as error:
            if error.code == 400 or error.code == 422:
                raise AssertionError(f'{expression}: {error.read().decode()}') from error
            return []
        except OSError:
            return []
        return [(row['metric'], float(row['value'][1])) for row in answer['data']['result']]
