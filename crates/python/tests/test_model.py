"""The model through Python gives what it gives in Rust, on the same files and numbers."""

import copy
import json
import threading

import isochrome
import numpy as np
import pyarrow as pa
import pytest
from isochrome import IsochromeError

# [Kim2013, Table 2]: C^p, T, partitions, response with and without cache delays, in ns. The paper numbers partitions from 1, this table from 0.
TABLE_2 = [
    (11_940_000, 40_000_000, range(8), 12_302_400, 11_940_000),
    (13_150_000, 120_000_000, range(3), 25_724_200, 25_090_000),
    (49_580_000, 180_000_000, range(8), 101_358_600, 98_550_000),
    (44_300_000, 600_000_000, range(3, 8), 273_783_300, 179_880_000),
]


def mask(partitions):
    return sum(1 << partition for partition in partitions)


def table_2():
    wcet, period, partitions, cached, uncached = zip(*TABLE_2, strict=True)
    return [wcet], [period], [[mask(p) for p in partitions]], list(cached), list(uncached)


def test_table_2_of_kim2013_is_reproduced_to_the_nanosecond():
    wcet, period, partitions, cached, uncached = table_2()
    assert isochrome.response_times_batch(wcet, period, partitions=partitions, refill_ns=45_300).tolist() == [cached]
    assert isochrome.response_times_batch(wcet, period, partitions=partitions).tolist() == [uncached]


def test_one_set_and_a_batch_agree():
    wcet, period, _, cached, _ = table_2()
    tasks = [
        {"name": f"t{i}", "period_ns": period[0][i], "deadline_ns": period[0][i], "memory_mib": 1, "wcet_ns": [wcet[0][i]]}
        for i in range(4)
    ]
    task_set = isochrome.TaskSet(
        {"refill_ns_per_partition": 45_300, "tasks": tasks}, cores=1, partitions=8, memory_mib=1024
    )
    placed = [{"name": f"t{i}", "partitions": list(TABLE_2[i][2])} for i in range(4)]
    responses = isochrome.response_times(task_set, {"cores": [{"cpu": 0, "tasks": placed}]})
    assert [response["response_ns"] for response in responses] == cached
    parts = ("own", "interference", "omega", "gamma", "blocking", "jitter")
    assert [sum(response[f"{part}_ns"] for part in parts) for response in responses] == cached


def test_a_batch_gives_the_same_on_any_number_of_threads_and_in_any_form():
    batch = isochrome.Generator(utilization=0.8).batch(seed=3, count=600)
    arguments = (batch["wcet_ns"], batch["period_ns"])
    one = isochrome.response_times_batch(*arguments, partitions=batch["partitions"], refill_ns=45_300)
    two = isochrome.response_times_batch(*arguments, partitions=batch["partitions"], refill_ns=45_300, threads=2)
    assert np.array_equal(one, two)
    assert (one == -1).any() and (one > 0).any()
    # Words of 64 for more partitions, numbers with a sign, columns that do not lie one after the other.
    words = np.zeros((*batch["partitions"].shape, 3), dtype=np.uint64)
    words[:, :, 2] = batch["partitions"]
    signed = [array.astype(np.int64) for array in arguments]
    assert np.array_equal(one, isochrome.response_times_batch(*signed, partitions=words, refill_ns=45_300))
    turned = [np.asfortranarray(array) for array in arguments]
    assert np.array_equal(one, isochrome.response_times_batch(*turned, partitions=batch["partitions"], refill_ns=45_300))
    assert isochrome.response_times_batch(np.zeros((0, 8), dtype=int), np.zeros((0, 8), dtype=int)).shape == (0, 8)


