"""Plans of least utilization are those of a mixed-integer program, which HiGHS solves: [Kim2013, Eq. 1] under Eq. 2 and 3.

The program has Eq. 1 and Eq. 3. Eq. 2 has ceilings of its own result, so it is not in the program: a solution that misses a deadline is
excluded and the program solved again, until a solution meets all of them. Nothing here comes from the package but the plans.

OPTIMUM_INSTANCES says how many instances are solved, from number OPTIMUM_FIRST on, OPTIMUM_TASKS the most tasks of one, and OPTIMUM_SECONDS the
time limit for each side. At length:

    OPTIMUM_INSTANCES=1000 OPTIMUM_TASKS=10 OPTIMUM_SECONDS=10 python -m pytest -s crates/python/tests/test_optimum.py
"""

import os
import random
import time
from fractions import Fraction
from statistics import median

import highspy
import isochrome

FIRST = int(os.environ.get("OPTIMUM_FIRST", "0"))
INSTANCES = int(os.environ.get("OPTIMUM_INSTANCES", "60"))
TASKS_MAX = int(os.environ.get("OPTIMUM_TASKS", "4"))
SECONDS = float(os.environ.get("OPTIMUM_SECONDS", "60"))
# A multiple of the page size by all numbers of partitions, so that a task's share of a partition is whole.
MEMORY_UNIT = 60 * 4096


