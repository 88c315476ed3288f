#!/usr/bin/env python3
"""Keeps services on the colors of a policy by `isochrome serve`, restarts them again and again beside `stress-ng --vm`, and checks their results.

    scripts/serve_load.py --binary target/release/isochrome --minutes 60
    scripts/serve_load.py --binary target/release/isochrome --minutes 5 --kills 10     # kills the server 10 times a minute, and restarts it

The policy is examples/serve/services.toml. Members are a redis-server (values read back, and from what BGSAVE wrote), an nginx with four workers
(a page compared), a PostgreSQL (the sums of pgbench compared), a writer, and a guest of QEMU that sums its memory. Each is restarted every minute.
After each start the time is taken until 99 % of the movable pages of all its processes are on the colors of its class, as the server says, and
the share is taken once more just before the next restart.

Prints a table; -o writes all that was measured. Exit code: 0 all held, 1 could not run, 2 something did not hold.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from compat import ROOT, SOURCES, Redis, as_user, children, descendants, free_port

# Share of the movable pages, and the time from the start of a member until it must be reached, in seconds.
SHARE, SOON = 0.99, 2
WRITER = """
#include <stdlib.h>
#include <stdio.h>
#include <unistd.h>
int main(void) {
    size_t words = 2 << 20;
    unsigned long *memory = calloc(words, sizeof *memory), round = 0;
    for (;; round++) {
        for (size_t i = 0; i < words; i++) {
            if (memory[i] != round) { puts("wrong word"); return 1; }
            memory[i]++;
        }
        usleep(1000);
    }
}
"""


class Member:
    """A service: `start` starts it, `check` returns the errors in its results, `stop` ends it."""

    def __init__(self, name, folder):
        self.name, self.folder = name, folder / name
        self.folder.mkdir()
        self.folder.chmod(0o755)
        self.process = None

    def run(self, command, **settings):
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **settings)
        self.started = time.monotonic()

    def pids(self):
        return {self.process.pid, *descendants(self.process.pid)}

    def tool(self, *command, **settings):
        done = subprocess.run([str(word) for word in command], cwd=self.folder, capture_output=True, text=True, timeout=60, **settings)
        if done.returncode != 0:
            raise OSError(f"{command[0]}: {done.returncode}: {done.stderr.strip()[-300:]}")
        return done.stdout

    def ready(self):
        return True

    def end(self, number):
        self.process.send_signal(number)
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            raise OSError(f"{self.name} does not end:\n" + "\n".join(map(state_of, sorted(self.pids()))))


def state_of(pid):
    """What the kernel says of a process: its name, what it waits for, and its signals."""
    try:
        lines = (Path("/proc") / str(pid) / "status").read_text().splitlines()
        kept = [line for line in lines if line.split(":")[0] in ("Name", "State", "TracerPid", "SigPnd", "ShdPnd", "SigBlk")]
        return f"{pid}: {', '.join(kept)}, {(Path('/proc') / str(pid) / 'stack').read_text()}".replace("\t", " ")
    except OSError as error:
        return f"{pid}: {error}"


class RedisServer(Member):
    def start(self):
        self.run(["redis-server", "--port", "0", "--save", "", "--dbfilename", "dump.rdb", "--unixsocket", "socket"])

    def client(self):
        return Redis(self.folder / "socket")

    def value(self, i):
        return hashlib.sha256(str(i).encode()).hexdigest() * (1 + i % 4)

    def ready(self):
        if self.client()("PING") != "PONG":
            return False
        client = self.client()
        if client("GET", "serve:0") is None:
            for i in range(2000):
                client("SET", f"serve:{i}", self.value(i))
        return True

    def check(self):
        self.tool("redis-benchmark", "-s", "socket", "-q", "-n", "5000", "-c", "4", "-d", "256", "-r", "5000", "-t", "set,get,lpush,lpop")
        client = self.client()
        wrong = sum(client("GET", f"serve:{i}") != self.value(i) for i in range(2000))
        return [f"{wrong} wrong values"] if wrong else []

    def stop(self):
        # The next start reads the saved data.
        saved = self.client()("SAVE")
        self.end(signal.SIGTERM)
        return [] if saved == "OK" else [f"SAVE: {saved}"]


class Nginx(Member):
    def start(self):
        self.port = free_port()
        self.page = "".join(f"line {i} {hashlib.sha256(str(i).encode()).hexdigest()}\n" for i in range(4000)).encode()
        (self.folder / "page.txt").write_bytes(self.page)
        root = "user root;" if os.geteuid() == 0 else ""
        places = "".join(f"{kind}_temp_path {self.folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        (self.folder / "nginx.conf").write_text(
            f"""{root} daemon off; worker_processes 4; pid {self.folder}/pid; error_log {self.folder}/error.log;
            events {{ worker_connections 64; }}
            http {{ access_log off; gzip on; gzip_types text/plain; default_type text/plain; {places}
                server {{ listen 127.0.0.1:{self.port}; root {self.folder}; }} }}"""
        )
        self.run(["nginx", "-c", self.folder / "nginx.conf", "-e", self.folder / "error.log"])

    def ready(self):
        return self.fetched() == self.page

    def fetched(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/page.txt", timeout=5) as answer:
            return answer.read()

    def check(self):
        text = self.tool("ab", "-q", "-n", "500", "-c", "8", f"http://127.0.0.1:{self.port}/page.txt")
        failed = int(re.search(r"Failed requests:\s+(\d+)", text)[1])
        return ([f"{failed} failed requests"] if failed else []) + ([] if self.fetched() == self.page else ["another page"])

    def stop(self):
        self.end(signal.SIGQUIT)
        return []


class Postgres(Member):
    def start(self):
        self.programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))[-1]
        user = as_user("postgres", self)
        data = self.folder / "data"
        if not data.exists():
            self.tool(self.programs / "initdb", "-D", data, "-k", "-A", "trust", "-U", "postgres", **user)
        settings = ["listen_addresses=", "shared_buffers=32MB", f"unix_socket_directories={self.folder}"]
        self.run([self.programs / "postgres", "-D", data, *(word for one in settings for word in ("-c", one))], **user)

    def query(self, text):
        return self.tool(self.programs / "psql", "-h", self.folder, "-U", "postgres", "-d", "postgres", "-Atc", text).strip()

    def ready(self):
        if self.query("SELECT to_regclass('pgbench_history') IS NOT NULL") != "t":
            self.tool(self.programs / "pgbench", "-h", self.folder, "-U", "postgres", "-i", "-q", "-s", "2", "postgres")
        return True

    def check(self):
        self.tool(self.programs / "pgbench", "-h", self.folder, "-U", "postgres", "-n", "-c", "2", "-T", "2", "postgres")
        sums = self.query(
            "SELECT (SELECT sum(abalance) FROM pgbench_accounts) - (SELECT sum(bbalance) FROM pgbench_branches),"
            " (SELECT sum(abalance) FROM pgbench_accounts) - (SELECT sum(tbalance) FROM pgbench_tellers),"
            " (SELECT sum(abalance) FROM pgbench_accounts) - (SELECT sum(delta) FROM pgbench_history)"
        )
        return [] if sums == "0|0|0" else [f"differences of the sums: {sums}"]

    def stop(self):
        self.end(signal.SIGINT)
        broken = re.findall(r".*(?:PANIC|terminated by signal|invalid page).*", (self.folder / "log").read_text(errors="replace"))
        return [] if not broken else [broken[-1]]


class Writer(Member):
    def start(self):
        program = self.folder / "batch-writer"
        if not program.exists():
            subprocess.run(["cc", "-O2", "-x", "c", "-o", program, "-"], input=WRITER, text=True, check=True)
        self.run([program])

    def check(self):
        time.sleep(1)
        return [] if self.process.poll() is None else [f"ended with {self.process.returncode}"]

    def stop(self):
        wrong = self.check()
        self.end(signal.SIGTERM)
        return wrong


class Guest(Member):
    def start(self):
        if not (self.folder / "guest.img").exists():
            self.tool("as", "--32", "-o", "guest.o", SOURCES / "guest.s")
            self.tool("ld", "-m", "elf_i386", "-Ttext", "0x7c00", "--oformat", "binary", "-o", "guest.img", "guest.o")
        (self.folder / "serial").unlink(missing_ok=True)
        self.run(
            ["qemu-system-x86_64", "-name", "memtest", "-accel", "tcg", "-m", "64", "-display", "none", "-no-reboot", "-serial", "file:serial",
             "-drive", "format=raw,file=guest.img"]
        )

    def ready(self):
        return "\n" in (self.folder / "serial").read_text()

    def check(self):
        sums = set((self.folder / "serial").read_text().split("\n")[:-1])
        return [] if len(sums) == 1 else [f"sums of the memory: {sorted(sums)}"]

    def stop(self):
        wrong = self.check()
        self.end(signal.SIGTERM)
        return wrong


MEMBERS = {"redis": RedisServer, "nginx": Nginx, "postgres": Postgres, "guest": Guest, "batch": Writer}


class Server:
    """The memory server, in a runtime folder of its own."""

    def __init__(self, options, folder):
        self.folder, self.log = folder / "runtime", open(folder / "server.log", "ab")
        self.command = [options.binary, "serve", "--config", str(options.policy)]
        self.process = None
        self.folder.mkdir(mode=0o755)
        self.environment = {**os.environ, "ISOCHROME_RUNTIME_DIR": str(self.folder)}
        if options.palette:
            subprocess.run([options.binary, "palette", "--save", "--memory", "2G"], env=self.environment, check=True, capture_output=True)

    def start(self):
        self.process = subprocess.Popen(self.command, env=self.environment, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        limit = time.monotonic() + 60
        while self.status() is None:
            if self.process.poll() is not None or time.monotonic() > limit:
                sys.exit(f"the server does not start: {Path(self.log.name).read_text()[-500:]}")
            time.sleep(0.02)

    def status(self):
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(10)
                client.connect(str(self.folder / "serve.sock"))
                client.sendall(b'{"version":1,"ask":"status"}\n')
                return json.loads(client.makefile("rb").readline())["say"]["status"]
        except (OSError, ValueError, KeyError):
            return None

    def grants(self):
        """Number of owners of colors: only the server should be one, however often it was killed."""
        done = subprocess.run([self.command[0], "ps", "--json"], env=self.environment, capture_output=True, text=True, check=True)
        return len(json.loads(done.stdout)["grants"])

    def share(self, name, pids):
        """Share of the movable pages of the processes `pids` on the colors of the class `name`; 0 if one is not a member yet."""
        status = self.status()
        members = [] if status is None else [it for one in status["classes"] if one["class"] == name for it in one["members"]]
        own = {it["pid"]: it for it in members if it["pid"] in pids}
        if not pids or own.keys() != pids or any(it["seconds_to_colors"] is None for it in own.values()):
            return 0
        on, off = (sum(it[key] for it in own.values()) for key in ("on_color", "off_color"))
        return on / max(1, on + off)


def settled(server, member):
    """Time from the start of the member until it is on its colors, in seconds; None if that takes more than a minute."""
    while time.monotonic() - member.started < 60:
        if server.share(member.name, member.pids()) >= SHARE:
            return time.monotonic() - member.started
        time.sleep(0.05)
    return None


def lasting(server, member):
    """Share of the member's processes that are at least two seconds old: younger ones need not be on color yet."""
    before = member.pids()
    time.sleep(SOON)
    return server.share(member.name, before & member.pids())


