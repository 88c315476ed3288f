#!/usr/bin/env python3
"""Holds memory and checks its contents all the time: holder.py MEBIBYTES REPORT [THREADS]. The report is `ROUNDS WRONG`, from the first round on.

Each thread has its part of the memory.
"""

import os
import sys
import threading
import time

PAGE = os.sysconf("SC_PAGE_SIZE")


def content(page, generation):
    return (b"%012d%012d" % (page, generation)) * (PAGE // 24) + bytes(PAGE % 24)


def check(first, last, memory, counts):
    """Checks the pages from `first` to before `last` again and again; `counts` are the rounds and the wrong pages of this thread."""
    for page in range(first, last):
        memory[page * PAGE : (page + 1) * PAGE] = content(page, 0)
    while True:
        for page in range(first, last):
            at = slice(page * PAGE, (page + 1) * PAGE)
            counts[1] += memory[at] != content(page, counts[0])
            memory[at] = content(page, counts[0] + 1)
        counts[0] += 1
        time.sleep(0.05)


def main():
    pages, report, threads = int(sys.argv[1]) * (1 << 20) // PAGE, sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1
    memory, counts = bytearray(pages * PAGE), [[0, 0] for _ in range(threads)]
    for at in range(threads):
        part = (pages * at // threads, pages * (at + 1) // threads, memory, counts[at])
        threading.Thread(target=check, args=part, daemon=True).start()
    while True:
        time.sleep(0.1)
        if not all(rounds for rounds, _ in counts):
            continue
        with open(report + ".new", "w") as out:
            out.write(f"{min(rounds for rounds, _ in counts)} {sum(wrong for _, wrong in counts)}\n")
        os.rename(report + ".new", report)


main()
