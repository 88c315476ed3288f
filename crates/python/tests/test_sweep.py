"""Tests of sweeps: the results do not depend on which workers died."""

import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet
import pytest
from isochrome import IsochromeError
from isochrome.experiment import Experiment
from isochrome.sweep import begin, chunk_file, conclude, read_chunks, weighted_schedulability, write_table

TEXT = """
name = "small"
kind = "analysis"
seed = 5
sets = 600
sets_per_chunk = 50
analyses = ["kim2013", "ecb-only"]
[generator]
tasks = 8
[grid]
utilization = [0.6, 0.75, 0.9]
refill_ns_per_partition = [45_300, 181_200]
"""
CHUNKS = 6 * 12


@pytest.fixture
def experiment_file(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(TEXT)
    return path


def digests(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """The results of an experiment that runs undisturbed in one process without Dask."""
    folder = tmp_path_factory.mktemp("undisturbed")
    path = folder / "small.toml"
    path.write_text(TEXT)
    experiment, output = Experiment.from_file(path), folder / "small"
    for chunk in begin(experiment, output):
        write_table(chunk_file(output, chunk), experiment.run(chunk))
    conclude(experiment, output)
    return digests(output)


def started(path, *options):
    command = [sys.executable, "-m", "isochrome", "sweep", str(path), *options]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


def finished(path, *options):
    with started(path, *options) as process:
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors


def chunks_done(folder):
    return len(list(folder.rglob("first=*.parquet")))


def wait_for_chunks(folder, process, count):
    deadline = time.monotonic() + 120
    while chunks_done(folder) < count:
        runs = process.poll() is None
        assert (runs or chunks_done(folder) >= count) and time.monotonic() < deadline, "the sweep does not get on"
        time.sleep(0.002)


def skip_if_over(folder, process):
    """Skips a test whose sweep was so fast, or this process so slow, that nothing was left to be killed."""
    if chunks_done(folder) == CHUNKS:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGCONT)
        process.communicate(timeout=300)
        pytest.skip("the sweep was over before it was killed")


def descendants(pid):
    """Processes below `pid`, the nearest first."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found[1:]


def workers_of(pid):
    """The Dask workers below `pid`: spawned processes, apart from Python's resource tracker."""
    found = []
    for process in descendants(pid):
        with contextlib.suppress(OSError):
            if b"spawn_main" in Path(f"/proc/{process}/cmdline").read_bytes():
                found.append(process)
    return found


def test_a_worker_that_is_killed_changes_nothing(experiment_file, undisturbed):
    folder = experiment_file.with_suffix("")
    process = started(experiment_file, "--workers", "2")
    wait_for_chunks(folder, process, 3)
    # The sweep is stopped, so that it cannot end between the check and the kill.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGSTOP)
    try:
        skip_if_over(folder, process)
        workers = workers_of(process.pid)
        assert workers
        os.kill(workers[0], signal.SIGKILL)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGCONT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert digests(folder) == undisturbed


def test_a_sweep_that_is_killed_with_scheduler_and_workers_goes_on_where_it_was(experiment_file, undisturbed):
    folder = experiment_file.with_suffix("")
    process = started(experiment_file, "--workers", "2")
    wait_for_chunks(folder, process, 5)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    done = {path: path.stat().st_mtime_ns for path in folder.rglob("first=*.parquet")}
    assert len(done) >= 5
    skip_if_over(folder, process)
    # A file that an interrupted write leaves behind is not a result.
    left = next(folder / path for path in undisturbed if "first=" in path and folder / path not in done)
    left.parent.mkdir(parents=True, exist_ok=True)
    (left.parent / f".{left.name}.unfinished").write_bytes(b"half")
    finished(experiment_file, "--workers", "1")
    assert all(path.stat().st_mtime_ns == at for path, at in done.items()), "what was done was done again"
    assert digests(folder) == undisturbed


@contextlib.contextmanager
def cluster(port):
    """A scheduler and a worker, as on a cluster: processes that the sweep did not start."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    here = f"tcp://127.0.0.1:{port}"
    options = ["--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
    scheduler = subprocess.Popen([sys.executable, "-m", "distributed.cli.dask_scheduler", *options], **quiet)
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", here, "--nthreads", "1", "--no-dashboard", "--no-nanny"]
    with scheduler, subprocess.Popen(worker, **quiet) as process:
        try:
            yield here, scheduler
        finally:
            process.kill()
            scheduler.kill()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def test_a_scheduler_that_is_killed_is_said_so_and_another_one_goes_on(experiment_file, undisturbed):
    folder = experiment_file.with_suffix("")
    with cluster(free_port()) as (address, scheduler):
        process = started(experiment_file, "--scheduler", address)
        wait_for_chunks(folder, process, 5)
        scheduler.kill()
        skip_if_over(folder, process)
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 1
        assert "run the same command to go on" in errors
    with cluster(free_port()) as (address, _):
        finished(experiment_file, "--scheduler", address)
    assert digests(folder) == undisturbed


def test_every_set_is_counted_once_and_failures_are_recorded(tmp_path):
    path = tmp_path / "failing.toml"
    path.write_text("""
name = "failing"
kind = "analysis"
sets = 8
sets_per_chunk = 3
[generator]
tasks = 2
utilizations = "uunifast-discard"
caps = [0.5]
[grid]
utilization = [0.5, 0.9999993]
""")
    experiment, folder = Experiment.from_file(path), tmp_path / "out"
    for chunk in begin(experiment, folder):
        write_table(chunk_file(folder, chunk), experiment.run(chunk))
    conclude(experiment, folder)
    summary = pyarrow.parquet.read_table(folder / "summary.parquet").to_pylist()
    failures = pyarrow.parquet.read_table(folder / "failures.parquet").to_pylist()
    assert [row["sets"] for row in summary] == [8, 8 - len(failures)]
    assert failures and all(row["point"] == 1 and "tries" in row["error"] for row in failures)
    sets = [number for _, table in read_chunks(experiment, folder) for number in table.column("set").to_pylist()]
    assert sets == 2 * list(range(8))
    # A chunk that holds other sets than its own is not put with the rest.
    first, second, *_ = experiment.chunks()
    chunk_file(folder, first).write_bytes(chunk_file(folder, second).read_bytes())
    with pytest.raises(IsochromeError, match="does not hold its sets"):
        conclude(experiment, folder)


def test_plans_and_the_papers_comparison_can_be_swept(tmp_path, repository):
    path = tmp_path / "methods.toml"
    path.write_text("""
name = "methods"
kind = "plan"
sets = 2
methods = ["wfd", "cata"]
[generator]
tasks = 5
[grid]
utilization_per_core = [0.2, 0.6]
cores = [1, 2]
""")
    for experiment in (Experiment.from_file(path), Experiment.from_file(repository / "examples/sweeps/kim2013.toml")):
        if experiment.kind == "kim2013":
            experiment.grid.update(copies=[2], memory_mib=[1024])
        folder = tmp_path / experiment.name
        for chunk in begin(experiment, folder):
            write_table(chunk_file(folder, chunk), experiment.run(chunk))
        conclude(experiment, folder)
    summary = pyarrow.parquet.read_table(tmp_path / "methods/summary.parquet").to_pylist()
    assert {(row["utilization_per_core"], row["cores"], row["by"]) for row in summary} == {
        (u, c, m) for u in (0.2, 0.6) for c in (1, 2) for m in ("wfd", "cata")
    }
    assert (tmp_path / "methods/weighted.svg").exists()
    # The golden table of the Rust example is the one that is written here.
    beside = (tmp_path / "kim2013/beside-kim2013.md").read_text()
    table = beside[: beside.index("| compared")].strip()
    assert table in (repository / "docs/reference/planning.md").read_text()
    assert (tmp_path / "kim2013/figure-16.png").exists()


def test_the_examples_are_experiments(repository):
    for path in (repository / "examples/sweeps").glob("*.toml"):
        assert len(list(Experiment.from_file(path).chunks())) > 1


def test_weights_are_utilizations():
    rows = [{"utilization": u, "cores": 2, "by": "cata", "ratio": r} for u, r in ((0.5, 1.0), (1.0, 0.25))]
    # (0.5 x 1 + 1 x 0.25) / 1.5
    assert weighted_schedulability(rows, ["utilization", "cores"]) == [{"cores": 2, "by": "cata", "weighted": 0.5}]
    assert weighted_schedulability(rows, ["utilization"]) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind = 'plan'", "name and kind"),
        ("name = 'a'\nkind = 'x'", "kind"),
        ("name = 'a'\nkind = 'plan'\nset = 3", "set is not a field"),
        ("name = 'a'\nkind = 'plan'\nsets = 0", "sets"),
        ("name = 'a'\nkind = 'plan'\n[generator]\ntasks = 0", "tasks"),
        ("name = 'a'\nkind = 'plan'\n[grid]\ncores = []", "grid.cores"),
        ("name = 'a'\nkind = 'kim2013'", "grid"),
        ("name = ", "toml"),
    ],
)
def test_an_experiment_that_cannot_be_done_is_refused_before_anything_is_computed(tmp_path, text, message):
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(IsochromeError, match=message):
        Experiment.from_file(path)


def test_a_folder_keeps_to_its_experiment(experiment_file, tmp_path):
    folder = tmp_path / "out"
    begin(Experiment.from_file(experiment_file), folder)
    experiment_file.write_text(TEXT.replace("seed = 5", "seed = 6"))
    with pytest.raises(IsochromeError, match="another experiment"):
        begin(Experiment.from_file(experiment_file), folder)
