#!/usr/bin/env python3
"""Measures how often `isochrome run` finds planted faults, and how often it accuses a set that runs as it was profiled.

Two programs of crates/cli/tests/run/task.c are profiled and planned once, without faults: `lines`, whose jobs are released by lines, and `timer`,
which wakes itself. Then the plan is run so many times with each of these:

    good      the programs that were profiled
    overrun   every thousandth job of `lines` takes twice as long
    missing   every thousandth release of `timer` does not come
    both      overruns and missing releases in one run

    scripts/verdicts.py --binary target/release/isochrome --runs 20

Overruns are found if the run ends with a violated bound, deadline or budget of `lines` that steal time does not excuse. Missing releases are found
if the run does not hold and counts as many absent releases of `timer` as were planted, at least. A good set is accused if anything is violated.
Releases that are absent because the host withheld the CPU are counted too, so the table has the sum of the absent releases of each kind of run.
Releases that are absent in the good set were not planted. For the same reason it has the jobs beyond the budget of `lines`, and the number of them that
steal time excuses; steal time should not excuse a planted overrun. With --comparisons, the simulated comparisons of crates/model/tests/statistics.rs
are made as well, where a program takes 30 % longer in 40 % of the windows: on hardware noise would decide the number of runs that this takes.

Prints a Markdown table. Exit status: 0 if all was found and nobody accused, 1 could not run, 2 if not. Run it as root, on a machine with two
CPUs at least.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = ROOT / "crates/cli/tests/run/task.c"
# Times in us: of a job, between releases, and the budget. The profile adds a margin, so twice a job exceeds it.
LINES = {"job": 400, "period": 4000, "budget": 600}
TIMER = {"job": 300, "period": 5000}
KINDS = {"good": {}, "overrun": {"lines": "doubles"}, "missing": {"timer": "skips"}, "both": {"lines": "doubles", "timer": "skips"}}
PLANTED_EVERY = 1000
PROFILES_MAX = 5
COMPARISONS = ["cargo", "test", "--locked", "-p", "isochrome-model", "--test", "statistics", "--", "--nocapture"]
COMPARED = "a_difference_in_a_minority_of_the_windows_is_seen_and_its_interval_holds_the_mean_of_all"


class Failure(Exception):
    pass


def called(command, accepted=(0,), **options):
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", **options)
    if done.returncode not in accepted:
        raise Failure(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done


def task_set(folder, cpu):
    program = folder / "task"
    called(["cc", "-O2", "-o", program, SOURCE])
    # The programs use a few lines of memory. So they need no colors, and they refill only the private levels after each other, which is charged.
    return f"""cpus = "{cpu}"
method = "none"
refill_ns_per_partition = 0

[[tasks]]
name = "lines"
command = ["{program}", "line", "{LINES["job"]}"]
period = "{LINES["period"]}us"
budget = "{LINES["budget"]}us"
memory = "1M"
jobs = "line"

