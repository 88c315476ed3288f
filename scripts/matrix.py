#!/usr/bin/env python3
"""Boots one emulated machine after the other, each with another kernel, and runs the checks of scripts/emulated/kernels in it; `make matrix` does it all.

    scripts/matrix.py --list
    scripts/matrix.py --only '6.1*' --check recolor
    scripts/matrix.py --only 6.1,6.12 --check exec,recolor
    scripts/matrix.py --only 'arm64*'

The programs are those that cargo has built for each architecture, linked statically. Prints a Markdown table: a line for each machine, with its passed and failed checks.
Files of each machine are kept in target/emulated, in a folder of its name. Exit code: 0 all passed, 1 a machine could not be run, 2 a check failed, 3 none failed and some could not be run.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from emulated import HERE, TARGET, matches

# Time in s for a machine to boot and to run all checks; an emulated arm64 needs most of half an hour where it has a CPU to itself.
LIMIT = "5400"

# The parts of each machine, and the reason to test it. The image has the same packages everywhere; the kernel is Debian's.
ARM = ["--architecture=aarch64"]
MACHINES = {
    "6.1": (["--kernel-suite=bookworm"], "moves pages without UFFDIO_MOVE (Linux 6.8), reads them without PAGEMAP_SCAN (6.7)"),
    "6.1-rt": (["--kernel-suite=bookworm", "--kernel=linux-image-rt-amd64"], "the same with PREEMPT_RT: real-time users' kernel"),
    "6.12": ([], "UFFDIO_MOVE"),
    "6.12-rt": (["--kernel=linux-image-rt-amd64"], "PREEMPT_RT"),
    "6.12-numa": (
        ["--cpus=8", "--nodes=2", "--append=transparent_hugepage=always numa_balancing=enable movablecore=1G"],
        "8 CPUs, two nodes of memory, huge pages wherever possible, NUMA balancing, memory that can be taken offline: what moves pages behind our back",
    ),
    "arm64-6.1": ([*ARM, "--processor=cortex-a53", "--kernel-suite=bookworm"], "Cortex-A53, without UFFDIO_MOVE"),
    "arm64-6.12": ([*ARM, "--processor=cortex-a72"], "Cortex-A72, which lacks the atomic instructions of Armv8.1"),
    "arm64-6.12-rt": ([*ARM, "--kernel=linux-image-rt-arm64"], "PREEMPT_RT, and all that the emulator has of Armv8 and Armv9"),
    "arm64-6.12-16k": ([*ARM, "--processor=cortex-a76", "--kernel=linux-image-arm64-16k"], "Cortex-A76, pages of 16 KiB"),
}


def programs(target, arguments):
    """The arguments that name the program for the machine with these arguments, and its unit tests if cargo has built them."""
    architecture = "aarch64" if ARM[0] in arguments else "x86_64"
    folder = target / f"{architecture}-unknown-linux-musl/release"
    found = [path for path in folder.glob("deps/isochrome_host-*") if not path.suffix and os.access(path, os.X_OK)]
    tests = [f"--tests={max(found, key=os.path.getmtime)}"] if found else []
    return [f"--binary={folder / 'isochrome'}", *tests]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, default=TARGET, help="folder of what cargo has built")
    parser.add_argument("--only", default="*", metavar="PATTERNS", help="run machines whose name matches one of these")
    parser.add_argument("--check", default="*", metavar="PATTERNS", help="run checks whose name matches one of these")
    parser.add_argument("--list", action="store_true", help="show the machines")
    options = parser.parse_args()
    machines = {name: machine for name, machine in MACHINES.items() if matches(name, options.only)}
    if options.list:
        print("".join(f"{name:14} {why}\n" for name, (_, why) in machines.items()), end="")
        return 0
    if not machines:
        sys.exit(f"matrix: no machine matches {options.only}\n  hint: --list shows them")
    rows, codes = [], []
    for name, (arguments, why) in machines.items():
        command = [sys.executable, HERE.with_suffix(".py"), *programs(options.target, arguments), "--checks", HERE / "kernels"]
        command += ["--only", options.check, "--name", name, "--timeout", LIMIT, *arguments]
        done = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        said = []
        for line in done.stdout:
            print(line, end="", flush=True)
            said.append(line)
        codes.append(done.wait())
        text = "".join(said)
        kernel = re.search(r"^# kernel (\S+), .*?, (\d+) s,", text, re.MULTILINE)
        result = re.search(r"^(\d+ passed, \d+ failed, \d+ skipped)$", text, re.MULTILINE)
        missed = re.findall(r"^# (failed: \S+|not run: \S+|kernel: .*)$", text, re.MULTILINE)
        version, seconds = kernel.groups() if kernel else ("did not boot", "0")
        rows.append(f"| {name} | {version} | {why} | {result[1] if result else 'could not be run'} | {'; '.join(missed)} | {seconds} s |")
    print("\n| machine | kernel | why | checks | missed | took |\n|---|---|---|---|---|---|")
    print("\n".join(rows))
    return next((code for code in (1, 2, 3) if code in codes), 0)


if __name__ == "__main__":
    sys.exit(main())
