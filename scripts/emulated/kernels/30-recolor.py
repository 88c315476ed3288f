#!/usr/bin/env python3
"""A program that runs is moved to other colors and back, with one thread and with eight."""

from checks import Holder

for more in ([], ["8"]):
    with Holder(more=more) as holder:
        for colors in ("0-3", "8-11", "12"):
            holder.arrives(colors)
        holder.works()
