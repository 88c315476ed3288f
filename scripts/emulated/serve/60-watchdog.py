#!/usr/bin/env python3
"""A server that stands still is ended and started again by systemd's watchdog; members run on."""

import os
import signal

from checks import Holder, is_on, journal, require, server, shown, started, state, wait

started()
with Holder("robot-arm") as unit:
    wait("the service is on its colors", 30, lambda: is_on(unit.pid, "control"))
    before, restarts = server(), int(shown("NRestarts"))
    limit = shown("WatchdogUSec")
    require(limit not in ("", "0", "infinity"), f"the watchdog gives up after {limit}")
    os.kill(before, signal.SIGSTOP)
    wait("systemd has started another server", 150, lambda: state() == "active" and server() not in (0, before))
    require(int(shown("NRestarts")) == restarts + 1, "one restart is counted")
    require("atchdog" in journal(), "the journal names the watchdog")
    wait("the service is on its colors again", 60, lambda: is_on(unit.pid, "control"))
    unit.works()
