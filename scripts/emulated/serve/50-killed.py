#!/usr/bin/env python3
"""systemd starts the server again after SIGKILL; members run on, with their contents, and come to their colors again."""

import os
import random
import signal
import time

from checks import Holder, is_on, require, server, shown, started, state, wait

started()
random.seed(1)
with Holder("robot-arm") as unit, Holder("other") as other:
    wait("both are on their colors", 60, lambda: is_on(unit.pid, "control") and is_on(other.pid, "batch"))
    for _ in range(3):
        before, restarts = server(), int(shown("NRestarts"))
        # Some die while they move pages: a new member comes just before.
        with Holder("robot-leg"):
            time.sleep(random.uniform(0, 0.3))
            os.kill(before, signal.SIGKILL)
            wait("systemd has started another server", 60, lambda: state() == "active" and server() not in (0, before))
            require(int(shown("NRestarts")) == restarts + 1, "one restart is counted")
        wait("both are on their colors", 60, lambda: is_on(unit.pid, "control") and is_on(other.pid, "batch"))
        unit.works()
        other.works()
