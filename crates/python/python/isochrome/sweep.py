"""The command `isochrome-sweep`: experiments on Dask, on this machine or on a cluster that is there.

Workers return the rows of a chunk, in Parquet; this process writes them, each chunk into a file of its own that appears complete or not
at all.
A chunk whose file is there is done. So a sweep goes on where it was stopped, and a chunk that was computed twice counts once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from isochrome._isochrome import (
    Comparison,
    IsochromeError,
    __version__,
    beside_kim2013,
    figures_14_to_16,
    proportion_interval,
)
from isochrome.experiment import Chunk, Experiment, comparison_fields

if TYPE_CHECKING:
    import pyarrow as pa

#: How often a chunk may take its worker with it.
DEATHS_MAX = 10


def chunk_file(folder: Path, chunk: Chunk) -> Path:
    """The path of the file with the rows of a chunk."""
    return folder / "chunks" / f"point={chunk.point:05}" / f"first={chunk.first:09}.parquet"


def write(path: Path, put: Callable[[Path], object]) -> None:
    """Lets `put` write a file beside `path`, and renames it to `path` once it is complete and on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    put(unfinished)
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def in_parquet(table: pa.Table) -> bytes:
    """The rows of a table in the form of a Parquet file."""
    from pyarrow import parquet

    buffer = BytesIO()
    parquet.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def write_table(path: Path, table: pa.Table) -> None:
    """Writes the rows of a table to a Parquet file."""
    write(path, lambda file: file.write_bytes(in_parquet(table)))


def compute(experiment: Experiment, chunk: Chunk) -> bytes:
    """Works off a chunk on a worker. The worker also compresses the rows, so that one writing process keeps up with many workers."""
    return in_parquet(experiment.run(chunk))


def begin(experiment: Experiment, folder: Path) -> list[Chunk]:
    """Writes the experiment into the folder of its results, and returns the chunks that are not done yet."""
    described = folder / "experiment.json"
    if described.exists() and described.read_text() != experiment.canonical():
        raise IsochromeError(f"{folder}: holds results of another experiment, or of another version\n  hint: --output FOLDER")
    write(described, lambda file: file.write_text(experiment.canonical()))
    return [chunk for chunk in experiment.chunks() if not chunk_file(folder, chunk).exists()]


def work(experiment: Experiment, chunks: list[Chunk], client: Any, done: Callable[[Chunk, bytes], None]) -> None:
    """Works chunks off on the workers of a Dask client, and hands the rows of each chunk to `done` once.

    Only a few chunks per thread are under way, so memory does not grow with their number.
    """
    from distributed import as_completed
    from distributed.scheduler import KilledWorker

    digest = experiment.digest()[:16]
    deaths: dict[int, int] = {}
    under_way: dict[str, Chunk] = {}
    left = iter(chunks)
    finished = as_completed(loop=client.loop)

    def submit(chunk: Chunk) -> None:
        key = f"isochrome-{digest}-{chunk.number}-{deaths.get(chunk.number, 0)}"
        under_way[key] = chunk
        # The experiment goes along with every chunk: scattered data is lost with the last worker that has it.
        finished.add(client.submit(compute, experiment, chunk, key=key, pure=False))

    def fill() -> None:
        threads = sum(worker["nthreads"] for worker in client.scheduler_info(n_workers=-1)["workers"].values())
        while len(under_way) < 4 * max(threads, 1) and (chunk := next(left, None)) is not None:
            submit(chunk)

    fill()
    for future in finished:
        chunk = under_way.pop(future.key)
        if future.cancelled():
            raise ConnectionError("the scheduler is gone")
        error = future.exception()
        if isinstance(error, KilledWorker) and deaths.get(chunk.number, 0) < DEATHS_MAX:
            deaths[chunk.number] = deaths.get(chunk.number, 0) + 1
            submit(chunk)
            continue
        if error is not None:
            raise error
        done(chunk, future.result())
        fill()


