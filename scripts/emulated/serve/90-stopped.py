#!/usr/bin/env python3
"""Members run on when the service is stopped, its colors are given back, and no unit of the machine has failed."""

from checks import SERVICE, Holder, is_on, journal, require, run, started, state, wait
from shared import document

started()
with Holder("robot-arm") as unit:
    wait("the service is on its colors", 30, lambda: is_on(unit.pid, "control"))
    run("systemctl", "stop", SERVICE)
    require(state() == "inactive", "the server has ended by itself")
    unit.works()
    grants = document("isochrome", "ps", "--json")["grants"]
    require(not grants, f"nobody holds colors: {grants}")
require("core-dump" not in journal(500), "the server has never crashed")
failed = run("systemctl", "list-units", "--failed", "--plain", "--no-legend")
require(not failed, "no unit has failed" if not failed else f"units have failed:\n{failed}")
