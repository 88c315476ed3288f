#!/usr/bin/env python3
"""`isochrome run` observes jobs by fixed priorities and by reserved time, and restores all settings; after SIGKILL the next command does so."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from shared import HERE, require, run, until

FOLDER = Path("/run/planned")
FOLDER.mkdir(exist_ok=True)
# The policy SCHED_DEADLINE, which Python has no name for.
DEADLINE = 6
PERIOD, CPU = 100_000_000, os.cpu_count() - 1
plan = {
    "schema": "isochrome-plan/2",
    **{"schedulable": True, "method": "optimal", "objective": "partitions", "analysis": "kim2013", "partitions_used": 4},
    **{"utilization": 0.1, "bound": None, "gap": None},
    "cores": [
        {
            **{"cpu": CPU, "partitions": [0, 1, 2, 3], "utilization": 0.1},
            "tasks": [
                {
                    **{"name": "beat", "partitions": [0, 1, 2, 3], "response_ns": PERIOD, "deadline_ns": PERIOD},
                    **{"no_interference_ns": PERIOD, "wcet_ns": PERIOD // 2, "utilization": 0.5},
                }
            ],
        }
    ],
    "programs": {
        **{"cpus": [CPU], "level": 2, "method": "none"},
        "tasks": [
            {
                **{"name": "beat", "command": ["/usr/bin/python3", "-u", str(HERE / "beat.py")], "period_ns": PERIOD},
                **{"deadline_ns": PERIOD, "memory_bytes": 64 << 20, "jobs": "line"},
            }
        ],
    },
}
(FOLDER / "plan.json").write_text(json.dumps(plan))


def begun(policy, seconds):
    words = ["isochrome", "run", str(FOLDER / "plan.json"), "-o", str(FOLDER / policy), "--policy", policy, "--duration", f"{seconds}s", "--json"]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def policies():
    """Returns the scheduling policies of the program's threads."""
    pids = subprocess.run(["pgrep", "-f", "beat.py"], capture_output=True, text=True).stdout.split()
    return {os.sched_getscheduler(int(pid)) for pid in pids if Path(f"/proc/{pid}").exists()}


bystander = subprocess.Popen(["sleep", "infinity"])
before = os.sched_getaffinity(bystander.pid)
for policy, number in (("fifo", os.SCHED_FIFO), ("deadline", DEADLINE)):
    running = begun(policy, 5)
    until(f"the program runs by {policy}", 60, lambda: number in policies() or running.poll() is not None)
    out, errors = running.communicate()
    if running.returncode not in (0, 2, 3):
        sys.exit(f"the run by {policy} ended with {running.returncode}: {errors}")
    section = json.loads(out)["sections"][0]
    print(section["headline"], section["basis"], flush=True)
    tasks = section["numbers"]["tasks"]
    require(tasks[0]["jobs"] >= 10, f"{tasks[0]['jobs']} jobs were seen")
    require(os.sched_getaffinity(bystander.pid) == before and not policies(), "everything is as it was")

killed = subprocess.Popen(["isochrome", "run", str(FOLDER / "plan.json"), "-o", str(FOLDER / "killed"), "--duration", "60s"], stdout=subprocess.DEVNULL)
until("others are kept off the CPU", 60, lambda: os.sched_getaffinity(bystander.pid) != before)
until("the program runs", 60, policies)
time.sleep(1)
killed.kill()
killed.wait()
print(run("isochrome", "ps"))
until("the next command has set everything back", 30, lambda: os.sched_getaffinity(bystander.pid) == before and not policies())
bystander.kill()