def run(
    experiment: Experiment,
    folder: Path,
    *,
    scheduler: str | None = None,
    workers: int | None = None,
    progress: bool | None = None,
) -> None:
    """Works off the chunks that are left of an experiment, and draws conclusions.

    `scheduler`: address of a Dask scheduler. Without it, `workers` processes on this machine do the work (one per CPU by default).
    `progress`: whether to show a bar; on a terminal by default.
    """
    import dask
    from distributed import Client, LocalCluster
    from tqdm import tqdm

    total = sum(1 for _ in experiment.chunks())
    left = begin(experiment, folder)
    if left:
        # Every death is counted against all chunks on the worker, the innocent ones too.
        dask.config.set({"distributed.scheduler.allowed-failures": DEATHS_MAX})
        with tqdm(total=total, initial=total - len(left), unit="chunk", disable=None if progress is None else not progress) as bar:

            def done(chunk: Chunk, rows: bytes) -> None:
                write(chunk_file(folder, chunk), lambda file: file.write_bytes(rows))
                bar.update()

            if scheduler is not None:
                with Client(scheduler, set_as_default=False) as client:
                    work(experiment, left, client, done)
            else:
                count = workers or os.cpu_count() or 1
                with (
                    LocalCluster(n_workers=count, threads_per_worker=1, dashboard_address=None) as cluster,
                    Client(cluster, set_as_default=False) as client,
                ):
                    work(experiment, left, client, done)
    conclude(experiment, folder)


def read_chunks(experiment: Experiment, folder: Path) -> Iterator[tuple[Chunk, pa.Table]]:
    """The rows of every chunk, one after the other. Raises IsochromeError if a file does not hold the sets of its chunk."""
    from pyarrow import parquet

    for chunk in experiment.chunks():
        table = parquet.ParquetFile(chunk_file(folder, chunk)).read()
        if experiment.kind != "kim2013":
            numbers = table.column("set").to_numpy()
            if not np.array_equal(numbers, np.arange(chunk.first, chunk.first + chunk.count)):
                raise IsochromeError(f"{chunk_file(folder, chunk)}: does not hold its sets\n  hint: delete it and run again")
        yield chunk, table


def conclude(experiment: Experiment, folder: Path) -> None:
    """Writes tables and figures from the chunks."""
    if experiment.kind == "kim2013":
        compared(experiment, folder)
    else:
        counted(experiment, folder)


