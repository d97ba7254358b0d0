#!/usr/bin/env python3
"""Writes the dashboards of docs/metrics.md, section 4, as the JSON that Grafana reads.

    deploy/grafana/generate.py            writes dashboards/*.json beside this file
    deploy/grafana/generate.py --check    fails if a file differs from what would be written

The JSON is committed, and nothing is generated at run time. To change a panel, change it here. Needs only Python's standard
library.
"""

import json
import os
import sys

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'dashboards')
SOURCE = {'type': 'prometheus', 'uid': '${datasource}'}
JOB = '{job_id=~"$job_id"}'
RANK = '{job_id=~"$job_id",rank=~"$rank"}'
NODE = '{instance=~"$instance"}'
FINE, WARN, BAD = 'green', 'orange', 'red'
WIDTH = 24


def target(expr, legend='', table=False, heatmap=False):
    query = {'datasource': SOURCE, 'expr': expr, 'legendFormat': legend or '__auto', 'editorMode': 'code', 'range': not table,
             'instant': table}
    if table or heatmap:
        query['format'] = 'table' if table else 'heatmap'
    return query


def panel(title, kind, unit, description, *targets, width=8, height=8, steps=None, **custom):
    """`steps`: (value, colour), where the colour holds from the value on; the first value is None. `custom`: options of a time
    series."""
    thresholds = [{'value': value, 'color': colour} for value, colour in steps or [(None, FINE)]]
    defaults = {'unit': unit, 'thresholds': {'mode': 'absolute', 'steps': thresholds}, 'mappings': [],
                'color': {'mode': 'thresholds' if kind in ('stat', 'gauge', 'bargauge') else 'palette-classic'}}
    options = {}
    if kind == 'timeseries':
        defaults['custom'] = {'drawStyle': 'line', 'lineWidth': 1, 'fillOpacity': 10, 'showPoints': 'auto', 'spanNulls': False,
                              'thresholdsStyle': {'mode': 'line' if steps else 'off'}, **custom}
        if unit == 'percentunit':
            defaults['min'] = 0
        options = {'legend': {'displayMode': 'list', 'placement': 'bottom', 'showLegend': True, 'calcs': []},
                   'tooltip': {'mode': 'multi', 'sort': 'desc'}}
    elif kind in ('stat', 'gauge', 'bargauge'):
        options = {'reduceOptions': {'calcs': ['lastNotNull'], 'fields': '', 'values': False}}
        if kind != 'stat':
            defaults.update(min=0, max=1)
    elif kind == 'heatmap':
        options = {'calculate': False, 'yAxis': {'unit': unit}, 'color': {'mode': 'scheme', 'scheme': 'Oranges', 'steps': 64}}
    elif kind == 'table':
        defaults['custom'] = {'align': 'auto', 'filterable': True}
        options = {'showHeader': True}
    result = {'title': title, 'type': kind, 'description': description, 'datasource': SOURCE,
              'targets': [dict(one, refId=chr(ord('A') + i)) for i, one in enumerate(targets)],
              'fieldConfig': {'defaults': defaults, 'overrides': []}, 'options': options,
              'gridPos': {'w': width, 'h': height, 'x': 0, 'y': 0}}
    if kind == 'table':
        hidden = {name: True for name in ('Time', 'Value', '__name__')} if unit == 'none' else {'Time': True}
        result['transformations'] = [{'id': 'organize', 'options': {'excludeByName': hidden}}]
    return result


def text(title, content, width=WIDTH, height=3):
    return {'title': title, 'type': 'text', 'description': 'Where to look further.', 'targets': [],
            'options': {'mode': 'markdown', 'content': content}, 'gridPos': {'w': width, 'h': height, 'x': 0, 'y': 0}}


def quantiles(metric, by, selector, window, names, values=(0.5, 0.95, 0.99)):
    by = ', '.join([*by, 'le'])
    return [target(f'histogram_quantile({q}, sum by ({by}) (rate({metric}_bucket{selector}[{window}])))',
                   f'p{round(100 * q)} {names}'.strip()) for q in values]


