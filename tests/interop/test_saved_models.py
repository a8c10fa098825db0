"""SavedModels: the same results as TensorFlow's, and nothing in a file is ever run."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from imported import distance, infer

import edgelearn as el
from edgelearn.errors import FormatError, UnsupportedError
from edgelearn.interop import import_graph
from edgelearn.interop.read_saved_model import crc32c
from tests.torture.graphdef import field, node

SCRIPT = Path(__file__).with_name("saved_model_files.py")
needs_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"
)
ATTACKS = ("print", "save", "merge", "summary", "dataset", "write")


@pytest.fixture(scope="module")
def victim(tmp_path_factory):
    """A folder that hostile models write to, or delete files of."""
    folder = tmp_path_factory.mktemp("victim")
    for name in ("kept.index", "kept.data-00000-of-00001"):
        (folder / name).write_bytes(b"precious")
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory, victim, python_with_tensorflow):
    folder = tmp_path_factory.mktemp("models")
    done = subprocess.run([*python_with_tensorflow, SCRIPT, folder, victim], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@needs_tensorflow
@pytest.mark.parametrize("name", ["module", "references", "resources"])
def test_the_same_predictions(models, name):
    kept = np.load(models / f"{name}.npz")
    translation = import_graph(models / name)
    if name == "module":
        assert [info.name for info in translation.graph.inputs] == ["x"]
        assert len(translation.graph.outputs) == 2
        translation = import_graph(models / name, outputs=translation.graph.outputs[1:])
    assert distance(infer(translation.model_file(), kept["x"]), kept["y"]) < 1e-5


@needs_tensorflow
@pytest.mark.parametrize("place", ["init", "use"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_what_would_print_write_or_delete_is_refused_and_not_run(models, victim, place, attack):
    before = contents(victim)
    kinds = {"print": "PrintV2", "save": "SaveV2", "merge": "MergeV2Checkpoints", "summary": "Summary",
             "dataset": "Dataset|Tensor", "write": "WriteFile"}  # fmt: skip
    with pytest.raises((FormatError, UnsupportedError), match=kinds[attack]):
        el.load(models / f"{place}_{attack}")
    assert contents(victim) == before


@needs_tensorflow
def test_initialisers_of_tensorflow_1_and_of_variables_are_refused(models, victim):
    before = contents(victim)
    with pytest.raises(FormatError, match=r"WriteFile.*Nothing was run"):
        el.load(models / "first_write")
    with pytest.raises(FormatError, match=r"AssignVariableOp.*changes a variable"):
        el.load(models / "reassigned")
    assert contents(victim) == before


@needs_tensorflow
def test_no_tensorflow_is_needed(models):
    script = "import sys; sys.modules['tensorflow'] = None; import edgelearn as el; el.load(sys.argv[1])"
    subprocess.run([sys.executable, "-c", script, models / "resources"], check=True)


@needs_tensorflow
@pytest.mark.parametrize(
    "name", ["saved_model.pb", "variables/variables.index", "variables/variables.data-00000-of-00001"]
)
def test_damaged_saved_models(models, tmp_path, name):
    shutil.copytree(models / "resources", tmp_path / "copy")
    path = tmp_path / "copy" / name
    data = bytearray(path.read_bytes())
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(FormatError, match="copy"):
        el.load(tmp_path / "copy")
    if name != "saved_model.pb":
        data[20] ^= 1
        path.write_bytes(data)
        with pytest.raises(FormatError, match="checksum"):
            el.load(tmp_path / "copy")
    path.unlink()
    with pytest.raises(FormatError, match="copy"):
        el.load(tmp_path / "copy")


def saved(tmp_path, nodes, output, functions=b"", inputs=b""):
    """A SavedModel with one signature, whose output is a tensor."""
    library = field(2, functions) if functions else b""
    ends = field(2, field(1, "y") + field(2, field(1, output)))
    signature = field(1, "serving_default") + field(2, inputs + ends)
    (tmp_path / "saved_model.pb").write_bytes(field(2, field(2, nodes + library) + field(5, signature)))
    return tmp_path


def function(name, nodes, returned):
    signature = field(1, name) + field(2, field(1, "a")) + field(3, field(1, "r"))
    return field(
        1, field(1, signature) + nodes.replace(b"\x0a", b"\x1a", 1) + field(4, field(1, "r") + field(2, returned))
    )


def call(name, source, callee):
    return node(name, "PartitionedCall", [source], f=field(10, field(1, callee)))


def test_calls_in_circles_and_calls_of_nothing(tmp_path):
    source = node("x", "Placeholder")
    endless = function("f", call("again", "a", "f"), "again:output:0")
    with pytest.raises(FormatError, match="64 deep"):
        import_graph(saved(tmp_path, source + call("c", "x", "f"), "c:0", endless))
    with pytest.raises(FormatError, match="'f', which it lacks"):
        import_graph(saved(tmp_path, source + call("c", "x", "f"), "c:0"))
    same = function("f", node("other", "Identity", ["a"]), "a")
    with pytest.raises(FormatError, match="circle"):
        import_graph(saved(tmp_path, call("c", "c:0", "f"), "c:0", same))
    with pytest.raises(FormatError, match="no node 'nowhere'"):
        import_graph(saved(tmp_path, source, "nowhere:0"))


def test_a_saved_model_without_a_signature(tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(field(2, field(2, node("in", "Placeholder"))))
    with pytest.raises(FormatError, match="no signature"):
        el.load(tmp_path)


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 63, 1000, 4097])
def test_checksums_of_castagnoli(length):
    """Against the definition, bit by bit."""
    data, found = np.random.default_rng(length).bytes(length), 0xFFFFFFFF
    for byte in data:
        found ^= byte
        for _ in range(8):
            found = found >> 1 ^ (0x82F63B78 if found & 1 else 0)
    assert crc32c(data) == found ^ 0xFFFFFFFF
    assert crc32c(b"123456789") == 0xE3069283
