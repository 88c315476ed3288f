#!/usr/bin/env python3
"""`isochrome watch` sees the switches of two programs that take turns on a CPU."""

import json
import os
import subprocess

from shared import require

CPU = str(os.cpu_count() - 1)
spinners = [subprocess.Popen(["taskset", "-c", CPU, "isochrome", "job", "spin", "1000", "--every", "0s"], stdout=subprocess.DEVNULL) for _ in range(2)]
try:
    watch = ["isochrome", "watch", "--cpu", CPU, "--duration", "5s", "--json"]
    said = subprocess.run(watch, stdout=subprocess.PIPE, check=True, text=True).stdout
    tasks = json.loads(said)["tasks"]
    for each in spinners:
        seen = tasks.get(str(each.pid), {})
        print({name: seen.get(name) for name in ("name", "slices", "preemptions", "run_ns")})
        require(seen.get("slices", 0) > 10 and seen["preemptions"] > 10, f"{each.pid} is seen to take turns")
finally:
    for each in spinners:
        each.kill()
