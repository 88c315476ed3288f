#!/usr/bin/env python3
"""A service comes onto the colors of the class that names its unit, a process onto those of the class that names its control group (version 2)."""

import subprocess
import time
from pathlib import Path

from checks import HERE, Holder, colors, is_on, member, require, run, share, started, wait

require(Path("/sys/fs/cgroup/cgroup.controllers").exists(), "control groups are of version 2 alone")
started()
group = Path("/sys/fs/cgroup/rt/one")
group.mkdir(parents=True, exist_ok=True)
with Holder("robot-arm") as unit, Holder("other") as other:
    report = Path("/run/grouped.report")
    report.unlink(missing_ok=True)
    grouped = subprocess.Popen(["python3", HERE / "holder.py", "16", report])
    try:
        (group / "cgroup.procs").write_text(str(grouped.pid))
        wait("the process of the control group has filled its memory", 60, report.exists)
        wait("the service is on its colors", 30, lambda: is_on(unit.pid, "control"))
        wait("the process of the control group is on its colors", 30, lambda: is_on(grouped.pid, "control"))
        wait("the other service is on the rest", 30, lambda: is_on(other.pid, "batch"))
        for pid in (unit.pid, grouped.pid, other.pid):
            own, found = member(pid)
            print(
                f"{own}: {100 * share(pid, colors(own)):.1f} % on color by the kernel, {found['on_color']} on, {found['off_color']} off, "
                f"{found['immovable']} immovable by the server, there after {found['seconds_to_colors']:.2f} s"
            )
        print(run("isochrome", "policy", "explain", str(unit.pid)))
        print(run("isochrome", "policy", "explain", str(grouped.pid)))
        unit.works()
        other.works()
        time.sleep(5)
        require(all(is_on(pid, own) for pid, own in ((unit.pid, "control"), (grouped.pid, "control"), (other.pid, "batch"))), "still so after 5 s")
        count, wrong = map(int, report.read_text().split())
        require(count > 0 and wrong == 0, "contents of the grouped process are right")
    finally:
        grouped.kill()
        grouped.wait()
        group.rmdir()
