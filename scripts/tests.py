#!/usr/bin/env python3
"""Runs the tests. Lists at the end the failed tests, the ignored tests with reasons, and the command that installs missing programs.

    scripts/tests.py COMMAND...     each argument is a command line of a shell; all of them run at the same time
    scripts/tests.py --packages     prints the Debian packages of the programs that the tests look for and do not find

What the first command prints is passed on as it comes, what the others print after that. Exit code: that of the first command, in the
order given, that failed, else 0.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile

# Programs that the tests look for, and the Debian packages that hold them.
PROGRAMS = {
    "busybox": "busybox-static",
    "cc": "gcc",
    "chrt": "util-linux",
    "cyclictest": "rt-tests",
    "go": "golang-go",
    "javac": "default-jdk-headless",
    "kill": "procps",
    "make": "make",
    "mount": "mount",
    "musl-gcc": "musl-tools",
    "qemu-aarch64": "qemu-user",
    "redis-benchmark": "redis-tools",
    "redis-server": "redis-server",
    "setpriv": "util-linux",
    "sqlite3": "sqlite3",
    "strace": "strace",
    "systemd-analyze": "systemd",
    "taskset": "util-linux",
    "unshare": "util-linux",
    "valgrind": "valgrind",
    "x264": "x264",
}

COLOR = re.compile(r"\x1b\[[0-9;]*m")
# `test NAME ... ignored (REASON)`; what a test prints comes between its name and its outcome.
TEST = re.compile(r"test (?:\[.*\] )?(\S+(?: - \S.*)?)\s+\.\.\. ?(.*)")
IGNORED = re.compile(r"ignored(?:, (.*)| \((.*)\))?$")
# A line of pytest with the option -rs.
SKIPPED = re.compile(r"SKIPPED \[\d+\] ([^:]+(?::\d+)?): (.*)")
# A line of a benchmark that runs in the size of tests.
NOT_MEASURED = re.compile(r"((?:[\w ]+: )?)not measured: (.*)")
RUNNING = re.compile(r"\s*Running (\S+)")
# The message of a failing test: the place of the panic, and the lines after that.
PANICKED = re.compile(r"panicked at |^E  ")
SAID_LINES, SAID_COLUMNS = 4, 400


class Read:
    """The ignored tests with reasons, and the panics, as found in the lines that the tests print."""

    def __init__(self):
        self.found = []
        self.panicked = []
        self.program = self.test = ""
        self.said_left = 0

    def read(self, line):
        line = COLOR.sub("", line).rstrip()
        if PANICKED.search(line):
            self.said_left = SAID_LINES
        if self.said_left:
            self.said_left -= 1
            self.panicked.append(line[:SAID_COLUMNS])
        if match := RUNNING.match(line):
            self.program = match[1]
        elif match := SKIPPED.match(line):
            self.found.append((match[1], match[2]))
        elif match := NOT_MEASURED.match(line):
            self.found.append((self.program, f"{match[1]}not measured: {match[2]}"))
        else:
            if match := TEST.match(line):
                self.test, line = match[1], match[2]
            if match := IGNORED.match(line):
                self.found.append((self.test, match[1] or match[2] or "no reason given"))


def missing_packages():
    return sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None})


def start(command, output):
    return subprocess.Popen(command, shell=True, stdout=output, stderr=subprocess.STDOUT)


def pass_on(output, seen):
    """Prints what a command prints to the file descriptor `output`, until its end."""
    line = b""
    # A test's name is there while it runs, and its outcome is on the same line.
    while piece := os.read(output, 1 << 16):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        *lines, line = (line + piece).split(b"\n")
        for whole in lines:
            seen.read(whole.decode(errors="replace"))
    seen.read(line.decode(errors="replace"))


def run(commands, seen):
    """Runs command lines at the same time, passes on what they print one after the other, and returns their exit codes."""
    first, *others = commands
    with contextlib.ExitStack() as files:
        kept = [files.enter_context(tempfile.TemporaryFile()) for _ in others]
        processes = [start(first, subprocess.PIPE)] + [start(*other) for other in zip(others, kept)]
        pass_on(processes[0].stdout.fileno(), seen)
        codes = [processes[0].wait()]
        for process, output in zip(processes[1:], kept):
            codes.append(process.wait())
            output.seek(0)
            pass_on(output.fileno(), seen)
        return codes


def main():
    if sys.argv[1:] == ["--packages"]:
        print(" ".join(missing_packages()))
        return 0
    if not sys.argv[1:] or sys.argv[1].startswith("-"):
        print(__doc__.strip(), file=sys.stderr)
        return 0 if sys.argv[1:] in (["--help"], ["-h"]) else 2
    seen = Read()
    codes = run(sys.argv[1:], seen)
    if any(codes):
        print("\nPanics (including those that tests expect):", *seen.panicked, sep="\n  ")
    print(f"\nIgnored tests: {len(seen.found) or 'none'}")
    for name, reason in seen.found:
        print(f"  {name}: {reason}")
    if packages := missing_packages():
        print(f"Programs that tests need are missing. Install them with: apt-get install -y {' '.join(packages)}")
    return next((code if code > 0 else 1 for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
