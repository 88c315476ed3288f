"""Documents as tables: the rule by which any JSON of isochrome becomes rows and columns, read off its JSON Schema.

Objects with fixed keys, and lists of fixed length, become columns; arrays, and objects with free keys, become tables of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: Units of the types that are one.
UNITS_OF_TYPES = {"Ns": "ns", "Bytes": "bytes", "Cycles": "cycles"}
#: Units in names, where a qualifier may follow, as in `load_cycles_p99`.
UNITS = {"cycles", "bytes", "mib", "kib", "hz", "mhz", "ns", "us", "ms", "s", "seconds"}
#: What an object with a unit in its name is made of.
PARTS = {"value", "low", "high", "median", "mean", "min", "max", "most", "items"}


#: Types of JSON for values without parts.
JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}
#: Where a document contains others: table, column and key.
SECTION_NUMBERS = ("evidence.sections", "", "numbers")


class Column(NamedTuple):
    """A column of a frame: its name, its unit ("" if it has none, or none is known), and what the schema says of it."""

    name: str
    unit: str
    description: str


@dataclass
class Table:
    """Rows of one kind. A row is a dictionary; a column that it lacks is null there.

    `keys` are the columns that identify the row: numbers in arrays, counted from 0, and free keys of objects, the outermost first.
    """

    keys: list[str]
    columns: dict[str, Column] = field(default_factory=dict)
    #: JSON types of each column by the schema.
    types: dict[str, set[str]] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.columns = {key: Column(key, "", "") for key in self.keys}
        self.types = {key: {"string" if key.endswith(".key") else "integer"} for key in self.keys}

    def declare(self, name: str, shape: Shape, table: str) -> None:
        """Adds the column `name` of the table called `table`."""
        types = self.types.setdefault(name, set())
        types |= shape.types()
        is_number = not types or bool(types & {"integer", "number"})
        unit = (shape.unit or unit_of(f"{table}.{name}")) if is_number else ""
        self.columns.setdefault(name, Column(name, unit, shape.description))

    def values(self, name: str) -> list[Any]:
        """The values of a column, row by row; None where a row has none."""
        return [row.get(name) for row in self.rows]

    def kind(self, name: str) -> str:
        """Type of a column, which its values decide before the schema does: int, uint, float, bool, str or mixed."""
        values = [value for value in self.values(name) if value is not None]
        types = {JSON_TYPES[type(value)] for value in values} or self.types[name] & set(JSON_TYPES.values())
        if types == {"integer"}:
            # Differences of unsigned numbers wrap around, so numbers are unsigned only where they must be.
            return "uint" if any(value > 2**63 - 1 for value in values) else "int"
        if types and types <= {"integer", "number"}:
            return "float"
        if types <= {"string"}:
            return "str"
        return "bool" if types == {"boolean"} else "mixed"


def unit_of(name: str) -> str:
    """The unit in the last part of a name; in `refill_ns.value` that in the part before, and in `kib.movable` the object that is one."""
    parts = [part for part in name.split(".") if part not in PARTS and not part.isdigit()]
    words = parts[-1].split("_") if parts else []
    for at, word in reversed(list(enumerate(words))):
        if word in UNITS and words[at - 1 : at] == ["per"]:
            return f"1/{word}"
        if word in UNITS:
            return "/".join([word, *words[at + 2 : at + 3]]) if words[at + 1 : at + 2] == ["per"] else word
    return next((part for part in parts if part in UNITS), "")


class Shape:
    """A place of a document: all parts of the schema that may describe the value there."""

    def __init__(self, root: Mapping[str, Any], nodes: list[Any], value: Any = None) -> None:
        self._root = root
        #: Names of the types that were followed, which also tell whether a type contains itself.
        self.names: list[str] = []
        self.nodes: list[Mapping[str, Any]] = []
        for node in nodes:
            self._add(node, value)

    def _add(self, node: Any, value: Any) -> None:
        if not isinstance(node, dict):
            return
        if "if" in node and not _holds(node["if"], value):
            return
        self.nodes.append(node)
        if "$ref" in node:
            name = node["$ref"].removeprefix("#/$defs/")
            self.names.append(name)
            self._add(self._root["$defs"][name], value)
        for keyword in ("anyOf", "oneOf", "allOf"):
            for part in node.get(keyword, ()):
                self._add(part, value)
        if "if" in node:
            self._add(node.get("then"), value)

    def _of(self, keyword: str) -> Iterator[Any]:
        return (node[keyword] for node in self.nodes if keyword in node)

    @property
    def description(self) -> str:
        """The first description: that of the field if it has one, else that of its type."""
        return next(self._of("description"), "")

    @property
    def unit(self) -> str:
        """The unit of the type."""
        return next((UNITS_OF_TYPES[name] for name in self.names if name in UNITS_OF_TYPES), "")

    def types(self) -> set[str]:
        """JSON types that the value may have."""
        found = {name for types in self._of("type") for name in ([types] if isinstance(types, str) else types)}
        values = [value for values in self._of("enum") for value in values] + list(self._of("const"))
        return found | {"string" for value in values if isinstance(value, str)}

    def keys(self) -> dict[str, None]:
        """The keys that an object here is known to have, in their order."""
        return {key: None for properties in self._of("properties") for key in properties}

    def key(self, key: str, value: Any = None) -> Shape:
        """The place at `key` of an object."""
        nodes = [properties[key] for properties in self._of("properties") if key in properties]
        return Shape(self._root, nodes or list(self._of("additionalProperties")), value)

    def is_map(self) -> bool:
        """Whether an object here has free keys, such as thread numbers."""
        free = any(isinstance(rest, dict) for rest in self._of("additionalProperties")) or any(self._of("patternProperties"))
        return free and not self.keys()

    def entry(self, value: Any = None) -> Shape:
        """The place under every key of an object with free keys."""
        by_pattern = [node for patterns in self._of("patternProperties") for node in patterns.values()]
        return Shape(self._root, by_pattern + list(self._of("additionalProperties")), value)

    def fixed(self) -> int:
        """Length of a list of fixed length; 0 if the length is not fixed."""
        return max((len(items) for items in self._of("prefixItems")), default=0)

    def item(self, index: int, value: Any = None) -> Shape:
        """The place at `index` of a list."""
        fixed = [items[index] for items in self._of("prefixItems") if index < len(items)]
        return Shape(self._root, fixed or list(self._of("items")), value)


def _holds(condition: Mapping[str, Any], value: Any) -> bool:
    fields = value if isinstance(value, dict) else {}
    return all(fields.get(key) == says["const"] for key, says in condition["properties"].items())


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


class Tables(dict[str, Table]):
    """All tables of some documents of one schema, by name. A table of the schema is there even if it has no rows."""

    def __init__(self, schema: Mapping[str, Any], name: str, documents: list[dict[str, Any]], *, numbered: bool) -> None:
        """`name`: name of the table with one row for each document. `numbered`: whether the documents are lines of one file."""
        self[name] = Table([f"{name}.index"] if numbered else [])
        self._declare(name, "", Shape(schema, [schema]), ())
        for number, document in enumerate(documents):
            self._row(name, document, Shape(schema, [schema], document), {f"{name}.index": number} if numbered else {})

    def _declare(self, table: str, column: str, shape: Shape, inside: tuple[str, ...]) -> None:
        """Declares the columns and tables at and below `column`. `inside`: the types around it, which end the descent if a type contains itself."""
        if any(name in inside for name in shape.names):
            return
        inside = (*inside, *shape.names)
        types = shape.types()
        if types & set(JSON_TYPES.values()):
            self[table].declare(column or "value", shape, table)
        if shape.is_map():
            self._declare(self._below(table, column, "key"), "", shape.entry(), inside)
        for key in shape.keys():
            self._declare(table, _join(column, key), shape.key(key), inside)
        for index in range(shape.fixed()):
            self._declare(table, _join(column, str(index)), shape.item(index), inside)
        if "array" in types and not shape.fixed():
            self._declare(self._below(table, column, "index"), "", shape.item(0), inside)

    def _below(self, table: str, column: str, by: str) -> str:
        """The name of the table of the elements at `column` of `table`. Makes the table if it is not there yet."""
        name = _join(table, column or "items")
        self.setdefault(name, Table([*self[table].keys, f"{name}.{by}"]))
        return name

    def _row(self, table: str, value: Any, shape: Shape, keys: dict[str, Any]) -> None:
        """Adds one row to `table`, and the elements below it to other tables. `keys`: the values of the columns that identify the row."""
        row = dict(keys)
        self[table].rows.append(row)
        self._fill(table, "", value, shape, keys, row)

    def _fill(self, table: str, column: str, value: Any, shape: Shape, keys: dict[str, Any], row: dict[str, Any]) -> None:
        """Puts `value` at `column` of `row`, or into tables of its own."""
        if isinstance(value, dict) and shape.is_map():
            below = self._below(table, column, "key")
            for key, part in value.items():
                self._row(below, part, shape.entry(part), keys | {f"{below}.key": key})
        elif isinstance(value, dict):
            for key, part in value.items():
                if (table, column, key) == SECTION_NUMBERS:
                    self._numbers(value["id"], part, shape.key(key, part), keys)
                else:
                    self._fill(table, _join(column, key), part, shape.key(key, part), keys, row)
        elif isinstance(value, list) and shape.fixed():
            for index, part in enumerate(value):
                self._fill(table, _join(column, str(index)), part, shape.item(index, part), keys, row)
        elif isinstance(value, list):
            below = self._below(table, column, "index")
            for index, part in enumerate(value):
                self._row(below, part, shape.item(index, part), keys | {f"{below}.index": index})
        elif value is not None:
            name = column or "value"
            if name not in self[table].columns:
                self[table].declare(name, shape, table)
            row[name] = value

    def _numbers(self, section: str, value: Any, shape: Shape, keys: dict[str, Any]) -> None:
        """The numbers of a section of evidence have tables of their own, called as those of the experiment's own document."""
        self.setdefault(section, Table(list(keys)))
        self._declare(section, "", shape, ())
        self._row(section, value, shape, keys)
