"""Frames of pandas or polars from the JSON that isochrome prints and writes."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator
from functools import cache, cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isochrome._isochrome import IsochromeError, evidence, plan_document, schemas
from isochrome._tables import Column, Table, Tables

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

#: Types of pandas for columns with and without nulls. Integers with nulls have one of their own, so that no digit is lost.
PANDAS = {"int": "int64", "uint": "uint64", "float": "float64", "bool": "bool", "str": "str", "mixed": "object"}
PANDAS_WITH_NULLS = PANDAS | {"int": "Int64", "uint": "UInt64", "bool": "boolean"}


class Evidence:
    """A document of isochrome: what a verb printed with `--json` or wrote with `-o`, in any schema of docs/reference/json.md.

    `to_pandas()` and `to_polars()` give all of it as frames, by one rule for all schemas:

    - The frame named after the schema, such as `plan` for `isochrome-plan/2`, has one row: the fields of the document. Objects in it
      become columns with dots, such as `costs.switch_ns`.
    - Every array is a frame of its own with a row for each element, such as `plan.cores.tasks`. Its columns `plan.cores.index` and
      `plan.cores.tasks.index` say which element of which, counted from 0; frames are joined on them. Numbers and texts in an array are
      the column `value`. Lists of a fixed length, such as points of a curve, are columns `0`, `1` and so on.
    - So is every object with free keys, such as conditions by their names; its column that ends in `.key` has the key.
    - The numbers of a section of evidence are called as in the experiment's own document, such as `crpd` and `crpd.points`;
      `evidence.sections.index` says of which section they are.
    - A raw file in CSV beside the evidence is a frame, under the path that the evidence has for it.

    Frames and columns of the schema are there even if the document has nothing for them. Units are in the names of columns, or else in
    `columns(frame)`, and for pandas in `frame.attrs["units"]`.

    >>> repair = isochrome.Evidence.from_text('{"schema": "isochrome-repair/1", "pid": 4711, "repaired": true}')
    >>> repair.to_pandas()["repair"]["pid"].tolist()
    [4711]
    """

    #: The file that was read; for text, where it would be.
    path: Path
    #: The schema that the document names, such as `isochrome-plan/2`.
    schema: str
    #: The documents as they are: dictionaries, lists, texts, numbers. One, but for a file with one on each line.
    documents: list[dict[str, Any]]

    def __init__(self, path: str | PathLike[str]) -> None:
        """Reads a file, or a folder's `evidence.json`, or the one document that is there. A file may have several of one schema, each on
        a line, as `map --watch --json` prints them.

        Raises IsochromeError if it is not JSON of isochrome, or of a version of its schema that this package does not read. Evidence,
        plans and analyses are read in their first version, too; `documents` then has the present one, which numbers partitions from 0.
        """
        path = Path(path)
        self.path = _document_in(path) if path.is_dir() else path
        try:
            self._read(_text(self.path))
        except IsochromeError as error:
            raise IsochromeError(f"{self.path}: {error}") from None

    @classmethod
    def from_text(cls, text: str, *, folder: str | PathLike[str] = ".") -> Evidence:
        """Reads what a verb has printed. `folder`: where the raw files are that it names."""
        made = cls.__new__(cls)
        made.path = Path(folder) / "-"
        made._read(text)
        return made

    def _read(self, text: str) -> None:
        documents = _documents(text)
        self.schema = documents[0]["schema"]
        self.documents = [_checked(document, self.schema) for document in documents]

    @property
    def fields(self) -> dict[str, Any]:
        """The document as it is: dictionaries, lists, texts, numbers. Raises IsochromeError for a file with several."""
        if len(self.documents) != 1:
            raise IsochromeError(f"{self.path}: has {len(self.documents)} documents\n  hint: .documents is a list of them")
        return self.documents[0]

    @cached_property
    def _tables(self) -> Tables:
        name = _name(self.schema)
        return Tables(_schema(name), name, self.documents, numbered=len(self.documents) > 1)

    def names(self) -> list[str]:
        """The names of all frames that have rows, without those of raw files."""
        return [name for name, table in self._tables.items() if table.rows]

    def columns(self, frame: str) -> list[Column]:
        """The columns of a frame: for each its name, its unit ("" for none), and what the schema says of it."""
        if frame not in self._tables:
            raise IsochromeError(f"{frame}: no such frame\n  hint: there are {', '.join(self.names())}")
        return list(self._tables[frame].columns.values())

    def to_pandas(self) -> dict[str, pd.DataFrame]:
        """All frames by name, in pandas, which must be installed. `attrs` of each has `units` and `descriptions` of its columns."""
        try:
            import pandas as pd
        except ImportError:
            raise ImportError("pandas is not installed\n  hint: pip install pandas") from None
        frames = {name: _in_pandas(table) for name, table in self._tables.items()}
        return frames | {path: pd.read_csv(file) for path, file in self._raw_tables()}

    def to_polars(self) -> dict[str, pl.DataFrame]:
        """All frames by name, in polars, which must be installed. For units see `columns`."""
        try:
            import polars as pl
        except ImportError:
            raise ImportError("polars is not installed\n  hint: pip install polars") from None
        frames = {name: _in_polars(table) for name, table in self._tables.items()}
        return frames | {path: pl.read_csv(file, infer_schema_length=None) for path, file in self._raw_tables()}

    def _raw_files(self) -> Iterator[tuple[str, Path]]:
        """Raw files in CSV that evidence names, each with the path in the evidence. Raises IsochromeError if the contents of a file have changed."""
        for raw in (raw for document in self.documents for raw in document.get("raw", ())):
            file = self.path.parent / raw["path"]
            if file.suffix != ".csv":
                continue
            if file.exists() and hashlib.sha256(file.read_bytes()).hexdigest() != raw["sha256"]:
                raise IsochromeError(f"{file}: is not the file that the evidence was made with")
            yield raw["path"], file

    def _raw_tables(self) -> Iterator[tuple[str, Path]]:
        for path, file in self._raw_files():
            if file.exists():
                yield path, file
            else:
                warnings.warn(f"{file}: the evidence names this file, but it is not there, so no frame has its rows", stacklevel=3)

    def numbers(self, id: str) -> list[dict[str, Any]]:
        """The numbers of every section of evidence of this kind, such as `kernels` or `crpd`, as dictionaries."""
        return [section["numbers"] for section in self.fields.get("sections", ()) if section["id"] == id]

    def _experiments(self) -> list[dict[str, Any]]:
        return [experiment for numbers in self.numbers("kernels") for experiment in numbers["experiments"]]

    def outcomes(self) -> pa.Table:
        """One row for each experiment and condition of kernels: jobs, their times in cycles, blocks that count, misses. Needs pyarrow."""
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
        """One row for each job, from all raw files in CSV beside the evidence, whose hashes are checked. Needs pyarrow."""
        import pyarrow as pa
        from pyarrow import csv

        tables = [csv.read_csv(file) for _, file in self._raw_files()]
        return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})

    def __repr__(self) -> str:
        rows = ", ".join(f"{name}: {len(self._tables[name].rows)}" for name in self.names())
        return f"Evidence({str(self.path)!r}, {self.schema}, rows={{{rows}}})"


def read_evidence(path: str | PathLike[str]) -> Evidence:
    """Reads and checks a document of isochrome, a file or a folder, as `Evidence(path)` does."""
    return Evidence(path)


def _name(schema: str) -> str:
    """The name in a schema, such as `plan` in `isochrome-plan/2`."""
    return schema.removeprefix("isochrome-").partition("/")[0]


@cache
def _schema(name: str) -> dict[str, Any]:
    """The JSON Schema of this name."""
    known: dict[str, Any] = json.loads(schemas()[name])
    return known


def _document_in(folder: Path) -> Path:
    """The only file of a folder that is a document of isochrome, or its `evidence.json`."""
    if (folder / "evidence.json").exists():
        return folder / "evidence.json"
    found = [file for file in sorted(folder.glob("*.json")) if _is_document(_text(file))]
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise IsochromeError(f"{folder}: has no evidence.json, and not one other document of isochrome ({names})\n  hint: name the file")
    return found[0]


def _text(file: Path) -> str:
    # Bytes that are not text are replaced: the result is not JSON either, and is refused as such.
    return file.read_text(encoding="utf-8", errors="replace")


def _is_document(text: str) -> bool:
    try:
        return all(document["schema"].startswith("isochrome-") for document in _documents(text))
    except IsochromeError:
        return False


def _documents(text: str) -> list[dict[str, Any]]:
    """The documents of a text: one, or one on each line."""
    try:
        try:
            found = [json.loads(text)]
        except json.JSONDecodeError:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
    except json.JSONDecodeError as error:
        raise IsochromeError(f"is not JSON: {error}\n  hint: `--json` of a verb prints some, and `-o FILE` writes it") from None
    if not found or not all(isinstance(document, dict) and isinstance(document.get("schema"), str) for document in found):
        raise IsochromeError("does not say its schema, so it is not a document of isochrome\n  hint: docs/reference/json.md lists them")
    return found


def _checked(document: dict[str, Any], schema: str) -> dict[str, Any]:
    """Checks that a document has the schema `schema`, and that this package knows it. Returns the document in the form of the present version."""
    found = document["schema"]
    if found != schema:
        raise IsochromeError(f"has documents of {schema} and of {found}\n  hint: put them into files of their own")
    if found.startswith("isochrome-evidence/"):
        # The tool's own reader checks it, and brings the first version into the form of the present one.
        read: dict[str, Any] = evidence(json.dumps(document))
        return document if found == _schema("evidence")["title"] else read
    if found == "isochrome-plan/1":
        # Its partitions are numbered from 1.
        plan: dict[str, Any] = plan_document(json.dumps(document))
        return plan
    if _name(found) not in schemas():
        raise IsochromeError(f"{found}: is not a schema that this version knows\n  hint: it knows {', '.join(schemas())}")
    known = _schema(_name(found))["title"]
    if found == "isochrome-analysis/1":
        # Its partitions are numbered from 1, too.
        overfull = [number - 1 for number in document.get("overfull_partitions", [])]
        return document | {"schema": known} | ({"overfull_partitions": overfull} if overfull else {})
    if found != known:
        raise IsochromeError(f"{found}: this version reads {known}\n  hint: make it anew, or read it with the version that wrote it")
    return document


def _in_pandas(table: Table) -> pd.DataFrame:
    import pandas as pd

    columns = {}
    for name in table.columns:
        values = table.values(name)
        types = PANDAS_WITH_NULLS if None in values else PANDAS
        columns[name] = pd.Series(values, dtype=types[table.kind(name)])
    frame = pd.DataFrame(columns, index=range(len(table.rows)))
    frame.attrs["units"] = {column.name: column.unit for column in table.columns.values() if column.unit}
    frame.attrs["descriptions"] = {column.name: column.description for column in table.columns.values() if column.description}
    return frame


def _in_polars(table: Table) -> pl.DataFrame:
    import polars as pl

    types = {"int": pl.Int64, "uint": pl.UInt64, "float": pl.Float64, "bool": pl.Boolean, "str": pl.String, "mixed": pl.Object}
    return pl.DataFrame([pl.Series(name, table.values(name), dtype=types[table.kind(name)]) for name in table.columns])
