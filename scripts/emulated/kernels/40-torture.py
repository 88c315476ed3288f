#!/usr/bin/env python3
"""A program keeps its contents through 200 recolorings, and through 100 that are killed at random instants and repaired."""
# Takes at most 1800 s.

import os
import random
import subprocess
import time

from checks import GIVEN, HURRIED, Holder
from shared import run

random.seed(1)
PLACES = ("0-3", "8-11")
with Holder(2) as holder:
    begin = time.monotonic()
    for at in range(200):
        run("isochrome", "recolor", str(holder.pid), "--colors", PLACES[at % 2], *GIVEN, *HURRIED)
        holder.rounds()
    whole = (time.monotonic() - begin) / 200
    print(f"200 recolorings, {whole:.2f} s each")
    holder.works()
    late = repaired = 0
    for at in range(100):
        begun = subprocess.Popen(
            ["isochrome", "recolor", str(holder.pid), "--colors", PLACES[at % 2], *GIVEN, *HURRIED], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(random.uniform(0, 1.2 * whole))
        late += begun.poll() is not None
        begun.kill()
        begun.wait()
        left = os.path.exists(f"/run/isochrome/recolor-{holder.pid}.json")
        repaired += left
        if left:
            run("isochrome", "recolor", str(holder.pid), "--repair")
        holder.rounds()
    print(f"100 kills: {late} came too late, {repaired} left something to repair")
    holder.works()
    holder.arrives("0-3")
