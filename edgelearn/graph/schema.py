"""The JSON Schema of the graph model, the text form of networks; made from the settings of all ops.

`python tools/graph_schema.py` writes it to network.schema.json, beside this file; `make docs` copies it to docs/.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import edgelearn.ops as ops
from edgelearn.ops import Op

from .network import VERSION

FILE = Path(__file__).parent / "network.schema.json"
TYPES = {int: "integer", float: "number", str: "string", bool: "boolean", NoneType: "null"}
NAME = {"type": "string", "pattern": "^[^/]*$"}
SHAPE = {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1}


def network_schema() -> dict[str, Any]:
    """Return the schema. Ops that edgelearn doesn't have, such as your own, may have any settings."""
    known = sorted(name for name, op in Op.registry.items() if getattr(ops, name, None) is op)
    layer = {
        "type": "object",
        "required": ["name", "op", "config", "inputs"],
        "properties": {
            "name": {**NAME, "description": "Unique in the network."},
            "op": {"type": "string", "description": "Name of the operation."},
            "config": {"type": "object", "description": "Its settings."},
            "inputs": {
                "type": "array", "items": NAME, "minItems": 1,
                "description": "Names of earlier layers or of the network's inputs.",
            },
            "shares": {**NAME, "description": "Name of the layer whose weights it uses, since version 2."},
        },
        "additionalProperties": False,
        "allOf": [
            {"if": {"properties": {"op": {"const": name}}}, "then": {"properties": {"config": _config(name)}}}
            for name in known
        ],
    }  # fmt: skip
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "edgelearn graph model",
        "description": "A network: layers in the order they run, without weights.",
        "type": "object",
        "required": ["version", "name", "layers", "trainable"],
        "oneOf": [{"required": ["input_shape"]}, {"required": ["inputs"]}],
        "properties": {
            "version": {"enum": list(range(1, VERSION + 1))},
            "name": {"type": "string"},
            "input_shape": {**SHAPE, "description": "Of an example, channels last; of the only input, 'input'."},
            "inputs": {"type": "object", "additionalProperties": SHAPE, "propertyNames": NAME, "minProperties": 1},
            "layers": {"type": "array", "items": layer},
            "outputs": {
                "type": "array", "items": NAME, "minItems": 1, "uniqueItems": True,
                "description": "Default: the last layer.",
            },
            "trainable": {
                "type": "array", "items": {"type": "string", "pattern": "^[^/]*/[^/]+$"},
                "description": "Names of the trained parameters, layer/role.",
            },
        },
        "additionalProperties": False,
    }  # fmt: skip


def _config(name: str) -> dict[str, Any]:
    op = Op.registry[name]
    hints = get_type_hints(op)
    return {
        "properties": {each.name: _type(hints[each.name]) for each in fields(op)},
        "required": [each.name for each in fields(op)],
        "additionalProperties": False,
    }


def _type(hint: Any) -> dict[str, Any]:
    if hint in TYPES:
        return {"type": TYPES[hint]}
    kind, parts = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return {"anyOf": [_type(part) for part in parts]}
    if kind is tuple and parts[1:] == (...,):
        return {"type": "array", "items": _type(parts[0])}
    if kind is tuple:
        sizes = {"minItems": len(parts), "maxItems": len(parts)}
        return {"type": "array", "prefixItems": [_type(part) for part in parts], **sizes}
    return {}
