"""`capstan bench kvstore`: with services of its own, on a cluster, with bad input."""

import json

import services
import support

SIZES = ('--sizes', '4KiB,256KiB', '--seconds', '1')


class BenchTest(support.TestCase):
    def bench(self, *args, **how):
        return self.capstan('bench', 'kvstore', *args, **how)

    def check(self, result, kvstore='dist_sync', sizes=(4240, 262240)):
        self.assertEqual(result.code, 0, result.err)
        said = json.loads(result.out)
        self.assertEqual(said['kvstore'], kvstore)
        self.assertEqual([row['weight_bytes'] for row in said['rows']], list(sizes))
        for row in said['rows']:
            self.assertGreater(row['steps'], 20, row)
            parts = [row[part + '_seconds'] for part in ('push', 'wait', 'pull')]
            self.assertAlmostEqual(row['bytes_per_second'], 2 * row['weight_bytes'] / sum(parts), delta=0.001 * row['bytes_per_second'])
            self.assertLess(sum(parts) + row['computing_seconds'], 1.001 * row['step_seconds'], row)
            self.assertLess(row['bytes_per_second'], said['copy_bytes_per_second'], row)
        self.assertGreater(said['rows'][1]['bytes_per_second'], said['rows'][0]['bytes_per_second'])
        self.assertGreater(said['unix_socket_bytes_per_second'], 1e7)
        self.assertGreater(said['tcp_bytes_per_second'], 1e7)
        return said

    def test_services_of_its_own(self):
        self.check(self.bench('--workers', '2', '--shards', '2', *SIZES, '-o', 'json'))
        said = self.check(self.bench('--kvstore', 'dist_async', '--compression', 'fp16', *SIZES, '-o', 'json'), 'dist_async')
        self.assertEqual((said['workers'], said['shards'], said['gradient_compression']), (1, 1, 'fp16'))
        self.assertEqual(said['shared_memory'], True)
        grpc = self.check(self.bench('--no-shared-memory', *SIZES, '-o', 'json'))
        self.assertEqual(grpc['shared_memory'], False)
        # Many times as fast without the kernel's sockets between them; a busy machine may hide a part of it.
        self.assertLess(said['rows'][0]['wait_seconds'], grpc['rows'][0]['wait_seconds'])
        table = self.bench('--sizes', '4KiB', '--seconds', '1')
        self.assertEqual(table.code, 0, table.err)
        self.assertRegex(table.out, r'^WEIGHTS +STEPS +STEP ms +COMPUTING +PUSH +WAIT +PULL +GB/s\n4\.1 KiB +\d+ ')
        self.assertRegex(table.out, r'limits of this machine, GB/s: [\d.]+ copied in memory, [\d.]+ over a Unix socket, [\d.]+ over TCP')
        self.assertIn('measuring 4.1 KiB', table.err)

    def test_bad_input(self):
        for args, text in (
                (('--sizes', '4KB'), "--sizes got '4KB', want sizes from 1KiB to 1024MiB"),
                (('--kvstore', 'dist_foo'), "'kvstore.type' must be one of"),
                (('--compression', '3bit'), "'kvstore.gradient_compression.type' must be one of"),
                (('--kvstore', 'local'), "kvstore 'local' exchanges nothing, want one with shards"),
                (('--shards', '4'), "weights of 4.1 KiB: 'resources.num_shards' is 4, but graph has only 3 chunks"),
                (('--cluster', '-v'), '-v would do nothing'),
                (('--cluster', '--no-shared-memory'), "--no-shared-memory would do nothing: it is a flag of the cluster's shards"),
                (('--workers', '0'), '--workers'),
                (('--address', 'unix:/nowhere'), '--address would do nothing: without --cluster, bench starts services of its own')):
            refused = self.bench(*args)
            self.assertEqual(refused.code, 2, (args, refused.err))
            self.assertIn(text, refused.err)


class ClusterTest(services.ServicesTest):
    def test_jobs_on_a_cluster_end_and_are_forgotten(self):
        self.start(workers=1, shards=1)
        BenchTest.check(self, self.capstan('bench', 'kvstore', '--cluster', *SIZES, '-o', 'json'))
        jobs = json.loads(self.ok('list', '-o', 'json').out)
        self.assertEqual([job['state'] for job in jobs], ['CANCELLED', 'CANCELLED'])
        self.assertEqual(self.describe(jobs[0]['job_id'])['spec']['limits']['ttl_after_finished_seconds'], 60)


if __name__ == '__main__':
    support.main()
