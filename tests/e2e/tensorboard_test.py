"""`capstan metrics --tensorboard` and `outputs.metrics.tensorboard`: the files have the records that TensorBoard reads, with the
numbers of -o json."""

import json
import os
import signal
import struct
import threading
import time

import services
import support


def crc32c(data):
    """RFC 3720, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def fields(message):
    """(number, value) of a Protocol Buffers message without its schema."""
    at = 0

    def varint():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        size = {1: 8, 5: 4}.get(key & 7) or (varint() if key & 7 == 2 else 0)
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            yield key >> 3, message[at:at + size]
            at += size


def events_of(path):
    """[(seconds, step, {tag: value})], the checksums compared."""
    with open(path, 'rb') as f:
        data = f.read()
    events, at = [], 0
    while at < len(data):
        size, crc = struct.unpack('<QI', data[at:at + 12])
        assert crc == masked(data[at:at + 8]), path
        event = data[at + 12:at + 12 + size]
        assert struct.unpack('<I', data[at + 12 + size:at + 16 + size])[0] == masked(event), path
        at += 16 + size
        seconds, step, values = None, 0, {}
        for number, value in fields(event):
            if number == 1:
                seconds, = struct.unpack('<d', value)
            elif number == 2:
                step = value
            elif number == 3:
                assert value == b'brain.Event:2' and not events
            elif number == 5:
                for _, one in fields(value):
                    one = dict(fields(one))
                    values[one[1].decode()], = struct.unpack('<f', one[2])
        events.append((seconds, step, values))
    return events


class TensorBoardTest(services.ServicesTest):
    def check(self, path, job):
        history = json.loads(self.ok('metrics', job, '-o', 'json').out)
        head, *events = events_of(path)
        self.assertEqual(head[2], {})
        losses = {step: values['loss'] for _, step, values in events if 'loss' in values}
        self.assertEqual(set(losses), {point['step'] for point in history['points'] if point['loss'] is not None} & set(losses))
        for point in history['points']:
            if point['step'] in losses:
                self.assertAlmostEqual(losses[point['step']], point['loss'], delta=1e-6 * abs(point['loss']))
        evaluated = {step: values['validation_accuracy'] for _, step, values in events if 'validation_accuracy' in values}
        self.assertEqual(list(evaluated), [one['step'] for one in history['evaluations']])
        for one in history['evaluations']:
            self.assertAlmostEqual(evaluated[one['step']], one['validation_accuracy'], delta=1e-6)
        self.assertEqual([seconds for seconds, _, _ in events], sorted(seconds for seconds, _, _ in events))
        return losses

    def event_files(self, job):
        """Those that the coordinator has written beside the checkpoints."""
        folder = json.loads(self.ok('describe', job, '-o', 'json').out)['resolved']['storage_path']
        return sorted(os.path.join(folder, name) for name in os.listdir(folder) if 'tfevents' in name)

    def test_a_job_that_asks_for_the_file(self):
        self.start(workers=1, shards=1)
        spec = support.job_spec(evaluation={'every': '1 epoch'}, outputs={'metrics': {'tensorboard': True}})
        spec['training']['epochs'] = 60
        job = self.submit(spec)
        self.wait_for_step(job, 1)
        self.wait_until(lambda: self.event_files(job), 30, 'the file')
        time.sleep(1.1)  # a file is named after the second in which it begins
        self.stop('coordinator', signal.SIGKILL)
        self.start_plain_coordinator()  # begins a file of its own
        self.ok('wait', job)
        evaluations = json.loads(self.ok('metrics', job, '-o', 'json').out)['evaluations']

        def events():
            return [event for path in self.event_files(job) for event in events_of(path)]

        self.wait_until(lambda: any(step == evaluations[-1]['step'] and 'validation_accuracy' in values for _, step, values in events()), 30,
                        'the last evaluation')
        self.assertEqual(len(self.event_files(job)), 2)
        losses = [step for _, step, values in events() if 'loss' in values]
        self.assertEqual(losses, sorted(set(losses)))
        self.assertEqual(losses[-1], evaluations[-1]['step'])
        measured = {point['step']: point['loss'] for point in json.loads(self.ok('metrics', job, '-o', 'json').out)['points']}
        both = [(measured[step], values['loss']) for _, step, values in events() if 'loss' in values and step in measured]
        self.assertGreater(len(both), 1)
        for want, got in both:
            self.assertAlmostEqual(got, want, delta=1e-6 * abs(want))

    def test_a_job_while_it_trains_and_after(self):
        self.start(workers=1, shards=1)
        spec = support.job_spec(evaluation={'every': '1 epoch'})
        spec['training']['epochs'] = 40
        job = self.submit(spec)
        followed = []
        thread = threading.Thread(target=lambda: followed.append(self.capstan('metrics', job, '--tensorboard', 'live', '-f')))
        thread.start()
        path = self.path('live', job, f'events.out.tfevents.0000000000.{job}')
        self.wait_until(lambda: os.path.exists(path) and len(events_of(path)) > 1, 30, 'events')
        self.ok('wait', job)
        thread.join(60)
        self.assertEqual(followed[0].code, 0, followed[0])
        self.assertEqual(followed[0].out, f'live/{job}/{os.path.basename(path)}\n')
        self.assertIn('tensorboard --logdir live', followed[0].err)
        self.assertGreater(len(self.check(path, job)), 1)

        whole = self.ok('metrics', job, '--tensorboard', 'once').out.strip()
        history = json.loads(self.ok('metrics', job, '-o', 'json').out)
        self.assertEqual(list(self.check(self.path(whole), job)), [point['step'] for point in history['points'] if point['loss'] is not None])
        self.assertEqual(self.event_files(job), [])
        only = self.ok('metrics', job, '--tensorboard', 'only', '--name', 'loss').out.strip()
        self.assertEqual({tag for _, _, values in events_of(self.path(only)) for tag in values}, {'loss'})

        for args, code, text in (
                (('-f', ), 2, '--follow would do nothing: it goes on writing the file of --tensorboard'),
                (('--tensorboard', 'x', '--plot'), 2, '--plot would do nothing'),
                (('--tensorboard', 'x', '-o', 'json'), 2, '-o would do nothing'),
                (('--tensorboard', 'x', '--name', 'speed'), 2, "no metric 'speed'"),
                (('--tensorboard', '/dev/null/x'), 1, '/dev/null: Not a directory')):
            refused = self.capstan('metrics', job, *args)
            self.assertEqual(refused.code, code, refused)
            self.assertIn(text, refused.err)


if __name__ == '__main__':
    support.main()
