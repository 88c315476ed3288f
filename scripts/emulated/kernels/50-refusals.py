#!/usr/bin/env python3
"""A request for a process or a color that does not exist, or without the rights, is refused with the reason, and nothing is harmed."""

from checks import GIVEN, Holder
from shared import require, run

with Holder(2) as holder:
    said = run("isochrome", "recolor", "999999", "--colors", "0-3", *GIVEN, fails=True)
    require("999999" in said, f"a process that is not there: {said}")
    said = run("isochrome", "recolor", str(holder.pid), "--colors", "0-99", *GIVEN, fails=True)
    require("99" in said, f"colors that are not there: {said}")
    said = run(
        *["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "isochrome", "recolor", str(holder.pid), "--colors", "0-3", *GIVEN], fails=True
    )
    require("hint" in said, f"somebody else's process: {said}")
    holder.works()
