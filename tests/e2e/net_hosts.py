"""Hosts on one switch, each in its own network namespace, and faults on the wires between them.

It only touches namespaces that it makes, and nothing of the machine's own network.
"""

import json
import os
import shutil
import subprocess


def why_not():
    """Empty if this machine lets us make hosts, else the reason."""
    for program in ('ip', 'nft', 'tc'):
        if shutil.which(program) is None:
            return f'{program} is not installed: tools/install-packages test'
    probe = f'capstan-{os.getpid()}-probe'
    added = subprocess.run(['ip', 'netns', 'add', probe], capture_output=True, text=True)
    if added.returncode != 0:
        return f'ip netns add: {added.stderr.strip()} (wants root)'
    try:
        filtered = subprocess.run(['ip', 'netns', 'exec', probe, 'nft', 'add', 'table', 'inet', 'faults'],
                                  capture_output=True, text=True)
        return f'nft: {filtered.stderr.strip()}' if filtered.returncode != 0 else ''
    finally:
        subprocess.run(['ip', 'netns', 'del', probe], check=True)


class Hosts:
    """A cut goes from sender to receiver: cut('a', 'b') drops what `a` sends to `b`, and nothing else."""

    def __init__(self, names):
        self.names = list(names)
        self.made = []
        self.unplugged = {}
        self.switch = self._namespace('switch')
        try:
            self._make(self.switch)
            self._ip(self.switch, 'link', 'add', 'br0', 'type', 'bridge')
            self._ip(self.switch, 'link', 'set', 'br0', 'up')
            for name in self.names:
                self._make(self._namespace(name))
                self._ip(self._namespace(name), 'link', 'add', 'eth0', 'type', 'veth', 'peer', 'name', name, 'netns', self.switch)
                self._ip(self.switch, 'link', 'set', name, 'master', 'br0', 'up')
                self._ip(self._namespace(name), 'link', 'set', 'lo', 'up')
                self._ip(self._namespace(name), 'addr', 'add', f'{self.address(name)}/24', 'dev', 'eth0')
                self._ip(self._namespace(name), 'link', 'set', 'eth0', 'up')
                self._nft(name, 'add table inet faults; '
                          'add chain inet faults arrives { type filter hook input priority 0; }')
        except Exception:
            self.close()
            raise

    def close(self):
        for namespace in reversed(self.made):
            subprocess.run(['ip', 'netns', 'del', namespace], check=True)
        self.made = []

    def address(self, name):
        return f'10.77.0.{self.names.index(name) + 1}'

    def on(self, name):
        """The words before a command that make it run on that host."""
        return ['ip', 'netns', 'exec', self._namespace(name)]

    # ---- faults ----

    def cut(self, sender, receiver):
        self._nft(receiver, f'add rule inet faults arrives ip saddr {self.address(sender)} counter drop comment "{sender}>{receiver}"')

    def part(self, one, others):
        """Cuts `one` from `others` in both directions."""
        for other in others:
            self.cut(one, other)
            self.cut(other, one)

    def block(self, name, port):
        """Blocks all traffic to this port of a host. Connections that the host opens itself still work."""
        self._nft(name, f'add rule inet faults arrives tcp dport {port} drop')

    def lose(self, percent):
        """Drops every packet that arrives anywhere with this probability."""
        for name in self.names:
            self._nft(name, 'add rule inet faults arrives iifname eth0 counter comment "arrived"; '
                      f'add rule inet faults arrives iifname eth0 numgen random mod 100 < {percent} counter drop comment "lost"')

    def throttle(self, rate):
        """Limits what leaves a host, for example to '8mbit'."""
        for name in self.names:
            self._run('tc', '-n', self._namespace(name), 'qdisc', 'replace', 'dev', 'eth0', 'root', 'tbf', 'rate', rate,
                      'burst', '32kbit', 'latency', '50ms')

    def unplug(self, name):
        self._ip(self.switch, 'link', 'set', name, 'down')
        self.unplugged[name] = self._passed(name)

    def plug(self, name):
        self._ip(self.switch, 'link', 'set', name, 'up')

    # ---- the effect of the faults, until heal ----

    def dropped(self):
        """{'SENDER>RECEIVER': packets} for cuts; {'arrived HOST': packets, 'lost HOST': packets} for loss."""
        packets = {}
        for name in self.names:
            listed = subprocess.run([*self.on(name), 'nft', '-j', 'list', 'chain', 'inet', 'faults', 'arrives'], check=True,
                                    capture_output=True, text=True).stdout
            for item in json.loads(listed)['nftables']:
                rule = item.get('rule', {})
                for part in rule.get('expr', ()):
                    if 'counter' in part:
                        key = rule['comment'] if '>' in rule['comment'] else f'{rule["comment"]} {name}'
                        packets[key] = packets.get(key, 0) + part['counter']['packets']
        return packets

    def got_through(self):
        """{HOST: packets} since each was unplugged. All must be 0."""
        return {name: self._passed(name) - before for name, before in self.unplugged.items()}

    def sent(self):
        """{HOST: (bytes, number of delayed packets)} since the throttle was set."""
        told = {}
        for name in self.names:
            listed = subprocess.run(['tc', '-s', '-j', '-n', self._namespace(name), 'qdisc', 'show', 'dev', 'eth0'], check=True,
                                    capture_output=True, text=True).stdout
            throttle, = [qdisc for qdisc in json.loads(listed) if qdisc['kind'] == 'tbf']
            told[name] = throttle['bytes'], throttle['overlimits']
        return told

    def heal(self):
        self.unplugged = {}
        for name in self.names:
            self._nft(name, 'flush chain inet faults arrives')
            subprocess.run(['tc', '-n', self._namespace(name), 'qdisc', 'del', 'dev', 'eth0', 'root'], capture_output=True)
            self.plug(name)

    # ----

    @staticmethod
    def _namespace(name):
        return f'capstan-{os.getpid()}-{name}'

    @staticmethod
    def _run(*command):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f'{" ".join(command)}: {done.stderr.strip()}')

    def _passed(self, name):
        """Packets through the port of a host, in both directions."""
        listed = subprocess.run(['ip', '-s', '-j', '-n', self.switch, 'link', 'show', 'dev', name], check=True, capture_output=True,
                                text=True).stdout
        stats = json.loads(listed)[0]['stats64']
        return stats['rx']['packets'] + stats['tx']['packets']

    def _make(self, namespace):
        self._run('ip', 'netns', 'add', namespace)
        self.made.append(namespace)

    def _ip(self, namespace, *args):
        self._run('ip', '-n', namespace, *args)

    def _nft(self, name, rules):
        self._run(*self.on(name), 'nft', rules)
