"""Experiments over many task sets. An experiment file describes one, and its work is divided into chunks.

The result of a chunk depends on the experiment and the number of the chunk only, not on the process, the machine or the time.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from isochrome._isochrome import (
    Generator,
    IsochromeError,
    TaskSet,
    __version__,
    compare,
    plan_batch,
    response_times_batch,
)

if TYPE_CHECKING:
    import pyarrow as pa

Value = float | int | str
Point = dict[str, Any]


@dataclass(frozen=True)
class Chunk:
    """Sets `first` to `first + count - 1` at point number `point`."""

    number: int
    point: int
    first: int
    count: int


@dataclass(frozen=True)
class Experiment:
    """An experiment file.

    kind "analysis": every set is one core with partitions at random, bounded by each of `analyses`.
    kind "plan": every set is planned by each of `methods` for `objective`. A search stops after `checks_limit` looks at its stop
    condition, which, unlike a time, does not depend on the machine; a set without a plan by then counts as not schedulable.
    kind "kim2013": [Kim2013, section 5.5] on `task_set`, a file's text.

    `grid`: fields of the generator and their values; the points are all combinations. `utilization_per_core` stands for a
    `utilization` of so much on each core. For "kim2013" the grid has `copies` and `memory_mib`.
    """

    name: str
    kind: str
    seed: int = 1
    sets: int = 1000
    sets_per_chunk: int = 1000
    analyses: tuple[str, ...] = ("kim2013",)
    methods: tuple[str, ...] = ("bfd", "wfd", "cata")
    objective: str = "utilization"
    checks_limit: int | None = None
    generator: dict[str, Any] = field(default_factory=dict)
    grid: dict[str, list[Any]] = field(default_factory=dict)
    task_set: str = ""
    cores: int = 4

    @staticmethod
    def from_file(path: str | Path) -> Experiment:
        """Reads an experiment file; a `task_set` in it is a file beside it."""
        path = Path(path)
        try:
            fields = tomllib.loads(path.read_text())
        except tomllib.TOMLDecodeError as error:
            raise IsochromeError(f"{path}: {error}") from None
        unknown = sorted(set(fields) - set(Experiment.__dataclass_fields__))
        if unknown:
            known = ", ".join(Experiment.__dataclass_fields__)
            raise IsochromeError(f"{path}: {unknown[0]} is not a field of an experiment\n  hint: there are {known}")
        if "task_set" in fields:
            fields["task_set"] = (path.parent / fields["task_set"]).read_text()
        for name in ("analyses", "methods"):
            if name in fields:
                fields[name] = tuple(fields[name])
        try:
            experiment = Experiment(**fields)
        except TypeError as error:
            raise IsochromeError(f"{path}: {error}\n  hint: name and kind are needed") from None
        experiment.check()
        return experiment

    def check(self) -> None:
        """Raises IsochromeError if a field is wrong, before anything is computed."""
        if self.kind not in ("analysis", "plan", "kim2013"):
            raise IsochromeError(f"kind: {self.kind} is not one of analysis, plan, kim2013")
        for name in ("sets", "sets_per_chunk"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise IsochromeError(f"{name}: must be a whole number, at least 1")
        for name, values in self.grid.items():
            if not isinstance(values, list) or not values:
                raise IsochromeError(f"grid.{name}: must be a list of values")
        if self.kind == "kim2013":
            if sorted(self.grid) != ["copies", "memory_mib"] or not self.task_set:
                raise IsochromeError("grid: kind kim2013 needs task_set, grid.copies and grid.memory_mib, and no more")
        for point in self.points():
            if self.kind == "kim2013":
                self._task_set(point)
            else:
                self.generator_at(point)

    def digest(self) -> str:
        """A hash of all fields and the version. Results with the same digest may be combined."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()

    def canonical(self) -> str:
        """All fields and the version as text, always in the same order."""
        return json.dumps({"isochrome": __version__} | asdict(self), indent=1, sort_keys=True) + "\n"

    def points(self) -> list[Point]:
        """All combinations of the grid, the last field changing first."""
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]

    def columns(self) -> tuple[str, ...]:
        """The analyses or methods that the experiment compares."""
        return self.analyses if self.kind == "analysis" else self.methods

    def chunks(self) -> Iterator[Chunk]:
        """All chunks, in the order of their numbers."""
        sets = 1 if self.kind == "kim2013" else self.sets
        starts = range(0, sets, self.sets_per_chunk)
        for number, (point, first) in enumerate(itertools.product(range(len(self.points())), starts)):
            yield Chunk(number, point, first, min(self.sets_per_chunk, sets - first))

    def generator_at(self, point: Point) -> Generator:
        """The generator of the task sets of a point."""
        fields = self.generator | point
        per_core = fields.pop("utilization_per_core", None)
        generator = Generator(**fields)
        if per_core is None:
            return generator
        return Generator(**(fields | {"utilization": per_core * generator.to_dict()["cores"]}))

    def _task_set(self, point: Point) -> TaskSet:
        one = TaskSet.from_text(self.task_set, cores=self.cores, memory_mib=point["memory_mib"])
        return one.copied(point["copies"])

    def run(self, chunk: Chunk) -> pa.Table:
        """Works a chunk off, and returns one row for every set or method of [Kim2013]. The row of a set that fails has the reason
        in `error`; the other sets are worked off all the same."""
        match self.kind:
            case "analysis":
                return self._analyze(chunk)
            case "plan":
                return self._plan(chunk)
            case _:
                return self._compare(chunk)

    def _rows(self, chunk: Chunk, failed: list[tuple[int, str]], columns: dict[str, Any]) -> pa.Table:
        import pyarrow as pa

        index = np.arange(chunk.first, chunk.first + chunk.count, dtype=np.uint64)
        errors = dict(failed)
        fixed = {"set": pa.array(index), "error": pa.array([errors.get(int(i)) for i in index], pa.string())}
        return pa.table(fixed | columns)

    def _spread(self, chunk: Chunk, index: np.ndarray[Any, Any], found: ArrayLike) -> pa.Array:
        """Values of the sets that did not fail, null for the others."""
        import pyarrow as pa

        values = np.asarray(found)
        missing = np.ones(chunk.count, dtype=bool)
        all_values = np.zeros(chunk.count, dtype=values.dtype)
        places = index.astype(np.int64) - chunk.first
        missing[places] = False
        all_values[places] = values
        return pa.array(all_values, mask=missing)

    def _analyze(self, chunk: Chunk) -> pa.Table:
        generator = self.generator_at(self.points()[chunk.point])
        batch = generator.batch(seed=self.seed, first=chunk.first, count=chunk.count)
        machine = generator.to_dict()
        columns = {}
        for analysis in self.analyses:
            responses = response_times_batch(
                batch["wcet_ns"],
                batch["period_ns"],
                deadline_ns=batch["deadline_ns"],
                partitions=batch["partitions"],
                refill_ns=machine["refill_ns_per_partition"],
                switch_ns=machine["switch_ns"],
                analysis=analysis,
            )
            columns[analysis] = self._spread(chunk, batch["index"], (responses >= 0).all(axis=1))
        return self._rows(chunk, batch["failed"], columns)

    def _plan(self, chunk: Chunk) -> pa.Table:
        generator = self.generator_at(self.points()[chunk.point])
        columns = {}
        failed: list[tuple[int, str]] = []
        for method in self.methods:
            index, schedulable, partitions_used, utilization, failures = plan_batch(
                generator,
                seed=self.seed,
                first=chunk.first,
                count=chunk.count,
                method=method,
                objective=self.objective,
                checks_limit=self.checks_limit,
            )
            columns[method] = self._spread(chunk, index, schedulable)
            columns[f"{method}_partitions"] = self._spread(chunk, index, partitions_used)
            columns[f"{method}_utilization"] = self._spread(chunk, index, utilization)
            failed += failures
        return self._rows(chunk, failed, columns)

    def _compare(self, chunk: Chunk) -> pa.Table:
        import pyarrow as pa

        comparison = compare(self._task_set(self.points()[chunk.point]), checks_limit=self.checks_limit).to_dict()
        about = {name: value for name, value in comparison.items() if name != "methods"}
        schema = pa.schema(
            [("tasks", pa.uint32()), ("cores", pa.uint32()), ("partitions", pa.uint32()), ("memory", pa.uint64())]
            + [("method", pa.string()), ("fewest", pa.uint32()), ("share", pa.float64())]
            + [("memory_used", pa.float64()), ("least", pa.float64()), ("bounds", pa.list_(pa.float64()))]
        )
        return pa.Table.from_pylist([about | method for method in comparison["methods"]], schema=schema)


def comparison_fields(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The rows of a chunk of kind "kim2013" as the fields of a `Comparison`."""
    names = ("method", "fewest", "share", "memory_used", "least", "bounds")
    about = {name: rows[0][name] for name in ("tasks", "cores", "partitions", "memory")}
    return about | {"methods": [{name: row[name] for name in names} for row in rows]}
