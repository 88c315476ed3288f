#!/usr/bin/env python3
"""Measures the effect of own colors on real programs beside a writer to 1 MiB, on one CPU and on two.

    scripts/real_programs.py --tool target/release/isochrome -o target/real_programs.json

Each program is measured by `isochrome compare` once with the writer on its CPU, and once with the writer on the other one. All p-values are corrected
together (Holm). A program that cannot be measured is listed with the reason. Prints a Markdown table; needs root and two CPUs.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from compat import as_user, children, free_port

# A query by an index every 2 ms, and a control loop at 1 kHz: they print how long each took, in us.
QUERIES = """
import sqlite3, time
base = sqlite3.connect(":memory:")
base.execute("CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT, c INTEGER)")
base.executemany("INSERT INTO t VALUES(?, ?, ?)", ((i, f"{i * 2654435761 % 4294967296:x}", i * 7919 % 1009) for i in range(20000)))
base.execute("CREATE INDEX k ON t(c, b)")
turn = 0
while True:
    begin = time.perf_counter_ns()
    base.execute("SELECT count(*), min(b), max(b), sum(a) FROM t WHERE c = ?", (turn % 1009,)).fetchone()
    print(f"took {(time.perf_counter_ns() - begin) / 1000} us", flush=True)
    turn += 1
    time.sleep(0.002)
"""
LOOP = """
import time
state, gains = [0.0] * 32, [[(i * 31 + j * 17) % 101 / 1e4 for j in range(32)] for i in range(32)]
due = time.perf_counter()
while True:
    begin = time.perf_counter_ns()
    state = [sum(map(float.__mul__, row, state)) + 0.01 for row in gains]
    print(f"took {(time.perf_counter_ns() - begin) / 1000} us", flush=True)
    due += 0.001
    time.sleep(max(0.0, due - time.perf_counter()))
