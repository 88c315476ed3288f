"""Stops a process and lets it go on, again and again, by ptrace(2) and without changing anything: `stopper.py PID REPORT` counts how often."""

import ctypes
import os
import signal
import sys
import time

# [Linux, include/uapi/linux/ptrace.h]
CONT, DETACH, SEIZE, INTERRUPT, EVENT_STOP = 7, 17, 0x4206, 0x4207, 128
# [Linux, include/uapi/linux/wait.h]
WALL = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)


def ptrace(request, pid, data=0):
    if LIBC.ptrace(ctypes.c_long(request), ctypes.c_long(pid), ctypes.c_void_p(0), ctypes.c_void_p(data)) == -1:
        sys.exit(os.strerror(ctypes.get_errno()))


def main():
    pid, report = int(sys.argv[1]), sys.argv[2]
    for count in range(1_000_000):
        with open(report + ".new", "w") as out:
            out.write(str(count))
        os.rename(report + ".new", report)
        ptrace(SEIZE, pid)
        ptrace(INTERRUPT, pid)
        while True:
            _, status = os.waitpid(pid, WALL)
            if not os.WIFSTOPPED(status):
                return
            if status >> 16 == EVENT_STOP:
                break
            # A signal that comes before the stop is delivered.
            ptrace(CONT, pid, os.WSTOPSIG(status))
        ptrace(DETACH, pid)
        time.sleep(0.002)


# The tracing of a stopped thread ends with this program, and the thread goes on.
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
main()
