#!/usr/bin/env python3
"""The units of `isochrome export systemd` are accepted by systemd, and two of them run beside each other and beside the server."""

import json
import shutil
import subprocess
from pathlib import Path

from checks import HERE, UNITS, colors, listed, policy, require, run, share, shown, started, wait

programs = {name: ["/usr/bin/python3", str(HERE / "holder.py"), "4", f"/run/{name}.report"] for name in ("arm", "leg")}
task = lambda name, partitions: {"name": name, "partitions": partitions, "response_ns": 4, "deadline_ns": 5}
core = lambda cpu, tasks: {"cpu": cpu, "partitions": [p for each in tasks for p in each["partitions"]], "utilization": 0.5, "tasks": tasks}
plan = {
    "schema": "isochrome-plan/2",
    **{"schedulable": True, "method": "cata", "objective": "partitions", "analysis": "kim2013", "partitions_used": 4},
    **{"utilization": 1.0, "bound": None, "gap": None},
    "cores": [core(0, [task("arm", [0, 1])]), core(1, [task("leg", [2, 3])])],
    "programs": {
        **{"cpus": [0, 1], "level": 2, "method": "colors"},
        "tasks": [{"name": name, "command": command, "period_ns": 5} for name, command in programs.items()],
    },
}
folder = Path("/run/exported")
shutil.rmtree(folder, ignore_errors=True)
folder.mkdir()
(folder / "plan.json").write_text(json.dumps(plan))
run("isochrome", "export", "systemd", str(folder / "plan.json"), "--output", str(folder / "units"))
units = sorted((folder / "units").iterdir())
require(len(units) == 2, "there are two units")
for unit in units:
    print(unit.read_text())
    require(not run("systemd-analyze", "verify", "--man=no", str(unit)), f"systemd-analyze verify says nothing of {unit.name}")

# The server has colors for itself that the plan does not use.
started(policy("12-15"))
try:
    for unit in units:
        # Colors cannot be measured here, so they are given as a formula; and a pause of the usual length moves a page or two.
        text = unit.read_text()
        given = text.replace(" exec ", " exec --trust-palette --palette /etc/isochrome/bits.json --max-pause 2s ", 1)
        require(given != text, f"{unit.name} runs isochrome exec")
        (UNITS / unit.name).write_text(given)
    run("systemctl", "daemon-reload")
    for unit in units:
        run("systemctl", "start", unit.name)
    for unit, name, own in zip(units, ("arm", "leg"), ("0-1", "2-3")):
        require(name in unit.name, f"{unit.name} is of {name}")
        main = int(shown("MainPID", unit.name))
        report = Path(f"/run/{name}.report")
        wait(f"{name} has checked its memory", 60, report.exists)

        def program():
            children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
            return int(children[0]) if children else main

        wait(f"{name} is on colors {own}", 60, lambda: share(program(), own) >= 0.99)
        scheduling = run("chrt", "--pid", str(program()))
        require("SCHED_FIFO" in scheduling, f"{name} has a real-time priority")
        require(report.read_text().split()[1] == "0", f"the contents of {name} are right")
    print(run("isochrome", "ps"))
    require(all(shown("ActiveState", unit.name) == "active" for unit in units), "both run")
    require(colors("control") == "12-15", "the server runs on with its colors")
finally:
    for unit in units:
        print(run("journalctl", "--no-pager", "--output=cat", "--lines=5", "--unit", unit.name))
        subprocess.run(["systemctl", "stop", unit.name], capture_output=True)
        (UNITS / unit.name).unlink(missing_ok=True)
