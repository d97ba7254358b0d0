"""The Debian package of this build, and a bare Debian 12 that has only what the package depends on."""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile

import support

BUILD = os.path.dirname(support.BIN)
SOURCES = [path for path in ('/etc/apt/sources.list.d/debian.sources', '/etc/apt/sources.list')
           if os.path.exists(path) and os.path.getsize(path)]


def why_not():
    """Empty if both can be made here, else the reason."""
    for program in ('cpack', 'dpkg-shlibdeps', 'mmdebstrap'):
        if shutil.which(program) is None:
            return f'{program} is not installed: tools/install-packages test'
    if os.geteuid() != 0:
        return 'a root file system is unpacked by root alone'
    return '' if SOURCES else 'this machine names no Debian mirror in /etc/apt'


def run(*command, **options):
    """Runs a command that must succeed, and returns its standard output."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace', **options)
    if done.returncode != 0:
        raise AssertionError(f'{" ".join(command)}: exit code {done.returncode}\n{done.stdout[-4000:]}')
    return done.stdout


def make_package(folder):
    """Makes the package and returns its path."""
    run('cpack', '--config', os.path.join(BUILD, 'CPackConfig.cmake'), '-B', folder)
    name, = [name for name in os.listdir(folder) if name.endswith('.deb')]
    return os.path.join(folder, name)


def depends(package):
    """Names of the packages that this one depends on."""
    return re.sub(r' \([^)]*\)', '', run('dpkg-deb', '-f', package, 'Depends')).strip().split(', ')


def base(package):
    """A tar of the bare system. It is made once for each set of dependencies and kept in the build folder.

    Two tests that ask for it at once wait for each other, and the second one uses the file of the first.
    """
    names = ','.join(['ca-certificates', *depends(package)])
    key = names
    for path in SOURCES:
        with open(path) as f:
            key += f.read()
    tar = os.path.join(BUILD, f'debian-{hashlib.sha256(key.encode()).hexdigest()[:12]}.tar')
    with open(f'{tar}.lock', 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(tar):
            make_base(tar, names)
    return tar


def make_base(tar, names):
    with tempfile.TemporaryDirectory(prefix='capstan-root-') as memory:  # in memory: dpkg syncs every file
        run('unshare', '--mount', 'sh', '-c', 'mount -t tmpfs tmpfs "$TMPDIR" && exec "$@"', 'sh', 'mmdebstrap',
            '--variant=apt', f'--include={names}', 'bookworm', f'{tar}.part.tar', *SOURCES,
            env=dict(os.environ, TMPDIR=memory))
    os.rename(f'{tar}.part.tar', tar)


def unpack(tar, root):
    os.mkdir(root, 0o755)
    run('tar', '-xf', tar, '-C', root)


def inside(root, *command, user='root', timeout=300):
    """Runs a command in that system and returns its output. The system has its own processes, and none outlives the call."""
    return run('unshare', '--mount', '--pid', '--net', '--fork', '--kill-child', 'sh', '-c',
               'ip link set lo up; mount -t proc proc "$1/proc" && root=$1 && user=$2 && shift 2 && '
               'exec chroot --userspec="$user:" "$root" "$@"', 'sh', root, user, *command,
               env={'PATH': '/usr/sbin:/usr/bin:/sbin:/bin', 'HOME': '/tmp', 'LANG': 'C.UTF-8', 'TERM': 'dumb'},
               timeout=timeout)
