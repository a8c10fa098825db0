"""The reference names every public name, and its classes list their arguments."""

import dataclasses
import importlib
import inspect
import pkgutil
import re
from enum import Enum
from functools import cache

import pytest

import edgelearn
from edgelearn import errors

from .pages import ROOT

PACKAGES = [
    name
    for name in (
        "edgelearn",
        *(found.name for found in pkgutil.walk_packages(edgelearn.__path__, "edgelearn.") if found.ispkg),
    )
    if "peers" not in name and hasattr(importlib.import_module(name), "__all__")
]
OPTIONAL = "edgelearn.interop.to_"  # these files need the packages that they convert to


@cache
def directives() -> tuple[str, ...]:
    """Everything that a page of the reference shows, by its full name."""
    pages = sorted((ROOT / "docs" / "reference").glob("*.md"))
    names = (name for page in pages for name in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.MULTILINE))
    return tuple(name for name in names if not name.startswith(OPTIONAL))


def resolve(name: str):
    """The object with this full name."""
    module, _, rest = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), rest)
    except AttributeError:
        return importlib.import_module(name)


def documented() -> list:
    """Classes of the reference."""
    found = {}
    for name in directives():
        thing = resolve(name)
        members = [thing]
        if inspect.ismodule(thing):
            own = (getattr(thing, member) for member in dir(thing) if not member.startswith("_"))
            members = [member for member in own if getattr(member, "__module__", None) == thing.__name__]
        for member in members:
            if inspect.isclass(member):
                found[f"{member.__module__}.{member.__qualname__}"] = member
    return [pytest.param(member, id=name) for name, member in sorted(found.items())]


def arguments(thing: type) -> list[str]:
    """Names of the arguments that a caller gives."""
    if issubclass(thing, Exception | Enum) or getattr(thing, "_is_protocol", False):
        return []
    if dataclasses.is_dataclass(thing):
        fields = [field for field in dataclasses.fields(thing) if field.init and not field.metadata.get("help")]
        return [field.name for field in fields if not field.name.startswith("_")]
    if not getattr(inspect.unwrap(thing.__init__), "__module__", "builtins").startswith("edgelearn"):
        return []
    return [name for name in inspect.signature(thing.__init__).parameters if name != "self"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_in_the_reference(package):
    shown = {id(resolve(name)) for name in directives()} | {id(error) for error in vars(errors).values()}
    module = importlib.import_module(package)
    missing = [
        name for name in module.__all__ if not inspect.ismodule(getattr(module, name))
        and id(getattr(module, name)) not in shown
    ]  # fmt: skip
    assert not missing


@pytest.mark.parametrize("thing", documented())
def test_every_argument_is_described(thing):
    """By its name in code type, in the docstring of the class or of a base class."""
    text = "\n".join(base.__doc__ or "" for base in thing.__mro__)
    missing = [name for name in arguments(thing) if f"`{name}`" not in text and f"`{name}=" not in text]
    assert not missing
