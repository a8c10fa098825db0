"""Objects of other packages and of your own files, named `MODULE:NAME`."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from importlib.machinery import PathFinder
from importlib.util import find_spec
from inspect import isclass
from pathlib import Path
from typing import Any, TypeVar

from edgelearn.errors import EdgelearnError, ExtensionError, UsageError

T = TypeVar("T")
FOREIGN = "EDGELEARN_FOREIGN_MODULES"


def is_reference(text: str) -> bool:
    """True for text of the form `MODULE:NAME`, such as "my_package.nets:tiny" or "nets.py:tiny"."""
    module, _, name = text.rpartition(":")
    return bool(name.isidentifier() and (module.endswith(".py") or all(p.isidentifier() for p in module.split("."))))


def packaged_file(package: str, pattern: str) -> Path | None:
    """Return the first file of an installed package whose name fits `pattern`, such as "*.gguf", or None. The package
    isn't imported."""
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    return next((file for folder in folders or () for file in sorted(Path(folder).glob(pattern))), None)


def import_object(reference: str) -> Any:
    """Import the object that `reference` names. The module's code runs.

    Arguments:
    - `reference`: "MODULE:NAME". MODULE is found in the current folder or where Python finds modules; it may be the
      path of a file, as in "nets.py:tiny".

    Raises ExtensionError if there is no such module or name, or the module can't be imported.
    """
    if not is_reference(reference):
        raise ExtensionError(f"'{reference}' is not of the form MODULE:NAME, such as my_package.nets:tiny.")
    module_name, _, name = reference.rpartition(":")
    folder = os.getcwd()
    if module_name.endswith(".py"):
        path = Path(module_name).resolve()
        if not path.is_file():
            raise ExtensionError(f"'{reference}': there is no file {path}.")
        folder, module_name = str(path.parent), path.stem
    try:
        module = _import(module_name, folder)
    except ModuleNotFoundError as error:
        if error.name and not f"{module_name}.".startswith(f"{error.name}."):
            raise ExtensionError(f"'{reference}': its import needs '{error.name}', which isn't installed.") from None
        raise ExtensionError(f"'{reference}': there is no module '{module_name}' in {folder} or installed.") from None
    except (Exception, SystemExit) as error:
        raise ExtensionError(f"'{reference}': the import ended in {_described(error)}") from error
    if not hasattr(module, name):
        known = [each for each in vars(module) if not each.startswith("_")]
        raise ExtensionError(f"'{reference}': '{module_name}' has no '{name}'.{nearest(name, known)}")
    return getattr(module, name)


def import_instance(reference: str, kind: type[T], *arguments: Any, **settings: Any) -> T:
    """Import an object of type `kind`: an instance as it is; a class or function is called.

    Arguments:
    - `reference`: "MODULE:NAME".
    - `kind`: the class that it must be an instance of.
    - `arguments`, `settings`: of the class or function.

    Raises ExtensionError if it can't be imported, can't be called so, or gives something else.
    """
    found = import_object(reference)
    if isinstance(found, kind):
        return found
    if callable(found) and (not isclass(found) or issubclass(found, kind)):
        made = call(reference, found, *arguments, **settings)
        if isinstance(made, kind):
            return made
        found = made
    raise ExtensionError(f"'{reference}' is no {kind.__name__}, but {found!r:.80}.")


def call(reference: str, function: Callable[..., T], *arguments: Any, **settings: Any) -> T:
    """Call the function that `reference` names. Raises ExtensionError, with the error and its line, if it fails."""
    try:
        return function(*arguments, **settings)
    except EdgelearnError:
        raise
    except (Exception, SystemExit) as error:
        raise ExtensionError(f"'{reference}' can't be called: it ended in {_described(error)}") from error


def _described(error: BaseException) -> str:
    *_, last = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__}: {error} ({last.filename}, line {last.lineno})"


def nearest(name: str, names: Iterable[str]) -> str:
    """ " Did you mean 'a' or 'b'?", a sentence with the names most like `name`, or an empty text."""
    like = get_close_matches(name.lower(), list(names), 3, 0.6)
    return f" Did you mean {' or '.join(map(repr, like))}?" if like else ""


def check_name(name: str, known: Iterable[str], what: str, also: str = "") -> None:
    """Check that `name` is one of those that are known.

    Arguments:
    - `name`: as a user wrote it.
    - `known`: the names that there are.
    - `what`: what they name, such as "task".
    - `also`: what may stand there besides (default ""), such as "a model file".

    Raises UsageError, with the nearest names and all of them.
    """
    known = list(known)
    if name not in known:
        also = f"; or {also}" if also else ""
        raise UsageError(f"There is no {what} '{name}'.{nearest(name, known)} Choose {', '.join(known)}{also}.")


def check_references(value: Any, whose: str) -> None:
    """Refuse references to modules that are neither in the current folder nor edgelearn's: who wrote the record chose
    what an import would run.

    Arguments:
    - `value`: JSON values, in which texts are looked for, whatever their depth.
    - `whose`: what they are of, for the error, such as "this run's configuration".

    Raises ExtensionError unless the environment variable EDGELEARN_FOREIGN_MODULES is 1.
    """
    if isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            check_references(each, whose)
    elif isinstance(value, str) and is_reference(value) and os.environ.get(FOREIGN) != "1" and not _is_own(value):
        raise ExtensionError(
            f"'{value}' of {whose} is code of a module outside of {os.getcwd()}, which would run when it is imported. "
            f"If you know it, set the environment variable {FOREIGN}=1; or go to the folder of its project."
        )


def _is_own(reference: str) -> bool:
    """True if its module is in the current folder, edgelearn's, or the program itself. Nothing is imported."""
    module = reference.rpartition(":")[0]
    if module.endswith(".py"):
        place: Path | None = Path(module)
    else:
        top = module.partition(".")[0]
        if top in ("__main__", "edgelearn"):
            return True
        builtin = top in sys.builtin_module_names or top in sys.stdlib_module_names
        found = None if builtin else PathFinder.find_spec(top, [*sys.path, os.getcwd()])
        places = [found.origin, *(found.submodule_search_locations or ())] if found else []
        place = next((Path(each) for each in places if each and os.path.exists(each)), None)
    if place is None:
        return False
    inside = place.resolve()
    return inside.is_relative_to(Path.cwd().resolve()) and not {"site-packages", "dist-packages"} & {*inside.parts}


def import_path() -> str:
    """Return where this process finds modules, as PYTHONPATH of a process that has to find the same."""
    return os.pathsep.join(entry or os.getcwd() for entry in sys.path)


def _import(module: str, folder: str) -> Any:
    """Import `module`, also from `folder`, which stays where workers and later imports find it."""
    if folder not in sys.path:
        sys.path.append(folder)
    importlib.invalidate_caches()
    return importlib.import_module(module)
