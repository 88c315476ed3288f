#!/usr/bin/env python3
"""A program that `isochrome exec` starts gets its colors and keeps them, with its contents; the exit status is its own."""

import json
import subprocess
from pathlib import Path

from checks import GIVEN, HURRIED, Holder
from shared import require, run, until

report = Path("/run/exec.json")
report.unlink(missing_ok=True)
with Holder(by=["isochrome", "exec", "--colors", "0-3", "-o", str(report), *GIVEN, *HURRIED]) as holder:
    until("it is on its colors by the kernel's account", 120, lambda: holder.is_on("0-3"))
    until("isochrome says so", 60, report.exists)
    print(report.read_text())
    holder.works()
    # NUMA balancing may have moved pages again, which are moved back.
    until("it is on them", 30, lambda: holder.is_on("0-3"))
    print(run("isochrome", "ps"))
said = json.loads(report.read_text())
require(said["off_color"] * 100 <= said["resident"], "at most 1 % of its pages is off color by isochrome's account")
done = subprocess.run(["isochrome", "exec", "--colors", "4-7", *GIVEN, "sh", "-c", "exit 7"])
require(done.returncode == 7, "the exit status is that of the program")
