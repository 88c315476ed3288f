#!/usr/bin/env python3
"""A user without rights whom a class names as client gets its colors from the service; another one is refused."""

import subprocess
from pathlib import Path

from checks import HERE, is_on, require, run, started, wait

for user in ("robot", "guest"):
    if subprocess.run(["id", user], capture_output=True).returncode != 0:
        run("useradd", "--no-create-home", "--shell", "/bin/sh", user)
started()
as_user = ["setpriv", "--init-groups", "--regid", "USER", "--reuid", "USER"]


def command(user):
    report = Path(f"/tmp/{user}.report")
    report.unlink(missing_ok=True)
    program = ["isochrome", "exec", "--class", "control", "--", "/usr/bin/python3", str(HERE / "holder.py"), "4", str(report)]
    return [user if word == "USER" else word for word in as_user] + program, report


words, report = command("robot")
running = subprocess.Popen(words)
try:
    wait("the program has filled its memory", 60, report.exists)

    def program():
        """The process that runs the program: `exec` itself, or its child."""
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        return int(children[0]) if children else running.pid

    wait("the client is on its colors", 30, lambda: is_on(program(), "control"))
    require(Path(f"/proc/{program()}").stat().st_uid != 0, "it runs without rights")
    count, wrong = map(int, report.read_text().split())
    require(count > 0 and wrong == 0, "its contents are right")
finally:
    running.terminate()
    running.wait()
words, report = command("guest")
said = run(*words, fails=True)
require("clients" in said and not report.exists(), f"another user is refused:\n{said}")
