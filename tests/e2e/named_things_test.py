"""README, CONTRIBUTING, docs, the comments of examples and every `--help` name only existing commands, flags, keys of the job
file, variables, metrics, paths and tests. Things in docs/roadmap.md do not exist yet. In the other direction, the pages name
every command, flag, variable and metric.
"""

import re

import named_things
import support

# Pages with one wrong name of each kind, and the expected complaints.
WRONG = {
    'made-up.md': '''
`capstan frobnicate`, `capstan node fly NODE`, `checkpoint list/burn JOB` are no commands; `node drain/undrain NODE` is one.

    capstan --address unix:/c.sock list --colour
    out=$(capstan submit job.yaml -q); sh -c 'capstan wait --colour' # capstan is quiet --colour
    capstan_gpu_worker --node w0 --colour && capstan run --example lenet-9

| `list [-w] [--colour]` | `--colour`, `-w` | `tools/check-style --colour`, `pack --colour`, `pack --data DIR` |
| --- | --- | --- |

The keys `training.epoch` and `--set optimizer.rate=1`; `data.uri` is one. CAPSTAN_COLOUR is no variable, CAPSTAN_CPU_TARGET is one.
A log has `event=state_disk_full` and no event=flown.
`capstan_jobs_flown_total` is no metric; `capstan_job_loss`, `capstan_worker_step_duration_seconds_bucket` are.
[gone](docs/gone.md), [gone](docs/metrics.md#gone), [there](docs/metrics.md#4-dashboards).
`training/gone/`, `training/fold/*_gone.h`, `gone_rule.h`, `training/fold/{add,gone}.h`; `fold/<name>_sum.h` and `chunk_sum.h` are there.
ChunkSumTest.Gone, `gone_test`; ChunkSumTest.BlockUnderAHeldAncestorIsCovered and `simulation_test` are there.

```yaml
version: 1
name: whole
model: {name: lenet}
data: {format: synthetic_digits}
training: {epochs: 1, global_batch_size: 64, optimizer: {name: sgd, learning_rate: 0.1, colour: red}}
```

```yaml
checkpoint: {every: 30 bananas}
```
''',
    'examples/made-up.yaml': '# Trains.\n#   capstan data fetch mnist && capstan run --example made-up\nversion: 1  # see docs/gone.md\n',
    named_things.RELIABILITY: '''- `training/fold/chunk_sum_test.cc`, BlockUnderAHeldAncestorIsGone, BlockUnderAHeldAncestorIsCovered.
  `AClassThatIsGoneAlone`
''',
    named_things.ROADMAP: '''
| Key | Today |
|---|---|
| `queue`, `training.epochs` | |
| `kvstore.type`: `nccl`, `local` | |
| `training.seed: 3` | |

| Command | Would do |
|---|---|
| `submit --from JOB`, `submit --wait`, `node drain`, `queue list` | |

| What | Today |
|---|---|
| `capstan_job_loss`, `capstan_jobs_flown_total`, `--lease`, `--flown`, `chunk_sum.h` | |
''',
}
SAID = '''
made-up.md:2: capstan has no command frobnicate
made-up.md:2: capstan node has no command fly
made-up.md:2: capstan checkpoint has no command list/burn
made-up.md:4: capstan list has no flag --colour
made-up.md:5: capstan wait has no flag --colour
made-up.md:6: capstan_gpu_worker has no flag --colour
made-up.md:6: there is no example lenet-9
made-up.md:8: capstan list has no flag --colour
made-up.md:8: no program of ours has the flag --colour
made-up.md:8: tools/check-style has no flag --colour
made-up.md:8: tests/gpu/pack has no flag --colour
made-up.md:11: the job file has no key training.epoch
made-up.md:11: the job file has no key training.optimizer.rate
made-up.md:11: nothing reads the variable CAPSTAN_COLOUR
made-up.md:12: nothing logs event=flown
made-up.md:13: there is neither a metric nor a target capstan_jobs_flown_total
made-up.md:14: the link docs/gone.md leads nowhere
made-up.md:14: docs/metrics.md has no heading #gone
made-up.md:15: there is no training/gone/
made-up.md:15: there is no training/fold/*_gone.h
made-up.md:15: there is no gone_rule.h
made-up.md:15: there is no training/fold/{add,gone}.h
made-up.md:16: there is no test ChunkSumTest.Gone
made-up.md:16: there is no test gone_test
made-up.md:19: capstan validate refuses this job: unknown field 'training.optimizer.colour'
made-up.md:27: capstan validate refuses this job: 'checkpoint.every' must be
examples/made-up.yaml:2: capstan data has no command fetch
examples/made-up.yaml:2: there is no example made-up
examples/made-up.yaml:3: there is no docs/gone.md
docs/reliability.md:1: there is no test BlockUnderAHeldAncestorIsGone in training/fold/chunk_sum_test.cc
docs/reliability.md:2: there is no test AClassThatIsGoneAlone
docs/roadmap.md:4: training.epochs is not refused by name, with the value surely-not
docs/roadmap.md:5: kvstore.type is not refused by name, with the value local
docs/roadmap.md:6: training.seed is not refused by name, with the value 3
docs/roadmap.md:10: submit --wait is there
docs/roadmap.md:10: node drain is there
docs/roadmap.md:14: capstan_job_loss is there
docs/roadmap.md:14: --lease is there
docs/roadmap.md:14: chunk_sum.h is there
capstan fly --help:1: mentions the flag --wings, which it does not have
capstan fly --help:1: capstan has no command land
capstan fly --help:1: the job file has no key training.altitude
'''.strip().split('\n')


