#!/usr/bin/env python3
"""Measures how fast the Python package bounds task sets, compared with the same batch in Rust, with tools in Python, and over many processes.

    python3 -m venv /tmp/speed && /tmp/speed/bin/pip install './crates/python[sweep]' simso response-time-analysis
    cargo build --release -p isochrome-python --example batch
    /tmp/speed/bin/python scripts/python_speed.py rate|scaling|million

rate: sets of 8 tasks per second of CPU time, in turn by one call from Python, by Rust without Python (the example), by pyRTA and by
simso, on the same sets; without cache delays all bounds must be equal, and are checked. simso is a simulator: with all tasks released
at once, the first response of each is its bound.
scaling: a sweep on one worker and on two, in turn; the ratio of the chunks' rates.
million: a sweep of 1 000 000 sets; the largest memory of all its processes together, and that of the process that writes.

Times are CPU times where one process works, so other load counts little; scaling is by the clock and needs an idle machine.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import isochrome
import numpy as np

SETS = 20_000
RIVAL_SETS = 20
ROUNDS = 9


def first_line(process):
    process.stdin.write("\n")
    process.stdin.flush()
    rate, total = process.stdout.readline().split()
    return float(rate), int(total)


def pyrta(wcet, period):
    from response_time_analysis import fp
    from response_time_analysis.model import (
        WCET,
        Deadline,
        FullyPreemptive,
        IdealProcessor,
        Priority,
        Sporadic,
        Task,
        taskset,
    )

    tasks = [
        Task(Sporadic(int(t)), FullyPreemptive(WCET(int(c))), Deadline(int(t)), Priority(len(wcet) - i))
        for i, (c, t) in enumerate(zip(wcet, period, strict=True))
    ]
    together = taskset(*tasks)
    return [fp.rta(together, task, IdealProcessor()).response_time_bound for task in tasks]


def simso(wcet, period):
    from simso.configuration import Configuration
    from simso.core import Model

    configuration = Configuration()
    configuration.cycles_per_ms = 1_000_000
    configuration.duration = int(max(period))
    for i, (c, t) in enumerate(zip(wcet, period, strict=True)):
        # simso multiplies milliseconds by cycles and truncates. A quarter of a cycle is added, because some times would lose a cycle.
        period_ms, wcet_ms = (int(t) + 0.25) / 1e6, (int(c) + 0.25) / 1e6
        times = {"period": period_ms, "deadline": period_ms, "wcet": wcet_ms}
        configuration.add_task(name=f"task{i}", identifier=i + 1, activation_date=0, **times)
    configuration.add_processor(name="CPU", identifier=1)
    configuration.scheduler_info.clas = "simso.schedulers.RM_mono"
    configuration.check_all()
    model = Model(configuration)
    model.run_model()
    # In cycles, here ns.
    return [model.results.tasks[task].jobs[0].response_time for task in model.task_list]


def rate(batch_example):
    generator = isochrome.Generator(tasks=8, utilization=0.6, task_partitions=[1, 8])
    batch = generator.batch(seed=1, count=2 * SETS)
    columns = [batch[name] for name in ("wcet_ns", "period_ns", "deadline_ns", "partitions")]

    def ours(columns, refill_ns=45_300):
        wcet, period, deadline, partitions = columns
        return isochrome.response_times_batch(wcet, period, deadline_ns=deadline, partitions=partitions, refill_ns=refill_ns)

    # Missed deadlines end an analysis early: only sets that take all of it.
    kept = np.flatnonzero((ours(columns) >= 0).all(axis=1))[:SETS]
    columns = [np.ascontiguousarray(column[kept]) for column in columns]
    sets = len(kept)
    with tempfile.NamedTemporaryFile() as file:
        np.array([sets, 8], dtype=np.uint64).tofile(file)
        for column in columns:
            column.tofile(file)
        file.flush()
        rust = subprocess.Popen([batch_example, file.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        ratios, rates = [], []
        for _ in range(ROUNDS):
            start = time.process_time()
            found = ours(columns)
            from_python = sets / (time.process_time() - start)
            in_rust, total = first_line(rust)
            assert total == int(found.sum()), "Python and Rust differ"
            ratios.append(from_python / in_rust)
            rates.append((from_python, in_rust))
        rust.kill()
    print(f"{sets} sets of 8 tasks, {ROUNDS} rounds in turn, CPU time, load {os.getloadavg()[0]:.1f}")
    print(f"from Python {max(r for r, _ in rates):.0f} sets/s, in Rust {max(r for _, r in rates):.0f} sets/s; best round of each")
    print(f"from Python of in Rust: median {np.median(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}")
    bounds = ours(columns, refill_ns=0)
    for name, rival in (("pyRTA", pyrta), ("simso", simso)):
        start = time.process_time()
        try:
            theirs = [rival(columns[0][i], columns[1][i]) for i in range(RIVAL_SETS)]
        except ModuleNotFoundError as error:
            print(f"{name}: {error}")
            continue
        slow = RIVAL_SETS / (time.process_time() - start)
        assert np.array_equal(theirs, bounds[:RIVAL_SETS]), f"{name} bounds otherwise"
        print(f"{name}, no caches: {slow:.1f} sets/s; from Python with caches {max(r for r, _ in rates) / slow:.0f} times as fast")


EXPERIMENT = """
name = "speed"
kind = "analysis"
sets = {sets}
sets_per_chunk = {chunk}
analyses = ["kim2013"]
[grid]
utilization = {utilization}
"""


def sweep(folder, name, workers, **fields):
    """Runs a sweep. Returns its time in seconds, and the largest memory in MiB of the writing process and of all its processes together."""
    path = Path(folder) / f"{name}.toml"
    path.write_text(EXPERIMENT.format(**fields))
    command = [sys.executable, "-m", "isochrome", "sweep", str(path), "--workers", str(workers)]
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    writer = together = 0
    while process.poll() is None:
        resident = {}
        for entry in Path("/proc").iterdir():
            try:
                fields_ = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else None
            except OSError:
                continue
            # Process group and resident pages.
            if fields_ and int(fields_[2]) == process.pid:
                resident[int(entry.name)] = int(fields_[21]) * 4096 / 2**20
        writer = max(writer, resident.get(process.pid, 0))
        together = max(together, sum(resident.values()))
        time.sleep(0.1)
    assert process.returncode == 0
    chunks = sorted(file.stat().st_mtime for file in (Path(folder) / name).rglob("first=*.parquet"))
    return time.monotonic() - start, (len(chunks) - 1) / (chunks[-1] - chunks[0]), writer, together


# Sets in a chunk: some tenths of a second of work, so that handing them out is little beside it.
CHUNK = 25_000


def scaling():
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(3):
            rates = {}
            for workers in (1, 2):
                fields = {"sets": 1_000_000, "chunk": CHUNK, "utilization": [0.7]}
                _, rates[workers], *_ = sweep(folder, f"{turn}-{workers}", workers, **fields)
            ratios.append(rates[2] / rates[1])
            print(f"1 worker {rates[1] * CHUNK:.0f} sets/s, 2 workers {rates[2] * CHUNK:.0f} sets/s, ratio {ratios[-1]:.2f}")
    print(f"median ratio {np.median(ratios):.2f}, load {os.getloadavg()[0]:.1f}")


def million():
    for points in (2, 20):
        with tempfile.TemporaryDirectory() as folder:
            utilization = [round(0.05 * i, 2) for i in range(1, points + 1)]
            fields = {"sets": 50_000, "chunk": 5_000, "utilization": utilization}
            seconds, _, writer, together = sweep(folder, "million", 2, **fields)
        print(f"{points * 50_000} sets: {seconds:.0f} s, memory at most {writer:.0f} MiB writing, {together:.0f} MiB with 2 workers")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rate", "scaling", "million"])
    target = os.environ.get("CARGO_TARGET_DIR", "target")
    parser.add_argument("--example", default=f"{target}/release/examples/batch", help="the Rust side of rate")
    options = parser.parse_args()
    match options.what:
        case "rate":
            rate(options.example)
        case "scaling":
            scaling()
        case "million":
            million()


if __name__ == "__main__":
    main()
