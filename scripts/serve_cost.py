#!/usr/bin/env python3
"""Measures CPU time and memory of the memory server, with members that do nothing, and while processes are forked all the time.

    scripts/serve_cost.py --binary target/release/isochrome
    scripts/serve_cost.py --binary target/release/isochrome --members 200 --seconds 60

Members have 16 MiB each and sleep. Taken are the CPU time of the server before they start, until they are on their colors and the reserve is filled
again, then with the members alone, for as long as it takes the server to inspect each of them anyway, and with a program beside them that starts
1000 processes a second, which end at once. Says how many pages the kernel has moved meanwhile, because the server moves pages of members back; with
vm.compaction_proactiveness = 0 the kernel moves next to none. Takes ten minutes. Needs root. Exit code: 0, or 1 if it could not run.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from serve_load import Server

SLEEPER = """
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
char *volatile kept;
int main(void) { memset(kept = malloc(16 << 20), 1, 16 << 20); for (;;) pause(); }
"""
FORKER = """
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
int main(void) {
    struct timespec due;
    clock_gettime(CLOCK_MONOTONIC, &due);
    for (;;) {
        if (fork() == 0)
            _exit(0);
        wait(0);
        due.tv_nsec += 1000000;
        if (due.tv_nsec >= 1000000000) {
            due.tv_nsec -= 1000000000;
            due.tv_sec++;
        }
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, 0);
    }
}
"""
# A search for frames of the reserve ends after two minutes, and the pages of the members are tested by then.
FILLING_S = 150
# Time after which the server inspects a member that does nothing.
INSPECTING_S = 300


def compiled(folder, name, source):
    subprocess.run(["cc", "-O2", "-x", "c", "-o", folder / name, "-"], input=source, text=True, check=True)
    return folder / name


def cpu_s(pid):
    """CPU time of a process and its threads so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_kb(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon:")))


def moved():
    """Number of pages that the kernel has moved so far."""
    return int(re.search(r"^pgmigrate_success (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)[1])


def share(pid, seconds):
    """Share of one CPU that a process has over the next seconds, in percent."""
    begin, before = time.monotonic(), cpu_s(pid)
    time.sleep(seconds)
    return 100 * (cpu_s(pid) - before) / (time.monotonic() - begin)


def measured(options, folder):
    sleeper, forker = compiled(folder, "sleeper", SLEEPER), compiled(folder, "forker", FORKER)
    options.policy = folder / "policy.toml"
    options.policy.write_text(
        f'[class.control]\ncolors = 2\nmembers = [{{ exe = "{sleeper}" }}]\n\n[class.batch]\ncache = "rest"\nmembers = [{{ exe = "{forker}" }}]\n'
    )
    options.palette = False
    server = Server(options, folder)
    running = []
    try:
        server.start()
        pid = server.process.pid
        # The server examines young processes again and again.
        time.sleep(5)
        without = share(pid, options.seconds)
        running = [subprocess.Popen([sleeper]) for _ in range(options.members)]
        own = {one.pid for one in running}
        begin, before, unmoved = time.monotonic(), cpu_s(pid), moved()
        while server.share("control", own) < 0.99:
            if time.monotonic() - begin > 600:
                sys.exit("the members do not come to their colors in ten minutes")
            time.sleep(1)
        took = time.monotonic() - begin
        time.sleep(FILLING_S)
        found = {"members": options.members, "seconds_to_colors": took, "cpu_s_until_idle": cpu_s(pid) - before, "moved": [moved() - unmoved]}
        unmoved = moved()
        found["cpu_percent"] = {"without_members": without, "idle": share(pid, INSPECTING_S)}
        found["moved"].append(moved() - unmoved)
        running.append(subprocess.Popen([forker]))
        time.sleep(5)
        unmoved = moved()
        found["cpu_percent"]["forks"] = share(pid, options.seconds)
        found["moved"].append(moved() - unmoved)
        found["memory_kb"] = memory_kb(pid)
        return found
    finally:
        for one in [server.process, *running]:
            if one is not None:
                one.kill()
                one.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/isochrome")
    parser.add_argument("--members", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=30, help="time over which CPU time is taken without members, and with processes that are started")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    options.binary = str(Path(options.binary).resolve())
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        found = measured(options, Path(folder))
    print(f"{found['members']} members of 16 MiB on their colors after {found['seconds_to_colors']:.1f} s; the server has {found['memory_kb']} KiB")
    print(f"{found['cpu_s_until_idle']:.1f} s of CPU time until the reserve was filled again")
    print("pages moved by the kernel: {} until then, {} while the members were idle, {} while processes were started".format(*found["moved"]))
    for what, percent in found["cpu_percent"].items():
        print(f"{what.replace('_', ' '):<16} {percent:5.2f} % of a CPU")
    if options.output:
        options.output.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
