#!/usr/bin/env python3
"""Does `isochrome exec` put a program on its colors at the first try, and is it really there?

Each try has an empty runtime folder in memory and a load on the other CPU. It starts examples/check/resident by
`isochrome exec --colors 0-3`, waits until the program is on its colors, and compares the report with what the documentation promises.
Then it starts examples/check/writer by `isochrome exec` on all other colors and lets the resident judge a sample of its own pages: those that
the writer evicts are off color. The judgment shares no code with isochrome; its rule and error rates stand in resident.c. In some tries
the checker itself is checked: it has to find nearly all pages evicted by a writer on the same colors. (A writer that is not confined to
these colors would not check it: the kernel may give it memory without any page of them, as the program has just taken them.)

    scripts/first_try.py --binary target/release/isochrome --json first_try.jsonl
    scripts/first_try.py --planted permute:3 --tries 20
    scripts/first_try.py --saved /run/isochrome --as-nobody 0 --put-back

A planted fault is a saved palette that is wrong: `permute:K` renames K colors in a cycle (K = 1: gives one color's frames another's
name), in every second block of 2 MiB, as if the host had backed these blocks anew; `random:5%` gives so many frames a random color.
Renaming a color everywhere would be no fault. The result must be a program on its colors, or a refusal.

Exit status: 0 if every try succeeded, 1 could not run, 2 if a try failed, 3 if none failed but the checker could not decide in some.
Run it as root: programs are pinned, and some tries run as nobody.
"""

import argparse
import collections
import contextlib
import json
import math
import mmap
import os
import pathlib
import random
import select
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOBODY = 65534
# As in crates/cli/tests/hardware/fixture.rs.
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs", "--bounding-set=-all"]
PAGE = 4096
LIMIT_SECONDS = 15
ON_COLOR_THRESHOLD = 0.99
# A try fails by the checker if what it found has at most this probability where 99 % of the pages are on color. A sample of 16 pages cannot
# show more; the pages of all tries together must be on color to 99 % as well. A try succeeds if that holds with the undecided pages counted
# as off color, since pages off color take longer to decide; else it is inconclusive.
CHECKER_SIGNIFICANCE = 1e-3
# Pages on color that the checker takes for others: the rule of resident.c has a rate of 1e-4, misplaced pages of the writer add to it.
FALSE_ALARMS = 2e-3
BLOCK_FRAMES = 512
# Writers that are started until one is on its colors with all its pages.
WRITERS_MAX = 10


class Failure(Exception):
    """A try failed. The message says why."""


class NotOnColors(Failure):
    """The program runs, but it was not on its colors within the limit."""


class NoWriter(Failure):
    """No writer is on its colors with all its pages, so the pages of the program cannot be checked."""


def read_json(path):
    """The object in the file `path`; None if it does not exist yet."""
    try:
        return json.loads(pathlib.Path(path).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None


class Program:
    """A program with pipes, perhaps started by `isochrome exec`."""

    def __init__(self, command, folder, environment, name):
        self.name = name
        self.errors = folder / f"{name}.stderr"
        with open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment, bufsize=0, start_new_session=True
            )
        self.kept = b""
        self.pid = self.address = None

    def line(self, seconds):
        """The next line of the program's output, without the end of line."""
        until = time.monotonic() + seconds
        while b"\n" not in self.kept:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, until - time.monotonic()))
            if not ready:
                raise Failure(f"{self.name}: said nothing for {seconds} s{self.said()}")
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                raise Failure(f"{self.name}: ended with {self.status(5)}{self.said()}")
            self.kept += data
        line, _, self.kept = self.kept.partition(b"\n")
        return line.decode()

    def wait_until_ready(self):
        """Reads `ready PID ADDRESS`."""
        words = self.line(LIMIT_SECONDS).split()
        if len(words) != 3 or words[0] != "ready":
            raise Failure(f"{self.name}: said {words}")
        self.pid, self.address = int(words[1]), int(words[2], 16)

    def tell(self, text):
        try:
            self.process.stdin.write(text.encode())
        except BrokenPipeError:
            raise Failure(f"{self.name}: ended with {self.status(5)}{self.said()}") from None

    def said(self):
        """The text that the program wrote to standard error, as the end of a message."""
        text = self.errors.read_text(errors="replace").strip()
        return f": {text}" if text else ""

    def status(self, seconds):
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def end(self):
        """Ends the processes of the program that are left, first by SIGTERM."""
        for number in [signal.SIGTERM, signal.SIGKILL]:
            if self.process.poll() is None:
                self.process.send_signal(number)
                self.status(3)
        # The program of an `exec` that was killed runs on; both are in one session, which nobody else is in.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.stdin.close()
        self.process.stdout.close()