def lay_out(rows):
    """Places rows of panels from left to right, and the rows below each other."""
    panels, y = [], 0
    for title, members in rows:
        panels.append({'type': 'row', 'title': title, 'collapsed': False, 'panels': [],
                       'gridPos': {'w': WIDTH, 'h': 1, 'x': 0, 'y': y}})
        y, x, tallest = y + 1, 0, 0
        for member in members:
            place = member['gridPos']
            if x + place['w'] > WIDTH:
                y, x, tallest = y + tallest, 0, 0
            place.update(x=x, y=y)
            x, tallest = x + place['w'], max(tallest, place['h'])
            panels.append(member)
        y += tallest
    for number, one in enumerate(panels, 1):
        one['id'] = number
    return panels


def variable(name, label, query):
    return {'name': name, 'label': label, 'type': 'query', 'datasource': SOURCE, 'query': {'query': query, 'refId': name},
            'refresh': 2, 'sort': 1, 'multi': True, 'includeAll': True, 'hide': 0,
            # Not ".*", because cards without a job have an empty job_id.
            'allValue': '.+', 'current': {'text': 'All', 'value': '$__all', 'selected': True}}


def annotation(name, colour, expr):
    return {'name': name, 'enable': True, 'iconColor': colour, 'datasource': SOURCE, 'expr': expr}


def dashboard(uid, title, description, rows, variables, links, annotations):
    source = {'name': 'datasource', 'label': 'Data source', 'type': 'datasource', 'query': 'prometheus', 'refresh': 1, 'hide': 0,
              'multi': False, 'includeAll': False}
    return {'uid': uid, 'title': title, 'description': description, 'tags': ['capstan'], 'timezone': 'browser', 'editable': False,
            'graphTooltip': 1, 'schemaVersion': 39, 'version': 1, 'refresh': '10s', 'time': {'from': 'now-30m', 'to': 'now'},
            'templating': {'list': [source, *variables]}, 'annotations': {'list': annotations}, 'links': links,
            'panels': lay_out(rows)}


def link(title, uid):
    return {'title': title, 'type': 'link', 'icon': 'dashboard', 'url': f'/d/{uid}', 'tooltip': '', 'tags': [], 'asDropdown': False,
            'targetBlank': False, 'includeVars': False, 'keepTime': True}


def rate(metric, selector='', by='', window='$__rate_interval', how='sum'):
    head = f'{how} by ({by}) ' if by else how
    return f'{head}(rate({metric}{selector}[{window}]))'


JOB_TABLE = ('max by (job_id, state) (capstan_job_state{} == 1) * on (job_id) group_left (job_name, queue, user, model, kvstore) '
             'max by (job_id, job_name, queue, user, model, kvstore) (capstan_job_info{})')


def of_gpu(metric):
    """The metric by job, since two jobs may share a card, and two workers may report it."""
    return ('max by (UUID, job_id, rank) (capstan_gpu_info{job_id=~"$job_id",job_id!=""}) * on (UUID) group_left (gpu) '
            f'max by (UUID, gpu) ({metric})')


