"""Tests of the frames of documents: every value of a document is in a frame, whatever the schema."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import isochrome
import jsonschema
import pytest
from documents import VARIANTS, document
from isochrome import Evidence, IsochromeError
from isochrome._tables import Tables

REPOSITORY = Path(__file__).resolve().parents[3]
SCHEMAS = {path.stem: json.loads(path.read_text()) for path in sorted((REPOSITORY / "docs/reference/schemas").glob("*.json"))}
BINARY = Path(os.environ.get("CARGO_TARGET_DIR") or REPOSITORY / "target").resolve() / "debug/isochrome"
#: What needs no hardware: commands, in which % is a folder.
COMMANDS = [
    "doctor --json",
    "palette --replay crates/model/tests/data/zen3-vm-samples.json --json",
    "simulate --machine zen3 --workload fft:points=256 --json",
    "simulate curve --level 64K:4:64 --workload fft:points=256 --json",
    "simulate flood --machine pentium-ii --json",
    "simulate --scenario examples/interference.toml --json",
    "plan examples/kim2013-table1.json --cores 4 --memory 1G --json",
    "analyze examples/kim2013-table1.json --cores 4 --allocation %/plan.json --json",
    "watch --replay %/slices --json",
    "watch --replay %/slices -o %/watch.json",
    "ps --json",
    "lab crpd --machine i7-2600 --mhz 1000 --json",
    "lab workload --miss-ratio 0.33 --machine zen3 --policy lru --json",
]


def contents_of_document(value, known, key=None):
    """Counts every number, text and truth value of a document, each with its key if that is one of the `known`."""
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else ((None, part) for part in value)
        return sum((contents_of_document(part, known, name if name in known else None) for name, part in parts), Counter())
    return Counter() if value is None else Counter([(key, value)])


def key_of(column):
    """The key that a column holds; None for elements of arrays, which have none."""
    last = column.rpartition(".")[2]
    return None if last == "value" or last.isdigit() else last


def contents_of_frames(frames):
    """Counts every number, text and truth value in polars frames. The columns that identify the row are not content."""
    found = Counter()
    for frame in frames.values():
        for column in frame.columns:
            if not column.endswith((".index", ".key")):
                found.update((key_of(column), value) for value in frame[column].to_list() if value is not None)
    return found


def rows_of_document(value, name, frames, found):
    """Counts the elements of arrays, and the entries of objects with free keys, for the frame that each has to be in."""
    by = {list: "index", dict: "key"}.get(type(value))
    if name in frames and f"{name}.{by}" in frames[name].columns:
        found[name] += len(value)
        for part in value.values() if by == "key" else value:
            if f"{name}.items" in frames:
                rows_of_document(part, f"{name}.items", frames, found)
            else:
                rows_below(part, name, frames, found)
    else:
        rows_below(value, name, frames, found)


def rows_below(value, name, frames, found):
    """Counts the elements and entries in the parts of an object, or of a list of fixed length."""
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if (name, key) == ("evidence.sections", "numbers"):
            found[value["id"]] += 1
            rows_of_document(part, value["id"], frames, found)
        else:
            rows_of_document(part, f"{name}.{key}", frames, found)


def check_nothing_is_lost(evidence):
    fields, frames = evidence.fields, evidence.to_polars()
    name = fields["schema"].removeprefix("isochrome-").partition("/")[0]
    columns = {key_of(column) for frame in frames.values() for column in frame.columns}
    wanted = contents_of_document(fields, columns)
    found = contents_of_frames(frames)
    assert wanted == found, (wanted - found, found - wanted)
    rows = Counter({name: 1})
    rows_below(fields, name, frames, rows)
    assert {name: frame.height for name, frame in frames.items() if frame.height} == {name: n for name, n in rows.items() if n}
    in_pandas = evidence.to_pandas()
    assert list(in_pandas) == list(frames)
    for name, frame in frames.items():
        assert list(in_pandas[name].columns) == frame.columns
        assert len(in_pandas[name]) == frame.height
        for column in frame.columns:
            values = in_pandas[name][column]
            assert [None if null else value for value, null in zip(values.tolist(), values.isna(), strict=True)] == frame[column].to_list()


@pytest.mark.parametrize("variant", range(VARIANTS))
@pytest.mark.parametrize("name", [name for name in SCHEMAS if name != "evidence"])
def test_nothing_of_a_document_of_any_schema_is_lost(name, variant):
    made = document(SCHEMAS[name], variant)
    jsonschema.validate(made, SCHEMAS[name])
    check_nothing_is_lost(Evidence.from_text(json.dumps(made)))


@pytest.mark.parametrize("variant", range(VARIANTS))
def test_nothing_of_evidence_with_every_kind_of_section_is_lost(variant):
    # The tool's own reader checks evidence, so all but the numbers is that of measured evidence.
    fields = json.loads((REPOSITORY / "docs/results/evidence/filter.json").read_text())
    schema = SCHEMAS["evidence"]
    measured = fields["sections"][0]
    kinds = [kind for kind in schema["$defs"]["Section"]["allOf"]]
    for number, kind in enumerate(kinds):
        numbers = document(kind["then"]["properties"]["numbers"] | {"$defs": schema["$defs"]}, VARIANTS * number + variant)
        section = measured | {"id": kind["if"]["properties"]["id"]["const"], "numbers": numbers}
        fields["sections"] += [section] if section["id"] != "kernels" else [section, section]
    jsonschema.validate(fields, schema)
    assert len(kinds) == 11
    check_nothing_is_lost(Evidence.from_text(json.dumps(fields)))


MEASURED = [*sorted((REPOSITORY / "docs/results/evidence").glob("*.json")), REPOSITORY / "crates/model/tests/data/zen3-vm-samples.json"]


@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.stem)
def test_nothing_of_what_was_measured_is_lost(path):
    check_nothing_is_lost(Evidence(path))


def test_nothing_of_what_the_command_prints_is_lost(tmp_path):
    if not BINARY.exists():
        pytest.skip(f"{BINARY} is not built; cargo build -p isochrome-cli builds it")
    slices = [
        {"schema": "isochrome-slices/2"},
        {"cpu": 0, "thread": 7, "name": "control", "begin": 0, "end": 1000, "left": "preempted"},
        {"cpu": 1, "thread": 7, "name": "control", "begin": 2000, "end": 2500, "left": "asleep"},
    ]
    (tmp_path / "slices").write_text("\n".join(map(json.dumps, slices)))
    environment = os.environ | {"ISOCHROME_RUNTIME_DIR": str(tmp_path / "runtime")}
    seen = set()
    for line in COMMANDS:
        command = [str(BINARY), *line.replace("%", str(tmp_path)).split()]
        output = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, env=environment)
        if line.startswith("plan "):
            (tmp_path / "plan.json").write_text(output.stdout)
        evidence = Evidence(tmp_path / "watch.json") if "-o" in line else Evidence.from_text(output.stdout)
        seen.add(evidence.schema)
        check_nothing_is_lost(evidence)
    assert len(seen) == len(COMMANDS), seen


def test_the_package_has_the_schemas_of_the_repository():
    assert {name: json.loads(text) for name, text in isochrome._isochrome.schemas().items()} == SCHEMAS


def test_frames_are_joined_by_the_numbers_of_rows():
    fields = json.loads((REPOSITORY / "docs/results/evidence/crpd.json").read_text())
    frames = Evidence(REPOSITORY / "docs/results/evidence/crpd.json").to_pandas()
    points, numbers = frames["crpd.points"], [section["numbers"] for section in fields["sections"]]
    for section, point in ((0, 0), (len(numbers) - 1, 2)):
        row = points[(points["evidence.sections.index"] == section) & (points["crpd.points.index"] == point)]
        scalars = {key: value for key, value in numbers[section]["points"][point].items() if isinstance(value, int | float | str)}
        assert scalars and {key: row[key].item() for key in scalars} == scalars
    joined = points.merge(frames["crpd"], on="evidence.sections.index", suffixes=("", "_of_section"))
    assert len(joined) == sum(len(one["points"]) for one in numbers)
    assert set(joined["ways"]) == {one["ways"] for one in numbers}


def test_integers_keep_all_their_digits_beside_nulls():
    made = document(SCHEMAS["palette-found"], 0)
    for seed, kinds in ((2**64 - 1, ("uint64", "UInt64")), (2**53 + 1, ("int64", "Int64")), (None, ("Int64", "Int64"))):
        made["seed"] = seed
        evidence = Evidence.from_text(json.dumps(made))
        one, polars = evidence.to_pandas()["palette-found"]["seed"], evidence.to_polars()["palette-found"]["seed"]
        assert str(one.dtype) == kinds[0] and str(polars.dtype) == kinds[1]
        assert polars.to_list() == [seed] and (one.isna().all() if seed is None else one.tolist() == [seed])


def test_a_column_has_one_type_whatever_the_schema():
    for name in SCHEMAS:
        if name != "evidence":
            empty = Tables(SCHEMAS[name], name, [], numbered=False)
            assert [(at, column) for at, table in empty.items() for column in table.columns if table.kind(column) == "mixed"] == []


def test_several_documents_on_lines_are_rows(tmp_path):
    repairs = [{"schema": "isochrome-repair/1", "pid": pid, "repaired": pid == 1} for pid in (1, 2)]
    path = tmp_path / "repairs.json"
    path.write_text("\n".join(map(json.dumps, repairs)) + "\n")
    evidence = Evidence(path)
    assert evidence.documents == repairs
    assert evidence.to_pandas()["repair"].to_dict("list") == {
        "repair.index": [0, 1], "pid": [1, 2], "repaired": [True, False], "schema": ["isochrome-repair/1"] * 2,
    }
    with pytest.raises(IsochromeError, match="2 documents\n  hint"):
        _ = evidence.fields


def test_plans_and_analyses_of_the_first_version_have_partitions_from_0():
    plan = Evidence(REPOSITORY / "crates/model/tests/data/plan-1.json")
    assert plan.schema == "isochrome-plan/1" and plan.fields["schema"] == "isochrome-plan/2"
    frames = plan.to_polars()
    assert frames["plan.cores.partitions"]["value"].to_list() == [0, 1]
    assert frames["plan.cores.tasks.partitions"]["value"].to_list() == [1, 0, 1]
    assert frames["plan.cores.recurrence.tasks.useful"]["value"].to_list() == [1, 0, 1]
    check_nothing_is_lost(plan)
    made = document(SCHEMAS["analysis"], 0) | {"schema": "isochrome-analysis/1", "overfull_partitions": [1, 4]}
    analysis = Evidence.from_text(json.dumps(made))
    assert analysis.fields["schema"] == "isochrome-analysis/2" and analysis.fields["overfull_partitions"] == [0, 3]
    jsonschema.validate(analysis.fields, SCHEMAS["analysis"])


def test_units_are_in_names_or_beside_them():
    evidence = Evidence(REPOSITORY / "docs/results/evidence/filter.json")
    units = {(name, column.name): column.unit for name in evidence.to_polars() for column in evidence.columns(name)}
    assert units["evidence", "machine.page_bytes"] == "bytes"
    assert units["evidence", "machine.memory_load_ns.value"] == "ns"
    assert units["evidence", "machine.memory_load_ns.source"] == ""
    assert units["kernels.experiments", "working_set"] == "bytes"
    assert units["kernels.experiments.conditions", "cycles_median"] == "cycles"
    assert units["kernels.experiments.conditions.ccdf", "0"] == "cycles"
    assert units["kernels.experiments.conditions.ccdf", "kernels.experiments.conditions.ccdf.index"] == ""
    frame = evidence.to_pandas()["kernels.experiments"]
    assert frame.attrs["units"]["working_set"] == "bytes" and frame.attrs["descriptions"]["working_set"]
    with pytest.raises(IsochromeError, match="no such frame"):
        evidence.columns("nothing")


def test_a_folder_is_its_evidence_or_its_one_document(tmp_path):
    repair = tmp_path / "repair.json"
    repair.write_text(json.dumps({"schema": "isochrome-repair/1", "pid": 1, "repaired": True}))
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    assert Evidence(tmp_path).path == repair
    (tmp_path / "more.json").write_text(repair.read_text())
    with pytest.raises(IsochromeError, match="more.json, repair.json"):
        Evidence(tmp_path)
    measured = REPOSITORY / "docs/results/evidence/flood.json"
    (tmp_path / "evidence.json").write_text(measured.read_text())
    assert isochrome.read_evidence(tmp_path).fields == json.loads(measured.read_text())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "schema"),
        ("{", "is not JSON"),
        ("\udcff", "is not JSON"),
        ("[]", "does not say its schema"),
        ('{"schema": 3}', "does not say its schema"),
        ('{"schema": "isochrome-nothing/1"}', "isochrome-nothing/1: is not a schema"),
        ('{"schema": "isochrome-crpd/1"}', "isochrome-crpd/1: this version reads isochrome-crpd/2"),
        ('{"schema": "isochrome-evidence/2"}', "missing field"),
        ('{"schema": "isochrome-repair/1"}\n{"schema": "isochrome-crpd/2"}', "isochrome-repair/1 and of isochrome-crpd/2"),
    ],
)
def test_what_is_no_document_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / "document.json"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(IsochromeError, match=message) as refused:
        Evidence(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_package_that_is_missing_is_named(monkeypatch, package):
    evidence = Evidence.from_text('{"schema": "isochrome-repair/1", "pid": 1, "repaired": true}')
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"hint: pip install {package}"):
        getattr(evidence, f"to_{package}")()