def pin(pid, cpu, priority):
    """Puts all threads of a process on `cpu`, as SCHED_FIFO of `priority`, or as an ordinary program for 0 and where root may set no priority."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        # A helper of isochrome in it may end at this moment.
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), {cpu})
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.sched_setscheduler(int(thread), os.SCHED_FIFO if priority else os.SCHED_OTHER, os.sched_param(priority))


def level_2(cpu):
    """Bytes and ways of the second cache level of `cpu`; None if the kernel does not say."""
    for index in pathlib.Path(f"/sys/devices/system/cpu/cpu{cpu}/cache").glob("index*"):
        with contextlib.suppress(FileNotFoundError, ValueError):
            if (index / "level").read_text().strip() == "2":
                ways = int((index / "ways_of_associativity").read_text())
                return int((index / "size").read_text().strip().rstrip("K")) * 1024, ways
    return None


class Memory:
    """Holds so much memory that the zone from which the kernel takes frames first has little more free than its low watermark.

    Then the kernel takes frames from the zone below as well, now from one and now from the other, as it does on a machine that has worked
    for days. The load must have its memory before.
    """

    MARGIN = 15000

    def __init__(self, hold):
        self.parts, self.done = [], threading.Event()
        self.thread = threading.Thread(target=self.keep, daemon=True) if hold else None

    @staticmethod
    def above_low():
        """Free frames of zone Normal beyond the low watermark."""
        zone = pathlib.Path("/proc/zoneinfo").read_text().partition("zone   Normal")[2]
        number = lambda name: int(zone.partition(f" {name} ")[2].split()[0])
        return number("free") - number("low")

    def keep(self):
        while not self.done.is_set():
            spare = self.above_low() - self.MARGIN
            if spare < 2048:
                self.done.wait(0.3)
                continue
            part = mmap.mmap(-1, min(spare, 1 << 16) * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            for page in range(0, len(part), PAGE):
                part[page] = 1
            self.parts.append(part)

    def __enter__(self):
        if self.thread:
            self.thread.start()
            while self.above_low() > 2 * self.MARGIN:
                time.sleep(0.5)
        return self

    def __exit__(self, *_):
        self.done.set()
        if self.thread:
            self.thread.join()


class Load:
    """The load on the other CPU."""

    def __init__(self, kind, cpu, folder):
        commands = {
            "none": None,
            "vm": ["stress-ng", "--vm", "1", "--vm-bytes", "1G", "--quiet"],
            "compile": ["sh", "-c", f"while :; do cc -O2 -c -o {folder}/load.o {ROOT}/examples/check/resident.c; done"],
        }
        self.process = self.cpu = None
        if commands[kind]:
            self.cpu = cpu
            command = ["taskset", "-c", str(cpu), *commands[kind]]
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    def __enter__(self):
        return self

    def move(self, cpu):
        """Puts the load on `cpu`."""
        if self.process:
            groups = ((pid, pathlib.Path(f"/proc/{pid}/stat")) for pid in os.listdir("/proc") if pid.isdigit())
            for pid, stat in groups:
                with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                    if int(stat.read_text().rpartition(")")[2].split()[2]) == self.process.pid:
                        os.sched_setaffinity(int(pid), {cpu})

    def check(self):
        if self.process and self.process.poll() is not None:
            raise SystemExit(f"first_try: the load ended with {self.process.returncode}")

    def __exit__(self, *_):
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait()


def memory_folder(prefix, owner=0):
    """A new private folder on tmpfs."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir="/dev/shm"))
    os.chown(folder, owner, owner)
    return folder


def color_list(text):
    """Returns a text such as 0-3,7 as a list of numbers."""
    colors = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        colors.extend(range(int(low), int(high or low) + 1))
    return colors