def counted(experiment: Experiment, folder: Path) -> None:
    """Writes two tables and their figures. `summary` has for every point and column the number of sets, how many are schedulable, the ratio
    and its 95 % interval. `weighted` has the weighted schedulability over all utilizations, if the grid has several."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from isochrome import plot

    points, columns = experiment.points(), experiment.columns()
    sets = np.zeros((len(points), len(columns)), dtype=np.int64)
    schedulable = np.zeros_like(sets)
    failures = []
    for chunk, table in read_chunks(experiment, folder):
        for i, column in enumerate(columns):
            values = table.column(column)
            sets[chunk.point, i] += len(values) - values.null_count
            schedulable[chunk.point, i] += pc.sum(values).as_py() or 0
        failed = table.filter(pc.is_valid(table.column("error"))).select(["set", "error"]).to_pylist()
        failures += [{"point": chunk.point} | row for row in failed]
    rows = []
    for number, point in enumerate(points):
        for i, column in enumerate(columns):
            n, k = int(sets[number, i]), int(schedulable[number, i])
            low, high = proportion_interval(k, n)
            ratio = k / n if n else None
            values = {"by": column, "sets": n, "schedulable": k, "ratio": ratio, "low": low, "high": high}
            rows.append({"point": number} | point | values)
    write_both(folder / "summary", pa.Table.from_pylist(rows))
    schema = pa.schema([("point", pa.int64()), ("set", pa.uint64()), ("error", pa.string())])
    write_both(folder / "failures", pa.Table.from_pylist(failures, schema=schema))
    plot.save(plot.schedulability(rows, x=next(iter(experiment.grid), "point")), folder / "schedulability")
    weighted = weighted_schedulability(rows, list(experiment.grid))
    if weighted:
        write_both(folder / "weighted", pa.Table.from_pylist(weighted))
        x = next(name for name in experiment.grid if name not in LOADS)
        figure = plot.schedulability(weighted, x=x, y="weighted")
        plot.save(figure, folder / "weighted")


#: Fields of the grid that are loads to weight by.
LOADS = ("utilization", "utilization_per_core")


def weighted_schedulability(rows: list[dict[str, Any]], grid: list[str]) -> list[dict[str, Any]]:
    """`W = sum(U S(U)) / sum(U)` over the utilizations U of a grid, for every combination of its other fields. [Bastoni2010]

    Nothing where the grid has no utilization, or nothing else.
    """
    load = next((name for name in grid if name in LOADS), None)
    others = [name for name in grid if name != load]
    if load is None or not others:
        return []
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["ratio"] is not None:
            groups.setdefault((*(row[name] for name in others), row["by"]), []).append(row)
    return [
        dict(zip((*others, "by"), key, strict=True))
        | {"weighted": sum(r[load] * r["ratio"] for r in group) / sum(r[load] for r in group)}
        for key, group in groups.items()
    ]


def compared(experiment: Experiment, folder: Path) -> None:
    """Writes [Kim2013, Figures 14 to 16], and a table that compares them with the paper's ranges."""
    import pyarrow as pa

    from isochrome import plot

    tables = [table for _, table in read_chunks(experiment, folder)]
    comparisons = [Comparison.from_dict(comparison_fields(table.to_pylist())) for table in tables]
    write_both(folder / "summary", pa.concat_tables(tables))
    write(folder / "figures-14-16.svg", lambda file: file.write_text(figures_14_to_16(comparisons)))
    lines = ["| compared | here | [Kim2013] |", "|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in beside_kim2013(comparisons)]
    text = "\n".join(map(str, comparisons)) + "\n" + "\n".join(lines) + "\n"
    write(folder / "beside-kim2013.md", lambda file: file.write_text(text))
    for number, value in ((14, "share"), (15, "memory_used"), (16, "least")):
        plot.save(plot.methods([comparison.to_dict() for comparison in comparisons], value=value), folder / f"figure-{number}")
    sys.stdout.write(text)


def write_both(path: Path, table: pa.Table) -> None:
    """Writes a table as Parquet and as CSV. Columns of lists are in the Parquet file only."""
    import pyarrow as pa
    from pyarrow import csv

    write_table(path.with_suffix(".parquet"), table)
    flat = [name for name in table.column_names if not pa.types.is_list(table.schema.field(name).type)]
    write(path.with_suffix(".csv"), lambda file: csv.write_csv(table.select(flat), file))


def arguments() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="isochrome sweep",
        description="Works off an experiment over many random task sets, or what is left of it.",
        epilog="Example: isochrome sweep examples/sweeps/analyses.toml -o results",
    )
    parser.add_argument("--version", action="version", version=f"isochrome-sweep {__version__}")
    parser.add_argument("experiment", type=Path, help="the experiment, TOML")
    parser.add_argument("-o", "--output", type=Path, help="folder of the results [default: beside the experiment]")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--scheduler", help="address of a Dask scheduler, such as tcp://host:8786 [default: the work is done on this machine]")
    where.add_argument("--workers", type=int, help="processes on this machine [default: one per CPU]")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Runs the command with the arguments `argv`, or with those of the process; the exit code is 0, or 1 if it could not run."""
    options = arguments().parse_args(argv)
    try:
        folder = options.output or options.experiment.with_suffix("")
        run(Experiment.from_file(options.experiment), folder, scheduler=options.scheduler, workers=options.workers)
    except KeyboardInterrupt:
        print("stopped; what is done is kept: run the same command to go on", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        print(f"{error}\n  hint: pip install dask distributed matplotlib pyarrow tqdm", file=sys.stderr)
        return 1
    except (IsochromeError, ConnectionError, TimeoutError, OSError, CancelledError) as error:
        print(f"{error}\nwhat is done is kept: run the same command to go on", file=sys.stderr)
        return 1
    print(folder)
    return 0
