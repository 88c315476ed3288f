#!/usr/bin/env python3
"""Runs `isochrome compare` on programs whose loss is known, and counts how often its interval holds the loss.

The victim walks over some KiB in random order once in every period, beside a writer on the same CPU. What a walk loses to the writer is measured
on the same processes without colors, before and after each run: the victim runs beside the writer and beside a program that only spins, in turn for
half a second each in random order, and the medians of its walks are compared. So what is lost without a writer, to the kernel or to others on the
host, is no part of it. On its own colors the victim keeps what the writer would take, in a smaller cache: it gets three quarters of the colors. What
that costs it is what the same experiment finds beside the spinner, who takes nothing, and is added to the prediction.

The prediction has an uncertainty of its own: its four parts, two measured before the run and two after it, have a mean and an interval (Student's t
with three degrees of freedom), and the interval of the smaller cache's cost is known. A run counts as one whose interval held the prediction if
what was found less what was predicted is 0 within the three intervals (95 %), added up as independent. How often the interval of the experiment
alone holds the mean of the prediction is counted beside it.

    scripts/known_truth.py --tool target/release/isochrome --runs 20 --kib 64,128,256 --rates 50,500,2000

Prints a line for each run, then how many intervals held the prediction, and how many runs beside the spinner claimed an effect. Needs root.
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
SPINNER = ("spin", "1000")
PAGE = os.sysconf("SC_PAGE_SIZE")
# The 97.5 % quantile of Student's t with three degrees of freedom: a prediction has four parts.
T_975_OF_FOUR = 3.182


def color_count(cpu):
    """Number of page colors of the second cache level."""
    for index in Path(f"/sys/devices/system/cpu/cpu{cpu}/cache").glob("index*"):
        if (index / "level").read_text().strip() == "2":
            return int((index / "size").read_text().strip().removesuffix("K")) * 1024 // int((index / "ways_of_associativity").read_text()) // PAGE
    sys.exit("the kernel does not say how large the second level is\n  hint: --colors")


class Programs:
    """A victim, a writer and a spinner on the same CPU, until the end of the block. Neighbors that are not asked for stand still."""

    def __init__(self, arguments, kib, period_us):
        on_cpu = ["taskset", "-c", arguments.cpu, arguments.tool, "job"]
        self.neighbors = {what: subprocess.Popen([*on_cpu, *what, "--every", "0s"], stdout=subprocess.DEVNULL) for what in (WRITER, SPINNER)}
        for neighbor in self.neighbors.values():
            neighbor.send_signal(signal.SIGSTOP)
        self.victim = subprocess.Popen([*on_cpu, "walk", str(kib), "--every", f"{period_us}us"], stdout=subprocess.PIPE, text=True)
        # When each walk ended, and how long it took, in us.
        self.walks = []
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for program in (self.victim, *self.neighbors.values()):
            program.kill()
            program.wait()
        self.reader.join()

    def read(self):
        for line in self.victim.stdout:
            self.walks.append((time.monotonic(), float(line.split()[1])))

    def let_go(self, what):
        self.neighbors[what].send_signal(signal.SIGCONT)

    def stop(self, what):
        self.neighbors[what].send_signal(signal.SIGSTOP)

    def lost_us(self, turns, rng):
        """By how much a walk is longer beside the writer than beside the spinner, in us: the difference of the medians."""
        phases = []
        self.walks.clear()
        for _ in range(turns):
            for what in rng.sample((WRITER, SPINNER), 2):
                self.let_go(what)
                begin = time.monotonic()
                time.sleep(0.5)
                phases.append((begin + 0.1, time.monotonic(), what))
                self.stop(what)
        seen = list(self.walks)
        writer, spinner = ([took for begin, end, of in phases if of == what for when, took in seen if begin < when < end] for what in (WRITER, SPINNER))
        return statistics.median(writer) - statistics.median(spinner)

    def compare(self, arguments, what, seed):
        command = [
            arguments.tool, "compare", "--json", "--seed", str(seed), "--colors", arguments.colors,
            "--victim", str(self.victim.pid), "--neighbor", str(self.neighbors[what].pid),
            "--measure", "wakeups:execution", "--windows", str(arguments.windows), "--window", arguments.window,
        ]
        self.let_go(what)
        done = subprocess.run(command, capture_output=True, text=True)
        self.stop(what)
        if not done.stdout:
            sys.exit(f"{' '.join(command)}: {done.stderr}")
        return json.loads(done.stdout)


def spread_us(result):
    return next(it["typical"] for it in result["distributions"] if it["condition"] == "spread")


def effect_us(result):
    """The effect and its interval in us, or None twice."""
    effect = result["effect"]
    if not effect or not effect["interval"]:
        return None, None
    base = spread_us(result)
    return effect["estimate"] * base, [share * base for share in effect["interval"]]


def half(interval):
    return (interval[1] - interval[0]) / 2


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
    parser.add_argument("--turns", type=int, default=8, help="number of half seconds beside each neighbor in each of the four parts of a prediction")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    arguments.colors = arguments.colors or str(color_count(arguments.cpu) * 3 // 4)
    kib, rates = ([int(number) for number in text.split(",")] for text in (arguments.kib, arguments.rates))
    held = held_alone = claimed = seen = 0
    rng = random.Random(arguments.seed)
    for run in range(arguments.runs):
        size, rate = kib[run // len(rates) % len(kib)], rates[run % len(rates)]
        seed = arguments.seed + run
        with Programs(arguments, size, round(1e6 / rate)) as programs:
            time.sleep(1)
            lost = [-programs.lost_us(arguments.turns, rng) for _ in range(2)]
            result = programs.compare(arguments, WRITER, seed)
            lost += [-programs.lost_us(arguments.turns, rng) for _ in range(2)]
            beside_spinner = programs.compare(arguments, SPINNER, seed)
        smaller, of_smaller = effect_us(beside_spinner)
        is_claimed = bool(of_smaller and (of_smaller[0] > 0 or of_smaller[1] < 0))
        claimed += is_claimed
        found, interval = effect_us(result)
        if interval and of_smaller:
            predicted = statistics.mean(lost) + smaller
            error = math.hypot(T_975_OF_FOUR * statistics.stdev(lost) / math.sqrt(4), half(of_smaller), half(interval))
            held += abs(found - predicted) <= error
            held_alone += interval[0] <= predicted <= interval[1]
            seen += interval[1] < 0
            parts = ", ".join(f"{part:.2f}" for part in lost)
            print(f"{size} KiB {rate}/s writer: predicted {predicted:.2f} us ({parts}; {smaller:+.2f} for the smaller cache), found {found:.2f} ({interval[0]:.2f} to {interval[1]:.2f}) us "
                  f"of {spread_us(result):.2f}, apart by {found - predicted:+.2f} of {error:.2f}, p {result['p']:.4f}, {result['effect']['blocks']} blocks", flush=True)
        else:
            print(f"{size} KiB {rate}/s writer: no interval: {(result if not interval else beside_spinner)['ended']}", flush=True)
        print(f"{size} KiB {rate}/s spinner: {smaller} us, {of_smaller}, {'claimed' if is_claimed else 'nothing claimed'}", flush=True)
    print(f"of {arguments.runs} runs beside the writer: the intervals held the prediction in {held} (that of the experiment alone in {held_alone}), a gain was seen in {seen}; "
          f"beside the spinner an effect was claimed in {claimed}")


if __name__ == "__main__":
    main()
