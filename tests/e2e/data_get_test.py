"""`capstan data get` against a server in the test: right, wrong, truncated and overlong files."""

import contextlib
import functools
import http.server
import os
import shutil
import threading

import support

FILES = ['train-images-idx3-ubyte.gz', 'train-labels-idx1-ubyte.gz', 't10k-images-idx3-ubyte.gz',
         't10k-labels-idx1-ubyte.gz']


class QuietHandler(http.server.SimpleHTTPRequestHandler):

    def log_message(self, *_):
        pass

    def copyfile(self, *args):
        with contextlib.suppress(ConnectionError):  # a client that has read enough closes the connection
            super().copyfile(*args)


class DataGetTest(support.TestCase):

    def setUp(self):
        super().setUp()
        self.served = self.path('served')
        os.mkdir(self.served)
        for name in FILES:
            shutil.copyfile(os.path.join(support.FASHION_MNIST, name), os.path.join(self.served, name))
        handler = functools.partial(QuietHandler, directory=self.served)
        server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.url = f'http://127.0.0.1:{server.server_address[1]}/'

    def get(self):
        return self.capstan('data', 'get', 'fashion-mnist', '--url', self.url, '--out', self.path('out'))

    def damage(self, change):
        path = os.path.join(self.served, FILES[3])
        with open(path, 'rb') as f:
            content = change(bytearray(f.read()))
        with open(path, 'wb') as f:
            f.write(content)

    def test_right_files_arrive_and_are_kept(self):
        run = self.get()
        self.assertEqual(run.code, 0, run)
        self.assertEqual(sorted(os.listdir(self.path('out'))), sorted(FILES))
        again = self.get()
        self.assertEqual(again.code, 0, again)
        self.assertEqual(again.err.count('exists already'), 4, again)

    def refused(self, what):
        run = self.get()
        self.assertNotEqual(run.code, 0, run)
        self.assertIn(FILES[3], run.err)
        self.assertIn(what, run.err)
        self.assertNotIn(FILES[3], os.listdir(self.path('out')))
        self.assertFalse([name for name in os.listdir(self.path('out')) if 'part' in name])

    def test_a_flipped_bit_is_refused(self):
        def flip(content):
            content[2000] ^= 1
            return content
        self.damage(flip)
        self.refused('sha256')

    def test_a_truncated_file_is_refused(self):
        self.damage(lambda content: content[:-10])
        self.refused('bytes')

    def test_an_overlong_file_is_refused(self):
        self.damage(lambda content: content + b'x')
        self.refused('more than the')

    def test_an_absent_file_and_an_absent_server(self):
        os.remove(os.path.join(self.served, FILES[3]))
        self.refused('404')
        self.url = 'http://127.0.0.1:1/'
        shutil.rmtree(self.path('out'))
        run = self.get()
        self.assertEqual(run.code, 3, run)
        self.assertIn(f'cannot connect to 127.0.0.1:1; try --url, or copy the four files to {self.path("out")}\n', run.err)

    def test_the_files_of_another_set_are_refused(self):
        run = self.capstan('data', 'get', 'mnist', '--url', self.url, '--out', self.path('out'))
        self.assertEqual(run.code, 1, run)
        self.assertIn('train-images-idx3-ubyte.gz: more than the 9912422 bytes', run.err)
        self.assertEqual(os.listdir(self.path('out')), [])

    def test_an_archive_that_is_not_the_right_one_leaves_nothing(self):
        with open(os.path.join(self.served, 'cifar-10-binary.tar.gz'), 'wb') as f:
            f.write(bytes(100))
        run = self.capstan('data', 'get', 'cifar10', '--url', self.url, '--out', self.path('out'))
        self.assertEqual(run.code, 1, run)
        self.assertIn('cifar-10-binary.tar.gz.part: 100 bytes, want 170052171', run.err)
        self.assertEqual(os.listdir(self.path('out')), [])

    def test_unknown_names_and_schemes(self):
        run = self.capstan('data', 'get', 'no-such-set')
        self.assertEqual((run.code, 'fashion-mnist' in run.err), (2, True), run)
        self.assertIn('mnist', run.err.split('fashion-mnist')[1])
        run = self.capstan('data', 'get', 'fashion-mnist', '--url', 'ftp://x/')
        self.assertEqual((run.code, 'http:// or https://' in run.err), (2, True), run)


if __name__ == '__main__':
    support.main()
