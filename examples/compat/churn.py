"""Allocates and checks objects until the file named as first argument exists; prints every result that a round had."""

import gc
import os
import sys
import zlib


class Node:
    def __init__(self, next, text):
        self.next = next
        self.text = text


def checked(seed):
    chains = {}
    value = seed + 1
    for i in range(40_000):
        value = (value * 1664525 + 1013904223) & 0xFFFFFFFF
        key = value % 1009
        chains[key] = Node(None if i % 32 == 0 else chains.get(key), f"{value:x}" * (1 + i % 3))
    sum = 0
    for key in sorted(chains):
        node = chains[key]
        while node is not None:
            sum = zlib.crc32(node.text.encode(), sum)
            node = node.next
    return f"seed {seed}: {sum:08x}"


results, rounds = set(), 0
while True:
    results.update(checked(seed) for seed in range(4))
    rounds += 1
    # PyPy's collector lets the heap grow without end otherwise.
    gc.collect()
    if os.path.exists(sys.argv[1]):
        break
print("\n".join(sorted(results)))
print("rounds", rounds, file=sys.stderr)
