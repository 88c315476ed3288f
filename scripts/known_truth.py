#!/usr/bin/env python3
"""Runs `isochrome compare` on programs whose loss is known, and counts how often its interval holds the loss.

The victim walks over some KiB in random order once in every period, beside a writer on the same CPU. Colors prevent what the writer takes of the
second level, not what it takes of the first level and of the TLB. So the loss that colors can prevent is the difference between a walk beside the
writer and a walk beside a writer of SMALL KiB, which takes the first level and hardly any of the second. The two are measured before and after each
run, in turns of half a second each in random order. Before each turn all programs are spread over the colors anew, as the experiment spreads them,
because losses depend on where pages lie. A turn gives the difference of the two medians. Predicted is the median of all turns, with a 95 % interval by
their order (sign test), because what the victim loses also changes with what other guests of the host leave in the third level. On its own colors the
victim has a smaller cache: three quarters of the colors. The cost of that is the effect that the same experiment finds beside a spinner, and is added.

    scripts/known_truth.py --tool target/release/isochrome --runs 20 --kib 64,128,256 --rates 50,500,2000

Prints a line for each run, then how many intervals held the prediction, how many met its interval, and how many runs beside the spinner claimed an
effect. Needs root.
"""

import argparse
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

WRITER = ("write", "1024")
# Larger than a first level, and a sixteenth of the writer.
SMALL = ("write", "64")
SPINNER = ("spin", "1000")
PAGE = os.sysconf("SC_PAGE_SIZE")


def color_count(cpu):
    """Number of page colors of the second cache level."""
    for index in Path(f"/sys/devices/system/cpu/cpu{cpu}/cache").glob("index*"):
        if (index / "level").read_text().strip() == "2":
            return int((index / "size").read_text().strip().removesuffix("K")) * 1024 // int((index / "ways_of_associativity").read_text()) // PAGE
    sys.exit("the kernel does not say how large the second level is\n  hint: --colors")


class Walks:
    """The walks of a victim, read while it runs: when each ended and how long it took, in us."""

    def __init__(self, command):
        self.victim = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.seen = []
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.victim.stdout:
            self.seen.append((time.monotonic(), float(line.split()[1])))

    def end(self):
        self.victim.kill()
        self.reader.join()
        self.victim.wait()
        return self.seen