class Instance:
    """A task set on `cores` cores that share `partitions` partitions. Tasks are in the order of priority."""

    def __init__(self, seed):
        draw = random.Random(seed)
        self.count = draw.randint(2, TASKS_MAX)
        self.cores = draw.choice([1, 2])
        self.partitions = draw.randint(2, 5 if self.count <= 5 else 3)
        self.refill = draw.randint(0, 4)
        load = draw.uniform(0.3, 1.1) * self.cores / self.count
        self.tasks = []
        for _ in range(self.count):
            period = draw.randint(100, 1000)
            wcet = max(1, round(period * load * draw.uniform(0.5, 1.5)))
            curve = [wcet]
            for _ in range(self.partitions - 1):
                curve.append(max(1, curve[-1] - draw.randint(0, curve[-1] // 4)))
            deadline = period - draw.randint(0, period // 5)
            self.tasks.append((period, deadline, draw.randint(1, 6) * MEMORY_UNIT, curve))
        self.tasks.sort(key=lambda task: task[1])
        self.capacity = 10 * MEMORY_UNIT

    def task_set(self):
        tasks = [
            {"name": f"t{i}", "period_ns": period, "deadline_ns": deadline, "memory_bytes": memory, "wcet_ns": curve, "priority": self.count - i}
            for i, (period, deadline, memory, curve) in enumerate(self.tasks)
        ]
        machine = {"memory_rule": "kim2013", "memory_bytes": self.capacity * self.partitions, "refill_ns_per_partition": self.refill}
        return isochrome.TaskSet({**machine, "tasks": tasks}, cores=self.cores, partitions=self.partitions)

    def meets_deadlines(self, core, sets):
        """Whether Eq. 2 holds for the tasks `core`, highest priority first, with the partitions `sets`."""
        for place, i in enumerate(core):
            above = core[:place]

            def warm_up(j, others):
                return self.refill * len(sets[j] & set().union(*(sets[k] for k in others if k != j)))

            def preemption(j):
                between = [k for k in core[: place + 1] if k > j]
                return self.refill * len(sets[j] & set().union(*(sets[k] for k in between)))

            wcet = {j: self.tasks[j][3][len(sets[j]) - 1] for j in core[: place + 1]}
            own = wcet[i] + warm_up(i, core)
            response = own
            while True:
                total = own
                for j in above:
                    jobs = -(-response // self.tasks[j][0])
                    total += jobs * (wcet[j] + preemption(j)) + warm_up(j, core) + (jobs - 1) * warm_up(j, core[: place + 1])
                if total > self.tasks[i][1]:
                    return False
                if total == response:
                    break
                response = total
        return True

    def utilization(self, assigned, sets):
        """The sum of Eq. 1 over all cores, exactly."""
        total = Fraction(0)
        for i, (period, _, _, curve) in enumerate(self.tasks):
            mates = [k for k in range(self.count) if k != i and assigned[k] == assigned[i]]
            shared = sets[i] & set().union(*(sets[k] for k in mates))
            below = sets[i] & set().union(*(sets[k] for k in mates if k > i))
            total += Fraction(curve[len(sets[i]) - 1] + self.refill * (len(shared) + len(below)), period)
        return total


def optimum(instance, seconds):
    """The least utilization, infinity if no allocation is feasible, or `None` if the time did not suffice."""
    tasks, cores, partitions = (range(n) for n in (instance.count, instance.cores, instance.partitions))
    program = highspy.Highs()
    program.silent()
    program.setOptionValue("mip_rel_gap", 0.0)
    program.setOptionValue("mip_abs_gap", 1e-9)
    program.setOptionValue("threads", 1)

    def binary(*sizes):
        return [binary(*sizes[1:]) for _ in range(sizes[0])] if sizes else program.addBinary()

    # Whether task i is on core m, uses partition p, has k + 1 partitions, both on core m; whether core m owns partition p.
    on, uses, has = binary(instance.count, instance.cores), binary(instance.count, instance.partitions), binary(instance.count, instance.partitions)
    has_on = binary(instance.count, instance.partitions, instance.cores)
    owns = binary(instance.partitions, instance.cores)
    # Whether another task, or one of lower priority, uses partition p of task i; whether task i uses p and has k + 1 partitions.
    shared, below = binary(instance.count, instance.partitions), binary(instance.count, instance.partitions)
    takes = binary(instance.count, instance.partitions, instance.partitions)
    add, total = program.addConstr, program.qsum
    for i in tasks:
        add(total(on[i]) == 1)
        add(total(has[i]) == 1)
        add(total(uses[i]) - total((k + 1) * has[i][k] for k in partitions) == 0)
        for m in cores:
            for p in partitions:
                add(uses[i][p] + on[i][m] - owns[p][m] <= 1)
            for k in partitions:
                add(has_on[i][k][m] - has[i][k] - on[i][m] >= -1)
        for p in partitions:
            for j in tasks:
                if j != i:
                    add(shared[i][p] - uses[i][p] - uses[j][p] >= -1)
                if j > i:
                    add(below[i][p] - uses[i][p] - uses[j][p] >= -1)
            for k in partitions:
                add(takes[i][p][k] - uses[i][p] - has[i][k] >= -1)
    for p in partitions:
        add(total(owns[p]) <= 1)
        # Eq. 3, in units of the smallest share.
        shares = ((task[2] // (k + 1) // 4096, takes[i][p][k]) for i, task in enumerate(instance.tasks) for k in partitions)
        add(total(share * taken for share, taken in shares) <= instance.capacity // 4096)
        # Partitions are alike, and so are cores.
        if p + 1 < instance.partitions:
            add(total(2**i * uses[i][p] - 2**i * uses[i][p + 1] for i in tasks) >= 0)
    add(on[0][0] == 1)
    for m in cores:
        # What Eq. 2 implies: no core is overloaded, and each job of higher priority runs once in a response.
        add(total(instance.tasks[i][3][k] / instance.tasks[i][0] * has_on[i][k][m] for i in tasks for k in partitions) <= 1)
        for i in tasks:
            once = total(instance.tasks[j][3][k] * has_on[j][k][m] for j in tasks if j <= i for k in partitions)
            spare = sum(instance.tasks[j][3][0] for j in tasks if j <= i)
            add(once + spare * on[i][m] <= spare + instance.tasks[i][1])
    cost = total(instance.tasks[i][3][k] / instance.tasks[i][0] * has[i][k] for i in tasks for k in partitions) + total(
        instance.refill / instance.tasks[i][0] * (shared[i][p] + below[i][p]) for i in tasks for p in partitions
    )
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        program.setOptionValue("time_limit", program.getRunTime() + left)
        program.minimize(cost)
        status = program.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return float("inf")
        if status != highspy.HighsModelStatus.kOptimal:
            return None
        one = [[program.val(uses[i][p]) > 0.5 for p in partitions] for i in tasks]
        assigned = [max(cores, key=lambda m, i=i: program.val(on[i][m])) for i in tasks]
        sets = [{p for p in partitions if one[i][p]} for i in tasks]
        late = [core for m in cores if not instance.meets_deadlines(core := [i for i in tasks if assigned[i] == m], sets)]
        if not late:
            return float(instance.utilization(assigned, sets))
        for core in late:
            differs = total(1 - uses[i][p] if one[i][p] else uses[i][p] for i in core for p in partitions)
            for m in cores:
                add(differs + total(1 - on[i][m] for i in core) >= 1)
    return None


def test_plans_of_least_utilization_are_those_of_a_mixed_integer_program():
    infeasible, undecided, times = 0, 0, {}
    for seed in range(FIRST, FIRST + INSTANCES):
        instance = Instance(seed)
        start = time.monotonic()
        plan = isochrome.plan(instance.task_set(), objective="utilization", time_limit_s=SECONDS)
        planned = time.monotonic()
        least = optimum(instance, SECONDS)
        solved = time.monotonic()
        if least is None or (plan.schedulable and plan.gap):
            undecided += 1
            continue
        ours = plan.utilization if plan.schedulable else float("inf")
        assert ours == least or abs(ours - least) < 1e-7, f"seed {seed}: {ours}, HiGHS {least}"
        infeasible += least == float("inf")
        times.setdefault(instance.count, []).append((planned - start, solved - planned))
    print("\n| n | instances | isochrome, ms (median, longest) | HiGHS, ms |\n|---:|---:|---:|---:|")
    for count, both in sorted(times.items()):
        columns = (f"{median(side) * 1e3:.2f}, {max(side) * 1e3:.0f}" for side in zip(*both, strict=True))
        print(f"| {count} | {len(both)} | {' | '.join(columns)} |")
    print(f"{INSTANCES} instances, no difference; {infeasible} without a plan, {undecided} not decided within {SECONDS:g} s by both")
    assert undecided <= INSTANCES // 2
    assert 0 < infeasible < INSTANCES // 2
