#!/usr/bin/env python3
"""Runs `isochrome compare` on programs whose loss is known, and counts how often its interval holds the loss.

The victim walks over some KiB in random order once in every period, beside a writer on the same CPU. The writer takes all of the walk's lines from
the cache in every gap, so a walk among the pages of both takes longer by the refill time, which is measured before each run by `isochrome job walk KIB
--refill`. On its own colors it keeps its lines. With a neighbor that only spins nothing is lost either way.

    scripts/known_truth.py --tool target/release/isochrome --runs 20 --kib 64,128,256 --rates 50,500,2000

Prints a line for each run, then how many intervals held the prediction, and how many runs beside the spinner claimed an effect. Needs root.
"""

import argparse
import json
import re
import subprocess
import sys


def refill_us(tool, cpu, kib):
    text = subprocess.run(["taskset", "-c", cpu, tool, "job", "walk", str(kib), "--refill"], check=True, capture_output=True, text=True).stdout
    return float(re.search(r"refill ([0-9.]+) us", text)[1])


def compare(arguments, neighbor, kib, period_us, seed):
    on_cpu = f"taskset -c {arguments.cpu} {arguments.tool} job"
    command = [
        arguments.tool, "compare", "--json", "--seed", str(seed), "--colors", arguments.colors,
        "--victim", f"{on_cpu} walk {kib} --every {period_us}us", "--neighbor", f"{on_cpu} {neighbor} --every 0s",
        "--measure", "lines:took ([0-9.]+) us", "--windows", str(arguments.windows), "--window", arguments.window,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if not done.stdout:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout)


def spread_us(result):
    return next(it["typical"] for it in result["distributions"] if it["condition"] == "spread")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", default="target/release/isochrome")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--kib", default="64,128,256")
    parser.add_argument("--rates", default="50,500,2000", help="walks per second")
    parser.add_argument("--cpu", default="1")
    parser.add_argument("--colors", default="16")
    parser.add_argument("--windows", type=int, default=40)
    parser.add_argument("--window", default="500ms")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    kib, rates = ([int(number) for number in text.split(",")] for text in (arguments.kib, arguments.rates))
    held = claimed = seen = 0
    for run in range(arguments.runs):
        size, rate = kib[run % len(kib)], rates[run // len(kib) % len(rates)]
        period = round(1e6 / rate)
        predicted = -refill_us(arguments.tool, arguments.cpu, size)
        result = compare(arguments, "write 1024", size, period, arguments.seed + run)
        effect, base = result["effect"], None
        if effect and effect["interval"]:
            base = spread_us(result)
            low, high = (share * base for share in effect["interval"])
            held += low <= predicted <= high
            seen += high < 0
            print(f"{size} KiB {rate}/s writer: predicted {predicted:.2f} us, found {effect['estimate'] * base:.2f} ({low:.2f} to {high:.2f}) us of {base:.2f}, "
                  f"p {result['p']:.4f}, {effect['blocks']} blocks", flush=True)
        else:
            print(f"{size} KiB {rate}/s writer: no interval: {result['ended']}", flush=True)
        result = compare(arguments, "spin 1000", size, period, arguments.seed + run)
        effect = result["effect"]
        interval = effect and effect["interval"]
        is_claimed = bool(interval and (interval[0] > 0 or interval[1] < 0))
        claimed += is_claimed
        print(f"{size} KiB {rate}/s spinner: {effect and effect['estimate']}, {interval}, {'claimed' if is_claimed else 'nothing claimed'}", flush=True)
    print(f"of {arguments.runs} runs beside the writer: the interval held the prediction in {held}, a gain was seen in {seen}; beside the spinner an effect was claimed in {claimed}")


if __name__ == "__main__":
    main()
