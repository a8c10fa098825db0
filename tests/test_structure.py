"""The structure of the package: imports without circles, annotations included."""

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import edgelearn

ROOT = Path(edgelearn.__file__).parent


@cache
def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = ("edgelearn", *path.relative_to(ROOT).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str) -> set[str]:
    """The modules of the package that a module imports, wherever it does: at the top, in functions, for annotations."""
    path, found = modules()[name], set()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package if node.level else ""
            source = ".".join(filter(None, (base, node.module)))
            found |= {full if (full := f"{source}.{alias.name}") in modules() else source for alias in node.names}
    return found & set(modules()) - {name}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other, if there are any."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_two_files_import_each_other():
    assert circle({name: imports(name) for name in modules()}) == []


def test_a_circle_is_found():
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
    assert {"edgelearn.graph.network", "edgelearn.graph.rewrites"} <= imports("edgelearn.graph")
