#!/usr/bin/env python3
"""The kernel promises no more memory than it has. A recoloring that needs more is refused with the reason, and leaves the program as it was."""

from pathlib import Path

from checks import COLORS, GIVEN, HURRIED, Kept, Moved, write
from shared import require, run

LIMIT = Path("/proc/sys/vm/overcommit_kbytes")
MEBIBYTES = 32


def sizes():
    """Sizes that /proc/meminfo lists, in KiB."""
    return {line.split(":")[0]: int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines()}


def mapped(holder):
    """The address ranges at which a program has memory."""
    return [line.split()[0] for line in Path(f"/proc/{holder.pid}/maps").read_text().splitlines()]


write("/proc/sys/vm/overcommit_memory", 2)
try:
    for kind in (Kept, Moved):
        with kind(mebibytes=8) as holder:
            holder.settles("where nothing is promised")
    with Moved(mebibytes=MEBIBYTES) as holder:
        before = mapped(holder)
        # Enough for isochrome itself, and less than the memory that holds frames of the colors: four of sixteen colors, so four times as much.
        write(LIMIT, sizes()["Committed_AS"] + 2 * MEBIBYTES * 1024)
        said = run("isochrome", "recolor", str(holder.pid), "--colors", COLORS, *GIVEN, *HURRIED, fails=True)
        print(said)
        require("CommitLimit" in said, "it is refused with the reason")
        require(mapped(holder) == before, "the program has the memory that it had")
        holder.works()
        write("/proc/sys/vm/overcommit_ratio", 90)
        holder.settles("with a higher limit")
finally:
    write("/proc/sys/vm/overcommit_ratio", 50)
    write("/proc/sys/vm/overcommit_memory", 0)
