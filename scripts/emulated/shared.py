"""Functions for all checks in an emulated machine: commands, programs whose memory is checked, and the colors of their pages.

Checks run as root, where the frame number modulo 16 is the color of a page.
"""

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

COLORS = 16
HERE = Path(__file__).resolve().parent
PAGE = os.sysconf("SC_PAGE_SIZE")
# The frame in an entry of pagemap.
FRAME = (1 << 55) - 1
# KPF_ZERO_PAGE [Linux, include/uapi/linux/kernel-page-flags.h]
ZERO_PAGE = 24


def run(*command, fails=False, **options):
    """Runs a command, and returns its output and errors. The command must end with 0, or with another code if `fails` is set."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if (done.returncode != 0) != fails:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout.strip()


def document(*command):
    """Runs a command, which must end with 0, and returns the JSON that it prints. Its output on standard error is discarded."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def until(what, seconds, done, failed=lambda: ""):
    """Waits until `done` returns something true, and returns it. The check fails after `seconds`, with what `failed` returns."""
    begin = time.monotonic()
    while not (found := done()):
        if time.monotonic() - begin > seconds:
            sys.exit(f"not within {seconds} s: {what}\n{failed()}")
        time.sleep(0.1)
    print(f"{what}: after {time.monotonic() - begin:.1f} s", flush=True)
    return found


def require(condition, what, failed=lambda: ""):
    """Prints the requirement. Unless the condition holds, the check fails with the requirement and the text that `failed` returns."""
    if not condition:
        sys.exit(f"not so: {what}\n{failed()}")
    print(f"{what}: yes", flush=True)


def rounds(report):
    """Returns how often a holder.py has checked all of its memory, by its report. The check fails if a page had wrong contents."""
    if not report.exists():
        return 0
    count, wrong = map(int, report.read_text().split())
    if wrong:
        sys.exit(f"{report}: {wrong} pages have wrong contents")
    return count


def listed(text):
    """The numbers of a list such as 0-3,8."""
    numbers = set()
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def is_shared(flags, counts, frame):
    """Whether several pages have this frame: it is a frame of zeros, or mapped more than once. The flag for merged pages is of no use: Linux 6.12 sets it for all anonymous pages."""
    bits, count = (int.from_bytes(os.pread(file, 8, 8 * frame), "little") for file in (flags, counts))
    return bits >> ZERO_PAGE & 1 == 1 or count > 1


def frames_of_mappings(pid):
    """The frames of a process's anonymous pages by mapping, by the kernel's own files: what the server says of itself is not believed.

    Frames that several pages share are left out, because no recoloring moves such pages: frames that hold zeros, which the kernel maps for pages that were read and never written and,
    since Linux 6.12, for pages of a huge page that held only zeros when it was split; and those of equal pages that it has merged.
    """
    with ExitStack() as opened:
        maps, pagemap = opened.enter_context(open(f"/proc/{pid}/maps")), opened.enter_context(open(f"/proc/{pid}/pagemap", "rb"))
        kernel = [opened.enter_context(open(f"/proc/{name}", "rb", buffering=0)).fileno() for name in ("kpageflags", "kpagecount")]
        for line in maps:
            fields = line.split()
            if len(fields) > 5 and fields[5] != "[heap]":
                continue
            begin, end = (int(number, 16) for number in fields[0].split("-"))
            pagemap.seek(begin // PAGE * 8)
            read = pagemap.read((end - begin) // PAGE * 8)
            entries = [int.from_bytes(read[at : at + 8], "little") for at in range(0, len(read), 8)]
            frames = (entry & FRAME for entry in entries if entry >> 63)
            yield " ".join(fields[:2] + fields[5:]), [frame for frame in frames if frame and not is_shared(*kernel, frame)]


def frames_of(pid):
    """The frames of a process's anonymous pages in all mappings."""
    return [frame for _, frames in frames_of_mappings(pid) for frame in frames]


def share(pid, allowed):
    """Share of a process's anonymous pages whose color is in a list."""
    found = frames_of(pid)
    wanted = listed(allowed)
    return sum(frame % COLORS in wanted for frame in found) / len(found) if found else 0.0


def off_color(pid, allowed):
    """The mappings of a process with anonymous pages whose color is not in a list: a line for each, with the number of these pages and of all."""
    wanted = listed(allowed)
    off = ((name, sum(frame % COLORS not in wanted for frame in frames), len(frames)) for name, frames in frames_of_mappings(pid))
    return "\n".join(f"{name}: {count} of {pages} pages off color" for name, count, pages in off if count)
