#!/usr/bin/env python3
"""`isochrome doctor` reports the features of this kernel. The features that the check itself can look up are reported correctly."""

import json
import os
import subprocess

from shared import require

done = subprocess.run(["isochrome", "doctor", "--json"], capture_output=True, text=True)
require(done.returncode == 0, f"doctor ends with 0 ({done.returncode}) {done.stderr}")
checks = {each["name"]: each for each in json.loads(done.stdout)["checks"]}
for name, each in checks.items():
    print(f"{name}: {each['status']}: {each['found']}")
release = tuple(int(number) for number in os.uname().release.split(".")[:2])
moves = checks["moving pages"]
require(os.uname().release in moves["found"], "it names this kernel")
require(("UFFDIO_MOVE: yes" in moves["found"]) == (release >= (6, 8)), "it knows whether pages can be moved with UFFDIO_MOVE (Linux 6.8)")
require(checks["frame numbers"]["status"] == "ok", "it sees frame numbers")
