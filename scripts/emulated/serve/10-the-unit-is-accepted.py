#!/usr/bin/env python3
"""systemd accepts the unit without a warning, and prints its exposure."""

from checks import SERVICE, require, run

require(not run("systemd-analyze", "verify", "--man=no", f"/etc/systemd/system/{SERVICE}"), "systemd-analyze verify says nothing")
lines = run("systemd-analyze", "security", "--no-pager", SERVICE).splitlines()
print("\n".join(line for line in lines if line.startswith("→")))