"""
NODE = "require('http').createServer((q, s) => s.end(JSON.stringify({ at: q.url, sum: [...Array(200).keys()].reduce((a, b) => a + b) }))).listen(%d, '127.0.0.1')"


def listening(port):
    return ["--measure", f"socket:http:127.0.0.1:{port}", "--rate", "500"]


def redis(folder):
    port = free_port()
    return f"redis-server --port {port} --bind 127.0.0.1 --save '' --dir {folder}", ["--measure", f"socket:ping:127.0.0.1:{port}", "--rate", "1000"]


def redis_load(folder):
    port = free_port()
    load = f"taskset -c 0 redis-benchmark -p {port} -n 20000 -c 4 -t get -r 10000"
    return f"redis-server --port {port} --bind 127.0.0.1 --save '' --dir {folder}", ["--measure", f"command:{load}", "--statistic", "throughput", "--larger-is-better"]


def sqlite(folder):
    (folder / "queries.py").write_text(QUERIES)
    return f"{sys.executable} {folder}/queries.py", ["--measure", "lines:took ([0-9.]+) us"]


def nginx(folder):
    port = free_port()
    (folder / "page.txt").write_text("x" * 4096)
    (folder / "nginx.conf").write_text(
        f"""user root; daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log; events {{ worker_connections 64; }}
        http {{ access_log off; server {{ listen 127.0.0.1:{port}; root {folder}; index page.txt; }} }}"""
    )
    return f"nginx -c {folder}/nginx.conf -e {folder}/error.log", listening(port)


def node(folder):
    port = free_port()
    (folder / "server.js").write_text(NODE % port)
    return f"node {folder}/server.js", listening(port)


def postgres(folder):
    """Returns one backend, which a loop of psql keeps busy, because the server's own processes come and go."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))[-1]

    class Place:
        pass

    place = Place()
    place.folder = folder
    user = as_user("postgres", place)
    subprocess.run([programs / "initdb", "-D", folder / "data", "-A", "trust", "-U", "postgres"], check=True, capture_output=True, cwd=folder, **user)
    subprocess.Popen(
        ["taskset", "-c", "1", programs / "postgres", "-D", folder / "data", "-c", "listen_addresses=", "-c", f"unix_socket_directories={folder}"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder, **user,
    )
    begin = time.monotonic()
    while subprocess.run([programs / "pgbench", "-h", folder, "-U", "postgres", "-i", "-q", "-s", "1", "postgres"], capture_output=True).returncode != 0:
        if time.monotonic() - begin > 30:
            raise OSError("PostgreSQL does not answer")
        time.sleep(0.2)
    load = subprocess.Popen(
        ["taskset", "-c", "0", programs / "pgbench", "-h", folder, "-U", "postgres", "-n", "-S", "-R", "500", "-T", "3600", "postgres"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    time.sleep(1)
    postmaster = int((folder / "data/postmaster.pid").read_text().split()[0])
    # The backend of the load is the youngest child.
    backend = max(children()[postmaster])
    return str(backend), ["--measure", "wakeups:execution"], lambda: (load.kill(), load.wait(), subprocess.run(["kill", "-QUIT", str(postmaster)]))


def cyclictest(_):
    return "cyclictest -q -t 1 -i 1000", ["--measure", "wakeups"]


def loop(folder):
    (folder / "loop.py").write_text(LOOP)
    return f"{sys.executable} {folder}/loop.py", ["--measure", "lines:took ([0-9.]+) us"]


PROGRAMS = {
    "redis, PING 1000/s": (redis, "redis-server"),
    "redis, full rate": (redis_load, "redis-benchmark"),
    "sqlite3, query every 2 ms": (sqlite, "python3"),
    "nginx, 500 requests/s": (nginx, "nginx"),
    "PostgreSQL, pgbench -S -R 500, a backend": (postgres, "/usr/lib/postgresql"),
    "node, 500 requests/s": (node, "node"),
    "cyclictest, 1 ms": (cyclictest, "cyclictest"),
    "Python loop, 1 kHz": (loop, "python3"),
}


def measured(options, make, writer_cpu, seed):
    """Returns the result of `compare` for a program or the reason why it has no result, and the time that it took in seconds."""
    folder = Path(tempfile.mkdtemp(prefix="isochrome-real-"))
    folder.chmod(0o755)
    after = lambda: None
    begin = time.monotonic()
    try:
        victim, measure, *end = make(folder)
        after = end[0] if end else after
        victim = victim if victim.isdigit() else f"taskset -c 1 {victim}"
        command = [
            options.tool, "compare", "--json", "--seed", str(seed), "--windows", str(options.windows), "--window", options.window, "--anyway", "--restarts", "0",
            "--victim", victim, "--neighbor", f"taskset -c {writer_cpu} {options.tool} job write 1024 --every 0s", *measure,
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if not done.stdout:
            reasons = [line for line in done.stderr.splitlines() if line.startswith("isochrome:")] or done.stderr.strip().splitlines()[-1:]
            return None, reasons[0] if reasons else f"exit code {done.returncode}", time.monotonic() - begin
        result = json.loads(done.stdout)
        return result, result["ended"], time.monotonic() - begin
    except (OSError, subprocess.CalledProcessError, KeyError) as error:
        return None, str(error), time.monotonic() - begin
    finally:
        after()
        shutil.rmtree(folder, ignore_errors=True)


def holm(values):
    """p-values corrected by Holm, in the order of `values`."""
    order, corrected, least = sorted(range(len(values)), key=values.__getitem__), [0.0] * len(values), 0.0
    for rank, index in enumerate(order):
        least = max(least, min(1.0, values[index] * (len(values) - rank)))
        corrected[index] = least
    return corrected


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", default="target/release/isochrome", type=lambda path: str(Path(path).resolve()))
    parser.add_argument("--windows", type=int, default=40)
    parser.add_argument("--window", default="500ms")
    parser.add_argument("--only", action="append", metavar="PART", help="only programs with PART in their names")
    parser.add_argument("--seed", type=int, default=19)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    rows = []
    for index, (name, (make, need)) in enumerate(PROGRAMS.items()):
        if options.only and not any(part in name for part in options.only):
            continue
        for writer_cpu, where in ((1, "one CPU"), (0, "two CPUs")):
            is_here = Path(need).exists() if need.startswith("/") else bool(shutil.which(need))
            result, why, seconds = measured(options, make, writer_cpu, options.seed + 2 * index + writer_cpu) if is_here else (None, f"{need} is missing", 0.0)
            rows.append({"program": name, "where": where, "result": result, "why": why, "seconds": seconds})
            print(f"{name}, {where}: {why} ({seconds:.0f} s)", file=sys.stderr, flush=True)
            if options.output:
                options.output.write_text(json.dumps(rows))
    judged = [row for row in rows if row["result"] and row["result"]["effect"] and row["result"]["p"] is not None]
    for row, corrected in zip(judged, holm([row["result"]["p"] for row in judged])):
        row["holm"] = corrected
    print("| program | writer on | typical, spread | effect of own colors, 95 % | p | p (Holm) | blocks | s |\n|---|---|---|---|---|---|---|---|")
    for row in rows:
        if "holm" not in row:
            print(f"| {row['program']} | {row['where']} | – | not measured: {row['why']} | – | – | – | {row['seconds']:.0f} |")
            continue
        result, effect = row["result"], row["result"]["effect"]
        typical = next((it["typical"] for it in result["distributions"] if it["condition"] == "spread"), float("nan"))
        interval = effect["interval"]
        shown = f"{100 * effect['estimate']:+.1f} %" + (f" ({100 * interval[0]:+.1f} to {100 * interval[1]:+.1f} %)" if interval else "")
        print(f"| {row['program']} | {row['where']} | {typical:.4g} {result['unit']} | {shown} | {result['p']:.4f} | {row['holm']:.3f} | {effect['blocks']} | {row['seconds']:.0f} |")


if __name__ == "__main__":
    main()
