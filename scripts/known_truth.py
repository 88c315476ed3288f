#!/usr/bin/env python3
"""Runs `isochrome compare` on programs whose loss is known, and counts how often its interval holds the loss.

The victim walks over some KiB in random order once in every period, beside a writer on the same CPU. Colors prevent what the writer takes of the
second level, not what it takes of the first level and of the TLB. So the loss that colors can prevent is the difference between a walk beside the
writer and a walk beside a writer of SMALL KiB, which takes the first level and hardly any of the second. What a lost line costs changes within seconds,
because it comes from the third level or from memory, as other guests of the host leave it there. So each window of the experiment has three parts of
half a second: the walks beside the writer that the experiment measures, walks beside the small writer, and other walks beside the writer. The predicted
gain of a window is the share by which walks beside the small writer are shorter than those others; the prediction is the median over the windows in which
the programs are spread over all colors. The experiment knows one part alone, and which of the two beside the writer is drawn for each window.

On its own colors the victim has a smaller cache: three quarters of the colors. The cost of that is the effect that the experiment finds beside a
spinner, and is added to the walks beside the small writer.

    scripts/known_truth.py --tool target/release/isochrome --runs 20 --kib 64,128,256 --rates 50,500,2000

Prints a line for each run, then how many intervals held the prediction, how many met its interval, and how many runs beside the spinner claimed an
effect. Needs root.
"""

import argparse
import json
import math
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
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
    """The walks of a victim, as it prints them into a file while it runs."""

    def __init__(self, path):
        self.lines = open(path)

    def beside(self, running, stopped):
        """Returns the median time of the walks of half a second beside a program, in us. Another program is stopped in that time."""
        os.kill(stopped, signal.SIGSTOP)
        os.kill(running, signal.SIGCONT)
        time.sleep(0.1)
        self.lines.seek(0, os.SEEK_END)
        self.lines.readline()
        time.sleep(0.4)
        return statistics.median(float(line.split()[1]) for line in self.lines if line.endswith("\n"))


def measure_window(path, told, writer, small):
    """Measures the three parts of a window. Prints the first for the experiment, and appends all to the file `told`."""
    walks = Walks(path)
    try:
        parts = [walks.beside(writer, small), walks.beside(small, writer), walks.beside(writer, small)]
    finally:
        os.kill(writer, signal.SIGCONT)
    if random.random() < 0.5:
        parts.reverse()
    with open(told, "a") as file:
        print(*parts, file=file)
    print("took", parts[0])


def compare_with_truth(arguments, kib, period_us, seed):
    """Returns the result of the experiment beside the writer. Returns for each window in which the programs were spread the median time of a walk
    beside the small writer, and that of other walks beside the writer than those of the experiment, in us."""
    on_cpu = ["taskset", "-c", arguments.cpu, arguments.tool, "job"]
    with tempfile.TemporaryDirectory() as folder:
        path, told = (Path(folder) / name for name in ("walks", "told"))
        with open(path, "w") as walks:
            victim = subprocess.Popen([*on_cpu, "walk", str(kib), "--every", f"{period_us}us"], stdout=walks)
        writer, small = (subprocess.Popen([*on_cpu, *what, "--every", "0s"], stdout=subprocess.DEVNULL) for what in (WRITER, SMALL))
        try:
            time.sleep(0.5)
            small.send_signal(signal.SIGSTOP)
            # Away from the CPU of the programs, as far as there is another.
            window = ["taskset", "-c", ",".join(str(cpu) for cpu in sorted(os.sched_getaffinity(0) - {int(arguments.cpu)}) or [arguments.cpu])]
            window += [sys.executable, os.path.abspath(__file__), "--window-of", str(path), str(told), str(writer.pid), str(small.pid)]
            result = compare(arguments, seed, victim.pid, writer.pid, ["--measure", f"command:{shlex.join(window)}", "--number", "took ([0-9.]+)"])
        finally:
            for program in (victim, writer, small):
                program.kill()
                program.wait()
        parts = {measured: (beside_small, beside_writer) for measured, beside_small, beside_writer in (map(float, line.split()) for line in open(told))}
    return result, [parts[window["value"]] for window in result["windows"] if window["condition"] == "spread" and not window["excluded"]]


