#!/usr/bin/env python3
"""A program that waits in a system call waits as long as it would have, and a signal ends its wait, while it is moved again and again."""

import random
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from checks import GIVEN, HURRIED
from shared import HERE, require, until

random.seed(1)
SIGNALS, SLEEP_S = 60, 15
# What pause(3) calls: `pause` on x86-64, `ppoll` on arm64, which has no `pause`.
PAUSES = ("34", "73")


class Waiter:
    """A program that waits, and is moved by another thread until the end."""

    def __init__(self, *words):
        self.report = Path(tempfile.mkdtemp(prefix="waiter-", dir="/run")) / "report"
        mode, *more = words
        self.process = subprocess.Popen(["/usr/bin/python3", str(HERE / "waiter.py"), mode, str(self.report), *more])
        until("the program waits", 60, self.report.exists)
        self.moved, self.ended = 0, False
        self.mover = threading.Thread(target=self.moves)
        self.mover.start()

    def moves(self):
        while not self.ended and self.process.poll() is None:
            colors = ("0-3", "8-11")[self.moved % 2]
            done = subprocess.run(["isochrome", "recolor", str(self.process.pid), "--colors", colors, *GIVEN, *HURRIED], capture_output=True)
            self.moved += done.returncode == 0

    def call(self):
        """The number of the system call that the program is blocked in, if it is in one and not stopped."""
        stopped = "\nState:\tS" not in self.status()
        return None if stopped else Path(f"/proc/{self.process.pid}/syscall").read_text().split()[0]

    def status(self):
        return Path(f"/proc/{self.process.pid}/status").read_text()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ended = True
        self.mover.join()
        self.process.kill()
        self.process.wait()


with Waiter("sleep", str(SLEEP_S)) as waiter:
    until("the sleep has ended", 10 * SLEEP_S, lambda: waiter.report.read_text() != "sleeps")
    took, status = waiter.report.read_text().split()
    print(f"a sleep of {SLEEP_S} s took {took} s, status {status}, through {waiter.moved} recolorings")
    require(status == "0" and float(took) >= SLEEP_S, "it was not broken off")
    require(float(took) < SLEEP_S + 5, "it did not begin anew")
with Waiter("signals") as waiter:
    for at in range(SIGNALS):
        before = waiter.report.read_text()
        # A signal that comes before the program waits would not end its wait anywhere.
        while waiter.call() not in PAUSES:
            time.sleep(0.001)
        time.sleep(random.uniform(0, 0.3))
        waiter.process.send_signal(signal.SIGUSR1)
        begin = time.monotonic()
        while waiter.report.read_text() == before:
            if time.monotonic() - begin > 60:
                said = f"waits ended and signals handled: {waiter.report.read_text()}"
                raise SystemExit(f"signal {at} did not end the wait; {said}; {waiter.moved} recolorings\n{waiter.status()}")
            time.sleep(0.01)
    print(f"{SIGNALS} signals have ended the wait of the program, through {waiter.moved} recolorings")
