#!/usr/bin/env python3
"""Holds memory and checks its contents all the time: holder.py MEBIBYTES REPORT. The report is `ROUNDS WRONG`, replaced after each round."""

import os
import sys
import time

PAGE = 4096


def content(page, generation):
    return (b"%012d%012d" % (page, generation)) * (PAGE // 24) + bytes(PAGE % 24)


def main():
    pages, report = int(sys.argv[1]) * (1 << 20) // PAGE, sys.argv[2]
    memory = bytearray(pages * PAGE)
    for page in range(pages):
        memory[page * PAGE : (page + 1) * PAGE] = content(page, 0)
    rounds = wrong = 0
    while True:
        for page in range(pages):
            at = slice(page * PAGE, (page + 1) * PAGE)
            wrong += memory[at] != content(page, rounds)
            memory[at] = content(page, rounds + 1)
        rounds += 1
        with open(report + ".new", "w") as out:
            out.write(f"{rounds} {wrong}\n")
        os.rename(report + ".new", report)
        time.sleep(0.05)


main()