def spread(arguments, program):
    """Spreads the pages of a running program evenly over all colors, which all programs of the group share."""
    command = [arguments.tool, "recolor", str(program.pid), "--colors", "all", "--spread", "--group", "known-truth"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")


def losses_us(arguments, kib, period_us, rng):
    """Returns for each turn the difference between the median times of a walk beside the writer and beside the small writer, in us."""
    on_cpu = ["taskset", "-c", arguments.cpu, arguments.tool, "job"]
    neighbors = [subprocess.Popen([*on_cpu, *what, "--every", "0s"], stdout=subprocess.DEVNULL) for what in (WRITER, SMALL)]
    walks = Walks([*on_cpu, "walk", str(kib), "--every", f"{period_us}us"])
    turns = []
    try:
        time.sleep(0.5)
        for _ in range(arguments.turns):
            for program in (*neighbors, walks.victim):
                spread(arguments, program)
            for neighbor in neighbors:
                neighbor.send_signal(signal.SIGSTOP)
            turn = {}
            for kind in rng.sample((0, 1), 2):
                neighbors[kind].send_signal(signal.SIGCONT)
                begin = time.monotonic()
                time.sleep(0.5)
                turn[kind] = (begin + 0.1, time.monotonic())
                neighbors[kind].send_signal(signal.SIGSTOP)
            turns.append(turn)
            for neighbor in neighbors:
                neighbor.send_signal(signal.SIGCONT)
    finally:
        seen = walks.end()
        for neighbor in neighbors:
            neighbor.kill()
            neighbor.wait()

    def typical(phase):
        return statistics.median(took for when, took in seen if phase[0] < when < phase[1])

    return [typical(turn[0]) - typical(turn[1]) for turn in turns]


def interval_of_median(values):
    """Returns the narrowest interval between two of the values, counted from both ends alike, that holds the median with 95 % probability."""
    values, n = sorted(values), len(values)
    outside = [2 * sum(math.comb(n, i) for i in range(rank)) / 2**n for rank in range(n // 2 + 1)]
    rank = max((rank for rank, beyond in enumerate(outside) if rank and beyond <= 0.05), default=1)
    return values[rank - 1], values[-rank]


def compare(arguments, neighbor, kib, period_us, seed):
    neighbor = " ".join(neighbor)
    on_cpu = f"taskset -c {arguments.cpu} {arguments.tool} job"
    command = [
        arguments.tool, "compare", "--json", "--seed", str(seed), "--colors", arguments.colors,
        "--victim", f"{on_cpu} walk {kib} --every {period_us}us", "--neighbor", f"{on_cpu} {neighbor} --every 0s",
        "--measure", "lines:took ([0-9.]+) us", "--windows", str(arguments.windows), "--window", arguments.window, "--restarts", "0",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if not done.stdout:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout)


def spread_us(result):
    return next(it["typical"] for it in result["distributions"] if it["condition"] == "spread")


def effect_us(result):
    """Returns the effect and its interval in us; both are None if the comparison has no interval."""
    effect = result["effect"]
    if not effect or not effect["interval"]:
        return None, None
    base = spread_us(result)
    return effect["estimate"] * base, [share * base for share in effect["interval"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", default="target/release/isochrome")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--kib", default="64,128,256")
    parser.add_argument("--rates", default="50,500,2000", help="walks per second")
    parser.add_argument("--cpu", default="1")
    parser.add_argument("--colors", help="colors of the victim [default: three quarters of those of the second level]")
    parser.add_argument("--windows", type=int, default=40)
    parser.add_argument("--window", default="500ms")
    parser.add_argument("--turns", type=int, default=16, help="number of turns by which the loss is predicted, before a run and after it")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    arguments.colors = arguments.colors or str(color_count(arguments.cpu) * 3 // 4)
    kib, rates = ([int(number) for number in text.split(",")] for text in (arguments.kib, arguments.rates))
    held = held_alone = met = claimed = seen = 0
    rng = random.Random(arguments.seed)
    for run in range(arguments.runs):
        size, rate = kib[run // len(rates) % len(kib)], rates[run % len(rates)]
        period = round(1e6 / rate)
        losses = losses_us(arguments, size, period, rng)
        result = compare(arguments, WRITER, size, period, arguments.seed + run)
        losses += losses_us(arguments, size, period, rng)
        beside_spinner = compare(arguments, SPINNER, size, period, arguments.seed + run)
        smaller, of_smaller = effect_us(beside_spinner)
        is_claimed = bool(of_smaller and (of_smaller[0] > 0 or of_smaller[1] < 0))
        claimed += is_claimed
        found, interval = effect_us(result)
        if interval and of_smaller:
            gain = -statistics.median(losses)
            predicted = gain + smaller
            high, low = (smaller - end for end in interval_of_median(losses))
            held += interval[0] <= predicted <= interval[1]
            met += interval[0] <= high and low <= interval[1]
            held_alone += interval[0] <= gain <= interval[1]
            seen += interval[1] < 0
            print(f"{size} KiB {rate}/s writer: predicted {predicted:.2f} us ({low:.2f} to {high:.2f}; {smaller:+.2f} of it for the smaller cache), found {found:.2f} "
                  f"({interval[0]:.2f} to {interval[1]:.2f}) us of {spread_us(result):.2f}, p {result['p']:.4f}, {result['effect']['blocks']} blocks", flush=True)
        else:
            print(f"{size} KiB {rate}/s writer: no interval: {(result if not interval else beside_spinner)['ended']}", flush=True)
        print(f"{size} KiB {rate}/s spinner: {smaller} us, {of_smaller}, {'claimed' if is_claimed else 'nothing claimed'}", flush=True)
    print(f"of {arguments.runs} runs beside the writer: the interval held the prediction in {held} (without the smaller cache in {held_alone}; "
          f"it met the interval of the prediction in {met}), a gain was seen in {seen}; "
          f"beside the spinner an effect was claimed in {claimed}")


if __name__ == "__main__":
    main()