def interval_of_median(values):
    """Returns the narrowest interval between two of the values, counted from both ends alike, that holds the median with 95 % probability."""
    values, n = sorted(values), len(values)
    outside = [2 * sum(math.comb(n, i) for i in range(rank)) / 2**n for rank in range(n // 2 + 1)]
    rank = max((rank for rank, beyond in enumerate(outside) if rank and beyond <= 0.05), default=1)
    return values[rank - 1], values[-rank]


def compare(arguments, seed, victim, neighbor, measure):
    command = [
        arguments.tool, "compare", "--json", "--seed", str(seed), "--colors", arguments.colors, "--victim", str(victim), "--neighbor", str(neighbor),
        *measure, "--windows", str(arguments.windows), "--window", arguments.window, "--restarts", "0",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if not done.stdout:
        sys.exit(f"{shlex.join(command)}: {done.stderr}")
    return json.loads(done.stdout)


def compare_beside_spinner(arguments, kib, period_us, seed):
    on_cpu = f"taskset -c {arguments.cpu} {arguments.tool} job"
    victim, neighbor = f"{on_cpu} walk {kib} --every {period_us}us", f"{on_cpu} {shlex.join(SPINNER)} --every 0s"
    return compare(arguments, seed, victim, neighbor, ["--measure", "lines:took ([0-9.]+) us"])


def spread_us(result):
    return next(it["typical"] for it in result["distributions"] if it["condition"] == "spread")


def interval_of(result):
    """Returns the interval of the effect as shares of a walk that is spread; `None` if the comparison has none."""
    return result["effect"] and result["effect"]["interval"]


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
    parser.add_argument("--window-of", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.window_of:
        path, told, writer, small = arguments.window_of
        return measure_window(path, told, int(writer), int(small))
    arguments.colors = arguments.colors or str(color_count(arguments.cpu) * 3 // 4)
    kib, rates = ([int(number) for number in text.split(",")] for text in (arguments.kib, arguments.rates))
    held = met = claimed = seen = 0
    for run in range(arguments.runs):
        size, rate = kib[run // len(rates) % len(kib)], rates[run % len(rates)]
        period = round(1e6 / rate)
        result, parts = compare_with_truth(arguments, size, period, arguments.seed + run)
        beside_spinner = compare_beside_spinner(arguments, size, period, arguments.seed + run)
        interval, of_smaller = interval_of(result), interval_of(beside_spinner)
        is_claimed = bool(of_smaller and (of_smaller[0] > 0 or of_smaller[1] < 0))
        claimed += is_claimed
        if interval and of_smaller:
            smaller = beside_spinner["effect"]["estimate"] * spread_us(beside_spinner)
            shares = [(beside_small + smaller) / beside_writer - 1 for beside_small, beside_writer in parts]
            predicted, (low, high) = statistics.median(shares), interval_of_median(shares)
            held += interval[0] <= predicted <= interval[1]
            met += interval[0] <= high and low <= interval[1]
            seen += interval[1] < 0
            print(f"{size} KiB {rate}/s writer: predicted {predicted:.2%} ({low:.2%} to {high:.2%}; {smaller:+.2f} us for the smaller cache), found "
                  f"{result['effect']['estimate']:.2%} ({interval[0]:.2%} to {interval[1]:.2%}) of {spread_us(result):.2f} us, p {result['p']:.4f}, "
                  f"{result['effect']['blocks']} blocks", flush=True)
        else:
            print(f"{size} KiB {rate}/s writer: no interval: {(result if not interval else beside_spinner)['ended']}", flush=True)
        print(f"{size} KiB {rate}/s spinner: {of_smaller and [f'{end:.2%}' for end in of_smaller]}, {'claimed' if is_claimed else 'nothing claimed'}", flush=True)
    print(f"of {arguments.runs} runs beside the writer: the interval held the prediction in {held} (it met the interval of the prediction in {met}), "
          f"a gain was seen in {seen}; beside the spinner an effect was claimed in {claimed}")


if __name__ == "__main__":
    main()
