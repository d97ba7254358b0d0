"""The Debian package: its content, and that a bare system with it trains (docs/deploy.md, section 1)."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

import debian_root
import support

UNITS = ['capstan-coordinator', 'capstan-gpu-worker', 'capstan-param-store']
PROGRAMS = ['capstan', 'capstan_coordinator', 'capstan_gpu_worker', 'capstan_param_store']


class PackageTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        reason = debian_root.why_not()
        if reason:
            raise unittest.SkipTest(reason)
        folder = tempfile.TemporaryDirectory(prefix='capstan-package-')
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.package = debian_root.make_package(os.path.join(cls.folder, 'made'))

    def control(self):
        folder = os.path.join(self.folder, 'control')
        if not os.path.exists(folder):
            debian_root.run('dpkg-deb', '-e', self.package, folder)
        return folder

    def test_it_holds_programs_units_settings_examples_and_pages(self):
        entries = [line.split(None, 5) for line in debian_root.run('dpkg-deb', '-c', self.package).splitlines()]
        files = {path.lstrip('.'): mode for mode, owner, _, _, _, path in entries if not path.endswith('/')}
        self.assertEqual({owner for _, owner, *_ in entries}, {'root/root'})
        for program in PROGRAMS:
            self.assertEqual(files.pop(f'/usr/bin/{program}'), '-rwxr-xr-x')
        self.assertEqual(set(files.values()), {'-rw-r--r--'})
        for unit in UNITS:
            self.assertIn(f'/lib/systemd/system/{unit}.service', files)
        for page in ('README.md', 'deploy.md', 'operations.md'):
            self.assertIn(f'/usr/share/doc/capstan/{page}', files)
        self.assertIn('/usr/share/capstan/examples/lenet.yaml', files)
        for path in ('prometheus/prometheus.yml', 'prometheus/recording.yml', 'prometheus/alerts.yml',
                     'grafana/dashboards/capstan-job.json', 'grafana/dashboards/capstan-fleet.json',
                     'grafana/provisioning/dashboards/capstan.yaml', 'grafana/provisioning/datasources/prometheus.yaml'):
            self.assertIn(f'/usr/share/capstan/{path}', files)
        self.assertIn('/usr/share/doc/capstan/copyright', files)
        settings = {path for path in files if path.startswith('/etc/')}
        self.assertEqual(settings, {f'/etc/capstan/{name}.env' for name in ('coordinator', 'gpu_worker', 'param_store')})
        with open(os.path.join(self.control(), 'conffiles')) as f:
            self.assertEqual(set(f.read().split()), settings)
        # It has nothing else: no header, no static library, no test.
        places = ('/lib/systemd/system/', '/usr/share/doc/capstan/', '/usr/share/capstan/examples/', '/usr/share/capstan/prometheus/',
                  '/usr/share/capstan/grafana/', '/etc/capstan/')
        self.assertEqual([path for path in files if not path.startswith(places)], [])

    def test_its_control_files_are_in_order(self):
        needed = debian_root.depends(self.package)
        for name in ('libgrpc++1.51', 'libprotobuf32', 'libsqlite3-0', 'libssl3', 'passwd'):
            self.assertIn(name, needed)
        self.assertFalse([name for name in needed if name.endswith('-dev')], needed)
        # The image has the same programs, so it needs the same libraries.
        with open(os.path.join(support.ROOT, 'deploy/docker/Dockerfile')) as f:
            listed = re.search(r'^ARG LIBRARIES="([^"]*)"', f.read(), re.MULTILINE)[1].replace('\\\n', ' ').split()
        self.assertEqual(set(listed), set(needed) - {'passwd'} | {'ca-certificates'})
        for script in ('postinst', 'prerm', 'postrm'):
            path = os.path.join(self.control(), script)
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o755)
            debian_root.run('shellcheck', path)

    def test_its_alerts_dashboards_and_copyright_are_whole(self):
        root = os.path.join(self.folder, 'to-look-at')
        debian_root.run('dpkg-deb', '-x', self.package, root)
        for name in ('recording.yml', 'alerts.yml'):
            debian_root.run('promtool', 'check', 'rules', os.path.join(root, 'usr/share/capstan/prometheus', name))
        with open(os.path.join(root, 'usr/share/capstan/prometheus/prometheus.yml')) as f:
            named = re.search(r'^rule_files: \[(.*)\]', f.read(), re.MULTILINE)[1].split(', ')
        self.assertEqual(set(named), {'recording.yml', 'alerts.yml'})  # in the same folder
        with open(os.path.join(root, 'usr/share/doc/capstan/copyright')) as f:
            copyright_text = f.read()
        self.assertRegex(copyright_text, r'^Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n')
        stated = set(re.findall(r'^License: (\S+)$', copyright_text, re.MULTILINE))
        for line in re.findall(r'^License: (.+)$', copyright_text, re.MULTILINE):
            self.assertEqual(set(line.split(' and ')) - stated, set())
        # Header-only libraries are compiled in and have no package where the programs run.
        for name in ('CLI11', 'nlohmann-json', 'Highway'):
            self.assertIn(f'({name})', copyright_text)

    @unittest.skipUnless(shutil.which('systemd-analyze'), 'systemd-analyze is not installed')
    def test_systemd_reads_every_key_of_the_units_and_calls_them_safe(self):
        root = os.path.join(self.folder, 'unpacked')
        debian_root.run('dpkg-deb', '-x', self.package, root)
        for unit in UNITS:
            path = os.path.join(root, 'lib/systemd/system', f'{unit}.service')
            done = subprocess.run(['systemd-analyze', 'verify', '--man=no', path], capture_output=True, text=True)
            # The program is not installed on this machine. There may be no other complaint about our unit.
            said = [line for line in done.stderr.splitlines() if line.startswith((unit, path))]
            self.assertEqual([line for line in said if 'is not executable' not in line], [])
            with open(path) as f:
                program = re.search(r'^ExecStart=(\S+)', f.read(), re.MULTILINE)[1]
            self.assertTrue(os.access(root + program, os.X_OK))
            safe = debian_root.run('systemd-analyze', 'security', '--offline=yes', '--threshold=25', path)
            self.assertIn('OK', safe.splitlines()[-1])

    def test_a_bare_system_with_it_trains_the_bundled_example(self):
        root = os.path.join(self.folder, 'root')
        debian_root.unpack(debian_root.base(self.package), root)
        shutil.copy(self.package, os.path.join(root, 'tmp/capstan.deb'))
        debian_root.inside(root, 'dpkg', '-i', '/tmp/capstan.deb')
        said = debian_root.inside(
            root, 'sh', '-c', 'cd /tmp && capstan run --example lenet --set training.epochs=1 '
            '--set "data={format: synthetic_digits, train_samples: 2000, test_samples: 500}"', user='capstan')
        self.assertRegex(said, r'SUCCEEDED')
        # A person's run gives the same weights as the build that was packed.
        here = subprocess.run([support.CAPSTAN, 'run', '--example', 'lenet', '--set', 'training.epochs=1', '--set',
                               'data={format: synthetic_digits, train_samples: 2000, test_samples: 500}'],
                              cwd=self.folder, capture_output=True, text=True, timeout=300)
        sha256 = re.search(r'^sha256 +([0-9a-f]{64})$', said, re.MULTILINE)[1]
        self.assertIn(sha256, here.stdout + here.stderr)
        # The status page of its coordinator, fetched with the tools of a bare system.
        page = debian_root.inside(root, 'timeout', '120', 'bash', '-c', '''
            capstan_coordinator --insecure --listen 127.0.0.1:7070 --http 127.0.0.1:7071 --state-dir /tmp/state \\
                --data-root file:/// --checkpoint-root file:/// >/tmp/log 2>&1 &
            until (exec 3<>/dev/tcp/127.0.0.1/7071) 2>/dev/null; do
                kill -0 $! || { cat /tmp/log; exit 1; }
                sleep 0.1
            done
            exec 3<>/dev/tcp/127.0.0.1/7071
            printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3
            cat <&3
            kill $!
            wait $!''', user='capstan')
        self.assertRegex(page, r'^HTTP/1\.[01] 200 ')
        with open(os.path.join(support.ROOT, 'coordinator/page/index.html')) as f:
            self.assertIn(f.read(), page)
        debian_root.inside(root, 'dpkg', '--purge', 'capstan')
        self.assertFalse(os.path.exists(os.path.join(root, 'etc/capstan')))


if __name__ == '__main__':
    support.main()
