"""Waits in system calls, and reports how: `waiter.py signals REPORT` counts the waits that have ended and the signals that it has handled, `waiter.py sleep REPORT SECONDS` says how
long a sleep of a given length took and whether it was broken off.

The main thread is the only one.
"""

import ctypes
import os
import signal
import sys
import time

LIBC = ctypes.CDLL(None, use_errno=True)
MEMORY = bytearray(os.urandom(4 << 20))


def report(text):
    with open(sys.argv[2] + ".new", "w") as out:
        out.write(text)
    os.rename(sys.argv[2] + ".new", sys.argv[2])


def main():
    if sys.argv[1] == "signals":
        handled = []
        signal.signal(signal.SIGUSR1, lambda *_: handled.append(1))
        for count in range(1_000_000):
            report(f"{count} {len(handled)}")
            LIBC.pause()
    report("sleeps")
    begin = time.monotonic()
    status = LIBC.usleep(int(float(sys.argv[3]) * 1e6))
    report(f"{time.monotonic() - begin:.3f} {status}")


main()
