"""Waits in system calls, and reports how. `waiter.py signals REPORT` and `waiter.py suspended REPORT` wait for signals and count the waits that have ended and the signals that were
handled; `waiter.py sleep REPORT SECONDS` says how long a sleep of a given length took and whether it was interrupted.

The main thread is the only one. `signals` waits in pause(2): a signal that comes between two waits ends neither. `suspended` blocks the signal but for its waits, in sigsuspend(2), which loses none.
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
    if sys.argv[1] == "sleep":
        report("sleeps")
        begin = time.monotonic()
        status = LIBC.usleep(int(float(sys.argv[3]) * 1e6))
        return report(f"{time.monotonic() - begin:.3f} {status}")
    wait = LIBC.pause
    if sys.argv[1] == "suspended":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        # A sigset_t of 1024 bits: no signal is blocked.
        none = ctypes.create_string_buffer(128)

        def wait():
            return LIBC.sigsuspend(none)

    handled = []
    signal.signal(signal.SIGUSR1, lambda *_: handled.append(1))
    for count in range(1_000_000):
        report(f"{count} {len(handled)}")
        wait()


main()
