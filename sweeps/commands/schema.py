"""`dynsim schema`: a JSON Schema of sweep files."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from sweeps import output
from sweeps.language.fields import Field
from sweeps.language.grammar import Language
from sweeps.systems.kinds import language as of_runs

DRAFT = "https://json-schema.org/draft/2020-12/schema"
SCHEMA_LIMITS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
}
ARRAY = {"type": "object", "required": ["array", "shape", "dtype"]}


@dataclasses.dataclass(frozen=True)
class Schema:
    """Write a JSON Schema of sweep files, with which an editor completes and checks them.

    Attributes:
        out: file to write it to.
    """

    out: Path = Path("sweep.schema.json")


def run(config: Schema) -> list[Path]:
    """Write the schema.

    Raises:
        ValueError: if the folder of the file does not exist.
    """
    if not config.out.parent.is_dir():
        raise ValueError(f"out = {config.out}: the folder {config.out.parent} does not exist")
    content = json.dumps(json_schema(of_runs()), indent=2).encode()
    output.write_whole(config.out, lambda file: file.write(content))
    return [config.out]


def json_schema(language: Language) -> dict[str, Any]:
    """Return the JSON Schema of a sweep file whose settings have their full names."""
    kinds = {
        kind.location: {
            "type": "object",
            "description": kind.about,
            "properties": {
                "kind": {"const": kind.word},
                **{name: _schema_of(language, field) for name, field in kind.fields.items()},
            },
            # Other required settings may be defaults of the problem, or axes.
            "required": [] if kind.location in language.root.bases else ["kind"],
            "additionalProperties": False,
        }
        for kind in language.kinds
    }
    run = {"$ref": f"#/$defs/{language.root.bases[0]}"}
    return {
        "$schema": DRAFT,
        "properties": {"run": run, "axes": {"type": "object", "minProperties": 1}},
        "required": ["axes"],
        "$defs": {**kinds, "array": ARRAY},
    }


def _schema_of(language: Language, field: Field) -> dict[str, Any]:
    bounds = field.bounds.items()
    limits = {SCHEMA_LIMITS[end]: at for end, at in bounds if isinstance(at, int | float)}
    infinite = [] if {"le", "lt"} & {*field.bounds} else [{"const": "inf"}]
    types = {
        "number": [{"type": "number", **limits}, {"$ref": "#/$defs/array"}, *infinite],
        "integer": [{"type": "integer", **limits}],
        "integer or inf": [{"type": "integer", **limits, "maximum": 2**31 - 1}, {"const": "inf"}],
        "boolean": [{"type": "boolean"}],
        "text": [{"type": "string"}],
        "path": [{"type": "string"}],
        "array": [{"$ref": "#/$defs/array"}],
        "function": [{"type": "string", "pattern": ":"}],
        "none": [{"enum": [None, "none"]}],
        "object": [{}],
    }
    # JSON has no number for infinity, which is a word.
    choices = [schema for name in field.types for schema in types[name]]
    if words := [*field.words, *language.words(field)]:
        choices.append({"enum": words})
    if field.bases:
        kinds = [kind for kind in language.kinds if {*field.bases} & {*kind.bases}]
        choices += [{"$ref": f"#/$defs/{kind.location}"} for kind in kinds if not kind.abstract]
        # A class of your own, module:Name, whose fields are not known here.
        own = {"type": "string", "pattern": ":"}
        choices += [own, {"type": "object", "properties": {"kind": own}, "required": ["kind"]}]
    if field.listed:
        choices = [{"type": "array", "items": {"anyOf": choices}}]
    if field.groups:
        # A table with a kind is no table of groups.
        by_group = {"properties": {"kind": False}, "additionalProperties": {"anyOf": choices}}
        choices = [*choices, {"type": "object", **by_group}]
    default = {} if field.required else {"default": field.default}
    return {"anyOf": choices, "description": field.doc, **default}
