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
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Tree borrows and permissive provenance, as crates that the tests use are not written for stricter models. What lives until the process ends is no
# error. Without deterministic floats Miri varies the last bits of powers and logarithms, which tests compare exactly.
FLAGS = "-Zmiri-tree-borrows -Zmiri-permissive-provenance -Zmiri-ignore-leaks -Zmiri-disable-isolation -Zmiri-deterministic-floats"
PASSED, FOUND, UNKNOWN, SLOW, IGNORED = "passed", "found", "not executable", "too long", "ignored"
OUTCOMES = {"ok": PASSED, "FAILED": FOUND, "ignored": IGNORED}
# With this message Miri stops at a call that it does not support. The test is not at fault.
STOPPED = re.compile(r"error: unsupported operation: (.*)$", re.MULTILINE)
# What a test prints comes between its name and its outcome.
BEGUN = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. ", re.MULTILINE)
ENDED = re.compile(r"\b(ok|FAILED|ignored.*)$", re.MULTILINE)
# Limit for the compilation, which Miri does anew in every run.
BEGINNING_S = 900


class NotBegun(Exception):
    """The tests did not begin; the text is what was printed."""


def started(package, arguments, errors):
    command = ["cargo", "+nightly", "miri", "test", "--locked", "-p", package, "--lib", "--", *arguments]
    environment = {**os.environ, "MIRIFLAGS": FLAGS, "CARGO_TARGET_DIR": str(ROOT / "target/miri-of-tests"), "PROPTEST_CASES": "4"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, start_new_session=True)


def run(package, tests, seconds):
    """Runs tests in one process until it ends or one of them takes too long; yields each with its outcome and what was printed about it."""
    with tempfile.TemporaryFile() as errors:
        process = started(package, ["--test-threads=1", "--exact", *tests], errors)
        try:
            yield from outcomes(process, seconds, errors)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
            process.wait()


def outcomes(process, seconds, errors):
    printed, running, begun, last = "", None, False, time.monotonic()
    while True:
        ready = select.select([process.stdout], [], [], 1)[0]
        got = os.read(process.stdout.fileno(), 1 << 16).decode(errors="replace") if ready else None
        if got == "":
            break
        printed += got or ""
        if not begun and "\nrunning " in printed:
            begun, last = True, time.monotonic()
        while begun:
            if running is None and (match := BEGUN.search(printed)):
                running, printed, last = match[1], printed[match.end() :], time.monotonic()
            if running is None or not (match := ENDED.search(printed)):
                break
            yield running, OUTCOMES[match[1].split(",")[0].split(" ")[0]], ""
            running, printed = None, printed[match.end() :]
        if time.monotonic() - last > (seconds if begun else BEGINNING_S):
            if running is None:
                raise NotBegun(f"nothing began within {BEGINNING_S} s")
            yield running, SLOW, ""
            return
    process.wait()
    errors.seek(0)
    said = errors.read().decode(errors="replace") + printed
    if not begun:
        raise NotBegun(said)
    if running is not None:
        stopped = STOPPED.search(said)
        yield running, UNKNOWN if stopped else FOUND, stopped[1] if stopped else said
    elif process.returncode:
        # Failed assertions are told at the end.
        print(printed, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", help="crate whose unit tests run")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="tests whose path matches")
    parser.add_argument("--seconds", type=int, default=60, metavar="N", help="limit of each test [default: 60]")
    options = parser.parse_args()
    if subprocess.run(["cargo", "+nightly", "miri", "--version"], capture_output=True).returncode:
        sys.exit("miri: cargo +nightly miri is not there\n  hint: rustup toolchain install nightly --component miri,rust-src")
    listing = started(options.package, ["--list", "--format=terse"], None)
    printed = listing.communicate()[0].decode()
    if listing.returncode:
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
        try:
            for test, outcome, what in run(options.package, left, options.seconds):
                left.remove(test)
                counts[outcome] += 1
                print(f"{outcome}: {test}", flush=True)
                if outcome == UNKNOWN:
                    reasons[re.sub(r"`.*?`|\d+", "…", what)] += 1
                elif what:
                    print(what, flush=True)
        except NotBegun as why:
            print(why, file=sys.stderr)
            return 1
        if len(left) == before:
            print("miri: no test was run", file=sys.stderr)
            return 1
    columns = [PASSED, FOUND, UNKNOWN, SLOW, IGNORED]
    print(f"\n| tests | number | {' | '.join(columns)} |\n|---|---|---|---|---|---|---|")
    print(f"| {options.package} `{options.only}` | {count} | {' | '.join(str(counts[it]) for it in columns)} |\n")
    for what, tests in reasons.most_common():
        print(f"not executable in {tests}: {what}")
    return 2 if counts[FOUND] else 0


if __name__ == "__main__":
    sys.exit(main())
