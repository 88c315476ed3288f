"""Documents made from JSON Schemas: valid ones, in which every variant of every part occurs in some document."""

from __future__ import annotations

import itertools
from typing import Any

#: Documents per schema, each with other variants where there are several.
VARIANTS = 6


def document(schema: dict[str, Any], variant: int) -> Any:
    """A document that `schema` accepts. Numbers and texts in it are all different, so that none is taken for another."""
    numbers = itertools.count(1000 * variant + 1)

    def made(node: Any, pick: int, inside: tuple[str, ...]) -> Any:
        if node is True or not isinstance(node, dict):
            return {"free": next(numbers)}
        if "$ref" in node:
            name = node["$ref"].removeprefix("#/$defs/")
            return made(schema["$defs"][name], pick, (*inside, name))
        if "const" in node:
            return node["const"]
        if "enum" in node:
            return node["enum"][pick % len(node["enum"])]
        parts = [part for keyword in ("anyOf", "oneOf") for part in node.get(keyword, ())]
        chosen = made(parts[pick % len(parts)], pick // len(parts), inside) if parts else None
        if parts and "properties" not in node:
            return chosen
        types = node["type"] if isinstance(node.get("type"), list) else [node.get("type", "object")]
        match types[pick % len(types)]:
            case "null":
                return None
            case "boolean":
                return next(numbers) % 2 == 0
            case "integer":
                found = next(numbers)
                return min(found, node["maximum"]) if "maximum" in node else found
            case "number":
                return next(numbers) + 0.25
            case "string":
                return f"text {next(numbers)}"
            case "array":
                # A tree ends at its second level.
                if inside.count(node.get("items", {}).get("$ref", "").removeprefix("#/$defs/")) > 1:
                    return []
                fixed = [made(item, pick, inside) for item in node.get("prefixItems", ())]
                return fixed or [made(node["items"], pick + i, inside) for i in range(max(2, node.get("minItems", 0)))]
            case _:
                return (chosen or {}) | made_object(node, pick, inside)

    def made_object(node: dict[str, Any], pick: int, inside: tuple[str, ...]) -> dict[str, Any]:
        # Parts with variants do not all change at the same time.
        fields = {key: made(part, pick + i, inside) for i, (key, part) in enumerate(node.get("properties", {}).items())}
        for part in node.get("patternProperties", {}).values():
            fields |= {str(next(numbers)): made(part, pick + i, inside) for i in range(2)}
        rest = node.get("additionalProperties", False)
        if rest is not False:
            fields |= {f"key {next(numbers)}": made(rest, pick + i, inside) for i in range(2)}
        return fields

    return made(schema, variant, ())
