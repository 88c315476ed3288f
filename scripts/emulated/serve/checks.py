"""Functions for the checks of the memory server: the service with a policy, programs whose memory is checked, and the colors of their pages."""

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import shared
from shared import HERE, listed, rounds, run, share, until

POLICY = Path("/etc/isochrome/policy.toml")
UNITS = Path("/run/systemd/system")
REPORTS = Path("/run/reports")
SERVICE = "isochrome.service"


def policy(control="0-3", others='{ unit = "other*.service" }, { exe = "*/busybox" }'):
    """A policy whose class `control` has these colors, and which gives the rest to these members. Only one check gives the rest to everything,
    because the emulated machine has little time left then."""
    return (
        f'reserve = "64M"\n\n[class.control]\ncolors = "{control}"\n'
        'members = [{ unit = "robot-*.service" }, { cgroup = "/rt/*" }]\nclients = ["robot"]\n\n'
        f'[class.batch]\ncache = "rest"\nmembers = [{others}]\n'
    )


def shown_state():
    """The state of the server and its last messages, for a check that fails."""
    shown = subprocess.run(["isochrome", "policy", "status"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return shown.stdout + journal()


def wait(what, seconds, done):
    """Waits until `done` returns something true, and returns it. The check fails after `seconds`."""
    return until(what, seconds, done, shown_state)


def shown(name, unit=SERVICE):
    """The value of a property of a unit."""
    return run("systemctl", "show", "--value", f"--property={name}", unit)


def state():
    return shown("ActiveState")


def server():
    """Process number of the server."""
    return int(shown("MainPID"))


def journal(lines=30):
    return run("journalctl", "--no-pager", "--unit", SERVICE, f"--lines={lines}", "--output=cat")


def status():
    """The state of the server; None if none answers."""
    done = subprocess.run(["isochrome", "policy", "status", "--json"], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else None


def colors(name):
    """The colors of a class as the server reports them; None if there is no such class."""
    found = status()
    return next((each["colors"] for each in found["classes"] if each["class"] == name), None) if found else None


def member(pid):
    """The class of a process, and its state as the server reports it; (None, None) if it is in none."""
    found = status()
    for each in found["classes"] if found else []:
        for one in each["members"]:
            if one["pid"] == pid:
                return each["class"], one
    return None, None


def is_on(pid, name):
    """Whether a process is in this class and on its colors: by the server's report all of its pages, and by the kernel's files 99 %."""
    own, found = member(pid)
    return own == name and found["off_color"] == 0 and found["seconds_to_colors"] is not None and share(pid, colors(name)) >= 0.99


def stopped():
    """Stops the service, and forgets how often it has failed."""
    run("systemctl", "stop", SERVICE)
    # A service that systemd has unloaded since then has nothing to forget, which is an error of this command.
    subprocess.run(["systemctl", "reset-failed", SERVICE], capture_output=True)


def started(text=None):
    """Makes sure that the server runs with a policy: the usual one unless another is given."""
    POLICY.parent.mkdir(exist_ok=True)
    text = text or policy()
    if state() == "active" and POLICY.exists() and POLICY.read_text() == text:
        return
    stopped()
    POLICY.write_text(text)
    run("systemctl", "start", SERVICE)


def box():
    """Makes an image for containers from a folder, unless there is one. Returns the image and the folder, which have a static busybox."""
    folder, image = Path("/run/box"), "localhost/box:emulated"
    if not folder.exists():
        for name in ("bin", "dev", "proc", "sys", "etc", "run", "tmp", "var"):
            (folder / name).mkdir(parents=True)
        shutil.copy("/usr/bin/busybox", folder / "bin/busybox")
        with tarfile.open("/run/box.tar", "w") as archive:
            archive.add(folder, arcname=".")
        run("podman", "import", "/run/box.tar", image)
    return image, str(folder)


class Holder:
    """A service whose program holds memory and checks its contents all the time."""

    def __init__(self, name, mebibytes=16, more=""):
        self.unit, self.report = f"{name}.service", REPORTS / name
        # Services of any user write there.
        REPORTS.mkdir(exist_ok=True)
        REPORTS.chmod(0o1777)
        self.report.unlink(missing_ok=True)
        (UNITS / self.unit).parent.mkdir(parents=True, exist_ok=True)
        (UNITS / self.unit).write_text(
            f"[Service]\nExecStart=/usr/bin/python3 {HERE}/holder.py {mebibytes} {self.report}\nRestart=no\n{more}"
        )
        run("systemctl", "daemon-reload")
        run("systemctl", "start", self.unit)
        self.pid = int(shown("MainPID", self.unit))
        wait(f"{name} has filled its memory", 60, self.rounds)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        run("systemctl", "stop", self.unit)
        (UNITS / self.unit).unlink()

    def rounds(self):
        """Returns how often the program has checked all of its memory. The check fails if a word was wrong."""
        return rounds(self.report)

    def works(self):
        """Waits until the program, which must be the one that was started, has checked all of its memory twice from now on."""
        if int(shown("MainPID", self.unit)) != self.pid:
            sys.exit(f"{self.unit} is not the process that was started: {run('systemctl', 'status', self.unit, fails=True)}")
        before = self.rounds()
        wait(f"{self.unit} has checked its memory", 60, lambda: self.rounds() >= before + 2)


def require(condition, what):
    shared.require(condition, what, journal)
