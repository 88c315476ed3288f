#!/usr/bin/env python3
"""Blocks of memory that hold pages of a program are taken offline: the kernel moves them, they are put on color again, and contents stay."""
# Takes at most 600 s.

import sys
from collections import Counter
from pathlib import Path

from checks import Kept, Moved, write
from shared import PAGE, frames_of, require

MEMORY = Path("/sys/devices/system/memory")
# How often a block is taken offline under each program, at most.
TIMES = 3


def blocks(holder, size):
    """The blocks that hold pages of the program, by number, with the number of pages in each. The block with most pages comes first."""
    return Counter(frame * PAGE // size for frame in frames_of(holder.pid)).most_common()


def taken_offline(holder, size):
    """Takes a block offline, trying those with most of the program's pages first. Returns its number; None if no block can be taken offline."""
    for number, pages in blocks(holder, size):
        try:
            write(MEMORY / f"memory{number}/state", "offline")
        except OSError as error:
            print(f"block {number} with {pages} of the pages cannot be taken offline: {error.strerror}")
            continue
        print(f"block {number} with {pages} of the pages is offline", flush=True)
        require(number not in dict(blocks(holder, size)), "no page is left in it")
        return number


if not MEMORY.exists():
    print("the kernel takes no memory offline")
    sys.exit(77)
size = int((MEMORY / "block_size_bytes").read_text(), 16)
for kind in (Kept, Moved):
    with kind() as holder:
        holder.settles("before")
        for times in range(TIMES):
            if (number := taken_offline(holder, size)) is None:
                break
            holder.settles("after a block was taken offline")
            write(MEMORY / f"memory{number}/state", "online_movable")
        if times == 0:
            print("no block with pages of the program can be taken offline: all hold pages of the kernel as well")
            sys.exit(77)
