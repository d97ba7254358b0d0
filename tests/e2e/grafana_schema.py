"""grafana_schema.py FILE...: reads dashboards by the published schema, and reports what each file lost by that.

Needs a Python with grafana-foundation-sdk. Its from_json silently drops unknown keys, so the result is written again and
compared with the file.
"""

import json
import sys

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard


def lost(before, after, path):
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key not in after:
                yield f'{path}.{key} is not in the schema'
            else:
                yield from lost(value, after[key], f'{path}.{key}')
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, (one, other) in enumerate(zip(before, after)):
            yield from lost(one, other, f'{path}[{i}]')
    elif before != after:
        yield f'{path}: {before!r} became {after!r}'


register_default_plugins()
found = []
for name in sys.argv[1:]:
    with open(name, encoding='utf-8') as f:
        dashboard = json.load(f)
    found += lost(dashboard, json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard))), name)
sys.exit('\n'.join(found) or 0)
