#!/usr/bin/env python3
"""Fuzzes every reader of isochrome, each for a while from seeds of this repository, with its keys as a dictionary; `make fuzz` does it all.

    scripts/fuzz.py --list
    scripts/fuzz.py --seconds 60 --jobs 2
    scripts/fuzz.py --only 'policy' --seconds 3600

Needs a nightly compiler and cargo-fuzz, and says how to get them. Says beforehand how long it will take. What was found so far is kept in target/fuzz,
and the next run goes on from there. Prints a Markdown table: executions, coverage and findings of each reader. Exit code: 0 nothing found, 1 could not run, 2 a reader
panicked, hung or took too much memory: the input lies in target/fuzz/TARGET/findings, and wants a regression test.
"""

import argparse
import concurrent.futures
import fnmatch
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "target/fuzz"
# Where seeds of a reader lie besides fuzz/seeds.
SEEDS = {
    "allocation": ["crates/model/tests/data/plan-*.json", "examples/**/*.json"],
    "documents": ["machines/*/described.json", "examples/**/*.json"],
    "evidence": ["docs/results/evidence/*.json"],
    "import": ["examples/**/*.toml", "crates/**/rt-app*.json"],
    "policy": ["examples/serve/*.toml"],
    "scenario": ["examples/*.toml"],
    "task_set": ["examples/**/*.toml", "examples/**/*.json"],
}
# Seeds that are not files.
TEXTS = {
    "level": ["1M:16:64:lru:wb:wa:inclusive"],
    "din": ["0 7f00\n1 7f40\n2 400000\n"],
    "lackey": [" L 1ffe,8\n S 1ffe,4\nI  400000,3\n M 20,4\n"],
    "machine": ["7\t512K\u000111\t0-3\u00013\t00400000-00401000 r-xp 00000000 fe:00 1 /bin/true\n"],
    "protocol": ['{"status":null}', '{"join":{"class":"control","pid":1}}', '{"place":{"address":4096,"bytes":4096,"colors":[0,1]}}'],
}
FILES_OF_KERNEL = ["/proc/self/smaps", "/proc/cpuinfo", "/proc/self/status", "/sys/devices/system/cpu/online"]
LARGEST_SEED = 1 << 17


def seeds(target):
    for pattern in [f"fuzz/seeds/{target}/*", *SEEDS.get(target, [])]:
        yield from (path.read_bytes() for path in sorted(ROOT.glob(pattern)) if path.stat().st_size <= LARGEST_SEED)
    yield from (text.encode() for text in TEXTS.get(target, []))
    if target == "kernel_texts":
        yield from (Path(file).read_bytes()[:LARGEST_SEED] for file in FILES_OF_KERNEL if Path(file).exists())


def words(contents):
    """The names and keys in seeds, as a dictionary of libFuzzer."""
    found = {word for content in contents for word in re.findall(rb"[A-Za-z_][A-Za-z0-9_.-]{2,30}", content)}
    return "".join(f'"{word.decode()}"\n' for word in sorted(found)[:2000])


def fuzz(target, program, seconds):
    """Runs one target; returns its row of the table."""
    folder = FOLDER / target
    for name in ("corpus", "seeds", "findings"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    contents = list(seeds(target))
    for at, content in enumerate(contents):
        (folder / f"seeds/{at}").write_bytes(content)
    known = words(contents)
    (folder / "words").write_text(known)
    before = set((folder / "findings").iterdir())
    command = [program, folder / "corpus", folder / "seeds", f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=2048"]
    # An empty dictionary is an error.
    command += [f"-dict={folder / 'words'}"] * bool(known)
    command += [f"-artifact_prefix={folder / 'findings'}/", "-print_final_stats=1", "-max_len=65536"]
    with open(folder / "log", "wb") as log, tempfile.TemporaryDirectory(dir="/dev/shm") as files:
        code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "TMPDIR": files}).returncode
    said = (folder / "log").read_text(errors="replace")
    executed = re.search(r"stat::number_of_executed_units:\s*(\d+)", said)
    covered = re.findall(r"cov: (\d+) ft: (\d+)", said)
    found = sorted(path.name for path in set((folder / "findings").iterdir()) - before)
    return {
        "target": target,
        "executions": int(executed[1]) if executed else 0,
        "edges": int(covered[-1][0]) if covered else 0,
        "seeds": len(contents),
        "code": code,
        "findings": found,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=3600, metavar="N", help="time for each reader [default: 3600]")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="readers at a time [default: one for each CPU]")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="fuzz readers whose name matches")
    parser.add_argument("--list", action="store_true", help="show the readers")
    options = parser.parse_args()
    targets = sorted(path.stem for path in (ROOT / "fuzz/fuzz_targets").glob("*.rs") if fnmatch.fnmatch(path.stem, options.only))
    if options.list:
        print("\n".join(targets))
        return 0
    if not targets:
        sys.exit(f"fuzz: no reader matches {options.only}\n  hint: --list shows them")
    for needed, get in ((["cargo", "+nightly", "--version"], "rustup toolchain install nightly"), (["cargo", "fuzz", "--version"], "cargo install --locked cargo-fuzz")):
        if subprocess.run(needed, capture_output=True).returncode:
            sys.exit(f"fuzz: {' '.join(needed[:-1])} is not there\n  hint: {get}")
    rounds = -(-len(targets) // options.jobs)
    print(f"{len(targets)} readers, {options.jobs} at a time, {options.seconds} s each: {rounds * options.seconds / 60:.0f} minutes after the build", flush=True)
    # The readers are safe code but for the ring of marks, which a sanitizer would watch; the others panic.
    if subprocess.run(["cargo", "+nightly", "fuzz", "build", "--sanitizer", "none", "--fuzz-dir", ROOT / "fuzz"], cwd=ROOT).returncode:
        return 1
    built = json.loads(subprocess.run(["cargo", "metadata", "--format-version=1", "--no-deps", "--manifest-path", ROOT / "fuzz/Cargo.toml"], check=True, capture_output=True).stdout)
    host = re.search(r"^host: (\S+)$", subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout, re.MULTILINE)[1]
    programs = Path(built["target_directory"]) / host / "release"
    rows = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        begun = [pool.submit(fuzz, target, programs / target, options.seconds) for target in targets]
        for done in concurrent.futures.as_completed(begun):
            rows.append(done.result())
            print(f"{rows[-1]['target']}: {rows[-1]['executions']} executions, {len(rows[-1]['findings'])} findings", flush=True)
    print(f"\n| reader | seeds | executions in {options.seconds} s | edges covered | findings |\n|---|---|---|---|---|")
    for row in sorted(rows, key=lambda row: row["target"]):
        print(f"| {row['target']} | {row['seeds']} | {row['executions']} | {row['edges']} | {', '.join(row['findings']) or 'none'} |")
    failed = [row["target"] for row in rows if row["code"] and not row["findings"]]
    if failed:
        print(f"ended early without a finding: {', '.join(failed)}; their logs are in {FOLDER}", file=sys.stderr)
        return 1
    return 2 if any(row["findings"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
