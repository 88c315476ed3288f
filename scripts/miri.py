#!/usr/bin/env python3
"""Runs the unit tests of a crate in Miri, which finds undefined behavior; `make miri` runs those of the model and of the host's system calls.

    scripts/miri.py isochrome-model
    scripts/miri.py isochrome-host --only 'sys::*' --seconds 120

Needs a nightly compiler with Miri, and says how to get them. Miri interprets: a test takes hundreds of times as long, so each has a limit, and what calls
the kernel in a way that Miri does not know, or runs machine code, cannot be executed. Prints a Markdown table. Exit code: 0 nothing found, 1 could not run,
2 undefined behavior or a failed test.
"""

import argparse
import collections
import fnmatch
import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Tree borrows, as crates that the tests use are not written for the older model. What lives until the process ends is no error, nor is a power that
# is as precise as on every machine.
FLAGS = "-Zmiri-tree-borrows -Zmiri-ignore-leaks -Zmiri-disable-isolation -Zmiri-deterministic-floats"
PASSED, FOUND, UNKNOWN, SLOW = "passed", "found", "not executable", "too long"
# Why Miri does not go on with a test that is none the worse for it.
STOPPED = re.compile(r"error: unsupported operation: (.*)$", re.MULTILINE)
RESULT = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. (ok|ignored|FAILED)", re.MULTILINE)
# Miri compiles the crate anew in every run.
BEGINNING_S = 600


def started(package, arguments):
    command = ["cargo", "+nightly", "miri", "test", "--locked", "-p", package, "--lib", "--", *arguments]
    environment = {**os.environ, "MIRIFLAGS": FLAGS, "CARGO_TARGET_DIR": str(ROOT / "target/miri-of-tests"), "PROPTEST_CASES": "4"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)


def run(package, tests, seconds):
    """Runs tests in one process until it ends or one of them takes too long; yields each with its outcome and what was printed about it."""
    process = started(package, ["--test-threads=1", "--exact", *tests])
    printed, begun, last = "", False, time.monotonic()
    while True:
        ready = select.select([process.stdout], [], [], 1)[0]
        got = os.read(process.stdout.fileno(), 1 << 16).decode(errors="replace") if ready else None
        if got == "":
            break
        printed += got or ""
        begun = begun or "\nrunning " in printed
        while match := RESULT.search(printed):
            outcome = {"ok": PASSED, "ignored": None, "FAILED": FOUND}[match[2]]
            yield match[1], outcome, printed[: match.end()] if outcome == FOUND else ""
            printed, last = printed[match.end() :], time.monotonic()
        if time.monotonic() - last > seconds + (0 if begun else BEGINNING_S):
            os.killpg(process.pid, 9)
            process.wait()
            yield None, SLOW, ""
            return
    if process.wait():
        stopped = STOPPED.search(printed)
        yield None, UNKNOWN if stopped else FOUND, stopped[1] if stopped else printed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", help="crate whose unit tests run")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="tests whose path matches")
    parser.add_argument("--seconds", type=int, default=60, metavar="N", help="limit of each test [default: 60]")
    options = parser.parse_args()
    if subprocess.run(["cargo", "+nightly", "miri", "--version"], capture_output=True).returncode:
        sys.exit("miri: cargo +nightly miri is not there\n  hint: rustup toolchain install nightly --component miri,rust-src")
    listing = started(options.package, ["--list", "--format=terse"])
    printed = listing.communicate()[0].decode()
    if listing.returncode:
        print(printed, file=sys.stderr)
        return 1
    listed = [line.removesuffix(": test") for line in printed.splitlines() if line.endswith(": test")]
    left = [test for test in listed if fnmatch.fnmatch(test, options.only)]
    if not left:
        sys.exit(f"miri: no test of {options.package} matches {options.only}")
    count = len(left)
    print(f"{count} tests, {options.seconds} s each at most", flush=True)
    counts, reasons = collections.Counter(), collections.Counter()
    while left:
        before = len(left)
        for test, outcome, what in run(options.package, left, options.seconds):
            # A test that ends the process is the first one without a result.
            test = test or left[0]
            left.remove(test)
            counts[outcome] += outcome is not None
            print(f"{outcome or 'ignored'}: {test}", flush=True)
            if outcome == UNKNOWN:
                reasons[re.sub(r"`.*?`|\d+", "…", what)] += 1
            if outcome == FOUND:
                print(what, flush=True)
        if len(left) == before:
            print("miri: no test was run", file=sys.stderr)
            return 1
    outcomes = [PASSED, FOUND, UNKNOWN, SLOW]
    print(f"\n| tests | number | {' | '.join(outcomes)} |\n|---|---|---|---|---|---|")
    print(f"| {options.package} `{options.only}` | {count} | {' | '.join(str(counts[it]) for it in outcomes)} |\n")
    for what, tests in reasons.most_common():
        print(f"not executable in {tests}: {what}")
    return 2 if counts[FOUND] else 0


if __name__ == "__main__":
    sys.exit(main())
