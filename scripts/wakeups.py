#!/usr/bin/env python3
"""Compares the jobs that `isochrome run` observes with the cycles that cyclictest prints (docs/how-to/running.md).

For each cycle, cyclictest with `--verbose --nsecs` prints the time from the intended wake-up until it read its clock. `run` has for the same cycle
the time at which the thread got the CPU. The two times have different origins, so their difference is compared with the median of all differences.

    isochrome run plan.json -o DIR --duration 20s 2> LOG
    scripts/wakeups.py DIR/jobs.csv LOG --interval 1000000
"""

import argparse
import bisect
import csv
import re
import statistics


def own_times(lines, interval):
    """Returns the time at which each cycle read the clock, in ns from the intended first wake-up."""
    wanted = 0
    times = []
    for line in lines:
        cycle = re.fullmatch(r"\d+:\s*\d+:\s*(-?\d+)", line.strip())
        if not cycle:
            continue
        late = int(cycle[1])
        times.append(wanted + late)
        # cyclictest leaves out wake-ups that are past already.
        wanted += interval * (1 + max(0, late // interval))
    return times


def differences(starts, own, zero):
    """Returns the difference between each start and the nearest cycle. `zero`: the start time that corresponds to time 0 of the cycles."""
    found = []
    for start in starts:
        at = bisect.bisect(own, start - zero)
        nearest = min(own[max(0, at - 1) : at + 1], key=lambda time: abs(start - zero - time))
        found.append(start - zero - nearest)
    return found


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("jobs")
    arguments.add_argument("log")
    arguments.add_argument("--interval", type=int, required=True, help="between two cycles, in ns")
    options = arguments.parse_args()
    with open(options.jobs, newline="") as file:
        starts = [int(job["start_ns"]) for job in csv.DictReader(file)]
    with open(options.log) as file:
        own = own_times(file, options.interval)
    # The first job belongs to the cycle with which the other jobs agree best. A neighboring cycle agrees too, but for the jitter of both,
    # so counting the jobs that lie close to a cycle would not decide.
    near = options.interval / 10

    def disagreement(zero):
        found = differences(starts[:200], own, zero)
        median = statistics.median(found)
        return sum(min(abs(difference - median), near) for difference in found)

    zero = min((starts[0] - time for time in own), key=disagreement)
    matched = [difference for difference in differences(starts, own, zero) if abs(difference) < near]
    median = statistics.median(matched)
    apart = sorted(abs(difference - median) for difference in matched)
    quantile = {q: apart[min(len(apart) - 1, int(q * len(apart)))] / 1000 for q in (0.5, 0.9, 0.99, 0.999)}
    print(f"{len(starts)} jobs, {len(own)} cycles, {len(matched)} jobs within {near / 1000:.0f} us of a cycle")
    print(", ".join(f"{100 * q:g} %: {value:.2f} us" for q, value in quantile.items()), f"largest {apart[-1] / 1000:.2f} us")


if __name__ == "__main__":
    main()
