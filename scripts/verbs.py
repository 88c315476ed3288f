#!/usr/bin/env python3
"""Measures how often the measuring verbs of isochrome give a result beside a busy CPU.

Each verb runs so many times, each time with an empty runtime folder in memory and a load on the other CPU. A result is exit status 0 or 2
(a bound was violated, which is an answer), or 3: inconclusive. "In doubt" is counted by itself: colors are judged by eviction tests, so no
result may hang on how many pages of each color the kernel handed out.

    scripts/verbs.py --binary target/release/isochrome --json verbs.jsonl

Exit status: 0 if every run gave a result, 1 could not run, 2 if one did not.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

from first_try import ROOT, Load, memory_folder, print_table, spread

VERBS = [
    "lab filter --taps 4096",
    "lab net",
    "lab flood --verify",
    "palette",
    "palette --save --memory 512M",
    "palette --save --memory 2G",
    "palette --save --memory 6G",
]
OUTCOMES = ["result", "inconclusive", "in doubt", "refused", "too long"]


def run(binary, verb, limit):
    """Runs a verb, and returns its outcome, exit status, time in seconds and last message."""
    runtime = memory_folder("isochrome-verb-")
    try:
        begin = time.monotonic()
        process = subprocess.Popen(
            [binary, *verb.split()],
            cwd=runtime,
            env={**os.environ, "ISOCHROME_RUNTIME_DIR": str(runtime)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        try:
            output, errors = process.communicate(timeout=limit)
            late = False
        except subprocess.TimeoutExpired:
            late = True
            process.send_signal(signal.SIGTERM)
            try:
                output, errors = process.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                output, errors = process.communicate()
                errors += "\nSIGTERM did not end it within 5 s"
        seconds = time.monotonic() - begin
    finally:
        shutil.rmtree(runtime, ignore_errors=True)
    said = output + errors
    if late:
        outcome = "too long"
    elif "in doubt" in said:
        outcome = "in doubt"
    else:
        outcome = {0: "result", 2: "result", 3: "inconclusive"}.get(process.returncode, "refused")
    # The line with the reason, or else the last lines.
    lines = said.strip().splitlines()
    why = [line for line in lines if "in doubt" in line or "inconclusive" in line] or errors.strip().splitlines()[-3:]
    message = " ".join(why)
    return {"verb": verb, "outcome": outcome, "status": process.returncode, "seconds": seconds, "message": message, "tail": lines[-20:]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=ROOT / "target/release/isochrome", help="the isochrome command")
    parser.add_argument("--runs", type=int, default=20, help="of each verb")
    parser.add_argument("--verbs", default=",".join(VERBS), help="what to run, separated by commas")
    parser.add_argument("--load", choices=["none", "vm", "compile"], default="vm", help="on the other CPU")
    parser.add_argument("--load-cpu", type=int, default=0)
    parser.add_argument("--limit", type=float, default=300, metavar="SECONDS", help="for one run")
    parser.add_argument("--seed", type=int, default=None, help="of the order")
    parser.add_argument("--json", metavar="FILE", help="every run, a line each")
    options = parser.parse_args()
    binary = pathlib.Path(options.binary).resolve()
    verbs = options.verbs.split(",")
    # Verbs take turns in random order, so that all meet the same machine.
    order = verbs * options.runs
    random.Random(options.seed).shuffle(order)
    results = []
    scratch = memory_folder("isochrome-verbs-")
    lines = open(options.json, "w") if options.json else None
    try:
        with Load(options.load, options.load_cpu, scratch) as load:
            for number, verb in enumerate(order):
                load.check()
                results.append(run(binary, verb, options.limit))
                last = results[-1]
                if lines:
                    print(json.dumps(last), file=lines, flush=True)
                message = "" if last["outcome"] == "result" else f": {last['message']}"
                print(f"{number + 1}/{len(order)} {verb}: {last['outcome']}, {last['seconds']:.1f} s{message}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if lines:
            lines.close()
        rows = [["verb", "runs", *OUTCOMES, "seconds: median / 90 % / largest"]]
        for verb in verbs:
            group = [result for result in results if result["verb"] == verb]
            counts = collections.Counter(result["outcome"] for result in group)
            times = spread([result["seconds"] for result in group], 1, "{:.1f}")
            rows.append([verb, str(len(group)), *(str(counts[outcome]) for outcome in OUTCOMES), times])
        print_table(rows)
        messages = collections.Counter((r["verb"], r["outcome"], r["message"]) for r in results if r["outcome"] != "result")
        for (verb, outcome, message), count in messages.most_common():
            print(f"{count} x {verb}: {outcome}: {message}")
    return 0 if all(result["outcome"] in ["result", "inconclusive"] for result in results) else 2


if __name__ == "__main__":
    sys.exit(main())