def job_dashboard():
    overview = [
        panel('Job state', 'table', 'none', 'State, model and queue of the jobs that are chosen. PENDING jobs have no series yet.',
              target(JOB_TABLE.format(JOB, JOB), table=True), width=24, height=5),
        panel('Progress', 'gauge', 'percentunit', 'Completed steps divided by planned steps.',
              target(f'max by (job_id) (capstan_job_progress_ratio{JOB})', '{{job_id}}'), width=6, height=6),
        panel('Time remaining', 'stat', 's', 'By the pace of the last steps. Nothing while the pace is not known.',
              target(f'max by (job_id) (capstan_job_expected_end_timestamp_seconds{JOB}) - time()', '{{job_id}}'), width=6,
              height=6),
        panel('Since last step', 'stat', 's', 'Red: long for any step; the job fails with Stalled after limits.stall_timeout.',
              target(f'time() - max by (job_id) (capstan_job_last_progress_timestamp_seconds{JOB})', '{{job_id}}'), width=6,
              height=6, steps=[(None, FINE), (30, WARN), (120, BAD)]),
        panel('Step', 'stat', 'short', 'Steps applied to the model so far. It falls when a job goes back to a checkpoint.',
              target(f'max by (job_id) (capstan_job_global_step{JOB})', '{{job_id}}'), width=6, height=6),
    ]
    training = [
        panel('Throughput, total', 'timeseries', 'short', 'Samples per second of all workers together.',
              target(rate('capstan_worker_samples_total', JOB, 'job_id'), '{{job_id}}')),
        panel('Throughput per worker', 'timeseries', 'short', 'Samples per second. Work that is done twice counts twice.',
              target(rate('capstan_worker_samples_total', RANK, 'rank'), 'rank {{rank}}')),
        panel('Scaling efficiency (slowest worker / mean)', 'stat', 'percentunit',
              'Below 1 some worker holds the others up, where each has as many lanes.',
              target(f'min({rate("capstan_worker_samples_total", JOB, "rank", "5m")}) / '
                     f'avg({rate("capstan_worker_samples_total", JOB, "rank", "5m")})', 'slowest / mean'),
              steps=[(None, BAD), (0.7, WARN), (0.9, FINE)]),
        panel('Loss', 'timeseries', 'none', 'Cross-entropy in nats: of the training steps, and of each evaluation.',
              target(f'max by (job_id, split) (capstan_job_loss{JOB})', '{{job_id}} {{split}}')),
        panel('Accuracy', 'timeseries', 'percentunit', 'Of the training steps, and of each evaluation.',
              target(f'max by (job_id, split) (capstan_job_accuracy_ratio{JOB})', '{{job_id}} {{split}}')),
        panel('Learning rate', 'timeseries', 'none', 'Of the step under way, with warm-up and schedule.',
              target(f'max by (job_id) (capstan_job_learning_rate{JOB})', '{{job_id}}')),
    ]
    own = (f'({rate("capstan_worker_step_duration_seconds_sum", RANK, "rank", "5m")} - '
           f'{rate("capstan_barrier_wait_seconds_sum", RANK, "rank", "5m")}) / '
           f'{rate("capstan_worker_step_duration_seconds_count", RANK, "rank", "5m")}')
    phases = rate('capstan_worker_phase_seconds_total', RANK, 'phase')
    steps = [
        panel('Step time p50 / p99', 'timeseries', 's', 'Wall time of a step of any worker.',
              *quantiles('capstan_worker_step_duration_seconds', [], RANK, '5m', '', (0.5, 0.99))),
        panel('Where the step goes', 'timeseries', 'percentunit',
              'Shares of the wall time, as the main loop of a task waits for them: they add up to 1. What is hidden behind another '
              'phase is not seen here.',
              target(f'{phases} / ignoring (phase) group_left {rate("capstan_worker_phase_seconds_total", RANK)}', '{{phase}}'),
              fillOpacity=70, stacking={'mode': 'normal', 'group': 'A'}),
        panel('Step time heat map', 'heatmap', 's', 'Steps by how long they took.',
              target(f'sum by (le) (increase(capstan_worker_step_duration_seconds_bucket{RANK}[$__rate_interval]))', '{{le}}',
                     heatmap=True)),
        panel('Slowest ranks (without waiting for others)', 'table', 's',
              'In synchronous modes all steps take equally long; without the wait one sees who is slow.',
              target(f'topk(5, {own})', 'rank {{rank}}', table=True)),
        panel('Data queue depth', 'timeseries', 'short', 'Batches that were read ahead. 0 for long: reading is the limit.',
              target(f'min by (rank) (capstan_data_queue_batches{RANK})', 'rank {{rank}}')),
        panel('Data read', 'timeseries', 'Bps', 'Bytes of the data set that were read, before decoding.',
              target(rate('capstan_data_read_bytes_total', RANK, 'rank'), 'rank {{rank}}')),
        panel('CPU by task', 'timeseries', 'short', 'Cores that the process of each rank uses, its threads together.',
              target(rate('capstan_task_cpu_seconds_total', RANK, 'job_id, rank'), '{{job_id}} rank {{rank}}'), width=12),
        panel('Memory by task', 'timeseries', 'bytes', 'Resident memory of the process of each rank, without that of cards.',
              target(f'max by (job_id, rank) (capstan_task_resident_memory_bytes{RANK})', '{{job_id}} rank {{rank}}'), width=12),
    ]
    client = 'capstan_ps_client_request_duration_seconds'
    store = [
        panel('Push / pull latency, worker side', 'timeseries', 's', 'From the first frame of a step to the last, over all shards.',
              *quantiles(client, ['op'], RANK, '5m', '{{op}}')),
        panel('Push / pull handling time, server side', 'timeseries', 's', 'Without the network: one frame, one version.',
              *quantiles('capstan_ps_request_duration_seconds', ['op'], JOB, '5m', '{{op}}')),
        panel('Bytes on the wire by op and direction', 'timeseries', 'Bps', 'Messages as they travel, without transport framing.',
              target(rate('capstan_ps_client_wire_bytes_total', RANK, 'op, direction'), '{{op}} {{direction}}')),
        panel('Compression ratio', 'stat', 'none', 'Tensor bytes per byte on the wire; below 1 by what frames add.',
              target(f'{rate("capstan_ps_client_payload_bytes_total", JOB, window="5m")} / '
                     f'{rate("capstan_ps_client_wire_bytes_total", JOB, window="5m")}', 'payload / wire')),
        panel('Model version spread between shards', 'stat', 'short',
              'Highest minus lowest version of a job. One or two in passing is the pipeline at work.',
              target(f'max by (job_id) (capstan_ps_model_version{JOB}) - min by (job_id) (capstan_ps_model_version{JOB})',
                     '{{job_id}}'), steps=[(None, FINE), (2, WARN), (10, BAD)]),
        panel('Barrier wait, share of wall time per rank', 'timeseries', 'percentunit',
              'The rank that waits least is the one that the others wait for.',
              target(rate('capstan_barrier_wait_seconds_sum', RANK, 'rank'), 'rank {{rank}}')),
        panel('Memory of the store', 'timeseries', 'bytes', 'Weights, optimizer state and gradients under way, of all shards.',
              target(f'sum by (kind) (capstan_ps_resident_bytes{JOB})', '{{kind}}')),
        panel('Workers that wait', 'timeseries', 'short', 'Of the synchronous round under way; and those that take weights too slowly.',
              target(f'max by (job_id) (capstan_ps_waiting_workers{JOB})', '{{job_id}}'),
              target(f'max by (job_id) (capstan_ps_slow_readers{JOB})', 'slow readers of {{job_id}}'),
              target(rate('capstan_ps_versions_missed_total', JOB, 'job_id', '5m'), 'versions left out, {{job_id}}')),
        panel('Staleness of asynchronous jobs', 'timeseries', 'short',
              'Steps of the slowest lane that the weights of a gradient lacked, and the bound (-1: none). Empty for synchronous jobs.',
              *quantiles('capstan_ps_gradient_staleness_steps', ['job_id'], JOB, '5m', '{{job_id}}'),
              target(f'max by (job_id) (capstan_ps_max_staleness_steps{JOB})', 'bound of {{job_id}}')),
        panel('Dropped gradients, retries', 'timeseries', 'cps',
              'Frames that were not applied, by reason: stale and duplicate follow every repetition and harm nothing. Streams that '
              'were opened again.',
              target(rate('capstan_ps_gradients_dropped_total', JOB, 'reason', '5m'), '{{reason}}'),
              target(rate('capstan_ps_client_retries_total', JOB, 'rank', '5m'), 'retries of rank {{rank}}')),
    ]
    full = [(None, FINE), (0.85, WARN), (0.95, BAD)]
    gpu = [
        panel('GPU memory used / total', 'timeseries', 'bytes', 'GPU Framebuffer Mem Used, of all processes.',
              target(of_gpu('capstan_gpu_memory_used_bytes'), 'used, GPU {{gpu}} rank {{rank}}'),
              target(of_gpu('capstan_gpu_memory_total_bytes'), 'total, GPU {{gpu}} rank {{rank}}')),
        panel('GPU memory, how full', 'bargauge', 'percentunit', 'GPU Framebuffer Mem Used by its size.',
              target(of_gpu('capstan_gpu_memory_used_bytes / capstan_gpu_memory_total_bytes'), 'GPU {{gpu}} rank {{rank}}'),
              steps=full),
        panel('Allocator: allocated and peak', 'timeseries', 'bytes', 'What the plans of the job were given.',
              target(f'max by (rank, gpu) (capstan_gpu_memory_allocated_bytes{RANK})', 'allocated, GPU {{gpu}} rank {{rank}}'),
              target(f'max by (rank, gpu) (capstan_gpu_memory_peak_bytes{RANK})', 'peak, GPU {{gpu}} rank {{rank}}')),
        panel('GPU utilization', 'timeseries', 'percentunit', 'GPU Utilization: share of time in which a kernel ran.',
              target(of_gpu('capstan_gpu_utilization_ratio'), 'GPU {{gpu}} rank {{rank}}')),
        panel('GPU power', 'timeseries', 'watt', 'GPU Power Usage.',
              target(of_gpu('rate(capstan_gpu_energy_joules_total[$__rate_interval])'), 'GPU {{gpu}} rank {{rank}}')),
        panel('GPU temperature', 'timeseries', 'celsius', 'GPU Temperature.',
              target(of_gpu('capstan_gpu_temperature_celsius'), 'GPU {{gpu}} rank {{rank}}'),
              steps=[(None, FINE), (80, WARN), (90, BAD)]),
    ]
    reliability = [
        panel('Checkpoint age', 'stat', 's', 'Work that is lost at most when all goes down now.',
              target(f'time() - max by (job_id) (capstan_job_last_checkpoint_timestamp_seconds{JOB})', '{{job_id}}'),
              steps=[(None, FINE), (1800, WARN), (3600, BAD)]),
        panel('Checkpoint time p95', 'timeseries', 's', 'Of one shard: to save, and to restore.',
              *quantiles('capstan_checkpoint_duration_seconds', ['op'], JOB, '30m', '{{op}}', (0.95,))),
        panel('Checkpoint size', 'timeseries', 'bytes', 'Files of the shards of the last checkpoint.',
              target(f'sum by (job_id) (capstan_checkpoint_size_bytes{JOB})', '{{job_id}}')),
        panel('Lineage and generation', 'timeseries', 'short',
              'The lineage grows when a job goes back to a checkpoint, the generation whenever lanes change owners.',
              target(f'max by (job_id) (capstan_job_lineage{JOB})', 'lineage {{job_id}}'),
              target(f'max by (job_id) (capstan_job_generation{JOB})', 'generation {{job_id}}')),
        panel('Skipped steps, failed checkpoints, lost log lines', 'timeseries', 'short', 'Should stay at 0.',
              target(f'max by (job_id) (increase(capstan_job_nonfinite_steps_total{JOB}[5m]))', 'not finite {{job_id}}'),
              target(f'sum by (job_id) (increase(capstan_checkpoint_failures_total{JOB}[5m]))', 'checkpoints {{job_id}}'),
              target(f'max by (job_id) (increase(capstan_job_log_lines_dropped_total{JOB}[5m]))', 'log lines {{job_id}}'),
              width=16),
        text('In words', '`capstan describe JOB` says what the job waits for, `capstan logs JOB` what its tasks said, '
                         '`capstan events JOB` what happened to it.'),
    ]
    variables = [
        variable('queue', 'Queue', 'label_values(capstan_jobs, queue)'),
        variable('job_id', 'Job', 'label_values(capstan_job_info{queue=~"$queue"}, job_id)'),
        variable('rank', 'Rank', 'label_values(capstan_worker_steps_total{job_id=~"$job_id"}, rank)'),
    ]
    return dashboard('capstan-job', 'Capstan job',
                     'One training job: is it moving, how fast, where does the time go, is the store the limit, is the GPU full, '
                     'will it survive.',
                     [('Overview', overview), ('Training', training), ('Step time', steps), ('Parameter store', store),
                      ('GPU (empty where nothing trains on one)', gpu), ('Reliability', reliability)],
                     variables, [link('Fleet', 'capstan-fleet')],
                     [annotation('Back to a checkpoint', BAD, f'changes(capstan_job_lineage{JOB}[1m]) > 0'),
                      annotation('Lanes moved', WARN, f'increase(capstan_job_takeovers_total{JOB}[1m]) > 0')])


