#!/usr/bin/env python3
"""A service of another user that filters its system calls comes onto the colors of its class too."""

from pathlib import Path

from checks import Holder, is_on, require, server, started, wait

started()
require("Seccomp:\t0" in Path(f"/proc/{server()}/status").read_text(), "the server's own calls are not filtered")
sandbox = "User=nobody\nSystemCallFilter=@system-service\nNoNewPrivileges=yes\nProtectSystem=full\n"
with Holder("robot-guard", more=sandbox) as unit:
    lines = Path(f"/proc/{unit.pid}/status").read_text()
    require("Seccomp:\t2" in lines and "Uid:\t65534" in lines, "the service is another user's, and filtered")
    wait("it is on its colors", 60, lambda: is_on(unit.pid, "control"))
    unit.works()

