#!/usr/bin/env python3
"""Holds the counts of `isochrome simulate` equal to those of independent simulators: equal, not close.

    python3 -m venv venv && . venv/bin/activate && pip install pycachesim
    cargo build --release -p isochrome-cli
    python scripts/rivals.py target/release/isochrome
    python scripts/rivals.py speed
    python scripts/rivals.py recorders target/release/isochrome

pycachesim (PyPI): LRU, write-back, write-allocate, one to three levels, random traces of a million reads and writes each.
Cachegrind (Debian: valgrind): data references and first-level data misses of a program, a tag-only LRU cache, against the trace
that lackey takes of the same program. A modify is one reference there and a read and a write here; the write always hits.

`speed`: the two-level trace of the benchmark `simulator` through pycachesim's C backend as pip built it. A loop in C calls the
backend's own `Cache__load` and `Cache__store` on the cache that Python set up, so that no Python runs per access. Benchmark and
backend take turns, each counts CPU time of its thread, and the best turn of each counts. The counts must be equal.

`recorders`: how many times slower a program runs under `isochrome trace`, by valgrind's lackey and by the QEMU plugin (Debian:
valgrind, qemu-user), than alone. A short and a long run of it are compared, so that starting the tools does not count.
"""

import ast
import ctypes
import json
import os
import random
import re
import resource
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LINE = 64


def isochrome(command, levels, trace, form, *options):
    levels = [argument for level in levels for argument in ("--level", level)]
    output = subprocess.run(
        [command, "simulate", "--json", *levels, "--trace", trace, "--format", form, *options],
        check=True, capture_output=True,
    ).stdout
    return json.loads(output)


def pycachesim_caches(shapes):
    import cachesim

    below, caches = None, []
    for number, (sets, ways) in reversed(list(enumerate(shapes, 1))):
        below = cachesim.Cache(f"L{number}", sets, ways, LINE, "LRU", load_from=below, store_to=below)
        caches.insert(0, below)
    memory = cachesim.MainMemory()
    memory.load_to(caches[-1])
    memory.store_from(caches[-1])
    return caches, cachesim.CacheSimulator(caches[0], memory)


def pycachesim_stats(caches):
    stats = [cache.stats() for cache in caches]
    keys = ("LOAD_count", "STORE_count", "MISS_count", "EVICT_count")
    return [{key: stat[key] for key in keys} for stat in stats]


def as_pycachesim_counts(level):
    """There, a write that misses loads its line first: one more load, and the only count of the miss."""
    return {
        "LOAD_count": level["reads"] + level["write_misses"],
        "STORE_count": level["writes"],
        "MISS_count": level["read_misses"] + level["write_misses"],
        "EVICT_count": level["writebacks"],
    }


def pycachesim(shapes, accesses):
    caches, simulator = pycachesim_caches(shapes)
    for address, write in accesses:
        if write:
            simulator.store(address, 1)
        else:
            simulator.load(address, 1)
    return pycachesim_stats(caches)


def against_pycachesim(command, folder):
    random_numbers = random.Random(1)
    cases = [[(64, 8)], [(16, 2), (64, 4)], [(64, 8), (1024, 8)], [(8, 4), (32, 2), (64, 16)], [(32, 1), (128, 1)]]
    for shapes in cases:
        lines = 2 * shapes[-1][0] * shapes[-1][1]
        # Below 2^31: its Python interface cuts addresses to 32 bits.
        accesses = [(random_numbers.randrange(lines) * LINE, random_numbers.random() < 0.4) for _ in range(1_000_000)]
        trace = Path(folder, "trace.u64")
        trace.write_bytes(b"".join(struct.pack("<Q", address | write << 63) for address, write in accesses))
        levels = [f"{sets * ways * LINE}:{ways}:{LINE}:lru:wb:wa" for sets, ways in shapes]
        ours = isochrome(command, levels, trace, "u64", "--pycachesim")
        theirs = pycachesim(shapes, accesses)
        ours = [as_pycachesim_counts(level) for level in ours["levels"]]
        assert ours == theirs, f"{shapes}:\n  isochrome  {ours}\n  pycachesim {theirs}"
        print(f"pycachesim: equal on {len(accesses)} accesses, sets and ways {shapes}")


