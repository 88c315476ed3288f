"""Functions for the checks of a kernel: programs that check their memory, on colors by a palette that is given as a formula."""

import subprocess
import sys
import tempfile
from pathlib import Path

from shared import HERE, document, off_color, require, rounds, share, until

# There are no caches, so colors are bits of the frame number, and cannot be tested; a pause of the usual length would move a page or two.
GIVEN = ["--palette", "/etc/isochrome/bits.json", "--trust-palette"]
HURRIED = ["--max-pause", "2s"]
# The colors of the programs whose pages the kernel moves.
COLORS = "0-3"


def write(path, text):
    """Writes a setting of the kernel, or a command to the kernel, into a file."""
    Path(path).write_text(f"{text}\n")


def migrated():
    """Returns the number of pages that the kernel has moved to other frames by itself so far, as compaction does."""
    return counted("pgmigrate_success")


def counted(what):
    """Returns a number of /proc/vmstat; 0 where the kernel does not count it."""
    return next((int(line.split()[1]) for line in Path("/proc/vmstat").read_text().splitlines() if line.split()[0] == what), 0)


class Holder:
    """A program that holds memory and checks its contents all the time; started by the words of `by`, if any."""

    def __init__(self, mebibytes=8, by=(), more=()):
        self.folder = Path(tempfile.mkdtemp(prefix="holder-", dir="/run"))
        self.report = self.folder / "report"
        self.process = subprocess.Popen([*by, "/usr/bin/python3", str(HERE / "holder.py"), str(mebibytes), str(self.report), *more])
        # In its first rounds it gets more memory, which a recoloring that has looked before leaves where it is.
        until("the program has checked its memory three times", 120, lambda: self.rounds() >= 3)
        self.pid = self.process.pid
        # A command that starts the program, such as `isochrome exec`, is its parent or has become the program itself.
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        self.pid = int(children[0]) if children else self.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in {self.pid, self.process.pid}:
            subprocess.run(["kill", "-KILL", str(pid)], capture_output=True)
        self.process.wait()

    def rounds(self):
        """Returns how often the program has checked all of its memory. The check fails if a word was wrong or the program has ended."""
        if self.process.poll() is not None:
            sys.exit(f"the program ended with {self.process.returncode}")
        return rounds(self.report)

    def works(self):
        """Waits until the program has checked all of its memory in a round that begins after this call."""
        before = self.rounds()
        until("its contents are right", 120, lambda: self.rounds() >= before + 2)

    def is_on(self, colors):
        """Returns whether 99 % of the program's anonymous pages have these colors, by the kernel's own files."""
        return share(self.pid, colors) >= 0.99

    def recolored(self, colors, *more):
        """Moves the program's pages. Returns the report, with the share of pages that are on color just
        afterwards by the kernel's own files, and the number of pages of all programs that NUMA balancing has moved meanwhile."""
        before, balanced = migrated(), counted("numa_pages_migrated")
        report = document("isochrome", "recolor", str(self.pid), "--colors", colors, "--json", *GIVEN, *HURRIED, *more)
        report["share"] = share(self.pid, colors)
        off = off_color(self.pid, colors)
        seen = f"{100 * report['share']:.1f} % on color by the kernel, {report['off_color']} pages off by the report"
        report["balanced"] = counted("numa_pages_migrated") - balanced
        moved = f"{migrated() - before} pages of all programs moved by the kernel, {report['balanced']} of them by NUMA balancing"
        print(f"recolor to {colors}: {seen}; {moved}; immovable: {report['immovable']}", off, sep="\n", flush=True)
        return report

    def arrives(self, colors):
        """Moves the program's pages. The check fails unless 99 % of them are on color afterwards. Pages that NUMA balancing has moved meanwhile, which it
        does all the time, are not counted."""
        report = self.recolored(colors)
        off = (0.99 - report["share"]) * report["resident"]
        require(off <= report["balanced"], f"recolored, it is on colors {colors}, but for pages that NUMA balancing has moved")


class Kept(Holder):
    """A holder that `isochrome exec` keeps on colors 0 to 3."""

    def __init__(self, by=(), **options):
        super().__init__(by=[*by, "isochrome", "exec", "--colors", COLORS, "-o", "/run/kept.json", *GIVEN, *HURRIED], **options)

    def settles(self, when):
        """Waits until 99 % of the program's pages are on its colors again, by the kernel's own files, and its contents are right."""
        until(f"exec: {when}, it is on its colors", 120, lambda: self.rounds() and self.is_on(COLORS), lambda: off_color(self.pid, COLORS))
        self.works()


class Moved(Holder):
    """A holder that `isochrome recolor` moves to colors 0 to 3."""

    def settles(self, when):
        """Moves the program's pages to its colors. The check fails unless 99 % of them are there by the kernel's own files, with their contents."""
        print(f"recolor: {when}")
        self.arrives(COLORS)
        self.works()
