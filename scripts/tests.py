#!/usr/bin/env python3
"""Runs all tests, and lists at the end what failed, what was ignored, why, and the one command that installs what is missing.

    scripts/tests.py CARGO [COMMAND...]    builds the tests of the workspace; runs those that use the machine one at a
                                           time, and beside them the command lines and the other tests
    scripts/tests.py --packages            prints the Debian packages of the programs that the tests look for and do not find

The output of a test program is printed when it has ended. Exit code: 0 if all succeeded, else 1.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor

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
        if match := SKIPPED.match(line):
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


class Program:
    """A test program, or a command line that tests as well."""

    def __init__(self, name, command, folder=None, uses_machine=False):
        self.name, self.command, self.folder, self.uses_machine = name, command, folder, uses_machine

    def run(self, niceness):
        begin = time.monotonic()
        print(f"begins: {self.name}", file=sys.stderr, flush=True)
        # A file and not a pipe, whose end comes only when every process that a test has left behind has ended.
        with tempfile.TemporaryFile() as output:
            command = self.command if isinstance(self.command, list) else ["sh", "-c", self.command]
            process = subprocess.Popen(["nice", "-n", str(niceness), *command], cwd=self.folder, stdout=output, stderr=output)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            output.seek(0)
            took = f"{time.monotonic() - begin:.1f} s, {used.ru_utime + used.ru_stime:.1f} s of CPU time"
            return process.returncode, output.read(), took


def uses_machine(message):
    """Returns whether a program chooses CPUs, takes them away from others, moves pages or changes settings.

    Such programs may find that a machine cannot run a test, and say so by a harness of their own.
    """
    with open(message["manifest_path"], "rb") as manifest:
        package = tomllib.load(manifest)
    own_harness = [target["name"] for kind in ("test", "bench") for target in package.get(kind, []) if not target.get("harness", True)]
    return package["package"]["name"] in ("isochrome-cli", "isochrome-host") and message["target"]["name"] in own_harness


def build(cargo):
    """Builds all tests, and returns the programs by name, as Cargo runs them."""
    command = [cargo, "test", "--workspace", "--locked", "--no-run", "--message-format=json-render-diagnostics"]
    built = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if built.returncode:
        sys.exit(built.returncode)
    programs = []
    for message in map(json.loads, built.stdout.splitlines()):
        if message.get("executable") and message["profile"]["test"]:
            folder = os.path.dirname(message["manifest_path"])
            name = f"{os.path.basename(folder)}: {os.path.relpath(message['target']['src_path'], folder)}"
            programs.append(Program(name, [message["executable"]], folder, uses_machine(message)))
    programs.sort(key=lambda program: program.name)
    return programs + [Program("examples in the documentation", [cargo, "test", "--workspace", "--locked", "--doc", "--no-fail-fast"])]


def run(programs, niceness, cpus, seen, printing):
    """Runs programs one after the other on the CPUs, prints the output of each, and returns the names of those that failed."""
    # The affinity holds for this thread and for the programs that it starts.
    os.sched_setaffinity(0, cpus)
    failed = []
    for program in programs:
        code, output, took = program.run(niceness)
        with printing:
            sys.stdout.buffer.write(f"\n     Running {program.name} ({took})\n".encode() + output)
            sys.stdout.buffer.flush()
            seen.program = program.name
            for line in output.decode(errors="replace").splitlines():
                seen.read(line)
        if code:
            failed.append(f"{program.name}: exit code {code}")
    return failed


def main():
    if sys.argv[1:] == ["--packages"]:
        print(" ".join(missing_packages()))
        return 0
    if not sys.argv[1:] or sys.argv[1].startswith("-"):
        print(__doc__.strip(), file=sys.stderr)
        return 0 if sys.argv[1:] in (["--help"], ["-h"]) else 2
    cargo, *commands = sys.argv[1:]
    seen, printing = Read(), threading.Lock()
    programs = [Program(command, command) for command in commands] + build(cargo)
    with ThreadPoolExecutor() as pool:
        # Programs that use the machine disturb each other, so they run one at a time. The others keep off the last CPU, where isochrome measures, and
        # have as many threads as if they did not.
        lanes = [[program for program in programs if program.uses_machine == uses] for uses in (True, False)]
        cpus = sorted(os.sched_getaffinity(0))
        for variable in ("RAYON_NUM_THREADS", "RUST_TEST_THREADS"):
            os.environ.setdefault(variable, str(len(cpus)))
        chosen = (cpus, cpus[:-1] or cpus)
        failed = sum(pool.map(lambda lane, niceness, cpus: run(lane, niceness, cpus, seen, printing), lanes, (0, 5), chosen), [])
    if failed:
        print("\nWhat panicked (tests that expect a panic are among it):", *seen.panicked, sep="\n  ")
        print("\nFailed:", *failed, sep="\n  ")
    print(f"\nIgnored tests: {len(seen.found) or 'none'}")
    for name, reason in seen.found:
        print(f"  {name}: {reason}")
    if packages := missing_packages():
        print(f"Programs that tests need are missing. Install them with: apt-get install -y {' '.join(packages)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
