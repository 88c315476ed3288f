#!/usr/bin/env python3
"""Runs real programs with and without isochrome, and compares their output; `make compat` builds, installs and runs it all.

    scripts/compat.py --binary target/release/isochrome          # writes docs/results/compat.md and target/compat.json
    scripts/compat.py --binary target/release/isochrome --only redis
    scripts/compat.py --list

Each program runs once without isochrome and once under `isochrome exec`. While it works there, `isochrome recolor` moves it ten times
between two sets of colors. A program passes where its output and its exit status are as without, and every recoloring ended with 0.

Exit code: 0 all programs passed, 1 could not run, 2 one did not pass, 3 all that are installed passed, others are missing.
"""

import argparse
import ctypes
import datetime
import glob
import hashlib
import http.server
import json
import os
import pwd
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from first_try import level_2

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "examples/compat"
# The page of results, and the raw data beside the build.
PAGE = ROOT / "docs/results/compat.md"
RAW = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "compat.json"
# Where the program starts, and where every second recoloring moves it: a quarter of the colors each, of 16 where the kernel does not say.
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SIZE, WAYS = level_2(0) or (16 * PAGE_BYTES, 1)
QUARTER = max(1, SIZE // WAYS // PAGE_BYTES // 4)
COLORS = (f"0-{QUARTER - 1}", f"{QUARTER}-{2 * QUARTER - 1}")
# Limits in seconds: until `exec` reports that the program is on its colors, of one recoloring, from SIGTERM to the end.
ON_COLORS_LIMIT, RECOLOR_LIMIT, TERM_LIMIT = 120, 120, 2
# How long a program works in the run without isochrome, in seconds.
PLAIN_SECONDS = 2


class Failed(Exception):
    """A program failed its check. The message says why."""


class Missing(Exception):
    """A requirement of a program is missing. The message names it."""


# Processes


def status_fields(pid):
    """Fields of /proc/PID/stat after the name: state, parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def children():
    """Process numbers of the children of each process."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                found.setdefault(int(status_fields(entry)[1]), []).append(int(entry))
            except (OSError, IndexError):
                pass  # It has ended since then.
    return found


def descendants(pid):
    by_parent, found = children(), [pid]
    for parent in found:
        found.extend(by_parent.get(parent, ()))
    return found[1:]


def adopt_orphans():
    """Makes this process the parent of processes that a child leaves behind, so that they can be found and ended."""
    PR_SET_CHILD_SUBREAPER = 36
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def end_descendants(program):
    """Kills all processes that this process started, and waits until they have ended; `program` keeps its own exit status."""
    limit = time.monotonic() + 10
    while time.monotonic() < limit:
        left = descendants(os.getpid())
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                if program is None or pid != program.pid:
                    os.waitpid(pid, os.WNOHANG)
            except (ProcessLookupError, ChildProcessError):
                pass  # It has ended, or is the child of another one that ends.
        if program:
            program.poll()
        time.sleep(0.05)


def reports(text):
    """Returns the reports in the output of `recolor --json`: one, or one for each process of a tree."""

    def of(value):
        if isinstance(value, list):
            return [report for part in value for report in of(part)]
        if isinstance(value, dict):
            return [value] if "on_color" in value else of(list(value.values()))
        return []

    decoder, found, at = json.JSONDecoder(), [], 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        value, at = decoder.raw_decode(text, at)
        found.extend(of(value))
    return found


def summed(parts):
    """Returns one report with the sums of the reports of several processes."""
    whole = {"resident": 0, "on_color": 0, "off_color": 0, "immovable": {}, "verified": {"pages": 0, "right": 0}, "pauses_ns": [], "moved": False}
    for part in parts:
        for key in ("resident", "on_color", "off_color"):
            whole[key] += part.get(key) or 0
        for reason, pages in (part.get("immovable") or {}).items():
            whole["immovable"][reason] = whole["immovable"].get(reason, 0) + pages
        for key, pages in (part.get("verified") or {}).items():
            whole["verified"][key] = whole["verified"].get(key, 0) + pages
        whole["pauses_ns"] += part.get("pauses_ns") or []
        whole["moved"] |= bool(part.get("moved"))
    return whole


def steal_ms():
    """Steal time of all CPUs since the machine started, in ms."""
    ticks = int(Path("/proc/stat").read_text().split(maxsplit=10)[8])
    return ticks * 1000 / os.sysconf("SC_CLK_TCK")


# One run of a program


class Run:
    """One run of a program, with or without isochrome, in a folder of its own."""

    def __init__(self, options, folder, tree, colored):
        self.options, self.folder, self.tree, self.colored = options, folder, tree, colored
        self.limit = time.monotonic() + options.limit
        self.stop = folder / "stop"
        self.out, self.err = folder / "stdout", folder / "stderr"
        self.report = folder / "report.json"
        self.process = self.pid = self.mover = self.load_end = None
        # Whether the script has begun to end the program. Later errors do not count.
        self.over = False
        self.runtime = None
        self.recolorings, self.errors = [], []
        self.on_colors = self.final = None
        self.environment = dict(os.environ)
        # The runtime folder is empty, so colors that other programs left behind or hold do not count.
        if colored and "ISOCHROME_RUNTIME_DIR" not in os.environ:
            self.runtime = Path(f"/dev/shm/{folder.parent.name}-{folder.name}")
            self.runtime.mkdir(mode=0o755)
            self.environment["ISOCHROME_RUNTIME_DIR"] = str(self.runtime)

    def start(self, command, **settings):
        """Starts the program; `isochrome exec` starts it in the colored run."""
        if self.colored:
            tool = [self.options.binary, "exec", "--colors", COLORS[0], "-o", self.report, "--"]
            command = [*tool, *command]
        settings.setdefault("stdin", subprocess.DEVNULL)
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdout=out, stderr=err, start_new_session=True, **settings
            )
        self.pid = self.program() if self.colored else self.process.pid

    def program(self):
        """Returns the process number of the program that `exec` has started."""
        tool = Path(self.options.binary).resolve()
        limit = min(self.limit, time.monotonic() + ON_COLORS_LIMIT)
        while time.monotonic() < limit and self.process.poll() is None:
            for pid in children().get(self.process.pid, ()):
                try:
                    if Path(os.readlink(f"/proc/{pid}/exe")) != tool:
                        return pid
                except OSError:
                    pass
            time.sleep(0.01)
        raise Failed(f"`exec` started no program: {self.tail()}")

    def tail(self):
        """Returns the last lines that the program wrote to standard error."""
        return " / ".join(self.err.read_text(errors="replace").strip().splitlines()[-3:])

    def begin(self):
        """Begins the work of the program. In the colored run it is recolored from now on, until `working` returns False."""
        if not self.colored:
            self.load_end = time.monotonic() + PLAIN_SECONDS
            return

        def move():
            try:
                self.recolor_all()
            except Exception as error:
                self.errors.append(f"{type(error).__name__}: {error}")

        self.mover = threading.Thread(target=move, daemon=True)
        self.mover.start()

    def working(self):
        """Returns whether the program has to continue its work."""
        if self.process.poll() is not None:
            return False
        if time.monotonic() > self.limit:
            raise Failed(f"not done within {self.options.limit} s")
        return self.mover.is_alive() if self.colored else time.monotonic() < self.load_end

    def work(self):
        """Lets the program work, without a load from outside."""
        self.begin()
        while self.working():
            time.sleep(0.05)

    def recolor_all(self):
        """Waits until the program is on its colors, and recolors it as often as the options say."""
        limit = min(self.limit, time.monotonic() + ON_COLORS_LIMIT)
        while time.monotonic() < limit and not self.report.exists() and self.process.poll() is None:
            time.sleep(0.02)
        if self.report.exists():
            self.on_colors = json.loads(self.report.read_text())
            self.pid = self.on_colors.get("pid", self.pid)
        elif self.process.poll() is None:
            self.errors.append(f"`exec` did not report within {ON_COLORS_LIMIT} s that the program is on its colors")
        begin = time.monotonic()
        for count in range(self.options.recolorings):
            due = begin + count * self.options.seconds / self.options.recolorings
            while time.monotonic() < due:
                if self.process.poll() is not None:
                    return
                time.sleep(0.02)
            if self.process.poll() is not None or not self.recolor(COLORS[(count + 1) % 2]):
                return

    def recolor(self, colors):
        """Recolors the program once. Returns False if no further recoloring can succeed."""
        command = [self.options.binary, "recolor", str(self.pid), "--colors", colors, "--json", *(["--tree"] if self.tree else [])]
        begin = time.monotonic()
        tool = subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        ended = True
        try:
            out, err = tool.communicate(timeout=RECOLOR_LIMIT)
        except subprocess.TimeoutExpired:
            tool.terminate()
            try:
                out, err = tool.communicate(timeout=TERM_LIMIT)
                self.errors.append(f"a recoloring took longer than {RECOLOR_LIMIT} s and was ended")
            except subprocess.TimeoutExpired:
                tool.kill()
                out, err = tool.communicate()
                ended = False
                self.errors.append(f"a recoloring took longer than {RECOLOR_LIMIT} s and did not end within {TERM_LIMIT} s of SIGTERM")
        if self.over:
            return False
        found = {"colors": colors, "status": tool.returncode, "seconds": time.monotonic() - begin, "reports": [], "messages": err}
        try:
            found["reports"] = reports(out)
        except ValueError as error:
            self.errors.append(f"the output of `recolor --json` is not JSON: {error}")
        self.recolorings.append(found)
        if tool.returncode != 0 and ended:
            # A program that has just ended cannot be recolored, and need not be; `exec` ends right after it.
            limit = time.monotonic() + 1
            while not Path(f"/proc/{self.pid}").exists() and time.monotonic() < limit:
                if self.process.poll() is not None:
                    self.recolorings.pop()
                    return False
                time.sleep(0.01)
            self.errors.append(f"recolor: status {tool.returncode}: {' / '.join(err.strip().splitlines()[:3])}")
        return ended

    def signal(self, number):
        """Sends a signal to the program itself."""
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            pass

    def finish(self):
        """Waits for the end of the program, and returns its exit status."""
        try:
            status = self.process.wait(timeout=max(1, self.limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Failed(f"did not end within {self.options.limit} s")
        if self.mover:
            self.mover.join(timeout=RECOLOR_LIMIT + TERM_LIMIT + 1)
        if self.report.exists():
            self.final = json.loads(self.report.read_text())
        return status

    def stop_file(self, command, **settings):
        """Runs a program that works until the stop file exists; returns what it printed."""
        self.start(command, **settings)
        self.work()
        self.stop.touch()
        self.finish()
        return self.output()

    def output(self):
        return self.out.read_text(errors="replace")

    def wait_until(self, ready, what):
        """Waits until `ready()` holds."""
        limit = min(self.limit, time.monotonic() + 30)
        while time.monotonic() < limit:
            if self.process.poll() is not None:
                raise Failed(f"{what}: the program ended with {self.process.returncode}: {self.tail()}")
            try:
                if ready():
                    return
            except (OSError, subprocess.CalledProcessError):
                pass
            time.sleep(0.05)
        raise Failed(f"{what}: not within 30 s")

    def tool(self, *command, **settings):
        """Runs a helper of the check, such as a load generator, and returns what it printed."""
        left = max(1, self.limit - time.monotonic())
        try:
            done = subprocess.run(command, cwd=self.folder, timeout=left, capture_output=True, text=True, **settings)
        except subprocess.TimeoutExpired:
            raise Failed(f"{command[0]}: not done within the limit")
        if done.returncode != 0:
            raise Failed(f"{Path(str(command[0])).name}: status {done.returncode}: {done.stderr.strip()[-300:]}")
        return done.stdout


# Building blocks of the programs


def is_here(need):
    """Whether a command, a file (a pattern that starts with `/`) or a module of Python (`import NAME`) is installed."""
    if need.startswith("/"):
        return bool(glob.glob(need))
    return bool(python_with(need) if need.startswith("import ") else shutil.which(need))


def python_with(statement):
    """Returns a Python that can run `statement`; None if no Python here can."""
    for python in (sys.executable, "/usr/bin/python3"):
        if Path(python).exists() and subprocess.run([python, "-c", statement], capture_output=True).returncode == 0:
            return python
    return None


def compiled(run, name, *libraries):
    """Compiles a C program of examples/compat, and returns its path."""
    program = run.folder / name
    run.tool("cc", "-O2", "-o", program, SOURCES / f"{name}.c", *libraries)
    return program


def c_program(name):
    def work(run):
        return run.stop_file([compiled(run, name), run.stop])

    return work


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def as_user(name, run):
    """Returns settings that start a program as another user if this user is root."""
    if os.geteuid() != 0:
        return {}
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise Missing(f"the user {name}")
    os.chown(run.folder, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


# The programs: each function lets its program work and returns the output that has to be the same in both runs.


def jvm(run):
    run.tool("javac", "-d", run.folder, SOURCES / "Churn.java")
    return run.stop_file(["java", "-XX:+UseG1GC", "-Xmx192m", "-cp", run.folder, "Churn", run.stop])


def node(run):
    return run.stop_file(["node", "--max-old-space-size=64", SOURCES / "churn.js", run.stop])


def golang(run):
    program = run.folder / "churn"
    run.tool("go", "build", "-o", program, SOURCES / "churn.go", env={**os.environ, "GO111MODULE": "off"})
    return run.stop_file([program, run.stop])


def pypy(run):
    return run.stop_file(["pypy3", SOURCES / "churn.py", run.stop])


def numpy(run):
    return run.stop_file([python_with("import numpy"), SOURCES / "arrays.py", run.stop])


def chromium(run):
    """Prints a page that computes until the server answers its last request."""
    page_works, may_end = threading.Event(), threading.Event()

    class Pages(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path == "/working":
                page_works.set()
            if self.path == "/hold":
                may_end.wait(run.options.limit)
            body = (SOURCES / "page.html").read_bytes() if self.path == "/" else b""
            self.send_response(200 if body else 204)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking disable-component-update disable-sync"
        options = [f"--{option}" for option in options.split()]
        try:
            address = f"http://127.0.0.1:{server.server_port}/"
            run.start(["chromium", *options, f"--user-data-dir={run.folder}/data", "--dump-dom", address])
            run.wait_until(page_works.is_set, "the page works")
            run.work()
            may_end.set()
            run.finish()
        finally:
            may_end.set()
            server.shutdown()
    return run.output()


def postgres(run):
    """Checks a cluster with checksums, in which pgbench keeps the sums of all balances equal."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    programs = folders[-1]
    user = as_user("postgres", run)
    run.tool(programs / "initdb", "-D", run.folder / "data", "-k", "-A", "trust", "-U", "postgres", **user)
    settings = ["listen_addresses=", "shared_buffers=64MB", f"unix_socket_directories={run.folder}"]
    # `exec` stays as it is; what it starts becomes the other user.
    become = ["setpriv", f"--reuid={user['user']}", f"--regid={user['group']}", "--clear-groups"] if user else []
    run.start([*become, programs / "postgres", "-D", run.folder / "data", *(word for one in settings for word in ("-c", one))])
    place = ["-h", str(run.folder), "-U", "postgres"]

    def query(text):
        return run.tool(programs / "psql", *place, "-d", "postgres", "-Atc", text).strip()

    def answers():
        try:
            return query("SELECT 1") == "1"
        except Failed:
            return False

    run.wait_until(answers, "answers")
    run.tool(programs / "pgbench", *place, "-i", "-q", "-s", "5", "postgres")
    failed = 0
    run.begin()
    while run.working():
        text = run.tool(programs / "pgbench", *place, "-n", "-c", "4", "-T", "1", "postgres")
        failed += int(re.search(r"number of failed transactions: (\d+)", text)[1])
    sums = query(
        "SELECT (SELECT sum(abalance) FROM pgbench_accounts) - (SELECT sum(bbalance) FROM pgbench_branches),"
        " (SELECT sum(abalance) FROM pgbench_accounts) - (SELECT sum(tbalance) FROM pgbench_tellers),"
        " (SELECT sum(abalance) FROM pgbench_accounts) - (SELECT sum(delta) FROM pgbench_history),"
        " (SELECT count(*) FROM pgbench_accounts), (SELECT count(*) > 0 FROM pgbench_history)"
    )
    run.signal(signal.SIGINT)
    run.finish()
    broken = [line for line in run.err.read_text(errors="replace").splitlines() if re.search(r"PANIC|terminated by signal", line)]
    return f"differences of the sums, accounts, transactions: {sums}; {failed} failed\n" + "".join(f"{line}\n" for line in broken)


def nginx(run):
    """Checks that pages are served as they were written, plain and compressed, while ab requests them."""
    port = free_port()
    page = "".join(f"line {i} {hashlib.sha256(str(i).encode()).hexdigest()}\n" for i in range(4000)).encode()
    (run.folder / "page.txt").write_bytes(page)
    (run.folder / "logs").mkdir()
    root = "user root;" if os.geteuid() == 0 else ""
    places = "".join(f"{kind}_temp_path {run.folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (run.folder / "nginx.conf").write_text(
        f"""{root} daemon off; worker_processes 2; pid {run.folder}/pid; error_log {run.folder}/logs/error.log;
        events {{ worker_connections 64; }}
        http {{ access_log off; gzip on; gzip_http_version 1.0; gzip_types text/plain; default_type text/plain; {places}
            server {{ listen 127.0.0.1:{port}; root {run.folder}; }} }}"""
    )
    run.start(["nginx", "-c", run.folder / "nginx.conf", "-e", run.folder / "logs/error.log"])
    address = f"http://127.0.0.1:{port}/page.txt"

    def fetched():
        with urllib.request.urlopen(address, timeout=5) as answer:
            return answer.read()

    run.wait_until(lambda: fetched() == page, "serves the page")
    found = set()
    run.begin()
    while run.working():
        for header in ("Accept-Encoding: identity", "Accept-Encoding: gzip"):
            text = run.tool("ab", "-q", "-n", "400", "-c", "8", "-H", header, address)
            requests = re.search(r"Complete requests:\s+(\d+)", text)[1], re.search(r"Failed requests:\s+(\d+)", text)[1]
            wrong = re.search(r"Non-2xx responses:\s+(\d+)", text)
            length = re.search(r"Document Length:\s+(\d+)", text)[1]
            found.add(f"{header}: {requests[0]} requests of {length} bytes, {requests[1]} failed, {wrong[1] if wrong else 0} refused")
        found.add(f"page as written: {fetched() == page}")
    run.signal(signal.SIGQUIT)
    run.finish()
    return "".join(f"{line}\n" for line in sorted(found))


class Redis:
    """A connection to redis with the requests that the check needs."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(20)
        self.socket.connect(str(path))
        self.file = self.socket.makefile("rb")

    def __call__(self, *words):
        words = [str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
        kind = self.file.readline()
        if kind[:1] != b"$":
            return kind[1:].strip().decode()
        length = int(kind[1:])
        return None if length < 0 else self.file.read(length + 2)[:-2].decode()


def redis(run):
    """Checks that values can be read back under load, and from the file that BGSAVE wrote."""
    command = ["redis-server", "--port", "0", "--save", "", "--dir", run.folder, "--dbfilename", "dump.rdb", "--unixsocket"]
    run.start([*command, "socket"])
    path = run.folder / "socket"

    def connected():
        return Redis(path)("PING") == "PONG"

    def value(i):
        return hashlib.sha256(str(i).encode()).hexdigest() * (1 + i % 4)

    def wrong(client):
        return sum(client("GET", f"compat:{i}") != value(i) for i in range(5000))

    def saved(client):
        text = client("INFO", "persistence")
        return "rdb_bgsave_in_progress:0" in text and "rdb_last_bgsave_status:ok" in text

    run.wait_until(connected, "answers")
    client = Redis(path)
    for i in range(5000):
        client("SET", f"compat:{i}", value(i))
    found, saves = set(), 0
    run.begin()
    while run.working():
        client("BGSAVE")
        saves += 1
        run.tool("redis-benchmark", "-s", path, "-q", "-n", "20000", "-c", "8", "-d", "256", "-r", "20000", "-t", "set,get,lpush,lpop")
        found.add(f"wrong values: {wrong(client)}")
        run.wait_until(lambda: saved(client), "BGSAVE")
    client("BGSAVE")
    run.wait_until(lambda: saved(client), "BGSAVE")
    run.signal(signal.SIGTERM)
    run.finish()
    # Another server, without isochrome, reads what was saved.
    again = run.folder / "again"
    with subprocess.Popen([*command, again], cwd=run.folder, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL) as server:
        limit = time.monotonic() + 10
        while time.monotonic() < limit:
            try:
                if Redis(again)("PING") == "PONG":
                    break
            except OSError:
                time.sleep(0.05)
        found.add(f"wrong values in the file: {wrong(Redis(again))}")
        server.terminate()
    return "".join(f"{line}\n" for line in sorted(found))


def fio(engine, direct):
    """Checks that one thread of fio writes blocks and reads them back with the right checksums."""

    def work(run):
        seconds = run.options.seconds + ON_COLORS_LIMIT / 2 if run.colored else PLAIN_SECONDS
        run.start(
            ["fio", "--name=compat", "--filename=data", "--size=64m", "--rw=randwrite", "--bs=16k", f"--ioengine={engine}", "--thread",
             f"--direct={direct}", "--iodepth=16", "--verify=crc32c", "--verify_backlog=64", "--verify_fatal=1", "--time_based",
             f"--runtime={seconds:.0f}", "--output-format=json", "--output=fio.json"]
        )
        run.work()
        run.finish()
        text = (run.folder / "fio.json").read_text()
        job = json.loads(text[text.index("{") :])["jobs"][0]
        return f"error {job['error']}, blocks read back: {job['read']['total_ios'] > 0}\n"

    return work


def registered(run):
    return run.stop_file([compiled(run, "registered", "-luring"), run.stop, run.folder / "data"])


def qemu(run):
    """Checks that a guest that sums its memory again and again finds the same sums."""
    run.tool("as", "--32", "-o", "guest.o", SOURCES / "guest.s")
    run.tool("ld", "-m", "elf_i386", "-Ttext", "0x7c00", "--oformat", "binary", "-o", "guest.img", "guest.o")
    run.start(
        ["qemu-system-x86_64", "-accel", "tcg", "-m", "64", "-display", "none", "-no-reboot", "-serial", "file:serial",
         "-drive", "format=raw,file=guest.img"]
    )
    serial = run.folder / "serial"
    run.wait_until(lambda: "\n" in serial.read_text(), "a first sum")
    run.work()
    run.signal(signal.SIGTERM)
    run.finish()
    # The last line may be cut off.
    return "".join(f"{line}\n" for line in sorted(set(serial.read_text().split("\n")[:-1])))


def file_offset(program, name):
    """Returns the offset of a function in the file of its program."""
    for line in subprocess.run(["nm", program], check=True, capture_output=True, text=True).stdout.splitlines():
        fields = line.split()
        if fields[-1] == name:
            address = int(fields[0], 16)
    elf = Path(program).read_bytes()
    headers, = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    for header in range(headers, headers + size * count, size):
        kind, _, offset, virtual, _, length, _, _ = struct.unpack_from("<IIQQQQQQ", elf, header)
        if kind == 1 and virtual <= address < virtual + length:
            return address - virtual + offset
    raise Failed(f"{name} lies in no segment")


def append(path, text):
    """Appends to a file that cannot be sought, as Python's own files are."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def uprobes(run):
    """Checks that a uprobe is hit as often as the program counts calls."""
    if os.geteuid() != 0:
        raise Missing("root, for tracefs")
    program = compiled(run, "calls")
    tracing = run.folder / "tracing"
    tracing.mkdir()
    try:
        run.tool("mount", "-t", "tracefs", "tracefs", tracing)
    except Failed as error:
        raise Missing(f"tracefs ({error})")
    event = f"compat_{os.getpid()}"
    try:
        if not (tracing / "uprobe_events").exists():
            raise Missing("a kernel with uprobes")
        append(tracing / "uprobe_events", f"p:{event}/probed {program}:{file_offset(program, 'probed'):#x}\n")
        enable = tracing / "events" / event / "probed/enable"
        enable.write_text("1")
        try:
            output = run.stop_file([program, run.stop])
            hits = (tracing / "uprobe_profile").read_text().split()
            hits = int(hits[hits.index("probed") + 1])
        finally:
            enable.write_text("0")
            append(tracing / "uprobe_events", f"-:{event}/probed\n")
    finally:
        subprocess.run(["umount", tracing])
    wrong, calls = output.splitlines()
    return f"{wrong}\nhits less calls: {hits - int(calls.split()[0])}\n"


def sqlite(run):
    """Checks that each round of the same statements prints the same line."""
    block = (
        "CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT, c INTEGER);"
        "INSERT INTO t WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)"
        " SELECT i, printf('%x', i * 2654435761), i * 7919 % 10007 FROM n;"
        "CREATE INDEX k ON t(c, b); SELECT count(*), sum(c), min(b), max(b), (SELECT group_concat(b) FROM t WHERE c = 17) FROM t;"
        "PRAGMA integrity_check; DROP TABLE t;\n"
    )
    run.start(["sqlite3", "-batch", ":memory:"], stdin=subprocess.PIPE)
    lines = 0
    run.begin()
    try:
        while run.working():
            run.process.stdin.write(block.encode())
            run.process.stdin.flush()
            lines += 2
            run.wait_until(lambda: run.output().count("\n") >= lines or not run.working(), "a round")
        run.process.stdin.close()
    except BrokenPipeError:
        pass
    run.finish()
    return "".join(f"{line}\n" for line in sorted(set(run.output().splitlines())))


def stress(run):
    run.start(["stress-ng", "--mmap", "2", "--mmap-bytes", "64m", "--verify", "--temp-path", run.folder, "--timeout", f"{run.options.limit:.0f}"])
    run.work()
    run.signal(signal.SIGINT)
    run.finish()
    text = run.output() + run.err.read_text(errors="replace")
    found = re.findall(r"\] *(.*fail.*|successful run completed)", text)
    return "".join(f"{line}\n" for line in sorted(set(found)))


class Program:
    """A program, its requirements with the Debian package of each, and whether it has several processes."""

    def __init__(self, name, what, needs, work, tree=False):
        self.name, self.what, self.needs, self.work, self.tree = name, what, needs, work, tree

    def missing(self):
        """Returns the requirements that are not installed, each with its package."""
        return {need: package for need, package in self.needs.items() if not is_here(need)}


C = {"cc": "gcc", "/usr/include/stdio.h": "libc6-dev"}
PROGRAMS = [
    Program("jvm", "JVM, G1, 24 threads", {"java": "default-jdk-headless", "javac": "default-jdk-headless"}, jvm),
    Program("node", "Node, 4 worker threads", {"node": "nodejs"}, node),
    Program("go", "Go, 8 goroutines", {"go": "golang-go"}, golang),
    Program("pypy", "PyPy", {"pypy3": "pypy3"}, pypy),
    Program("numpy", "numpy, 4 threads", {"import numpy": "python3-numpy"}, numpy),
    Program("chromium", "Chromium, headless", {"chromium": "chromium"}, chromium, tree=True),
    Program("postgres", "PostgreSQL under pgbench", {"/usr/lib/postgresql/*/bin/postgres": "postgresql"}, postgres, tree=True),
    Program("nginx", "nginx under ab", {"nginx": "nginx-light", "ab": "apache2-utils"}, nginx, tree=True),
    Program("redis", "redis with BGSAVE", {"redis-server": "redis-server", "redis-benchmark": "redis-tools"}, redis, tree=True),
    Program("fio-psync", "fio, psync, verify", {"fio": "fio"}, fio("psync", 0)),
    Program("fio-libaio", "fio, libaio, verify", {"fio": "fio"}, fio("libaio", 1)),
    Program("fio-io_uring", "fio, io_uring, verify", {"fio": "fio"}, fio("io_uring", 1)),
    Program("registered", "liburing, registered buffers", {**C, "/usr/include/liburing.h": "liburing-dev"}, registered),
    Program("qemu", "QEMU (TCG)", {"qemu-system-x86_64": "qemu-system-x86", "as": "binutils"}, qemu),
    Program("vfork", "vfork loop", C, c_program("vfork"), tree=True),
    Program("mappings", "60 000 mappings", C, c_program("mappings")),
    Program("gibibyte", "1 GiB resident", C, c_program("gibibyte")),
    Program("uprobes", "uprobes on its text", {**C, "nm": "binutils"}, uprobes),
    Program("sqlite", "sqlite3", {"sqlite3": "sqlite3"}, sqlite),
    Program("stress", "stress-ng mmap", {"stress-ng": "stress-ng"}, stress, tree=True),
]


# Running and comparing


def run_once(program, options, folder, colored):
    folder.mkdir()
    # Programs that become another user have to get here.
    folder.chmod(0o755)
    run = Run(options, folder, program.tree, colored)
    steal, begin = steal_ms(), time.monotonic()
    result = {"output": None, "missing": None}
    try:
        if missing := program.missing():
            raise Missing(", ".join(f"{need} (package {package})" for need, package in missing.items()))
        result["output"] = program.work(run)
        if not result["output"].strip():
            run.errors.append(f"no output: {run.tail()}")
    except Missing as error:
        result["missing"] = str(error)
    except Failed as error:
        run.errors.append(str(error))
    except Exception as error:
        run.errors.append(f"{type(error).__name__}: {error}")
    finally:
        run.over = True
        end_descendants(run.process)
        if run.runtime:
            shutil.rmtree(run.runtime, ignore_errors=True)
    result |= {
        "status": run.process.returncode if run.process else None,
        "seconds": time.monotonic() - begin,
        "steal_ms": steal_ms() - steal,
        "errors": run.errors,
        "stderr": run.err.read_text(errors="replace")[-4000:] if run.err.exists() else "",
    }
    if colored:
        result |= {"on_colors": run.on_colors, "final": run.final, "recolorings": run.recolorings}
    return result


def difference(plain, colored):
    """Returns a description of the first line that differs between two outputs."""
    plain, colored = plain.splitlines(), colored.splitlines()
    for number in range(max(len(plain), len(colored))):
        before, after = (lines[number] if number < len(lines) else "nothing" for lines in (plain, colored))
        if before != after:
            return f"line {number + 1} is `{after[:120]}` and not `{before[:120]}`"
    return None


def share(report):
    movable = report["on_color"] + report["off_color"]
    return 100 * report["on_color"] / movable if movable else None


def quantile(sorted_values, p):
    """Returns a quantile by the nearest rank."""
    return sorted_values[max(0, -(-len(sorted_values) * p // 100) - 1)]


def grouped(errors):
    """Returns the errors with their counts. Errors that differ only in numbers count as one."""
    alike = {}
    for error in errors:
        alike.setdefault(re.sub(r"\d+", "N", error), []).append(error)
    return [same[0] + (f" ({len(same)} times)" if len(same) > 1 else "") for same in alike.values()]


def row_of(program, plain, colored, options):
    """Returns the row of the table for a program."""
    row = {"name": program.name, "what": program.what}
    missing = plain["missing"] or (colored and colored["missing"])
    if missing:
        return row | {"verdict": "missing", "errors": [f"needs {missing}"]}
    if plain["output"] is None or plain["errors"]:
        return row | {"verdict": "no reference", "errors": [f"without isochrome: {error}" for error in plain["errors"]]}
    errors = grouped(colored["errors"])
    differs = "there is no output" if colored["output"] is None else difference(plain["output"], colored["output"])
    if differs:
        errors.insert(0, f"output: {differs}")
    # One that was killed at the limit has no status of its own.
    if colored["output"] is not None and colored["status"] != plain["status"]:
        said = [line for line in colored["stderr"].splitlines() if "isochrome" in line]
        errors.insert(0, f"exit status {colored['status']}, without isochrome {plain['status']}: {' / '.join(said[:2])}")
    recolorings = colored["recolorings"]
    if len(recolorings) < options.recolorings:
        errors.append(f"only {len(recolorings)} of {options.recolorings} recolorings")
    moves = [summed(one["reports"]) for one in recolorings if one["reports"]]
    final = summed(reports(json.dumps(colored["final"] or {})))
    last = final if final["resident"] else moves[-1] if moves else final
    pauses = sorted(pause for one in [final, *moves] for pause in one["pauses_ns"])
    shares = sorted(value for value in map(share, moves) if value is not None)
    first = colored["on_colors"] or colored["final"] or {}
    if first and not first["moved"]:
        errors.append("`exec` moved nothing")
    tested = [one["verified"] for one in [final, *moves] if one["verified"]["pages"]]
    return row | {
        "verdict": "passed" if not errors else "not passed",
        "output_as_without": not differs,
        "status": colored["status"],
        "recolorings": sum(one["status"] == 0 for one in recolorings),
        "resident": last["resident"],
        "immovable": last["immovable"],
        "exec_share": share(final),
        "recolor_share_median": quantile(shares, 50) if shares else None,
        "recolor_share_min": shares[0] if shares else None,
        "verified_share_min": min((100 * one["right"] / one["pages"] for one in tested), default=None),
        "pauses": len(pauses),
        "pause_ms": [quantile(pauses, p) / 1e6 for p in (50, 99, 100)] if pauses else None,
        "seconds_to_colors": first.get("seconds_to_colors"),
        "steal_ms": colored["steal_ms"],
        "errors": errors,
    }


def percent(value):
    return "-" if value is None else f"{value:.2f}" if value < 99.995 else "100"


def number(value):
    return f"{value:,}".replace(",", " ")


def table(rows, options):
    lines = [
        "| program | output as without | exit status | recolored | resident pages | on color, %: exec, recolorings (lowest) "
        "| verified, % (lowest) | immovable pages | pauses | p50, p99, max, ms | steal time, ms | to the colors, s |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row["verdict"] in ("missing", "no reference"):
            lines.append(f"| {row['what']} | **{row['verdict']}** |" + " |" * 10)
            continue
        immovable = ", ".join(f"{number(pages)} {reason}" for reason, pages in sorted(row["immovable"].items(), key=lambda one: -one[1])) or "0"
        pauses = ", ".join(f"{value:.1f}" for value in row["pause_ms"]) if row["pause_ms"] else "-"
        seconds = "-" if row["seconds_to_colors"] is None else f"{row['seconds_to_colors']:.2f}"
        lines.append(
            f"| {row['what']} | {'yes' if row['output_as_without'] else '**no**'} | {row['status']} | {row['recolorings']} of {options.recolorings} "
            f"| {number(row['resident'])} "
            f"| {percent(row['exec_share'])}, {percent(row['recolor_share_median'])} ({percent(row['recolor_share_min'])}) "
            f"| {percent(row['verified_share_min'])} | {immovable} "
            f"| {row['pauses']} | {pauses} | {row['steal_ms']:.0f} | {seconds} |"
        )
    return "\n".join(lines)


def notes(rows):
    """Returns the errors of the programs, and the requirements that are missing."""
    bad = [row for row in rows if row["errors"]]
    if not bad:
        return "Every program passed."
    return "\n".join(f"- {row['what']}: {row['verdict']}. " + "; ".join(error.replace("|", "\\|") for error in row["errors"]) for row in bad)


def machine():
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "cpu": model[1] if model else os.uname().machine,
        "cpus": os.cpu_count(),
        "kernel": os.uname().release,
        "date": datetime.date.today().isoformat(),
        "load": os.getloadavg()[0],
    }


def page(rows, here, options):
    return f"""# Real programs under isochrome

Made by `make compat`, which builds the release, installs the programs where it is run as root, and takes about half an hour on 2 CPUs. Run it on
a machine for tests: some packages start a service of their own.

Each program runs once without isochrome and once under `isochrome exec --colors {COLORS[0]}`. There it is recolored {options.recolorings} times
while it works, by `isochrome recolor` to the colors {COLORS[1]} and {COLORS[0]} in turn (`--tree` where it has several processes). It
passes where its output, or the check that stands for it, and its exit status are as without, and every recoloring ended with 0. The programs
that Debian does not package are in `examples/compat`, the checks in `scripts/compat.py`, the raw data in `target/compat.json`.

On color is the share of the pages that can be moved: at the last sweep of `exec`, and as each recoloring reports it (median and lowest). Verified
is the share that eviction tests on the program's own pages confirmed, at the lowest. Pages that cannot be moved are counted beside it, with the
reason. A pause is a time for which a process stood still. Steal time is that of all CPUs while the program ran.

{table(rows, options)}

{notes(rows)}

Machine: {here['cpu']}, {here['cpus']} CPUs, Linux {here['kernel']}, {here['date']}, load {here['load']:.1f} at the start.
"""


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--binary", default=str(RAW.parent / "release/isochrome"), help="the isochrome to test")
    arguments.add_argument("--only", metavar="NAME", action="append", help="only this program; the page is printed, not written")
    arguments.add_argument("--list", action="store_true", help="list the programs with their missing requirements")
    arguments.add_argument("--packages", action="store_true", help="print the packages of the missing requirements")
    arguments.add_argument("--plain", action="store_true", help="only the runs without isochrome, with their outputs")
    arguments.add_argument("--seconds", type=float, default=12, help="time over which the recolorings are spread")
    arguments.add_argument("--recolorings", type=int, default=10)
    arguments.add_argument("--limit", type=float, default=1200, help="time limit of one run, in seconds: Chromium takes 10 minutes")
    options = arguments.parse_args()
    # Servers lie there, and not everyone has it in PATH.
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    names = [program.name for program in PROGRAMS]
    unknown = set(options.only or ()) - set(names)
    if unknown:
        arguments.error(f"no program `{unknown.pop()}`; there are {', '.join(names)}")
    if options.list:
        for program in PROGRAMS:
            missing = program.missing()
            print(f"{program.name:14} {program.what:30} {'missing: ' + ', '.join(missing) if missing else 'installed'}")
        return 0
    if options.packages:
        print(*sorted({package for program in PROGRAMS for package in program.missing().values()}))
        return 0
    if not options.plain and not os.access(options.binary, os.X_OK):
        arguments.error(f"{options.binary} cannot be run\n  hint: cargo build --release -p isochrome-cli")
    options.binary = str(Path(options.binary).absolute())

    adopt_orphans()
    here, rows, raw = machine(), [], []
    with tempfile.TemporaryDirectory(prefix="isochrome-compat-") as top:
        os.chmod(top, 0o755)
        for program in PROGRAMS:
            if options.only and program.name not in options.only:
                continue
            print(f"{program.name}: ", end="", file=sys.stderr, flush=True)
            plain = run_once(program, options, Path(top) / f"{program.name}-plain", False)
            if options.plain:
                print(f"status {plain['status']}, {plain['seconds']:.1f} s, missing: {plain['missing']}, errors: {plain['errors']}", file=sys.stderr)
                print(plain["output"])
                continue
            usable = plain["output"] is not None and not plain["errors"]
            colored = run_once(program, options, Path(top) / f"{program.name}-colored", True) if usable else None
            rows.append(row_of(program, plain, colored, options))
            raw.append({"row": rows[-1], "plain": plain, "colored": colored})
            print(f"{rows[-1]['verdict']} " + "; ".join(rows[-1]["errors"]), file=sys.stderr, flush=True)
    if options.plain:
        return 0
    RAW.parent.mkdir(parents=True, exist_ok=True)
    text = page(rows, here, options)
    if options.only:
        print(text)
    else:
        PAGE.write_text(text)
        RAW.write_text(json.dumps({"machine": here, "colors": COLORS, "programs": raw}, indent=1))
        print(f"written: {PAGE.relative_to(ROOT)}, {RAW}", file=sys.stderr)
    verdicts = {row["verdict"] for row in rows}
    return 2 if verdicts & {"not passed", "no reference"} else 3 if "missing" in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
