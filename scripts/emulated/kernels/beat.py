"""A job for each line of standard input, answered by a line."""

import sys

print("ready", flush=True)
for _ in sys.stdin:
    sum(range(1000))
    print("done", flush=True)