# Cachegrind counts an access to two lines as one, and lackey's trace must be of the very same run: a program without a library,
# whose every access lies within a line and which sees neither arguments nor environment.
PROGRAM = """
#ifndef STEPS
#define STEPS 400000
#endif
static double a[64][64], b[64][64], c[64][64];
static unsigned next[4096];
static int run(void) {
    unsigned i, j, k, here = 0, seed = 1;
    for (i = 0; i < 64; i++) for (j = 0; j < 64; j++) for (k = 0; k < 64; k++) c[i][j] += a[i][k] * b[k][j];
    for (i = 0; i < 4096; i++) { seed = seed * 1103515245u + 12345u; next[i] = (seed >> 8) & 4095; }
    for (i = 0; i < STEPS; i++) { here = next[here] ^ (i & 4095); next[here] += 1; here &= 4095; next[here] &= 4095; }
    return here & 1;
}
void _start(void) {
    int code = run() & 0;
    __asm__ volatile("syscall" : : "a"(60), "D"(code) : "memory");
}
"""


def compile_program(source, program, *options):
    options = ["-O1", "-fno-tree-vectorize", "-static", "-nostdlib", *options]
    subprocess.run(["cc", *options, "-o", program, source], check=True)


def against_cachegrind(command, folder):
    source, program, trace = (Path(folder, name) for name in ("program.c", "program", "trace.lackey"))
    source.write_text(PROGRAM)
    compile_program(source, program)
    with open(trace, "w") as stream:
        subprocess.run(["valgrind", "--tool=lackey", "--trace-mem=yes", "--basic-counts=no", program], check=True, stderr=stream)
    with open(trace) as stream:
        modifies = sum(text.startswith(" M") for text in stream)
    for sets, ways, line in [(64, 8, 64), (32, 2, 64), (128, 4, 32), (256, 1, 64)]:
        output = subprocess.run(
            ["valgrind", "--tool=cachegrind", "--cache-sim=yes", "--cachegrind-out-file=/dev/null",
             f"--D1={sets * ways * line},{ways},{line}", program],
            check=True, capture_output=True, text=True,
        ).stderr

        def pair(label):
            found = re.search(label + r"\s*:[^(]*\(\s*([\d,]+) rd\s*\+\s*([\d,]+) wr", output)
            return [int(number.replace(",", "")) for number in found.groups()]

        theirs = pair("D +refs") + pair("D1 +misses")
        counts = isochrome(command, [f"{sets * ways * line}:{ways}:{line}:lru:wb:wa"], trace, "lackey", "--data-only")["levels"][0]
        ours = [counts["reads"], counts["writes"] - modifies, counts["read_misses"], counts["write_misses"]]
        assert ours == theirs, f"{sets} sets of {ways} ways of {line} bytes:\n  isochrome  {ours}\n  cachegrind {theirs}"
        print(f"cachegrind: equal on {sum(theirs[:2])} references, {sets} sets of {ways} ways of {line} bytes: {theirs[2:]} misses")


DRIVER = """
#include <stddef.h>
#include <stdint.h>
struct range { long address, bytes; };
void drive(void *cache, const uint64_t *words, size_t count,
           int (*load)(void *, struct range), void (*store)(void *, struct range, int)) {
    for (size_t i = 0; i < count; i++) {
        struct range range = { (long)(words[i] & INT64_MAX), 1 };
        if (words[i] >> 63) store(cache, range, 0); else load(cache, range);
    }
}
"""


