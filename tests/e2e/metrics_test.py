"""/metrics of the three services: linted by promtool, scraped by a real Prometheus, and compared with the step log."""

import json
import math
import os
import shutil
import subprocess
import unittest

from prometheus import Prometheus, get
import services
import support

SPEC = support.job_spec(name='measured', resources={'num_workers': 2, 'num_shards': 1, 'lanes': 2},
                        data={'format': 'synthetic_digits', 'train_samples': 20000, 'test_samples': 100},
                        training={'epochs': 15, 'global_batch_size': 64, 'optimizer': {'name': 'sgd', 'learning_rate': 0.04}})

STEP_TIME = 'capstan_worker_step_duration_seconds'
OF_STEPS = (STEP_TIME + '_sum', STEP_TIME + '_count', 'capstan_worker_samples_total')


def by_rank(rows):
    return {labels['rank']: value for labels, value in rows}


class MetricsTest(services.ServicesTest):

    def test_known_series_start_at_zero_and_promtool_has_no_complaint(self):
        self.start(workers=1)
        for name, series in (
                ('coordinator', ['capstan_jobs{queue="default",state="RUNNING"} 0', 'capstan_workers{state="lost"} 0',
                                 'capstan_jobs_submitted_total{queue="default"} 0',
                                 'capstan_node_leases_lost_total{role="worker"} 0',
                                 'capstan_job_events_total{event="CheckpointFailed"} 0']),
                ('s0', ['grpc_server_handled_total{grpc_code="OK",grpc_method="Exchange",'
                        'grpc_service="capstan.param_store.v1.ParamStoreService",grpc_type="bidi_stream"} 0']),
                ('w0', ['grpc_client_handled_total{grpc_code="Unavailable",grpc_method="Connect",'
                        'grpc_service="capstan.node.v1.NodeService",grpc_type="bidi_stream"} 0'])):
            text = get(self.services[name].http, '/metrics')
            for line in series:
                self.assertIn(line + '\n', text)
            self.assertIn('capstan_build_info{component="', text)
            self.assertIn('process_resident_memory_bytes ', text)
            self.assertEqual(get(self.services[name].http, '/healthz').strip().lower(), 'ok')
            if shutil.which('promtool'):
                lint = subprocess.run(['promtool', 'check', 'metrics'], input=text, text=True, capture_output=True)
                self.assertEqual((lint.returncode, lint.stdout + lint.stderr), (0, ''), name)

    @unittest.skipUnless(shutil.which('prometheus'), 'needs prometheus')
    def test_prometheus_sees_what_the_step_log_says(self):
        self.start()
        targets = [service.http for service in self.services.values()]
        config = {'global': {'scrape_interval': '1s', 'scrape_timeout': '1s'},
                  'scrape_configs': [{'job_name': 'capstan', 'static_configs': [{'targets': targets}]}]}
        query = Prometheus(self, json.dumps(config)).query
        self.wait_until(lambda: query('sum(up)') and query('sum(up)')[0][1] == 4, 60, 'all four targets up')
        job_id = self.submit(SPEC)
        of_job = f'{{job_id="{job_id}"}}'
        self.wait_until(lambda: query(f'capstan_job_global_step{of_job} > 100'), 60, 'the job in Prometheus')
        self.wait_until(lambda: len(query(f'{STEP_TIME}_count{of_job} > 0')) == 2, 60, 'the first step of both ranks')
        # One query, so that all values are from one scrape.
        rows = query(f'sum by (__name__, rank) ({{__name__=~"{"|".join(OF_STEPS)}",job_id="{job_id}"}})')
        begin = {name: by_rank(row for row in rows if row[0]['__name__'] == name) for name in OF_STEPS}
        for expression in ('capstan_ps_model_version', 'capstan_job_loss', 'capstan_worker_phase_seconds_total',
                           'capstan_ps_request_duration_seconds_count', 'capstan_ps_client_wire_bytes_total',
                           'capstan_ps_client_retries_total', 'capstan_checkpoint_failures_total'):
            self.assertTrue(query(expression + of_job), expression)
        self.assertEqual(len(query(f'capstan_ps_client_shared_streams{of_job} > 0')), 2)
        self.assertTrue(query('grpc_server_started_total{grpc_method="SubmitJob"} == 1'))
        # Every second, however often states are sent.
        self.wait_until(lambda: len(query(f'changes(capstan_worker_steps_total{of_job}[5s]) >= 3')) == 2, 60, 'counters that move')

        self.ok('wait', job_id)
        job = self.describe(job_id)
        # The last scrapes have the final counts.
        last = self.wait_until(lambda: query(f'sum(max_over_time(capstan_worker_samples_total{of_job}[10m])) '
                                             f'== {job["samples_used"]}'), 30, 'all samples in Prometheus')
        self.assertEqual(last[0][1], 300000)
        steps = self.step_log(job)
        end = {name: by_rank(query(f'sum by (rank) (max_over_time({name}{of_job}[10m]))')) for name in OF_STEPS}
        logged_rate, seen_rate = 0, 0
        for rank in ('0', '1'):
            more = {name: end[name][rank] - begin[name][rank] for name in OF_STEPS}
            # Only the steps from then on: the first waits for the workers to start, which differs by rank.
            going = steps[int(begin[STEP_TIME + '_count'][rank]):]
            seconds = sum(line['seconds'] for line in going)
            logged, seen = seconds / len(going), more[STEP_TIME + '_sum'] / more[STEP_TIME + '_count']
            self.assertLess(abs(seen - logged), 0.05 * logged, f'step time: {seen} in /metrics, {logged} in the step log')
            logged_rate += sum(line['samples'] for line in going) / seconds / 2
            seen_rate += more['capstan_worker_samples_total'] / more[STEP_TIME + '_sum']
        self.assertLess(abs(seen_rate - logged_rate), 0.05 * logged_rate,
                        f'samples/s: {seen_rate} in /metrics, {logged_rate} in the step log')
        # The phases add up to the time of the steps, including the wait before the first.
        phases = by_rank(query(f'sum by (rank) (max_over_time(capstan_worker_phase_seconds_total{of_job}[10m]))'))
        self.assertEqual(sorted(phases), ['0', '1'])
        for rank, spent in phases.items():
            total = end[STEP_TIME + '_sum'][rank]
            self.assertGreater(spent, 0.95 * total, f'phases of rank {rank}')
            self.assertLess(spent, 1.05 * total + steps[0]['seconds'], f'phases of rank {rank}')
        # Each worker sends the whole gradient at every step and gets every version, including the first.
        model = 4 * sum(math.prod(shape) for shape, _ in
                        support.read_safetensors(os.path.join(self.checkpoint(job), 'weights.safetensors')).values())
        for op, times in (('push', len(steps)), ('pull', len(steps) + 1)):
            for kind in ('payload', 'wire'):
                seen = query(f'max_over_time(capstan_ps_client_{kind}_bytes_total{{job_id="{job_id}",op="{op}"}}[10m])')
                self.assertEqual(len(seen), 2)
                for labels, value in seen:
                    self.assertLess(abs(value - times * model), 0.05 * times * model, f'{kind} {labels}: {times} x {model} bytes')
        # An ended job leaves no series.
        for service in self.services.values():
            self.wait_until(lambda s=service: f'job_id="{job_id}"' not in get(s.http, '/metrics'), 30, 'the end of its series')


if __name__ == '__main__':
    support.main()
