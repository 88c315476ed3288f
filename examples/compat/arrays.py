"""Threads that compute with arrays until the file named as first argument exists; prints every result that a round had."""

import os
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy

THREADS = 4


def checked(number):
    random = numpy.random.default_rng(number)
    values = random.integers(0, 1 << 40, size=1 << 19)
    ordered = numpy.sort(values)
    spectrum = numpy.fft.rfft(values.astype(float))
    matrix = values[: 256 * 256].reshape(256, 256) % 1000
    sum = 0
    for part in (ordered, numpy.cumsum(values), spectrum, matrix @ matrix.T, values[values.argsort()]):
        sum = zlib.crc32(numpy.ascontiguousarray(part).tobytes(), sum)
    return f"array {number}: {sum:08x}"


results, rounds = set(), 0
with ThreadPoolExecutor(THREADS) as pool:
    while True:
        results.update(pool.map(checked, range(2 * THREADS)))
        rounds += 1
        if os.path.exists(sys.argv[1]):
            break
print("\n".join(sorted(results)))
print("rounds", rounds, file=sys.stderr)
