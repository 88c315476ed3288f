#!/usr/bin/env python3
"""A program that runs is moved to other colors and back, with one thread and with eight."""

from checks import Holder
from shared import require

for more in ([], ["8"]):
    with Holder(more=more) as holder:
        for colors in ("0-3", "8-11", "12"):
            holder.recolored(colors)
            require(holder.is_on(colors), f"it is on colors {colors}")
        holder.works()
