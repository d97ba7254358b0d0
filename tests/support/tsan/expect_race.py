"""Runs injected_race MODE. `clean` must pass; in every other mode ThreadSanitizer must report the race.

So if a suppression or an ignore-list entry hides races of ours, the run fails.
"""

import subprocess
import sys

binary, mode = sys.argv[1:3]
done = subprocess.run([binary, mode], capture_output=True, text=True, timeout=60)
reported = 'WARNING: ThreadSanitizer: data race' in done.stderr and 'Increment' in done.stderr
print(done.stdout + done.stderr[:4000])
if mode == 'clean':
    sys.exit(done.returncode or int(reported))
if not reported or done.returncode != 66:
    print(f'{mode}: the injected race was not reported (exit {done.returncode}, want 66)')
    sys.exit(1)
