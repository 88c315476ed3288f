"""Evidence files as tables."""

from __future__ import annotations

import hashlib
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isochrome._isochrome import IsochromeError, evidence

if TYPE_CHECKING:
    import pyarrow as pa


class Evidence:
    """What `isochrome` measured: all of its evidence file, and tables of it in Arrow.

    A table becomes a frame by its own `to_pandas()`, or by `polars.from_arrow(table)`.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self.fields: dict[str, Any] = evidence(self.path.read_text())

    def numbers(self, id: str) -> list[dict[str, Any]]:
        """The numbers of every section of this name, such as `kernels` or `crpd`."""
        return [section["numbers"] for section in self.fields["sections"] if section["id"] == id]

    def _experiments(self) -> list[dict[str, Any]]:
        return [experiment for numbers in self.numbers("kernels") for experiment in numbers["experiments"]]

    def outcomes(self) -> pa.Table:
        """One row for each experiment and condition: jobs, their times in cycles, blocks that count, misses."""
        import pyarrow as pa

        rows = []
        for experiment in self._experiments():
            about = {name: value for name, value in experiment.items() if name != "conditions"}
            for condition, outcome in experiment["conditions"].items():
                flat = {name: value for name, value in outcome.items() if not isinstance(value, dict | list)}
                control = {f"control_{name}": value for name, value in outcome["control"].items()}
                rows.append(about | {"condition": condition} | flat | control)
        return pa.Table.from_pylist(rows)

    def jobs(self) -> pa.Table:
        """One row for each job, from the raw files beside the evidence, whose hashes are checked."""
        import pyarrow as pa
        from pyarrow import csv

        tables = []
        for raw in self.fields["raw"]:
            file = self.path.parent / raw["path"]
            if hashlib.sha256(file.read_bytes()).hexdigest() != raw["sha256"]:
                raise IsochromeError(f"{file}: is not the file that the evidence was made with")
            tables.append(csv.read_csv(file))
        return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})

    def __repr__(self) -> str:
        experiments = [experiment["bench"] for experiment in self._experiments()]
        return f"Evidence({str(self.path)!r}, experiments={experiments})"


def read_evidence(path: str | PathLike[str]) -> Evidence:
    """Reads and checks an evidence file."""
    return Evidence(path)