def test_what_cannot_be_used_is_refused_by_name():
    cases = [
        (lambda: isochrome.response_times_batch([[1, 2]], [[1]]), "period_ns"),
        (lambda: isochrome.response_times_batch([[-1]], [[1]]), "wcet_ns"),
        (lambda: isochrome.response_times_batch([[1]], [[0]]), r"deadline_ns\[0, 0\]"),
        (lambda: isochrome.response_times_batch([[1]], [[5]], deadline_ns=[[6]]), r"deadline_ns\[0, 0\]"),
        (lambda: isochrome.response_times_batch([[1]], [[1]], analysis="kim"), "hint: there are kim2013"),
        (lambda: isochrome.Generator(tasks=0), "tasks"),
        (lambda: isochrome.Generator(task=8), "unknown field `task`"),
        (lambda: isochrome.Machine.named("vax"), "486-33"),
        (lambda: isochrome.CacheSim.of_levels(["32K:8"]), "hint"),
        (lambda: isochrome.TaskSet({"refill_ns_per_partition": 1, "tasks": []}, cores=1, partitions=1, memory_mib=1), "tasks"),
    ]
    for call, message in cases:
        with pytest.raises(IsochromeError, match=message):
            call()
    with pytest.raises(TypeError, match="whole numbers"):
        isochrome.response_times_batch([[1.5]], [[2]])
    with pytest.raises(FileNotFoundError, match="nowhere"):
        isochrome.TaskSet.from_file("nowhere.toml")
    assert issubclass(IsochromeError, ValueError)


def test_a_machine_is_its_file(repository):
    for name in isochrome.Machine.names():
        path = repository / "machines" / name / "described.json"
        machine = isochrome.Machine.from_file(path)
        assert machine.to_dict() == isochrome.Machine.named(name).to_dict()
        assert machine.name == json.loads(path.read_text())["name"]
    assert isochrome.Machine.named("i7-2600").colors()[-1][1] == 32


def test_samples_of_a_virtual_machine_show_sixteen_colors(repository):
    path = repository / "crates/model/tests/data/zen3-vm-samples.json"
    palette = isochrome.Palette.infer(path)
    assert (palette.colors, palette.level, palette.doubts) == (16, 2, [])
    samples = json.loads(path.read_text())
    assert isochrome.Palette.infer(samples).inference() == palette.inference()
    frames = [page["frame"] for page in samples["pages"] if "frame" in page]
    inference = palette.inference()
    assert inference is not None
    known = inference["palette"].get("frames", [])
    assert palette.color_of(known).tolist() == inference["palette"].get("frame_colors", [])
    assert (palette.color_of(np.array(frames, dtype=np.uint64)) < 16).all()
    assert palette.color_of([2**40]).tolist() == [-1]
    cut = copy.deepcopy(samples)
    cut["cross"] = cut["cross"][1:]
    with pytest.raises(IsochromeError, match="cross table"):
        isochrome.Palette.infer(cut)


def test_a_loop_over_one_line_too_many_misses_as_it_must():
    # A loop over S lines in N sets of n ways misses (S - nN)(n + 1) times a pass: those sets hold n + 1 lines.
    sets, ways, line = 64, 8, 64
    lines = sets * ways + 10
    simulator = isochrome.CacheSim.of_levels([f"{sets * ways * line}:{ways}:{line}:lru:wb:wa"])
    loop = np.arange(lines, dtype=np.uint64) * line
    simulator.run(loop)
    before = simulator.counts()["levels"][0]["read_misses"]
    simulator.run(np.tile(loop, 10))
    assert before == lines
    assert simulator.counts()["levels"][0]["read_misses"] - before == 10 * 10 * (ways + 1)


def test_stores_are_told_from_loads():
    simulator = isochrome.CacheSim(isochrome.Machine.named("zen3"))
    simulator.run(np.arange(0, 640, 64), writes=np.arange(10) % 2 == 0)
    level = next(level for level in simulator.counts()["levels"] if level["name"] == "L1d")
    assert (level["reads"], level["writes"]) == (5, 5)
    with pytest.raises(IsochromeError, match="writes"):
        simulator.run([0, 64], writes=np.array([True]))


def test_a_miss_curve_is_what_simulators_of_each_size_count():
    random = np.random.default_rng(1)
    # Pages get colors in the order in which they are first touched: in the order of their addresses, they are those of the addresses.
    addresses = np.concatenate([np.arange(0, 1 << 18, 4096), random.integers(0, 1 << 18, 20_000)])
    by_ways, (colors, by_colors) = isochrome.miss_curve(addresses, cache_bytes=1 << 17, ways=8)
    for ways in (1, 4, 8):
        simulator = isochrome.CacheSim.of_levels([f"{(1 << 17) // 8 * ways}:{ways}:64:lru:wb:wa"])
        simulator.run(addresses)
        assert simulator.counts()["levels"][0]["read_misses"] == by_ways[ways]
    assert colors.tolist() == [1, 2, 3, 4] and by_colors[-1] == by_ways[8]