def unseen_ends(server, member):
    """Processes of the member that have ended for a second although their parent cannot know it, because the server traces them."""

    def found():
        states = {pid: state_of(pid) for pid in member.pids()}
        return {pid: state for pid, state in states.items() if "State: Z" in state and f"TracerPid: {server.process.pid}," in state}

    first = found()
    if not first:
        return []
    time.sleep(1)
    return [state for pid, state in found().items() if pid in first]


def until_ready(member):
    limit, last = time.monotonic() + 60, "no error"
    while True:
        try:
            if member.ready():
                return
        except OSError as error:
            last = error
        if time.monotonic() > limit:
            raise OSError(f"{member.name} is not ready: {last}")
        time.sleep(0.05)


def tried(options, folder, found):
    server = Server(options, folder)
    server.start()
    memory = None
    if options.stress:
        memory = subprocess.Popen(["stress-ng", "--vm", "1", "--vm-bytes", options.stress, "--quiet"], stdin=subprocess.DEVNULL)
    members = [kind(name, folder) for name, kind in MEMBERS.items() if not options.only or name in options.only]
    seconds, random_ = options.minutes * 60, random.Random(options.seed)
    begin = time.monotonic()
    due = {member.name: begin + 60 * index / len(members) for index, member in enumerate(members)}
    kill_due = begin + 60 / options.kills if options.kills else None
    running = {}
    try:
        while time.monotonic() - begin < seconds:
            for member in members:
                of = found[member.name]
                if time.monotonic() >= due[member.name]:
                    if member.name in running:
                        of["before_end"].append(lasting(server, member))
                        of["wrong"] += member.stop()
                    member.start()
                    running[member.name] = True
                    of["seconds"].append(settled(server, member))
                    until_ready(member)
                    due[member.name] += 60
                elif member.name in running:
                    of["wrong"] += member.check()
                    of["checks"] += 1
                    if member.process.poll() is not None:
                        of["wrong"].append(f"ended with {member.process.returncode}")
                    of["wrong"] += unseen_ends(server, member)
                if kill_due and time.monotonic() >= kill_due:
                    time.sleep(random_.uniform(0, 0.3))
                    server.process.kill()
                    server.process.wait()
                    found["server"]["kills"] += 1
                    server.start()
                    if server.grants() != 1:
                        found["server"]["wrong"].append(f"{server.grants()} owners of colors after a restart")
                    kill_due += 60 / options.kills
                elif server.process.poll() is not None:
                    found["server"]["wrong"].append(f"the server ended with {server.process.returncode}")
                    return
        for member in members:
            if member.name in running:
                found[member.name]["before_end"].append(lasting(server, member))
        found["server"]["cpu_seconds"] = sum(map(int, Path(f"/proc/{server.process.pid}/stat").read_text().split()[13:15])) / os.sysconf("SC_CLK_TCK")
        for member in members:
            if member.name in running:
                found[member.name]["wrong"] += member.stop()
    finally:
        for member in members:
            if member.process and member.process.poll() is None:
                for pid in member.pids():
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
                with contextlib.suppress(subprocess.TimeoutExpired):
                    member.process.wait(timeout=30)
        if memory:
            memory.terminate()
            memory.wait()
        server.process.terminate()
        server.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, type=lambda path: str(Path(path).resolve()))
    parser.add_argument("--policy", default=ROOT / "examples/serve/services.toml", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--kills", type=float, default=0, metavar="N", help="kill the server N times a minute, at random instants")
    parser.add_argument("--stress", default="1G", metavar="SIZE", help="memory that stress-ng works on; an empty one for no load [1G]")
    parser.add_argument("--palette", action="store_true", help="save a palette first")
    parser.add_argument("--only", action="append", choices=MEMBERS)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    missing = [name for name in ("redis-server", "nginx", "ab", "qemu-system-x86_64", "cc", "stress-ng") if not shutil.which(name)]
    if missing:
        sys.exit(f"missing: {', '.join(missing)}")
    found = {name: {"seconds": [], "before_end": [], "checks": 0, "wrong": []} for name in MEMBERS}
    found["server"] = {"kills": 0, "wrong": [], "cpu_seconds": None}
    folder = Path(tempfile.mkdtemp(prefix="isochrome-serve-"))
    folder.chmod(0o755)
    try:
        tried(options, folder, found)
        if not found["server"]["wrong"]:
            shutil.rmtree(folder, ignore_errors=True)
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"{error}\n  what the server and the members said is in {folder}")
    finally:
        if options.output:
            options.output.write_text(json.dumps({"options": vars(options), "found": found}, default=str, indent=1))
    held = not found["server"]["wrong"]
    print("| member | starts | s to 99 % on color: median, longest | share before the end: lowest | checks | wrong |\n|---|---|---|---|---|---|")
    for name, of in ((name, of) for name, of in found.items() if name != "server" and of["seconds"]):
        seconds = [60 if it is None else it for it in of["seconds"]]
        lowest = min(of["before_end"], default=1)
        held &= not of["wrong"] and lowest >= SHARE and (options.kills > 0 or max(seconds) <= SOON)
        print(f"| {name} | {len(seconds)} | {statistics.median(seconds):.2f}, {max(seconds):.2f} | {100 * lowest:.2f} % | {of['checks']} | {len(of['wrong'])} |")
        for wrong in of["wrong"][:5]:
            print(f"  {name}: {wrong}", file=sys.stderr)
    print(f"\nserver: {found['server']}")
    sys.exit(0 if held else 2)


if __name__ == "__main__":
    main()
