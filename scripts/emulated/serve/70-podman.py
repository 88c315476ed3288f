#!/usr/bin/env python3
"""Containers that podman runs with an annotation come onto the colors of a class, or onto colors of their own, by the OCI hook."""

import shutil
import subprocess
from pathlib import Path

from checks import box, colors, is_on, member, require, run, started, status, wait

if not shutil.which("podman"):
    print("podman is not installed")
    raise SystemExit(77)
# A program that nobody has changed: it fills 200 000 places, and checks them again and again.
PROGRAM = """BEGIN {
    for (i = 0; i < 200000; i++) held[i] = i * 7
    for (round = 1; ; round++) {
        wrong = 0
        for (i = 0; i < 200000; i++) if (held[i] != i * 7) wrong++
        print round, wrong
        fflush()
    }
}"""
started()
print(run("podman", "--version"), run("crun", "--version").splitlines()[0], sep=", ")
IMAGE, FOLDER = box()


def container(name, annotation, *image):
    words = ["podman", "run", "--detach", "--name", name, "--network=none", "--log-driver=k8s-file", "--annotation", annotation]
    run(*words, *image, "/bin/busybox", "awk", PROGRAM)
    return int(run("podman", "inspect", "--format", "{{.State.Pid}}", name))


def checked(name):
    """Returns how often the program has checked its memory. The check fails if the contents were wrong."""
    lines = [line.split() for line in run("podman", "logs", name).splitlines()]
    wrong = [line for line in lines if line[1] != "0"]
    require(not wrong, f"{name}: its contents are right") if wrong else None
    return len(lines)


def running():
    names = {"control": "isochrome.class=control", "own": "isochrome.cache=128KiB"}
    pids = {
        "control": container("control", names["control"], IMAGE),
        "own": container("own", names["own"], "--rootfs", FOLDER),
        "neither": container("neither", "other=1", IMAGE),
    }
    print(Path(f"/proc/{pids['own']}/cgroup").read_text().strip())
    wait("a container with a class is on its colors", 60, lambda: is_on(pids["control"], "control"))
    own = wait("a container with a size is in a class of its own", 60, lambda: (member(pids["own"])[0] or "batch").replace("batch", ""))
    wait("it is on its colors", 60, lambda: is_on(pids["own"], own))
    require("libpod" in own, f"its class is named by its control group, {own}, and has colors {colors(own)}".replace("\n", " "))
    each = next(each for each in status()["classes"] if each["class"] == own)
    require(each["exclusive"], "nobody else has them")
    wait("a container that asks for nothing is on the rest", 60, lambda: is_on(pids["neither"], "batch"))
    for name in pids:
        before = checked(name)
        wait(f"{name} has checked its memory again", 60, lambda: checked(name) > before)
    run("podman", "rm", "--force", "--time=1", "own")
    wait("the class goes with its container", 30, lambda: colors(own) is None and colors("batch") == "4-15")


try:
    running()
finally:
    subprocess.run(["podman", "rm", "--force", "--time=1", "--all"], capture_output=True)
