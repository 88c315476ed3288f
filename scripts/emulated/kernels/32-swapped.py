#!/usr/bin/env python3
"""The kernel swaps pages of a program out, and they return in other frames: they are put on color again, and contents stay."""
# Takes at most 600 s.

import subprocess
import sys
import threading
import time
from pathlib import Path

from checks import COLORS, Kept, Moved, write
from shared import require, run, until

ZRAM = Path("/sys/block/zram0")
GROUP = Path("/sys/fs/cgroup/pressed")
# Starts a program in that group.
INTO = ["sh", "-c", f'echo $$ > {GROUP}/cgroup.procs && exec "$@"', "sh"]


def swapped(holder):
    """Size of a program's memory that is swapped out, in KiB."""
    status = Path(f"/proc/{holder.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmSwap:")))


def pages_in():
    """Returns the number of pages that the kernel has read back so far."""
    return int(next(line.split()[1] for line in Path("/proc/vmstat").read_text().splitlines() if line.startswith("pswpin ")))


class Pressure:
    """Takes 4 MiB of the group's memory away four times a second."""

    def __enter__(self):
        self.ended, self.most, self.before = False, 0, pages_in()
        self.thread = threading.Thread(target=self.press)
        self.thread.start()
        return self

    def press(self):
        while not self.ended:
            # The kernel may find less memory that it can take away.
            subprocess.run(["sh", "-c", f"echo 4M > {GROUP}/memory.reclaim"], capture_output=True)
            time.sleep(0.25)

    def __exit__(self, *_):
        self.ended = True
        self.thread.join()
        print(f"{pages_in() - self.before} pages were read back")


if not ZRAM.exists():
    print("the kernel has no zram")
    sys.exit(77)
write(ZRAM / "disksize", "256M")
run("mkswap", "/dev/zram0")
run("swapon", "/dev/zram0")
write("/proc/sys/vm/swappiness", 200)
write("/sys/fs/cgroup/cgroup.subtree_control", "+memory")
GROUP.mkdir()
for kind in (Kept, Moved):
    with kind(by=INTO) as holder:
        before = pages_in()
        with Pressure():
            until("pages are swapped out", 120, lambda: swapped(holder) > 1024)
            until("pages are read back", 120, lambda: pages_in() - before > 1000)
            if kind is Moved:
                for _ in range(5):
                    holder.recolored(COLORS)
                    print(f"{swapped(holder)} KiB are swapped out")
                    holder.rounds()
            else:
                time.sleep(10)
            holder.works()
        # The program reads all of its memory in each round, but for pages that it never uses.
        holder.works()
        print(f"{swapped(holder)} KiB are swapped out")
        holder.settles("after pages were swapped out")
require("/dev/zram0" in Path("/proc/swaps").read_text(), "swap was on all the time")
run("swapoff", "/dev/zram0")
