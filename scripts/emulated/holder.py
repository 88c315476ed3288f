#!/usr/bin/env python3
"""Holds memory and checks its contents all the time: holder.py MEBIBYTES REPORT [THREADS [MERGEABLE]]. The report is `ROUNDS WRONG`, from the first round on.

Each thread has its part of the memory, and writes to each page in each round. MERGEABLE is the size in MiB of further memory in which many pages are equal and the kernel may merge
them. One more thread checks it in each round, and writes to it in every 32nd only, since pages that change are not merged.
"""

import ctypes
import mmap
import os
import sys
import threading
import time

PAGE = os.sysconf("SC_PAGE_SIZE")
# [Linux, include/uapi/linux/prctl.h]
PR_SET_MEMORY_MERGE = 67
# Number of different contents in the memory whose pages may be merged.
CONTENTS = 8


def content(page, generation):
    return (b"%012d%012d" % (page, generation)) * (PAGE // 24) + bytes(PAGE % 24)


def memory(mebibytes):
    return mmap.mmap(-1, mebibytes << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def check(held, pages, counts, contents, every):
    """Checks pages again and again, each of which has one of `contents`, and writes to them in every round of a multiple of `every`; `counts` are the rounds and the wrong pages."""
    for page in pages:
        held[page * PAGE : (page + 1) * PAGE] = content(page % contents, 0)
    while True:
        now, then = (rounds // every for rounds in (counts[0], counts[0] + 1))
        for page in pages:
            at = slice(page * PAGE, (page + 1) * PAGE)
            counts[1] += held[at] != content(page % contents, now)
            if then != now:
                held[at] = content(page % contents, then)
        counts[0] += 1
        time.sleep(0.05)


def main():
    mebibytes, report = int(sys.argv[1]), sys.argv[2]
    threads = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    mergeable = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    held, pages = memory(mebibytes), (mebibytes << 20) // PAGE
    parts = [(held, range(pages * at // threads, pages * (at + 1) // threads), [0, 0], pages, 1) for at in range(threads)]
    if mergeable:
        equal = memory(mergeable)
        equal.madvise(mmap.MADV_MERGEABLE)
        # Since Linux 6.4 a process can have the same for all that is mapped in it, by itself and by others.
        ctypes.CDLL(None).prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0)
        parts.append((equal, range((mergeable << 20) // PAGE), [0, 0], CONTENTS, 32))
    for part in parts:
        threading.Thread(target=check, args=part, daemon=True).start()
    counts = [part[2] for part in parts]
    while True:
        time.sleep(0.1)
        if not all(rounds for rounds, _ in counts):
            continue
        with open(report + ".new", "w") as out:
            out.write(f"{min(rounds for rounds, _ in counts)} {sum(wrong for _, wrong in counts)}\n")
        os.rename(report + ".new", report)


main()
