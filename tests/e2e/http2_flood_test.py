"""Floods of HTTP/2 frames by a client with a certificate but no token: its connection ends, others are served, memory stays low."""

import itertools
import re
import socket
import ssl
import struct
import threading
import time

import secure_cluster
import support

SECONDS = 3
MIB = 1 << 20
MAX_GROWTH = 64 * MIB  # of the coordinator, by each attack; without the limits it was 700 MiB or more
HEADERS, RST_STREAM, SETTINGS, CONTINUATION = 1, 3, 4, 9
END_HEADERS = 4
PREFACE = b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'


def frame(kind, flags, stream, payload=b''):
    return struct.pack('>I', len(payload))[1:] + bytes([kind, flags]) + struct.pack('>I', stream) + payload


def literal(name, value):
    """HPACK: a header with a new name that is not added to the table (RFC 7541, section 6.2.2)."""
    def text(data):
        if len(data) < 127:
            return bytes([len(data)]) + data
        size, out = len(data) - 127, [127]
        while size >= 128:
            out.append(size & 127 | 128)
            size >>= 7
        return bytes([*out, size]) + data
    return b'\0' + text(name) + text(value)


CALL = b''.join(literal(name, value) for name, value in (
    (b':method', b'POST'), (b':scheme', b'https'), (b':path', b'/capstan.job.v1.JobService/ListJobs'),
    (b':authority', b'x'), (b'te', b'trailers'), (b'content-type', b'application/grpc')))


def endless_block():
    """A call whose headers never end."""
    yield frame(HEADERS, 0, 1, CALL)
    piece = frame(CONTINUATION, 0, 1, literal(b'x-a', b'y' * 16000))
    while True:
        yield piece * 8


def endless_empty_block():
    """The same with empty frames."""
    yield frame(HEADERS, 0, 1, CALL)
    while True:
        yield frame(CONTINUATION, 0, 1) * 1000


def rapid_reset():
    """Calls that are opened and reset at once."""
    for stream in itertools.count(1, 32):
        yield b''.join(frame(HEADERS, END_HEADERS, one, CALL) + frame(RST_STREAM, 0, one, struct.pack('>I', 8))
                       for one in range(stream, stream + 32, 2))


class Http2FloodTest(support.TestCase):

    def setUp(self):
        super().setUp()
        self.cluster = secure_cluster.SecureCluster(self.folder, workers=0, shards=0)
        self.addCleanup(self.cluster.stop)
        self.pid = self.cluster.members[0][0].pid
        self.connections = self.sent = 0

    def resident(self):
        with open(f'/proc/{self.pid}/status') as f:
            return int(re.search(r'VmRSS:\s+(\d+) kB', f.read())[1]) << 10

    def dial(self):
        context = ssl.create_default_context(cafile=self.cluster.path('client', 'ca.crt'))
        stem = self.cluster.path('client', 'client')
        context.load_cert_chain(stem + '.crt', stem + '.key')
        context.set_alpn_protocols(['h2'])
        host, port = self.cluster.address.rsplit(':', 1)
        tls = context.wrap_socket(socket.create_connection((host, int(port)), timeout=10), server_hostname=host)
        tls.sendall(PREFACE + frame(SETTINGS, 0, 0))
        self.connections += 1
        return tls

    def attack(self, flood, until):
        """Sends until `until`, and dials again if the server ends the connection."""
        while time.monotonic() < until:
            try:
                tls = self.dial()
            except OSError:
                continue  # the server was still busy with the last connection
            tls.settimeout(0.2)
            try:
                for data in flood():
                    tls.sendall(data)
                    self.sent += len(data)
                    if time.monotonic() > until:
                        break
            except OSError:
                pass
            finally:
                tls.close()

    def test_floods_end_their_connection_and_nobody_elses(self):
        listed = self.capstan(*self.cluster.client(), 'list')
        self.assertEqual(listed.code, 0, listed)
        for flood in (rapid_reset, endless_empty_block, endless_block):
            before, self.connections, self.sent = self.resident(), 0, 0
            until = time.monotonic() + SECONDS
            attacker = threading.Thread(target=self.attack, args=(flood, until))
            attacker.start()
            peak, served = 0, 0
            while time.monotonic() < until:
                peak = max(peak, self.resident())
                listed = self.capstan(*self.cluster.client(), 'list', timeout=10)
                self.assertEqual(listed.code, 0, f'{flood.__name__}: {listed}')
                served += 1
            attacker.join()
            peak = max(peak, self.resident())
            print(f'{flood.__name__}: {self.connections} connections, {self.sent / MIB:.1f} MiB sent, '
                  f'{(peak - before) / MIB:.1f} MiB more, {served} calls of others served', flush=True)
            with self.subTest(flood.__name__):
                self.assertLess(peak - before, MAX_GROWTH)
                self.assertGreater(self.connections, 1)  # the server ended some
                self.assertGreater(served, 0)
        self.assertTrue(any('event=http2_flood' in line for line in self.cluster.said), self.cluster.said)


if __name__ == '__main__':
    support.main()
