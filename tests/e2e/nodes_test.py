"""What the cluster does, and nodes taken out of use: top, shards, node describe, drain, undrain."""

import json

import services
import support

SPEC = support.job_spec(name='elastic', training={'epochs': 100000, 'global_batch_size': 64, 'seed': 3,
                                                  'optimizer': {'name': 'sgd', 'learning_rate': 0.02}},
                        resources={'num_workers': 2, 'min_workers': 1, 'num_shards': 1, 'lanes': 2})


class NodesTest(services.ServicesTest):

    def node(self, name):
        return json.loads(self.ok('node', 'describe', name, '-o', 'json').out)

    def test_top_and_shards_say_what_runs(self):
        self.start()
        job_id = self.submit(SPEC)
        self.wait_for_step(job_id, 5)

        def loaded():
            looks = self.ok('top', '-o', 'json', '--count', '2', '--interval', '100ms').out.splitlines()
            self.assertEqual(len(looks), 2)
            look = json.loads(looks[-1])
            shard = look['shards'][0]
            return look if shard.get('load', {}).get('pushes_per_second') and 'cpu_ratio' in look['nodes'][0]['usage'] else None

        look = self.wait_until(loaded, 60, 'a shard with pushes and a node with a load')
        self.assertEqual(look['cluster']['running_jobs'], 1)
        self.assertEqual((look['cluster']['slots'], look['cluster']['busy_slots']), (2, 2))
        self.assertEqual(look['jobs'][0]['job_id'], job_id)
        shard = look['shards'][0]
        self.assertEqual(shard['job_id'], job_id)
        self.assertGreater(shard['load']['resident_bytes'], 0)
        self.assertGreater(shard['load']['bytes_in_per_second'], 0)
        self.assertGreater(shard['route']['chunk_count'], 0)
        for node in look['nodes']:
            self.assertGreater(node['usage']['memory_total_bytes'], node['usage']['memory_used_bytes'])
        text = self.ok('top').out
        self.assertRegex(text, rf'(?m)^w0 +READY +1/1 .* cpu .* {job_id} \([01]\)$')
        self.assertRegex(text, rf'(?m)^s0 +{job_id} +s0 +RUNNING ')
        self.assertNotIn('\033', text)
        self.assertNotIn('SHARD', self.ok('top', 'nodes').out)
        self.assertRegex(self.ok('shards', job_id, '-o', 'wide').out, rf'(?m)^s0 +{job_id} .*unix:')
        self.assertEqual(self.capstan('shards', 'nobody-abcd').code, 102)
        self.assertEqual(self.capstan('top', 'weather').code, 2)
        self.ok('cancel', job_id)

    def test_a_drained_node_gives_its_lanes_away_and_stays_drained(self):
        self.start()
        job_id = self.submit(SPEC)
        self.wait_for_step(job_id, 5)
        self.assertEqual(self.capstan('node', 'drain', 'w7').code, 2)
        self.assertIn('gets no new work', self.ok('node', 'drain', 'w1').out)
        self.wait_until(lambda: self.node('w1')['state'] == 'DRAINED', 60, 'w1 without work')
        self.assertEqual(self.node('w1')['job_ids'], [])
        self.assertEqual(len(self.tasks()), 1)
        step = self.describe(job_id)['progress']['step']
        self.wait_for_step(job_id, step + 5)
        self.assertIn('WorkerDrained', self.ok('events', job_id).out)
        self.assertEqual(self.describe(job_id)['restarts'], 0)

        # Neither a new coordinator nor a new process of the same name changes that.
        self.stop('w1')
        self.stop('coordinator')
        self.start_one('coordinator', 'capstan_coordinator', '--state-dir', self.path('state'), '--data-root', 'file:///',
                       '--checkpoint-root', 'file:///', '--heartbeat', '200ms', '--lease', '3s')
        self.start_worker('w1')
        self.wait_until(lambda: self.node('w1')['state'] == 'DRAINED', 60, 'w1 to be back')
        self.wait_for_step(job_id, step + 10)
        self.assertEqual(len(self.tasks()), 1)
        self.assertIn('takes work', self.ok('node', 'undrain', 'w1').out)
        self.wait_until(lambda: len(self.tasks()) == 2, 60, 'the task that joins on w1')
        self.ok('cancel', job_id)


if __name__ == '__main__':
    support.main()
