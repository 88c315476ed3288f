#!/usr/bin/env python3
"""A container with an annotation runs without colors where no server does, and says so."""

import subprocess

from checks import box, require, started, stopped

IMAGE, _ = box()
stopped()
words = ["podman", "run", "--rm", "--network=none", "--annotation", "isochrome.class=control", IMAGE, "/bin/busybox", "echo", "ran"]
done = subprocess.run(words, capture_output=True, text=True)
require(done.returncode == 0 and done.stdout == "ran\n", f"it runs: status {done.returncode}\n{done.stdout}{done.stderr}")
started()
