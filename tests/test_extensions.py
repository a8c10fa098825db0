"""Objects named MODULE:NAME."""

import pytest

from edgelearn.errors import ExtensionError
from edgelearn.experiments.finetune import FinetuneConfig
from edgelearn.extensions import (
    check_references,
    import_instance,
    import_object,
    is_reference,
    nearest,
    packaged_file,
)
from edgelearn.interop import find_network
from edgelearn.keywords.learners import Learner
from edgelearn.ops import SGD, Op, Optimizer
from edgelearn.ops.formats import NumberFormat
from edgelearn.ops.observers import Observer


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with a module that isn't installed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "parts_of_mine.py").write_text(
        "from edgelearn.ops import SGD\nslow, number = SGD(0.25), 3\n"
        "class Slow(SGD): pass\ndef make(rate): return SGD(rate)\n"
        "def fails(): return 1 / 0\ndef ends(): raise SystemExit(7)\n"
    )
    (tmp_path / "broken_part.py").write_text("1 / 0\n")
    (tmp_path / "needy_part.py").write_text("import a_package_that_nobody_has\n")


@pytest.mark.parametrize(
    ("text", "is_one"),
    [("a.b:c", True), ("nets.py:c", True), ("../x y/nets.py:c", True), ("resnet18", False), ("a:", False),
     ("forward:16", False), ("C:/models/net.onnx", False), ("a b:c", False)],
)  # fmt: skip
def test_is_reference(text, is_one):
    assert is_reference(text) is is_one


def test_objects():
    slow = import_object("parts_of_mine:slow")
    assert slow == SGD(0.25) and import_object("parts_of_mine.py:slow") is slow
    assert import_instance("parts_of_mine:slow", Optimizer, 0.5) is slow
    assert import_instance("parts_of_mine:make", Optimizer, 0.5) == SGD(0.5)
    made = import_instance("parts_of_mine:Slow", Optimizer, 0.5, momentum=0.9)
    assert type(made).__name__ == "Slow" and (made.learning_rate, made.momentum) == (0.5, 0.9)


@pytest.mark.parametrize(
    ("text", "words"),
    [("parts_of_min:slow", "parts_of_min'"), ("gone.py:slow", "gone.py"), ("parts_of_mine:slwo", "'slow'"),
     ("broken_part:x", "ZeroDivisionError"), ("needy_part:x", "a_package_that_nobody_has"), ("sgd", "MODULE:NAME")],
)  # fmt: skip
def test_what_cannot_be_imported(text, words):
    with pytest.raises(ExtensionError, match=words):
        import_object(text)


@pytest.mark.parametrize("name", ["number", "make", "SGD"])
def test_other_kinds(name):
    with pytest.raises(ExtensionError, match=name):
        import_instance(f"parts_of_mine:{name}", str if name == "SGD" else Optimizer)


@pytest.mark.parametrize(("name", "words"), [("fails", "ZeroDivisionError.*line 5"), ("ends", "SystemExit: 7.*line 6")])
def test_functions_that_fail(name, words):
    """Nothing of the user's ends the process, or hides where it failed."""
    with pytest.raises(ExtensionError, match=words):
        import_instance(f"parts_of_mine:{name}", Optimizer)
    with pytest.raises(ExtensionError, match=words) as caught:
        find_network(f"parts_of_mine:{name}")
    assert caught.value.__cause__ is not None


def test_a_file_of_a_package(tmp_path, monkeypatch):
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "__init__.py").write_text("raise AssertionError('imported')")
    for name in ("b.gguf", "a.gguf"):
        (tmp_path / "packed" / name).touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert packaged_file("packed", "*.gguf") == tmp_path / "packed" / "a.gguf"
    assert packaged_file("packed", "*.zip") is packaged_file("not_installed", "*.gguf") is None


def test_nearest():
    assert "'resnet18'" in nearest("resnet19", ["vgg16", "resnet18"]) and nearest("x", ["vgg16"]) == ""


def _define(base, name, namespace, module):
    return type(name, (base,), {"__module__": module, "__qualname__": name, **namespace})


@pytest.mark.parametrize(
    ("base", "name", "namespace"),
    [(Op, "Scale", {}), (Observer, "Blending", {}), (NumberFormat, "Format", {}),
     (Learner, "Mine", {"name": "nearest-mean"})],
)  # fmt: skip
def test_a_name_that_files_have_stays_with_its_class(base, name, namespace):
    key = namespace.get("name", name)
    known = base.registry[key]
    message = rf"my_cells.{name} can't be .* '{key}': {known.__module__}.{known.__qualname__} is it already.*Rename"
    with pytest.raises(ExtensionError, match=message):
        _define(base, name, namespace, "my_cells")
    assert base.registry[key] is known


@pytest.mark.parametrize("base", [Op, Observer, NumberFormat, Learner])
def test_a_class_that_is_defined_again_takes_its_own_place(base, monkeypatch):
    monkeypatch.setattr(base, "registry", dict(base.registry))
    namespace = {"name": "mine"} if base is Learner else {}
    _define(base, "Mine", namespace, "my_cells")
    again = _define(base, "Mine", namespace, "my_cells")
    assert base.registry["mine" if namespace else "Mine"] is again


@pytest.mark.parametrize("reference", ["os:system", "numpy:load", "numpy.linalg:norm", "../evil.py:run", "nowhere:x"])
def test_code_outside_of_the_folder_is_refused_in_records(reference, monkeypatch):
    record = {"seed": 1, "list": [{"optimizer": reference}]}
    with pytest.raises(ExtensionError, match=r"outside of .*EDGELEARN_FOREIGN_MODULES=1"):
        check_references(record, "this run's configuration")
    monkeypatch.setenv("EDGELEARN_FOREIGN_MODULES", "1")
    check_references(record, "this run's configuration")


def test_code_of_the_folder_and_of_edgelearn_is_allowed_in_records(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "part.py").write_text("1 / 0")  # it isn't imported
    names = ["parts_of_mine:slow", "parts_of_mine.py:slow", "package.part:x", "edgelearn.ops:SGD", "8 MB", "sgd"]
    check_references({"names": names}, "this run's configuration")


def test_a_strangers_run_imports_nothing(tmp_path, monkeypatch):
    marker = tmp_path / "ran"
    (tmp_path / "outside").mkdir()
    (tmp_path / "inside").mkdir()
    (tmp_path / "outside" / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Mine: pass\n")
    record = FinetuneConfig().to_dict() | {"loss": f"{tmp_path / 'outside' / 'evil.py'}:Mine"}
    monkeypatch.chdir(tmp_path / "inside")
    with pytest.raises(ExtensionError, match=r"evil\.py:Mine"):
        FinetuneConfig.from_dict(record)
    assert not marker.exists()