def plant(path, fault, rng):
    """Makes the saved palette at `path` wrong, and returns the number of frames that got another color. The form is that of palette/saved.rs:
    a line of JSON, then one byte per frame (two from 256 colors on), all bits set where the color is not known."""
    head, _, table = path.read_bytes().partition(b"\n")
    count = json.loads(head)["palette"]["colors"]
    if count >= 256:
        raise SystemExit("first_try: palettes with two bytes per frame are not planted with faults")
    colors = bytearray(table)
    kind, _, amount = fault.partition(":")
    changed = 0
    if kind == "permute":
        chosen = rng.sample(range(count), int(amount))
        followers = chosen[1:] + chosen[:1] if len(chosen) > 1 else [(chosen[0] + 1 + rng.randrange(count - 1)) % count]
        rename = bytes.maketrans(bytes(chosen), bytes(followers))
        for at in range(0, len(colors), 2 * BLOCK_FRAMES):
            block = colors[at : at + BLOCK_FRAMES]
            renamed = block.translate(rename)
            changed += sum(a != b for a, b in zip(block, renamed, strict=True))
            colors[at : at + BLOCK_FRAMES] = renamed
    else:
        share = float(amount.rstrip("%")) / 100
        for at, color in enumerate(colors):
            if color != 0xFF and rng.random() < share:
                colors[at] = rng.randrange(count)
                changed += colors[at] != color
    # In place: owner and mode stay.
    path.write_bytes(head + b"\n" + bytes(colors))
    return changed


def improbable(off, pages):
    """Whether `off` of `pages` pages off color are significantly more than 1 %."""
    rate = 1 - ON_COLOR_THRESHOLD + FALSE_ALARMS
    fewer = sum(math.comb(pages, count) * rate**count * (1 - rate) ** (pages - count) for count in range(off))
    return 1 - fewer < CHECKER_SIGNIFICANCE


def pooled(parts):
    """Returns the sums of the pages on and off color of several checks."""
    return tuple(sum(part[key] for part in parts) for key in ["on_color", "off_color"])


def is_undecided(found):
    """Whether too many pages are undecided for a conclusion."""
    return improbable(found["pages"] - found["on_color"], found["pages"])


def undisturbed(controls):
    """Returns the checks during which the kernel moved no page to another frame."""
    return [control for control in controls if control["writer_frames"]["moved"] + control["resident_frames"]["moved"] == 0]