class NamedThingsTest(support.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.world = named_things.World()
        cls.pages = named_things.pages(cls.world.tree)
        cls.walk = named_things.Walk(cls.world, cls.pages, cls.world.helps())

    def missing(self, wanted, named, what):
        self.assertEqual(sorted(one for one in wanted if one not in named), [], what)

    def test_nothing_is_named_that_is_not_there(self):
        self.assertGreater(len(self.pages), 20)
        self.assertGreater(len(self.world.helps()), 60)
        self.assertEqual(self.walk.complaints, [])

    def test_a_wrong_name_is_found(self):
        fly = named_things.Help('as far as training.altitude and --wings say; then `capstan land`\nOptions:\n  --far    far\n')
        found = named_things.Walk(self.world, WRONG, {'capstan fly': (fly, self.world.programs['capstan'][()])}).complaints
        # Only the first words of the messages of `capstan validate`.
        found = sorted(re.sub(r'<stdin>:\d+:\d+: error: (\S+ \S+ \S+).*', r'\1', one, flags=re.DOTALL) for one in found)
        self.assertEqual(found, sorted(SAID))

    def test_the_page_of_the_command_line_names_every_command_and_flag(self):
        page, walk = named_things.INTERFACE, self.walk
        for name, helps in self.world.programs.items():
            if name == 'capstan_coordinator_load':  # only for tests
                continue
            for path, said in helps.items():
                if path[:1] == ('job',):
                    continue
                if not said.commands:
                    self.assertIn((page, path), walk.named, f'{page} does not name the command')
                for names in said.names:
                    self.assertTrue(any((page, flag) in walk.named for flag in names), f'{page} does not name {names} of {name} {path}')

    def test_the_pages_name_every_variable_and_metric(self):
        self.assertIn('Each flag also exists as `CAPSTAN_<FLAG>`', self.pages[named_things.INTERFACE])
        flags = {'CAPSTAN_' + flag[2:].upper().replace('-', '_') for service in named_things.SERVICES
                 for flag in self.world.programs[service][()].flags}
        self.missing(self.world.variables_of_binaries - flags, self.walk.named, 'variables that no page names')
        rows = set(re.findall(r'^\| `(\w+)` \| (?:counter|gauge|histogram) \|', self.pages[named_things.METRICS], re.MULTILINE))
        self.assertGreater(len(rows), 80)
        self.assertEqual(self.world.metrics ^ rows, set(), f'not in both, sources and the catalogue of {named_things.METRICS}')

    def test_deploy_files_set_variables_that_are_read_and_ask_for_metrics_that_are_there(self):
        for path in self.world.tree.paths:
            if path.startswith('deploy/'):
                text = self.world.tree.text(path)
                self.missing(named_things.VARIABLE.findall(text), self.world.variables, f'variables of {path}')
                if re.match(r'deploy/(grafana/dashboards|prometheus|kubernetes/monitoring)/', path):
                    asked = {re.sub('_(bucket|sum|count)$', '', name) for name in named_things.OURS.findall(text)}
                    self.missing(asked, self.world.metrics | self.world.targets, f'metrics of {path}')

    def test_lists_of_foreign_names_hold_only_what_is_named(self):
        for names in (named_things.FOREIGN_FLAGS, named_things.FOREIGN_FILES, named_things.FOREIGN_KEYS):
            for whose, of_them in names.items():
                self.missing(of_them, self.walk.named, f'{whose}: no page names these')


if __name__ == '__main__':
    support.main()