def speed(folder, rounds=3):
    from cachesim import backend

    source, driver, trace = (Path(folder, name) for name in ("driver.c", "driver.so", "trace.u64"))
    source.write_text(DRIVER)
    subprocess.run(["cc", "-O3", "-shared", "-fPIC", "-o", driver, source], check=True)
    library, driver = ctypes.PyDLL(backend.__file__), ctypes.PyDLL(str(driver))
    load, store = (ctypes.cast(function, ctypes.c_void_p) for function in (library.Cache__load, library.Cache__store))
    cargo = ["cargo", "bench", "-p", "isochrome-model", "--bench", "simulator"]
    subprocess.run([*cargo, "--no-run"], check=True)
    ours, theirs = 0, 0
    for _ in range(rounds):
        output = subprocess.run([*cargo, "--", trace], check=True, capture_output=True, text=True).stdout
        ours = max(ours, float(re.search(r"pycachesim's way +([\d.]+) million", output).group(1)))
        (levels, _) = ast.literal_eval(re.search(r"counts, pycachesim's way: (.*)", output).group(1))
        words = trace.read_bytes()
        caches, simulator = pycachesim_caches([(64, 8), (1024, 8)])
        cache, count = ctypes.c_void_p(id(simulator.first_level.backend)), len(words) // 8
        begin = time.thread_time()
        driver.drive(cache, ctypes.c_char_p(words), ctypes.c_size_t(count), load, store)
        theirs = max(theirs, count / (time.thread_time() - begin) / 1e6)
        keys = ("reads", "writes", "read_misses", "write_misses", "writebacks")
        counts = [as_pycachesim_counts(dict(zip(keys, level))) for level in levels]
        assert counts == pycachesim_stats(caches), f"{counts}\n{pycachesim_stats(caches)}"
    print(f"{count} accesses through 32 KiB 8-way and 512 KiB 8-way, equal counts, load {os.getloadavg()}")
    print(f"pycachesim's C backend {theirs:.1f}, isochrome {ours:.1f} million accesses/s: {ours / theirs:.2f} times as fast")


def seconds_of(command):
    """Returns the time of a command by the clock, and the CPU time of the command and all processes that it starts."""
    begin, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stderr=subprocess.PIPE)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic() - begin, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def recorders(command, folder, rounds=2):
    source, trace = Path(folder, "program.c"), Path(folder, "trace.iso")
    source.write_text(PROGRAM)
    programs = [Path(folder, f"program-{steps}") for steps in (400_000, 2_400_000)]
    compile_program(source, programs[0], "-DSTEPS=400000")
    compile_program(source, programs[1], "-DSTEPS=2400000")

    def growth(*prefix):
        """Returns by how many seconds the shortest long run exceeds the shortest short run, by the clock and in CPU time."""
        short, long = ([seconds_of([*prefix, program]) for _ in range(rounds)] for program in programs)
        return [min(b) - min(a) for a, b in zip(zip(*short), zip(*long))]

    alone = growth()
    print(f"the program alone: {1000 * alone[0]:.1f} ms by the clock for 2 million steps, load {os.getloadavg()}")
    for by in ("lackey", "qemu"):
        recorded = growth(command, "trace", "--by", by, "-o", trace, "--")
        print(f"recorded by {by}: {recorded[0] / alone[0]:.0f} times slower by the clock, {recorded[1] / alone[1]:.0f} times the CPU time")


def main():
    if sys.argv[1:2] == ["recorders"]:
        with tempfile.TemporaryDirectory() as folder:
            recorders(sys.argv[2] if len(sys.argv) > 2 else "target/release/isochrome", folder)
        return
    if sys.argv[1:] == ["speed"]:
        with tempfile.TemporaryDirectory() as folder:
            speed(folder)
        return
    command = sys.argv[1] if len(sys.argv) > 1 else "target/release/isochrome"
    with tempfile.TemporaryDirectory() as folder:
        against_pycachesim(command, folder)
        against_cachegrind(command, folder)


if __name__ == "__main__":
    main()
