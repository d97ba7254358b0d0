"""A container engine of the test's own, which does not touch the machine's network."""

import os
import shutil
import signal
import subprocess
import tempfile
import time

import debian_root
import support


def why_not():
    """Empty if an engine can be started here, else the reason."""
    for program in ('dockerd', 'docker', 'docker-compose', 'ip', 'nsenter', 'prometheus', 'prometheus-alertmanager'):
        if shutil.which(program) is None:
            return f'{program} is not installed: tools/install-packages test'
    return debian_root.why_not()


def operator(on, address, client, *args):
    """Output of `capstan` on the host that `on` leads to, with the certificate and token in the folder `client`."""
    done = subprocess.run(
        [*on, support.CAPSTAN, '--address', address, '--tls-cert', f'{client}/client.crt', '--tls-key', f'{client}/client.key',
         '--tls-ca', f'{client}/ca.crt', '--token-file', f'{client}/client.token', *args],
        capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise AssertionError(f'capstan {" ".join(args)}: exit code {done.returncode}\n{done.stdout}{done.stderr}')
    return done.stdout


class Engine:
    """dockerd in `namespace`, an existing network namespace from which its containers' ports are reached.

    Without one it shares the machine's network and makes no other. Builds with `--network host` reach what the machine reaches.
    """

    def __init__(self, namespace=None):
        self.on = ['nsenter', f'--net=/run/netns/{namespace}'] if namespace else []
        network = ['--bip', '10.95.0.1/24', '--default-address-pool', 'base=10.96.0.0/16,size=24']
        if not namespace:
            network = ['--bridge', 'none', '--iptables=false', '--ip-forward=false']
        self.folder = tempfile.mkdtemp(prefix='capstan-engine-')
        self.environment = dict(os.environ, DOCKER_HOST=f'unix://{self.folder}/sock', DOCKER_BUILDKIT='0',
                                DOCKER_CONFIG=self.folder)
        # Not `ip netns exec`, which hides the mounts of the control groups.
        self.log = os.path.join(self.folder, 'log')
        with open(self.log, 'wb') as log:
            self.process = subprocess.Popen(
                [*self.on, 'dockerd', '--data-root', f'{self.folder}/data', '--exec-root', f'{self.folder}/exec', '--pidfile',
                 f'{self.folder}/pid', '-H', self.environment['DOCKER_HOST'], *network], stdout=log, stderr=log,
                start_new_session=True)
        deadline = time.monotonic() + 60
        while subprocess.run(['docker', 'version'], env=self.environment, capture_output=True).returncode != 0:
            if self.process.poll() is not None or time.monotonic() > deadline:
                with open(self.log, errors='replace') as f:
                    said = f.read()[-4000:]
                self.close()
                raise AssertionError(f'dockerd does not answer:\n{said}')
            time.sleep(0.1)

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        subprocess.run(['umount', f'{self.folder}/exec/netns/default'], capture_output=True)
        shutil.rmtree(self.folder)

    def docker(self, *args, **options):
        """Runs a command that must succeed. Returns its standard output and error."""
        return debian_root.run('docker', *args, env=self.environment, **options)

    def make_images(self, package, folder):
        """Makes localhost/capstan, localhost/prometheus and localhost/alertmanager from this build and this machine's packages."""
        self.docker('import', debian_root.base(package), 'localhost/debian')
        context = os.path.join(folder, 'image')
        os.makedirs(context)
        self.docker('build', '--network', 'none', '--target', 'runtime', '--build-arg', 'BASE=localhost/debian', '-t',
                    'localhost/runtime', '-f', os.path.join(support.ROOT, 'deploy/docker/Dockerfile'), context)
        debian_root.run('cmake', '--install', debian_root.BUILD, '--prefix', os.path.join(context, 'usr'), '--strip', '--component',
                        'Unspecified')
        for program in ('prometheus', 'promtool', 'prometheus-alertmanager', 'amtool'):
            shutil.copy(shutil.which(program), context)
        for template in ('default.tmpl', 'email.tmpl'):  # Alertmanager reads both at its start
            shutil.copy(f'/usr/share/prometheus/alertmanager/{template}', context)
        for name in ('capstan', 'prometheus', 'alertmanager'):
            self.docker('build', '--network', 'none', '--target', name, '--build-arg', 'BASE=localhost/debian', '--build-arg',
                        'RUNTIME=localhost/runtime', '-t', f'localhost/{name}', '-f',
                        os.path.join(support.ROOT, 'tests/e2e/containers/Dockerfile'), context)
