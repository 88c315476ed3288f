#!/usr/bin/env python3
"""A program that waits in a system call waits as long as it would have, and a signal ends its wait, while it is moved again and again.

A signal cannot end the wait of a program that has just been let go and is about to make its call once more: whoever stops programs by ptrace(2) has this gap. A program that must not
miss a signal blocks it but for its waits, as by sigsuspend(2), and then no signal may be missed. Where it only calls pause(2), not significantly more may be missed than where nothing
happens in the stops, which are more often then.
"""
# Takes at most 1500 s.

import math
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from checks import GIVEN, HURRIED
from shared import HERE, require, until

random.seed(1)
# Least numbers of signals and of recolorings. Where a recoloring takes long, more signals are sent.
SIGNALS, SLEEP_S, MOVED_MIN = 60, 15, 5
# For how long a signal may have been delivered without the end of the wait before it counts as missed, and how long its delivery may take, in s.
MISSED_S, LIMIT_S = 20, 120
# Longest time for the signals to one program, in s.
PHASE_S = 400
# System calls that pause(2) and sigsuspend(2) make: `pause` and `rt_sigsuspend` on x86-64, `ppoll` and `rt_sigsuspend` on arm64, which has no `pause`.
WAITS = ("34", "130", "73", "133")
SIGNIFICANCE = 1e-3


def require_quietly(condition, what):
    if not condition:
        sys.exit(f"not so: {what}")


class Waiter:
    """A program that waits, and is moved by another thread until the end; with `only_stopped` nothing happens in the stops."""

    def __init__(self, *words, only_stopped=False):
        self.folder = Path(tempfile.mkdtemp(prefix="waiter-", dir="/run"))
        self.report = self.folder / "report"
        mode, *more = words
        self.process = subprocess.Popen(["/usr/bin/python3", str(HERE / "waiter.py"), mode, str(self.report), *more])
        until("the program waits", 60, self.report.exists)
        self.moved, self.ended = 0, False
        self.mover = threading.Thread(target=self.stops if only_stopped else self.moves)
        self.mover.start()

    def moves(self):
        while not self.ended and self.process.poll() is None:
            colors = ("0-3", "8-11")[self.moved % 2]
            done = subprocess.run(["isochrome", "recolor", str(self.process.pid), "--colors", colors, *GIVEN, *HURRIED], capture_output=True)
            self.moved += done.returncode == 0

    def stops(self):
        count = self.folder / "stops"
        stopper = subprocess.Popen(["/usr/bin/python3", str(HERE / "stopper.py"), str(self.process.pid), str(count)])
        while not self.ended and stopper.poll() is None:
            self.moved = int(count.read_text()) if count.exists() else 0
            time.sleep(0.1)
        stopper.terminate()
        stopper.wait()
        require_quietly(self.ended and stopper.returncode == 0, "the program was stopped until the end")

    def call(self):
        """The number of the system call that the program is blocked in, if it is in one and not stopped."""
        stopped = "\nState:\tS" not in Path(f"/proc/{self.process.pid}/status").read_text()
        return None if stopped else Path(f"/proc/{self.process.pid}/syscall").read_text().split()[0]

    def missed(self, what):
        """Returns the number of signals that came while the program waited but did not end its wait, and the number of all signals that came."""
        missed = sent = 0
        begin = time.monotonic()
        while sent < SIGNALS or self.moved < MOVED_MIN:
            require_quietly(time.monotonic() - begin < PHASE_S, f"{sent} signals are sent and the program is moved {self.moved} times in {PHASE_S} s")
            # A signal that comes before the program waits would not end its wait anywhere.
            until_waits = time.monotonic() + LIMIT_S
            while self.call() not in WAITS:
                require_quietly(self.process.poll() is None and time.monotonic() < until_waits, "the program waits")
                time.sleep(0.001)
            time.sleep(random.uniform(0, 0.3))
            missed += not self.ends_by_a_signal()
            sent += 1
        print(f"{what.format(self.moved)}: {missed} of {sent} signals have not ended the wait", flush=True)
        return missed, sent

    def ends_by_a_signal(self):
        before, begin = self.report.read_text(), time.monotonic()
        self.process.send_signal(signal.SIGUSR1)
        pending = begin
        while self.report.read_text() == before:
            now = time.monotonic()
            require_quietly(now - begin < LIMIT_S, "the signal is delivered")
            if self.is_pending():
                pending = now
            if now - pending > MISSED_S:
                return False
            time.sleep(0.01)
        return True

    def is_pending(self):
        bit = 1 << (signal.SIGUSR1 - 1)
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return any(int(line.split()[1], 16) & bit for line in status.splitlines() if line.startswith(("SigPnd:", "ShdPnd:")))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ended = True
        self.mover.join()
        self.process.kill()
        self.process.wait()


def more_often(few, many):
    """Probability that at least as many signals are missed as in `many`, a pair (missed, sent), if signals are missed as often as in `few` (the exact test of Fisher)."""
    (missed_few, sent_few), (missed_many, sent_many) = few, many
    total = missed_few + missed_many
    chances = [math.comb(sent_many, count) * math.comb(sent_few, total - count) for count in range(total + 1)]
    return sum(chances[missed_many:]) / sum(chances)


with Waiter("sleep", str(SLEEP_S)) as waiter:
    until("the sleep has ended", 10 * SLEEP_S, lambda: waiter.report.read_text() != "sleeps")
    took, status = waiter.report.read_text().split()
    print(f"a sleep of {SLEEP_S} s took {took} s, status {status}, through {waiter.moved} recolorings")
    require(status == "0" and float(took) >= SLEEP_S, "it was not interrupted")
    require(float(took) < SLEEP_S + 5, "it was not repeated")
with Waiter("suspended") as waiter:
    missed, _ = waiter.missed("recolored {} times, the signal blocked but for the waits")
require(missed == 0, "a signal that is blocked but for the waits is never missed")
with Waiter("signals", only_stopped=True) as waiter:
    control = waiter.missed("only stopped, {} times")
require(waiter.moved >= SIGNALS, f"stopped often enough, {waiter.moved} times")
with Waiter("signals") as waiter:
    missed = waiter.missed("recolored {} times")
require(more_often(control, missed) >= SIGNIFICANCE, "recolored, it does not miss significantly more signals than stopped only")