def test_a_plan_holds_what_it_promises(repository):
    table_1 = repository / "examples/kim2013-table1.json"
    task_set = isochrome.TaskSet.from_file(table_1, cores=4, memory_mib=1024).copied(2)
    plan = isochrome.plan(task_set)
    # docs/reference/planning.md: 12 partitions are the proven fewest for 8 tasks in 1 GiB.
    assert (plan.schedulable, plan.partitions_used, plan.gap) == (True, 12, 0.0)
    responses = isochrome.response_times(task_set, plan)
    assert responses == isochrome.response_times(task_set, plan.to_dict())
    assert len(responses) == len(task_set) == 8
    planned = {task["name"]: task["response_ns"] for core in plan.to_dict()["cores"] for task in core["tasks"]}
    assert {r["name"]: r["response_ns"] for r in responses} == planned
    assert all(r["response_ns"] <= r["deadline_ns"] for r in responses)
    assert "<svg" in plan._repr_html_() and "p_ferret.1" in task_set._repr_html_()
    # Stopped at its first look it still has a plan, but has proven less.
    sixteen = task_set.copied(2)
    full, stopped = (isochrome.plan(sixteen, objective="utilization", checks_limit=looks) for looks in (None, 0))
    assert full.gap == 0.0 and stopped.gap != 0.0


def test_a_plan_says_that_the_measured_replacement_contradicts_its_bounds():
    # Each task gains more from a second partition than it costs to share one.
    tasks = [
        {"name": name, "period_ns": 1_000_000, "wcet_ns": [200_000, 50_000, 50_000]} for name in ("a", "b", "c")
    ]
    shares = {"cyclic": 0.4, "reused": 0.3, "fitting": 0.0}
    measured = {name: {"median": share, "low": share, "high": share} for name, share in shares.items()}
    profile = {
        "refill_ns_per_partition": 1_000,
        "tasks": tasks,
        "replacement_test": {"cpu": 0, "level": 2, "blocks": 24, **measured},
    }
    task_set = isochrome.TaskSet(profile, cores=1, partitions=3, memory_mib=4)
    for planned in (task_set, task_set.copied(1)):
        contradicted = isochrome.plan(planned, objective="utilization").to_dict()["contradicted"]
        assert len(contradicted["tasks"]) >= 2 and contradicted["test"]["cyclic"]["median"] == 0.4
    del profile["replacement_test"]
    untested = isochrome.TaskSet(profile, cores=1, partitions=3, memory_mib=4)
    assert isochrome.plan(untested, objective="utilization").to_dict().get("contradicted") is None


def test_a_task_set_from_arrays_is_that_of_the_file(repository):
    path = repository / "examples/kim2013-table1.json"
    read = isochrome.TaskSet.from_file(path, cores=4, memory_mib=1024)
    made = isochrome.TaskSet.from_arrays(
        read.wcet_ns(), read.period_ns(), task_memory_mib=[18, 66, 52, 50], cores=4, partitions=32, memory_mib=1024, refill_ns=45_300
    )
    assert made.platform == read.platform
    ours, theirs = isochrome.plan(made, method="cata"), isochrome.plan(read, method="cata")
    assert (ours.partitions_used, ours.utilization) == (theirs.partitions_used, theirs.utilization)


def test_the_comparison_with_the_paper_is_that_of_the_documentation(repository):
    table_1 = isochrome.TaskSet.from_file(repository / "examples/kim2013-table1.json", cores=4, memory_mib=1024)
    comparison = isochrome.compare(table_1.copied(2))
    assert str(comparison) in (repository / "docs/reference/planning.md").read_text()
    assert isochrome.Comparison.from_dict(comparison.to_dict()).to_dict() == comparison.to_dict()
    rows = isochrome.beside_kim2013([comparison])
    assert rows[-1][1:] == ["97 %", "97 %"]
    assert isochrome.figures_14_to_16([comparison]).lstrip().startswith("<svg")


