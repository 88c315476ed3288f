#!/usr/bin/env python3
"""The kernel merges equal pages of a program (KSM) and separates them again: pages that are not merged are on color, and contents stay."""
# Takes at most 600 s.

import time
from pathlib import Path

from checks import COLORS, Kept, Moved, write
from shared import PAGE, require, until

MERGEABLE = 4
PAGES = (MERGEABLE << 20) // PAGE
MERGED = "is merged with equal pages"


def merged(holder):
    """Returns the number of pages of a program that the kernel has merged."""
    return int(Path(f"/proc/{holder.pid}/ksm_merging_pages").read_text())


KSM = "/sys/kernel/mm/ksm"
write(f"{KSM}/pages_to_scan", 10_000)
write(f"{KSM}/sleep_millisecs", 10)
for kind in (Kept, Moved):
    write(f"{KSM}/run", 1)
    with kind(more=["1", str(MERGEABLE)]) as holder:
        until("half of the equal pages are merged", 120, lambda: merged(holder) >= PAGES / 2)
        # Merged pages that are written to get frames of their own, just before or after the recoloring.
        if kind is Moved:
            reports = [holder.recolored(COLORS) for _ in range(5)]
            print(f"{merged(holder)} pages are merged")
            require(any(MERGED in report["immovable"] for report in reports), f"it is said of some that each {MERGED}")
        else:
            time.sleep(10)
            print(f"{merged(holder)} pages are merged")
            holder.settles("while pages are merged")
        holder.works()
        until("pages are merged once more", 120, lambda: merged(holder) >= PAGES / 8)
        write(f"{KSM}/run", 2)
        require(merged(holder) == 0, "the kernel has separated them")
        holder.settles("after they were separated")
write(f"{KSM}/run", 0)
