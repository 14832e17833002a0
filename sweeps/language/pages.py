"""Help for a language, and its JSON Schema."""

import textwrap
from typing import Any

from sweeps.language.fields import MISSING, Field, Table, allowed, is_branch
from sweeps.language.grammar import Language

DRAFT = "https://json-schema.org/draft/2020-12/schema"
ENDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
ARRAY = {"type": "object", "required": ["array", "shape", "dtype"]}


def settings_page(language: Language, given: Table) -> str:
    """All settings, with their descriptions, allowed values and current values."""
    lines = ["Options. The end of a name is enough if it is unique; - _ . do not matter."]
    for setting in language.walk(given):
        field, value = setting.field, setting.value
        if not setting.shared:
            shown = value["kind"] if is_branch(value) else "none" if value is None else value
            now = "required" if value is MISSING else f"default: {shown}"
            text = f"{field.doc} ({allowed(field, language.words(field))}; {now})"
            text = textwrap.wrap(text.lstrip() + " *" * field.traced, 90)
            lines += [f"  --{setting.name}", *(f"      {line}" for line in text)]
    return "\n".join([*lines, "* Runs that differ only in these share one compiled program."])


def json_schema(language: Language) -> dict[str, Any]:
    """The JSON Schema of a sweep file whose settings have their full names."""
    kinds = {
        kind.location: {
            "type": "object",
            "description": kind.about,
            "properties": {
                "kind": {"const": kind.word},
                **{name: _schema(language, field) for name, field in kind.fields.items()},
            },
            # What else is needed may follow from the problem, or be an axis.
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


def _schema(language: Language, field: Field) -> dict[str, Any]:
    """The schema of a field."""
    ends = {ENDS[end]: at for end, at in field.bounds.items() if isinstance(at, int | float)}
    infinite = [] if {"le", "lt"} & {*field.bounds} else [{"const": "inf"}]
    types = {
        "number": [{"type": "number", **ends}, {"$ref": "#/$defs/array"}, *infinite],
        "integer": [{"type": "integer", **ends}],
        "integer or inf": [{"type": "integer", **ends, "maximum": 2**31 - 1}, {"const": "inf"}],
        "boolean": [{"type": "boolean"}],
        "text": [{"type": "string"}],
        "path": [{"type": "string"}],
        "array": [{"$ref": "#/$defs/array"}],
        "function": [{"type": "string", "pattern": ":"}],
        "none": [{"enum": [None, "none"]}],
        "object": [{}],
    }
    some = [each for name in field.types for each in types[name]]
    if words := [*field.words, *language.words(field)]:
        some.append({"enum": words})
    if field.bases:
        kinds = [kind for kind in language.kinds if {*field.bases} & {*kind.bases}]
        some += [{"$ref": f"#/$defs/{kind.location}"} for kind in kinds if not kind.abstract]
        own = {"type": "string", "pattern": ":"}
        some += [own, {"type": "object", "properties": {"kind": own}, "required": ["kind"]}]
    if field.listed:
        some = [{"type": "array", "items": {"anyOf": some}}]
    if field.groups:
        each = {"properties": {"kind": False}, "additionalProperties": {"anyOf": some}}
        some = [*some, {"type": "object", **each}]
    default = {} if field.required else {"default": field.default}
    return {"anyOf": some, "description": field.doc, **default}