def fleet_dashboard():
    jobs = [
        panel('Jobs', 'table', 'none', 'Jobs that have a gang: state, model and queue.',
              target(JOB_TABLE.format('', ''), table=True), width=24, height=7),
        panel('Jobs by state', 'timeseries', 'short', 'Jobs that the coordinator knows; ended ones are kept for a while.',
              target('sum by (state) (capstan_jobs{queue=~"$queue"})', '{{state}}')),
        panel('Slots: quota / allocated / pending', 'timeseries', 'short',
              'Devices that the queue may use, that jobs hold, and that waiting jobs ask for.',
              *[target(f'sum by (queue) (capstan_queue_{kind}_slots{{queue=~"$queue"}})', f'{kind} {{{{queue}}}}')
                for kind in ('quota', 'allocated', 'pending')]),
        panel('Queue wait p50 / p95', 'timeseries', 's', 'From submission to a whole gang.',
              *quantiles('capstan_job_queue_wait_seconds', ['queue'], '{queue=~"$queue"}', '1h', '{{queue}}', (0.5, 0.95))),
        panel('Submitted, rejected, finished', 'timeseries', 'short', 'In the last hour.',
              target('sum(increase(capstan_jobs_submitted_total{queue=~"$queue"}[1h]))', 'submitted'),
              target('sum by (reason) (increase(capstan_jobs_rejected_total{queue=~"$queue"}[1h]))', 'rejected: {{reason}}'),
              target('sum by (state) (increase(capstan_jobs_finished_total{queue=~"$queue"}[1h]))', '{{state}}')),
        panel('Restarts by reason', 'timeseries', 'short', 'Jobs that went back to a checkpoint, in the last hour.',
              target('sum by (reason) (increase(capstan_job_restarts_total{queue=~"$queue"}[1h]))', '{{reason}}')),
        panel('What happened to jobs', 'timeseries', 'short', 'Events of the last five minutes, by kind.',
              target('sum by (event) (increase(capstan_job_events_total[5m]))', '{{event}}')),
    ]
    nodes = [
        panel('Workers and parameter stores', 'timeseries', 'short', 'Registered processes: ready, or lost and not forgotten yet.',
              target('sum by (state) (capstan_workers)', 'workers {{state}}'),
              target('sum by (state) (capstan_param_stores)', 'parameter stores {{state}}')),
        panel('Heartbeat age by node', 'timeseries', 's', 'A node that stopped in good order leaves the list.',
              target('time() - capstan_worker_last_heartbeat_timestamp_seconds', '{{worker}}'),
              target('time() - capstan_param_store_last_heartbeat_timestamp_seconds', '{{param_store}}'),
              steps=[(None, FINE), (30, BAD)]),
        panel('Leases lost', 'timeseries', 'short', 'Nodes that fell silent, in the last hour.',
              target('sum by (role) (increase(capstan_node_leases_lost_total[1h]))', '{{role}}')),
        panel('Free disk by folder', 'bargauge', 'percentunit',
              'Of state, checkpoints and data, by node. Checkpoints fail below a 20th.',
              target(f'min by (node, instance, folder, use) (capstan_folder_free_bytes{NODE} / capstan_folder_size_bytes)',
                     '{{use}} {{folder}} of {{node}} {{instance}}'), width=16, steps=[(None, BAD), (0.05, WARN), (0.1, FINE)]),
        panel('Free disk', 'timeseries', 'bytes', 'The same in bytes: how fast it goes.',
              target(f'min by (node, instance, folder, use) (capstan_folder_free_bytes{NODE})',
                     '{{use}} {{folder}} of {{node}} {{instance}}')),
    ]
    hot = [(None, FINE), (80, WARN), (90, BAD)]
    gpu = [
        panel('GPU memory, how full', 'bargauge', 'percentunit', 'GPU Framebuffer Mem Used by its size.',
              target('max by (UUID, gpu) (capstan_gpu_memory_used_bytes / capstan_gpu_memory_total_bytes)', 'GPU {{gpu}} {{UUID}}'),
              steps=[(None, FINE), (0.85, WARN), (0.95, BAD)]),
        panel('GPU utilization', 'timeseries', 'percentunit', 'GPU Utilization: share of time in which a kernel ran.',
              target('max by (UUID, gpu) (capstan_gpu_utilization_ratio)', 'GPU {{gpu}} {{UUID}}')),
        panel('GPU power and temperature', 'timeseries', 'watt', 'GPU Power Usage; GPU Temperature in degrees Celsius.',
              target('max by (UUID, gpu) (rate(capstan_gpu_energy_joules_total[$__rate_interval]))', 'W, GPU {{gpu}} {{UUID}}'),
              target('max by (UUID, gpu) (capstan_gpu_temperature_celsius)', 'degrees, GPU {{gpu}} {{UUID}}'), steps=hot),
    ]
    services = [
        panel('RPC rate by method and code', 'timeseries', 'reqps', 'Calls that ended. Streams of nodes and watchers end rarely.',
              target(rate('grpc_server_handled_total', NODE, 'grpc_method, grpc_code') + ' > 0', '{{grpc_method}} {{grpc_code}}')),
        panel('RPC latency p99 by method', 'timeseries', 's', 'Time in the server; of a stream, its whole life.',
              *quantiles('grpc_server_handling_seconds', ['grpc_method'], NODE, '5m', '{{grpc_method}}', (0.99,))),
        panel('Commit of the journal p50 / p99', 'timeseries', 's', 'What every answer of the coordinator waits for.',
              *quantiles('capstan_journal_commit_duration_seconds', [], '', '5m', '', (0.5, 0.99))),
        panel('CPU', 'timeseries', 'short', 'Cores, of the services; the tasks of a worker are processes of their own.',
              target(f'rate(process_cpu_seconds_total{NODE}[$__rate_interval])', '{{component}} {{node}} {{instance}}')),
        panel('Resident memory', 'timeseries', 'bytes', 'Of the services.',
              target(f'process_resident_memory_bytes{NODE}', '{{component}} {{node}} {{instance}}')),
        panel('Open files', 'timeseries', 'short', 'Descriptors of the services.',
              target(f'process_open_fds{NODE}', '{{component}} {{node}} {{instance}}')),
        panel('Certificates and tokens end in', 'table', 's',
              'Of each service: its own certificate and the last of its authorities; the newest token of each node. Empty without TLS.',
              target(f'min by (component, node, instance, certificate) (capstan_certificate_expiry_timestamp_seconds{NODE}) - time()',
                     table=True),
              target('max by (role, name) (capstan_token_expiry_timestamp_seconds) - time()', table=True),
              width=16, steps=[(None, BAD), (86400, WARN), (14 * 86400, FINE)]),
        panel('Versions running', 'table', 'none', 'All services should be of one build.',
              target('count by (component, version, revision) (capstan_build_info)', table=True), width=16),
        panel('Targets up', 'stat', 'short', 'Services that Prometheus could scrape, and those that it could not.',
              target('sum(up)', 'up'), target('count(up) - sum(up)', 'down')),
        text('In words', '`capstan node list` shows the nodes, `capstan list` the jobs, `capstan healthcheck` one service.'),
    ]
    variables = [
        variable('queue', 'Queue', 'label_values(capstan_jobs, queue)'),
        variable('instance', 'Service', 'label_values(capstan_build_info, instance)'),
    ]
    return dashboard('capstan-fleet', 'Capstan fleet', 'Jobs, nodes, cards and services of the whole cluster.',
                     [('Jobs', jobs), ('Nodes', nodes), ('GPUs (empty where there are none)', gpu), ('Services', services)],
                     variables, [link('Job', 'capstan-job')],
                     [annotation('Restarts', BAD, 'changes(capstan_job_restarts_total[1m]) > 0')])


def files():
    """Name -> text of every file that this script writes."""
    return {f'{one["uid"]}.json': json.dumps(one, indent=2) + '\n' for one in (job_dashboard(), fleet_dashboard())}


def main(arguments):
    if arguments not in ([], ['--check']):
        sys.exit(__doc__)
    stale = []
    for name, content in files().items():
        path = os.path.join(FOLDER, name)
        if arguments:
            if not os.path.exists(path) or open(path, encoding='utf-8').read() != content:
                stale.append(name)
            continue
        with open(path, 'w', encoding='utf-8') as f:
            f.write(content)
    if stale:
        sys.exit(f'not what deploy/grafana/generate.py writes: {", ".join(stale)}')


if __name__ == '__main__':
    main(sys.argv[1:])