def test_other_threads_run_while_the_model_works():
    batch = isochrome.Generator(tasks=16, utilization=0.85).batch(seed=1, count=2_000)
    wcet, period, partitions = (np.tile(batch[name], (50, 1)) for name in ("wcet_ns", "period_ns", "partitions"))
    finished = threading.Event()

    def work():
        isochrome.response_times_batch(wcet, period, partitions=partitions, refill_ns=45_300)
        finished.set()

    thread = threading.Thread(target=work)
    thread.start()
    ticks = 0
    # With the interpreter's lock held, this thread would get no further than one tick before the call and one after.
    while not finished.wait(0.001):
        ticks += 1
    thread.join()
    assert ticks > 5


# The smallest file that `isochrome` writes.
MACHINE = {
    "schema": "isochrome-machine/1",
    "architecture": "x86_64",
    "cpu_model": "a machine",
    "cpus": [0],
    "page_bytes": 4096,
    "levels": [],
}


@pytest.fixture
def evidence_file(tmp_path):
    import hashlib

    raw = "bench,parameter,value,job,cycles\nfft,points,256,0,100\nfft,points,256,1,120\n"
    (tmp_path / "raw.csv").write_text(raw)
    jobs = {"n": 2, "cycles_min": 100, "cycles_median": 100, "cycles_p99": 120, "cycles_p999": 120, "cycles_max": 120}
    jobs |= {"l2_misses_median": None, "l1_misses_median": None, "lost_median": None}
    outcome = jobs | {"control": jobs, "blocks": 1, "blocks_quiet": 1, "colors": [], "ccdf": [], "steal_ns": 0}
    outcome["high_water_mark"] = {"value": 120, "n": 2, "last_rose_at": 2}
    experiment = {"bench": "fft", "points": 256, "element": "f64", "working_set": 4096, "conditions": {"alone": outcome}}
    fields = {
        "schema": "isochrome-evidence/1",
        "isochrome": "0.1.0",
        "taken_unix_s": 0,
        "command": ["isochrome"],
        "machine": MACHINE,
        "fingerprint": isochrome.Machine.from_json(json.dumps(MACHINE)).fingerprint,
        "experiments": [experiment],
        "warnings": [],
        "raw": [{"path": "raw.csv", "sha256": hashlib.sha256(raw.encode()).hexdigest()}],
    }
    path = tmp_path / "evidence.json"
    path.write_text(json.dumps(fields))
    return path


def test_evidence_becomes_tables_and_frames(evidence_file):
    evidence = isochrome.read_evidence(evidence_file)
    outcomes, jobs = evidence.outcomes(), evidence.jobs()
    assert isinstance(outcomes, pa.Table)
    row = outcomes.to_pylist()[0]
    assert (row["bench"], row["points"], row["condition"], row["cycles_max"], row["control_n"]) == ("fft", 256, "alone", 120, 2)
    assert jobs.to_pandas()["cycles"].sum() == 220
    polars = pytest.importorskip("polars")
    assert polars.from_arrow(jobs)["cycles"].sum() == 220


def test_evidence_of_the_first_version_and_its_raw_files_become_frames(evidence_file):
    evidence = isochrome.read_evidence(evidence_file)
    pandas, polars = evidence.to_pandas(), evidence.to_polars()
    assert pandas["raw.csv"]["cycles"].sum() == polars["raw.csv"]["cycles"].sum() == 220
    assert pandas["kernels.experiments.conditions"]["cycles_max"].tolist() == [120]
    assert polars["kernels.experiments.conditions"]["kernels.experiments.conditions.key"].to_list() == ["alone"]
    (evidence_file.parent / "raw.csv").unlink()
    with pytest.warns(UserWarning, match=r"raw.csv: .* is not there"):
        assert "raw.csv" not in evidence.to_pandas()


def test_evidence_with_other_raw_files_is_refused(evidence_file):
    (evidence_file.parent / "raw.csv").write_text("cycles\n1\n")
    evidence = isochrome.read_evidence(evidence_file)
    for rows in (evidence.jobs, evidence.to_pandas, evidence.to_polars):
        with pytest.raises(IsochromeError, match="not the file"):
            rows()
