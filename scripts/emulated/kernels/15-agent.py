#!/usr/bin/env python3
"""Runs unit tests: the code that runs inside other processes keeps the contents of their pages and registers, whatever the kernel reports."""
# Takes at most 900 s.

import subprocess
import sys

from shared import HERE, require

TESTS = HERE / "tests"
if not TESTS.exists():
    print("the unit tests are not here: --tests gives them")
    sys.exit(77)
done = subprocess.run([TESTS, "sys::agent::", "sys::registers::", "--nocapture"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
print(done.stdout)
if "was not tested" in done.stdout:
    print(next(line for line in done.stdout.splitlines() if "was not tested" in line))
    sys.exit(77)
require(done.returncode == 0, f"the tests end with 0 ({done.returncode})")
