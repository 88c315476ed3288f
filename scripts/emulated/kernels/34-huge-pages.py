#!/usr/bin/env python3
"""Programs have huge pages wherever the kernel can make them, and it moves pages to make room: they are put on color again, and contents stay."""
# Takes at most 600 s.

from pathlib import Path

from checks import COLORS, Kept, Moved, migrated, write
from shared import require, share

HUGE = Path("/sys/kernel/mm/transparent_hugepage")


def huge(holder):
    """Size of a program's huge pages, in KiB."""
    rollup = Path(f"/proc/{holder.pid}/smaps_rollup").read_text()
    return int(next(line.split()[1] for line in rollup.splitlines() if line.startswith("AnonHugePages:")))


# Kernels with PREEMPT_RT may be built without huge pages; memory is compacted all the same.
there = HUGE.exists()
if not there:
    print("this kernel has no huge pages")
before = {name: (HUGE / name).read_text() for name in ("enabled", "defrag") if there}
for name in before:
    write(HUGE / name, "always")
for name in ("scan_sleep_millisecs", "alloc_sleep_millisecs") if there else ():
    write(HUGE / "khugepaged" / name, 100)
# With pages of 16 KiB, a huge page has 32 MiB. Memory of three of them holds two, wherever it begins.
size = int((HUGE / "hpage_pmd_size").read_text()) >> 20 if there else 0
for kind in (Moved, Kept):
    with kind(mebibytes=max(16, 3 * size)) as holder:
        if there and kind is Moved:
            require(huge(holder) >= size << 10, f"{huge(holder)} KiB of it are in huge pages")
        holder.settles("where huge pages are always made")
        require(huge(holder) == 0, "it has no huge pages any more")
        for _ in range(3):
            moved = migrated()
            write("/proc/sys/vm/compact_memory", 1)
            print(f"{migrated() - moved} pages of all programs were moved by compaction; {100 * share(holder.pid, COLORS):.1f} % of this one's are on color")
            holder.settles("after memory was compacted")
        require(huge(holder) == 0, "it still has no huge pages")
for name, text in before.items():
    write(HUGE / name, text.split("[")[1].split("]")[0])