[[tasks]]
name = "timer"
command = ["{program}", "periodic", "{TIMER["job"]}", "{TIMER["period"]}"]
period = "{TIMER["period"]}us"
memory = "8M"
jobs = "wakeup"
"""


def planned(binary, folder, cpu):
    """Returns a plan of the set. Costs that were measured while the host was busy can allow no plan, so the set may be profiled several times."""
    (folder / "taskset.toml").write_text(task_set(folder, cpu))
    for attempt in range(1, PROFILES_MAX + 1):
        profile = ["profile", folder / "taskset.toml", "-o", folder / "profile.json", "--again", "--exceed", "0.01"]
        called([binary, *profile])
        plan = json.loads(called([binary, "plan", folder / "profile.json", "--json"], accepted=(0, 2, 3)).stdout)
        if plan["schedulable"]:
            bounds = {task["name"]: task["response_ns"] for core in plan["cores"] for task in core["tasks"]}
            print(f"planned after {attempt} profiles, bounds in ns: {bounds}", file=sys.stderr)
            return plan
        profiled = json.loads((folder / "profile.json").read_text())
        times = {task["name"]: (task["wcet_ns"], task["jitter_ns"]) for task in profiled["tasks"]}
        costs = {name: cost["charged_ns"] for name, cost in profiled["costs"].items() if isinstance(cost, dict)}
        once = profiled["costs"].get("refill_once_ns")
        print(f"no plan: C^p and jitter in ns {times}, costs {costs}, once {once}", file=sys.stderr)
    raise Failure(f"{PROFILES_MAX} profiles gave no plan: the machine is too noisy")


def with_modes(plan, modes):
    """Returns the plan with other modes of its programs."""
    changed = json.loads(json.dumps(plan))
    for task in changed["programs"]["tasks"]:
        task["command"][1] = modes.get(task["name"], task["command"][1])
    return changed


class Run:
    def __init__(self, binary, folder, plan, duration):
        (folder / "run.json").write_text(json.dumps(plan))
        command = [binary, "run", folder / "run.json", "-o", folder / "run", "--json", "--duration", duration]
        done = called(command, accepted=(0, 2, 3))
        self.code = done.returncode
        numbers = json.loads(done.stdout)["sections"][0]["numbers"]
        self.failures = numbers["failures"]
        self.tasks = {task["name"]: task for task in numbers["tasks"]}

    def own_violations(self, task):
        """Returns the number of jobs beyond a limit of the task that steal time does not excuse."""
        return sum(self.by_limit(task).values())

    def by_limit(self, task):
        limits = {limit: self.tasks[task][f"{limit}_violations"] for limit in ("bound", "deadline", "budget")}
        return {limit: of["jobs"] - of["excused"] for limit, of in limits.items() if of["jobs"] > of["excused"]}

    def overruns(self):
        """Returns the numbers of planted overruns of `lines`, of jobs beyond its budget, and of those jobs that steal time excuses."""
        of = self.tasks["lines"]["budget_violations"]
        return {"planted": self.tasks["lines"]["releases"]["seen"] // PLANTED_EVERY, "beyond": of["jobs"], "excused": of["excused"]}

    def absent(self):
        return self.tasks["timer"]["releases"]["absent"]

    def finds_overruns(self):
        return self.code == 2 and self.own_violations("lines") > 0

    def finds_missing(self):
        seen = self.tasks["timer"]["releases"]["seen"]
        return self.code != 0 and self.absent() >= max(seen // PLANTED_EVERY, 1)

    def finds(self, kind):
        found = {"overrun": [self.finds_overruns], "missing": [self.finds_missing], "both": [self.finds_overruns, self.finds_missing]}
        return all(found() for found in found[kind]) if kind in found else self.code == 2


def last_cpu():
    allowed = next(line for line in open("/proc/self/status") if line.startswith("Cpus_allowed_list:"))
    return int(re.split("[,-]", allowed.split()[1])[-1])


def compared():
    """Runs the test of simulated comparisons, and returns the lines of its result."""
    text = called([*COMPARISONS, COMPARED], cwd=ROOT).stdout
    lines = [line for line in text.splitlines() if line.startswith("30 % in 0.4 of the windows, whole blocks false")]
    if len(lines) != 2:
        raise Failure(f"two lines about 30 % in 0.4 of the windows were expected:\n{text}")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/release/isochrome")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--duration", default="30s", help="of each run; the CPUs are watched for three times as long after a run with jobs beyond limits (default: 30s)")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=["good", "overrun", "missing"])
    parser.add_argument("--comparisons", action="store_true")
    options = parser.parse_args()
    binary = options.binary.resolve()
    counts = {kind: {"found": 0, "inconclusive": 0, "absent": 0, "failed": 0, "planted": 0, "beyond": 0, "excused": 0} for kind in options.kinds}
    try:
        with tempfile.TemporaryDirectory(prefix="isochrome-verdicts-") as name:
            folder = pathlib.Path(name)
            plan = planned(binary, folder, last_cpu())
            # The kinds take turns, so that a disturbance meets all of them alike.
            for number in range(options.runs):
                for kind, count in counts.items():
                    run = Run(binary, folder, with_modes(plan, KINDS[kind]), options.duration)
                    found = run.finds(kind)
                    count["found"] += found
                    count["inconclusive"] += run.code == 3
                    count["absent"] += run.absent()
                    count["failed"] += bool(run.failures)
                    for name, jobs in run.overruns().items():
                        count[name] += jobs
                    violated = {task: run.by_limit(task) for task in run.tasks}
                    print(f"{number} {kind}: {run.code}, violations {violated}, absent {run.absent()}, overruns {run.overruns()}", file=sys.stderr)
        lines = compared() if options.comparisons else []
    except (Failure, OSError, KeyError, ValueError) as error:
        print(f"verdicts: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print("| planted | runs | found, or accused | inconclusive | absent releases of all runs | runs with a program that failed | thousandth jobs of `lines` | beyond its budget | excused |")
    print("|---|" + "---:|" * 8)
    names = {"good": "nothing", "overrun": "every 1000th job takes twice as long", "missing": "every 1000th release does not come", "both": "both in each run"}
    for kind, count in counts.items():
        row = [names[kind], options.runs, count["found"], count["inconclusive"], count["absent"], count["failed"], count["planted"], count["beyond"], count["excused"]]
        print(f"| {' | '.join(map(str, row))} |")
    for line in lines:
        print(f"\n{line}")
    missed = any(count["found"] != (0 if kind == "good" else options.runs) for kind, count in counts.items())
    return 2 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
