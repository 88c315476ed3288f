#!/usr/bin/env python3
"""Measures how much faster the analysis of [Kim2013] is than analysis tools in Python, on the same task sets and in the same run.

    python3 -m venv /tmp/rivals && /tmp/rivals/bin/pip install response-time-analysis
    /tmp/rivals/bin/python scripts/planning_rivals.py

The rival is pyRTA (PyPI: response-time-analysis), by the author of SchedCAT: pure Python, no caches. pyCPA and SchedCAT
themselves are in no package registry. Both sides bound every task of every set, on one core; without cache delays the bounds
must be equal, and are checked. The benchmark, cargo's, times ours right before, with all cache delays, and hands over its sets.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from response_time_analysis import fp
from response_time_analysis.model import WCET, Deadline, FullyPreemptive, IdealProcessor, Priority, Sporadic, Task, taskset

SUPPLY = IdealProcessor()
SETS = 20


def bounds(tasks):
    """Response-time bounds of all tasks of a core, highest priority first."""
    tasks = [
        Task(Sporadic(task["period_ns"]), FullyPreemptive(WCET(task["wcet_ns"])), Deadline(task["period_ns"]), Priority(len(tasks) - place))
        for place, task in enumerate(tasks)
    ]
    together = taskset(*tasks)
    return [fp.rta(together, task, SUPPLY).response_time_bound for task in tasks]


def main():
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cores.json"
        command = ["cargo", "bench", "-q", "-p", "isochrome-model", "--bench", "analysis", "--", "--write", str(file)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        cores = json.loads(file.read_text())
    print("| n | kim2013, sets per second | pyRTA, no caches, sets per second | ratio |\n|---:|---:|---:|---:|")
    slow = False
    for count, ours in re.findall(r"^\| (\d+) \| (\d+) \|", output, re.MULTILINE):
        sets = cores[count][:SETS]
        start = time.perf_counter()
        found = [bounds(core["tasks"]) for core in sets]
        rate = len(sets) / (time.perf_counter() - start)
        if found != [core["responses_ns"] for core in sets]:
            sys.exit(f"n = {count}: without cache delays the bounds differ")
        slow |= int(ours) < 100 * rate
        print(f"| {count} | {ours} | {rate:.1f} | {int(ours) / rate:.0f} |")
    sys.exit("less than 100 times as fast" if slow else 0)


if __name__ == "__main__":
    main()