class Frames:
    """Watches whether the kernel gives pages of a process other frames: pages that were on color may then be on others for a while. What a host
    does to the frames themselves is not seen."""

    EVERY_SECONDS = 0.1

    def __init__(self, pid):
        self.pid = pid
        self.first = self.read()
        self.moved = set()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def read(self):
        """Returns the frame numbers of the process's writable private memory, by address."""
        frames = {}
        with contextlib.suppress(OSError, ValueError):
            maps = pathlib.Path(f"/proc/{self.pid}/maps").read_text().splitlines()
            with open(f"/proc/{self.pid}/pagemap", "rb") as pagemap:
                for mapping in maps:
                    span, mode = mapping.split()[:2]
                    begin, end = (int(address, 16) for address in span.split("-"))
                    if mode[:2] != "rw" or mode[3] != "p":
                        continue
                    pagemap.seek(begin // PAGE * 8)
                    for at, (entry,) in enumerate(struct.iter_unpack("<Q", pagemap.read((end - begin) // PAGE * 8))):
                        if entry >> 63:
                            frames[begin + at * PAGE] = entry & ((1 << 55) - 1)
        return frames

    def watch(self):
        while not self.over.wait(self.EVERY_SECONDS):
            for address, frame in self.read().items():
                if self.first.get(address, frame) != frame:
                    self.moved.add(address)

    def result(self):
        """Returns the number of pages, and the number of pages that have had another frame at some time since."""
        self.over.set()
        self.thread.join()
        return {"pages": len(self.first), "moved": len(self.moved)}


class Campaign:
    def __init__(self, options):
        self.options = options
        self.rng = random.Random(options.seed)
        # Where nobody, too, can run programs.
        self.programs = pathlib.Path(tempfile.mkdtemp(prefix="isochrome-first-try-"))
        self.programs.chmod(0o755)
        subprocess.run(["make", "-s", "-C", ROOT / "examples/check", f"OUT={self.programs}"], check=True)
        shutil.copy(options.binary, self.programs / "isochrome")
        for name in ["isochrome", "resident", "writer"]:
            (self.programs / name).chmod(0o755)
        self.saved = None
        # Every try corrects the table by what it measures.
        self.tables = [(path, path.read_bytes()) for path in pathlib.Path(options.saved).glob("palette-l*")] if options.put_back else []

    def close(self):
        shutil.rmtree(self.programs, ignore_errors=True)
        self.forget_saved()

    def forget_saved(self):
        if self.saved:
            shutil.rmtree(self.saved[0], ignore_errors=True)
        self.saved = None

    def environment(self, runtime):
        return {**os.environ, "ISOCHROME_RUNTIME_DIR": str(runtime)}

    def planted_runtime(self, number):
        """A runtime folder with a palette that is wrong. A palette is saved anew every few tries; before each try it is what it was then,
        but for the fault."""
        if self.saved is None or number % self.options.save_every == 0:
            self.forget_saved()
            runtime = memory_folder("isochrome-planted-")
            command = [self.programs / "isochrome", "palette", "--save", "--memory", "2G"]
            output = subprocess.run(command, env=self.environment(runtime), capture_output=True, text=True, timeout=300)
            found = [path for path in runtime.glob("palette-l*") if path.suffix != ".lock"]
            if output.returncode != 0 or len(found) != 1:
                shutil.rmtree(runtime)
                raise Failure(f"palette --save: status {output.returncode}: {output.stderr.strip() or output.stdout.strip()}")
            self.saved = (runtime, found[0], found[0].read_bytes())
        runtime, path, palette = self.saved
        path.write_bytes(palette)
        plant(path, self.options.planted, self.rng)
        return runtime

    def exec(self, colors, name, arguments, folder, runtime, as_nobody, in_group=False):
        """Starts one of the programs of examples/check on `colors`; programs `in_group` share theirs."""
        group = ["--group", "first-try"] if in_group else []
        options = ["--colors", colors, *group, "-o", folder / f"{name}.json"]
        command = [self.programs / "isochrome", "exec", *options, self.programs / name, *arguments]
        if as_nobody:
            command = AS_NOBODY + command
        return Program([str(word) for word in command], folder, self.environment(runtime), name)

    def wait_for_colors(self, program, folder, begin):
        """Waits for the report that `program` is on its colors for the first time, and returns it."""
        while time.monotonic() < begin + LIMIT_SECONDS:
            report = read_json(folder / f"{program.name}.json")
            if report and (report.get("event") == "on_colors" or program.process.poll() is not None):
                return report
            if program.process.poll() is not None:
                raise Failure(f"{program.name}: ended with {program.process.returncode} before it was on its colors{program.said()}")
            time.sleep(0.005)
        raise NotOnColors(f"{program.name}: not on its colors after {LIMIT_SECONDS} s{program.said()}")

    def confined_writer(self, colors, fifos, folder, runtime, as_nobody, in_group):
        """Returns a writer that is on `colors` with all its pages, its report, and the number of writers that were not. `exec` promises only 99 % of
        the pages, and the other pages would evict pages that they should not."""
        for unused in range(WRITERS_MAX):
            (folder / "writer.json").unlink(missing_ok=True)
            begin = time.monotonic()
            writer = self.exec(colors, "writer", [self.options.writer_kib, *fifos], folder, runtime, as_nobody, in_group)
            try:
                writer.wait_until_ready()
                placed = self.wait_for_colors(writer, folder, begin)
            except Failure:
                writer.end()
                raise
            if placed["off_color"] == 0:
                return writer, placed, unused
            writer.end()
        raise NoWriter(f"writer: {WRITERS_MAX} in a row had pages off their colors")

    def check(self, resident, writer_colors, folder, runtime, as_nobody, in_group=False, cpu=None):
        """Returns the resident's judgment of a sample of its pages, with a writer on `writer_colors`; `in_group`: whether they are the resident's."""
        options = self.options
        cpu = options.cpu if cpu is None else cpu
        fifos = [folder / "fifo-to", folder / "fifo-from"]
        for fifo in fifos:
            fifo.unlink(missing_ok=True)
            os.mkfifo(fifo)
            fifo.chmod(0o666)
        writer, placed, unused = self.confined_writer(writer_colors, fifos, folder, runtime, as_nobody, in_group)
        try:
            for program in [writer, resident]:
                pin(program.pid, cpu, 40)
            frames = [Frames(program.pid) for program in [writer, resident]]
            frame_of = frames[1].first
            resident.tell(f"check {options.sample} {options.check_seconds} {fifos[0]} {fifos[1]}\n")
            found = json.loads(resident.line(4 * options.check_seconds + 20))
            writer_frames, resident_frames = (of.result() for of in frames)
            pin(resident.pid, cpu, 0)
            os.sched_setaffinity(resident.pid, range(os.cpu_count()))
            if (status := writer.status(20)) != 0:
                raise Failure(f"writer: ended with {status}{writer.said()}")
        finally:
            writer.end()
        if "verdicts" not in found:
            raise Failure(f"resident: wrong contents: {found}")
        # The tool's report on the writer: a writer off its colors evicts pages that it should not.
        at_end = read_json(folder / "writer.json")
        told = {"writer": placed, "writer_at_end": at_end, "writer_stderr": writer.said(), "writers_unused": unused}
        off_frames = [frame_of.get(resident.address + verdict[0] * PAGE) for verdict in found["verdicts"] if verdict[1] == "-"]
        return {**found, **told, "off_frames": off_frames, "writer_frames": writer_frames, "resident_frames": resident_frames}

    def run(self, number, size, as_nobody, with_control, load):
        """Makes one try, and returns its result."""
        options = self.options
        result = {"try": number, "size": size, "user": "nobody" if as_nobody else "root", "failures": [], "inconclusive": []}
        fail = result["failures"].append
        owner = NOBODY if as_nobody else 0
        folder = memory_folder("isochrome-try-", owner)
        resident = None
        try:
            if options.planted == "none":
                runtime = folder / "runtime"
                runtime.mkdir(mode=0o700)
                os.chown(runtime, owner, owner)
                # Not a copy: pages of known color would have other frames.
                runtime = pathlib.Path(options.saved) if options.saved else runtime
                for path, table in self.tables:
                    path.write_bytes(table)
            else:
                runtime = self.planted_runtime(number)
            begin = time.monotonic()
            resident = self.exec(options.colors, "resident", [size, number + 1], folder, runtime, as_nobody, in_group=True)
            resident.wait_until_ready()
            try:
                report = self.wait_for_colors(resident, folder, begin)
            except NotOnColors:
                # A palette that is wrong may be refused.
                if options.planted == "none":
                    raise
                report = {"moved": False}
            if report["moved"] or options.planted == "none":
                result["seconds_by_this_clock"] = time.monotonic() - begin
                result["report"] = report
                self.judge_report(report, fail)
                if options.checker:
                    self.judge_check(resident, folder, runtime, as_nobody, with_control, load, result)
            elif resident.said():
                result["refused"] = [resident.said()[2:]]
            else:
                fail("not on its colors, and nothing was said")
            resident.tell("end\n")
            last = json.loads(resident.line(30))
            if last.get("wrong_words") != 0:
                fail(f"resident: wrong contents: {last}")
            result["pages_verified"] = last.get("pages_verified")
            status = resident.status(10)
            result["status"] = status
            if status != 0:
                fail(f"exec ended with {status} instead of the program's 0{resident.said()}")
            result["report_at_end"] = read_json(folder / "resident.json")
            if (result["report_at_end"] or {}).get("event") != "end":
                fail("no report at the end")
        except (Failure, subprocess.TimeoutExpired) as failure:
            fail(str(failure))
        except (json.JSONDecodeError, KeyError, OSError) as error:
            fail(f"{type(error).__name__}: {error}")
        finally:
            if resident:
                result["stderr"] = resident.said()[2:]
                resident.end()
            shutil.rmtree(folder, ignore_errors=True)
        return result

    def judge_check(self, resident, folder, runtime, as_nobody, with_control, load, result):
        """Lets the resident judge its pages, with a writer on the other colors."""
        options = self.options
        others = ",".join(str(color) for color in range(options.color_count) if color not in color_list(options.colors))
        # Up to 1 % of the writer's own pages may be off its colors, and evict pages of the resident, which is then not at fault. A second writer has
        # other pages. So what both say counts.
        failures = []
        for writer in ["checker", "second_checker"]:
            try:
                found = result[writer] = self.check(resident, others, folder, runtime, as_nobody)
            except NoWriter as reason:
                result["inconclusive"].append(str(reason))
                return
            decided = found["on_color"] + found["off_color"]
            if not improbable(found["off_color"], decided):
                break
            moved = [f"{found[of]['moved']} of {found[of]['pages']}" for of in ["writer_frames", "resident_frames"]]
            meanwhile = f"the kernel moved {moved[0]} pages of the writer in this time, {moved[1]} of the resident"
            failures.append(f"{found['off_color']} of {decided} pages are evicted by the other colors; {meanwhile}")
        if len(failures) == 2:
            result["failures"].extend(f"checker: {failure}" for failure in failures)
        elif is_undecided(found) and options.load_cpu != options.cpu:
            # Where an unseen neighbor of the CPU keeps one of the colors for itself, its pages are lost in the control as well. The other CPU has
            # a cache of its own.
            load.move(options.cpu)
            try:
                found = result["checker_elsewhere"] = self.check(resident, others, folder, runtime, as_nobody, cpu=options.load_cpu)
            except NoWriter as reason:
                result["inconclusive"].append(str(reason))
                return
            finally:
                load.move(options.load_cpu)
            # With one writer alone, the writer may be at fault.
            decided = found["on_color"] + found["off_color"]
            if improbable(found["off_color"], decided):
                result["inconclusive"].append(f"checker: {found['off_color']} of {decided} pages are evicted by the other colors on CPU {options.load_cpu}")
            elif is_undecided(found):
                result["inconclusive"].append(f"checker: {found['undecided']} of {found['pages']} pages are undecided on both CPUs")
        elif is_undecided(found):
            result["inconclusive"].append(f"checker: {found['undecided']} of {found['pages']} pages are undecided")
        if with_control:
            try:
                result["control"] = self.check(resident, options.colors, folder, runtime, as_nobody, in_group=True)
            except NoWriter as reason:
                result["inconclusive"].append(str(reason))

    def judge_report(self, report, fail):
        """Compares the tool's own report with the promises of the documentation."""
        pages = report["on_color"] + report["off_color"]
        if not report["moved"] or pages == 0:
            fail(f"nothing was moved: {report['resident']} pages are resident")
            return
        if report["on_color"] < ON_COLOR_THRESHOLD * pages:
            fail(f"{report['on_color']} of {pages} movable pages are on color")
        verified = report["verified"]
        if not verified or verified["pages"] == 0:
            fail("nothing was verified")
        elif verified["right"] < ON_COLOR_THRESHOLD * verified["pages"]:
            fail(f"verified: {verified['right']} of {verified['pages']} pages")
        share = self.options.color_count / len(color_list(self.options.colors))
        bound = 1.25 * share * pages * PAGE + (64 << 20)
        if report["touched_bytes_max"] > bound:
            fail(f"{report['touched_bytes_max'] / 2**20:.0f} MiB touched, the bound is {bound / 2**20:.0f} MiB")
        if report["seconds_to_colors"] is None or report["seconds_to_colors"] > LIMIT_SECONDS:
            fail(f"{report['seconds_to_colors']} s to the colors")


def schedule(options, rng):
    """Size and user of each try, in random order: each size as often, and of each the share as nobody."""
    tries = []
    for index, size in enumerate(options.sizes):
        count = options.tries // len(options.sizes) + (index < options.tries % len(options.sizes))
        nobody = math.ceil(options.as_nobody * count) if options.planted == "none" else 0
        tries += [(size, number < nobody) for number in range(count)]
    rng.shuffle(tries)
    return tries


def spread(values, scale=1, form="{:.2f}"):
    """Median, 90 % and maximum as text."""
    if not values:
        return "-"
    ordered = sorted(value * scale for value in values)
    chosen = [statistics.median(ordered), ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))], ordered[-1]]
    return " / ".join(form.format(value) for value in chosen)


def outcome(result):
    """One word for a try."""
    if result["failures"]:
        return "failed"
    if "refused" in result:
        return "refused"
    return "inconclusive" if result["inconclusive"] else "succeeded"


def print_table(rows):
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def summarize(results):
    rows = [["size", "user", "succeeded", "refused", "inconclusive"]]
    rows[0] += ["seconds to colors", "touched MiB", "pause ms", "on color", "verified", "checker"]
    groups = collections.defaultdict(list)
    for result in results:
        groups[result["size"], result["user"]].append(result)
    for (size, user), group in sorted(groups.items(), key=lambda item: (item[0][0][-1], int(item[0][0][:-1]), item[0][1])):
        reports = [result["report"] for result in group if result.get("report")]
        pauses = [result["report_at_end"]["pause_ns_max"] for result in group if result.get("report_at_end")]
        verified = [report["verified"] for report in reports if report.get("verified")]
        checked = [result["checker"] for result in group if result.get("checker")]
        sums = {key: sum(report[key] for report in reports) for key in ["on_color", "off_color"]}
        verified_pages = sum(part["pages"] for part in verified)
        on, off = pooled(checked)
        rows.append([
            size,
            user,
            f"{sum(outcome(result) == 'succeeded' for result in group)} of {len(group)}",
            str(sum(outcome(result) == "refused" for result in group)),
            str(sum(outcome(result) == "inconclusive" for result in group)),
            spread([report["seconds_to_colors"] for report in reports if report["seconds_to_colors"] is not None]),
            spread([report["touched_bytes_max"] for report in reports], 2**-20, "{:.0f}"),
            spread(pauses, 1e-6, "{:.1f}"),
            f"{sums['on_color'] / sum(sums.values()):.4f}" if any(sums.values()) else "-",
            f"{sum(part['right'] for part in verified) / verified_pages:.4f}" if verified_pages else "-",
            f"{on / (on + off):.4f} of {on + off}" if on + off else "-",
        ])
    print_table(rows)
    print("times, memory and pauses: median / 90 % / largest")
    on, off = pooled([result["checker"] for result in results if result.get("checker")])
    if on + off:
        undecided = sum(result["checker"]["undecided"] for result in results if result.get("checker"))
        print(f"checker: {on} of {on + off} sampled pages are on color, {undecided} undecided")
    second = [result["second_checker"] for result in results if result.get("second_checker")]
    if second:
        on, off = pooled(second)
        print(f"{len(second)} tries were checked with a second writer, as the first one evicted pages: {on} of {on + off} are on color")
    elsewhere = [result["checker_elsewhere"] for result in results if result.get("checker_elsewhere")]
    if elsewhere:
        on, off = pooled(elsewhere)
        print(f"{len(elsewhere)} tries were checked on the other CPU, as too many pages were undecided: {on} of {on + off} are on color")
    controls = [result["control"] for result in results if result.get("control")]
    if controls:
        still = undisturbed(controls)
        on, off = pooled(still)
        print(
            f"positive control, {len(controls)} checks with a writer on the same colors: it evicts {off} of {on + off} pages in the {len(still)}"
            " in which the kernel moved no page"
        )
    for result in results:
        for kind in ["failures", "refused", "inconclusive"]:
            for message in result.get(kind, []):
                print(f"try {result['try']} ({result['size']}, {result['user']}): {kind}: {message}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=ROOT / "target/release/isochrome", help="the isochrome command")
    parser.add_argument("--tries", type=int, default=100)
    parser.add_argument("--sizes", default="64K,4M,64M", help="working sets")
    parser.add_argument("--as-nobody", type=float, default=0.1, metavar="SHARE", help="share of the tries of each size as user nobody")
    parser.add_argument("--load", choices=["none", "vm", "compile"], default="vm", help="on the other CPU")
    parser.add_argument("--planted", default="none", metavar="FAULT", help="none, permute:K or random:P%%")
    parser.add_argument("--save-every", type=int, default=5, metavar="N", help="tries with one saved palette, where faults are planted")
    parser.add_argument("--saved", metavar="FOLDER", help="use this runtime folder, in which an earlier `palette --save` has left a table, in all tries")
    parser.add_argument("--put-back", action="store_true", help="before each try, make the table of --saved what it was at the beginning")
    parser.add_argument("--checker", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--control-every", type=int, default=10, metavar="N", help="tries from one positive control to the next; 0: none")
    parser.add_argument("--sample", type=int, default=512, help="pages that the checker judges")
    parser.add_argument("--check-seconds", type=float, default=60, help="time limit of a check, which takes 0.3 s as a rule")
    parser.add_argument("--writer-kib", type=int, default=None, help="memory of the writer; four times level 2 otherwise")
    parser.add_argument("--colors", default="0-3", help="colors of the program; the writer gets the others")
    parser.add_argument("--color-count", type=int, default=None, help="colors of the cache; what the kernel says of level 2 otherwise")
    parser.add_argument("--cpu", type=int, default=os.cpu_count() - 1, help="CPU of both programs while the checker works")
    parser.add_argument("--short-of-memory", action="store_true", help="hold memory until the kernel is about to take frames of another zone")
    parser.add_argument("--load-cpu", type=int, default=0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--json", metavar="FILE", help="everything seen, a line per try")
    options = parser.parse_args()
    options.sizes = options.sizes.split(",")
    if options.seed is None:
        options.seed = random.randrange(10**6)
    kind, _, amount = options.planted.partition(":")
    if options.planted != "none" and (kind not in ["permute", "random"] or not amount.rstrip("%").replace(".", "").isdigit()):
        parser.error("--planted: none, permute:1, permute:3, permute:16 or random:5%")
    if options.put_back and not options.saved:
        parser.error("--put-back needs --saved")
    if os.geteuid() != 0:
        parser.error("run it as root")
    geometry = level_2(options.cpu)
    if geometry is None and None in (options.color_count, options.writer_kib):
        parser.error("the kernel does not say how large the cache is: --color-count and --writer-kib")
    if geometry:
        size, ways = geometry
        options.color_count = options.color_count or size // ways // PAGE
        options.writer_kib = options.writer_kib or 4 * size // 1024
    return options


def main():
    options = parse()
    for tool in ["setpriv", "taskset", "make", "cc"] + ["stress-ng"] * (options.load == "vm"):
        if shutil.which(tool) is None:
            raise SystemExit(f"first_try: {tool} is not installed\n  hint: apt-get install {tool}")
    campaign = Campaign(options)
    raw = open(options.json, "w") if options.json else contextlib.nullcontext()
    results = []
    print(f"seed {options.seed}, load {options.load} on CPU {options.load_cpu}, planted: {options.planted}", file=sys.stderr)
    try:
        with raw as lines, Load(options.load, options.load_cpu, campaign.programs) as load, Memory(options.short_of_memory):
            for number, (size, as_nobody) in enumerate(schedule(options, campaign.rng)):
                load.check()
                control = options.control_every > 0 and number % options.control_every == 0
                result = campaign.run(number, size, as_nobody, control, load)
                results.append(result)
                if lines:
                    print(json.dumps(result), file=lines, flush=True)
                report, checked = result.get("report") or {}, result.get("checker") or {}
                words = [f"{number + 1}/{options.tries} {size} {result['user']}: {outcome(result)}"]
                words.append(f"{report.get('seconds_to_colors')} s, {report.get('on_color')} on color, {report.get('off_color')} off")
                if checked:
                    words.append(f"checker {checked['on_color']} on, {checked['off_color']} off, {checked['undecided']} undecided")
                words += result["failures"] + result.get("refused", []) + result["inconclusive"]
                print("; ".join(words).replace("\n", " "), file=sys.stderr, flush=True)
    finally:
        campaign.close()
        if results:
            summarize(results)
    on, off = pooled([r["checker"] for r in results if r.get("checker")])
    # The writer of a control evicts the pages of its own colors, so a checker that finds them on color is blind. Pages that the kernel moves do not count.
    missed, found = pooled(undisturbed([r["control"] for r in results if r.get("control")]))
    violated = on < ON_COLOR_THRESHOLD * (on + off) or found < ON_COLOR_THRESHOLD * (missed + found)
    # A control that decides about few pages shows nothing.
    is_blind = any(2 * (r["control"]["on_color"] + r["control"]["off_color"]) < r["control"]["pages"] for r in results if r.get("control"))
    return 2 if violated or any(r["failures"] for r in results) else 3 if is_blind or any(r["inconclusive"] for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
