"""Files of Keras, TFLite and TensorFlow: what is imported computes the same as the framework that wrote it."""

import importlib.util
import subprocess
from pathlib import Path

import numpy as np
import pytest
from imported import distance, infer

import edgelearn as el
from edgelearn.errors import FormatError, UnsupportedError
from edgelearn.interop import import_graph, litert, read_model
from edgelearn.ops import Clip, Maximum, Minimum
from tests.torture.graphdef import field, node, shape

SCRIPT = Path(__file__).with_name("framework_files.py")
needs_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"
)
FLOAT = ("classifier.keras", "classifier.h5", "classifier.tflite", "classifier.pb", "nested.keras",
         "nested.h5", "functions.keras", "functions.tflite", "others.keras", "others.tflite", "sequence.keras",
         "sequence.tflite",
         "shuffle.keras", "shuffle.tflite", "dilated.pb", "dilated.tflite", "attending.keras", "attending.pb",
         "words.keras", "memory.keras", "heads.keras", "groups.keras", "tied.keras",
         "words.pb", "picked.pb", "picked.tflite")  # fmt: skip
OURS = {
    "factors/variable": "factors/scale",
    "own/scale": "own_scale/scale",
    "places/embeddings": "places/bias",
    "root/scale": "root/gamma",
    "sep/depthwise_kernel": "sep_depthwise/kernel",
    "sep/pointwise_kernel": "sep/kernel",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory, python_with_tensorflow):
    """Models that TensorFlow and Keras write, with what they compute, in one process of its own."""
    folder = tmp_path_factory.mktemp("files")
    done = subprocess.run([*python_with_tensorflow, SCRIPT, folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@needs_tensorflow
@pytest.mark.parametrize("name", FLOAT)
def test_the_same_predictions_and_gradients(files, name):
    kept = np.load(files / f"{name.split('.')[0]}.npz")
    file = import_graph(files / name).model_file()
    assert distance(infer(file, kept["x"]), kept["y"]) < 1e-5
    if not name.endswith(".keras"):
        return
    model = el.Model(file.network, file.weights)
    model.compile(el.SGD(0.01), batchnorm="moving")
    gradients = model.gradients(kept["x"], kept["labels"])
    theirs = {key[9:].replace("|", "/"): kept[key] for key in kept.files if key.startswith("gradient ")}
    theirs = {OURS.get(key, key): value for key, value in theirs.items()}
    assert set(gradients) == set(theirs)
    if name.startswith("shuffle"):  # the rows of its Dense lie as the layer before it has them
        gradients["scores/kernel"], theirs["scores/kernel"] = (
            np.sort(found["scores/kernel"].ravel()) for found in (gradients, theirs)
        )
    largest = max(np.abs(value).max() for value in theirs.values())
    worst = max(np.abs(gradients[key].reshape(theirs[key].shape) - theirs[key]).max() for key in theirs)
    assert worst < 1e-4 * largest


@needs_tensorflow
def test_ranges_of_a_training_for_integers_cut_values_off(files):
    kept = np.load(files / "faked.npz")
    file = import_graph(files / "faked.pb").model_file()
    clamps = [node.op for node in file.network.nodes.values() if isinstance(node.op, Clip | Maximum | Minimum)]
    assert [type(op) for op in clamps] == [Clip, Clip, Maximum, Minimum]  # none after the sigmoid
    step = 2.3 / 255  # of the inputs, which stay as they are between the ends
    assert np.allclose(infer(file, kept["x"]), kept["y"], atol=4 * step)


@needs_tensorflow
def test_weights_of_8_and_16_bits_and_integers_throughout(files):
    kept = np.load(files / "classifier.npz")
    for name, tolerance, from_integers in (("half", 2e-3, 1e-3), ("dynamic", 3e-2, 3e-2), ("integers", 6e-2, 2e-2),
                                           ("unsigned", 6e-2, 2e-2)):  # fmt: skip
        translation = import_graph(files / f"{name}.tflite")
        y, (lite,) = infer(translation.model_file(), kept["x"]), litert.run(files / f"{name}.tflite", [kept["x"]])
        assert distance(y, kept["y"]) < tolerance, name
        assert distance(y, lite) < from_integers, name
        assert not any("clamps" in note for note in translation.notes)
    (cut,) = (found for layer, found in translation.quantization.items() if layer.endswith("relu6"))
    assert cut.dtype == "int8"
    assert 0 < float(cut.scale[0]) <= 6.1 / 255


@needs_tensorflow
@pytest.mark.parametrize("name", ["classifier", "nested"])
def test_weights_of_keras_3(files, name):
    whole = import_graph(files / f"{name}.keras").model_file()
    weights = read_model(files / f"{name}.weights.h5", whole.network).weights  # SeparableConv2D is two layers here
    absent = {"ib/gamma"} if name == "nested" else set()
    assert set(weights) == set(whole.network.parameters) - absent
    assert all(np.array_equal(array, whole.weights[key]) for key, array in weights.items())


@needs_tensorflow
def test_layers_that_keras_does_not_train(files):
    network = import_graph(files / "frozen.keras").model_file().network
    assert {key.split("/")[0] for key in network.trainable} == {"c", "scores"}


@needs_tensorflow
def test_a_part_of_a_frozen_graph(files):
    whole = import_graph(files / "classifier.pb")
    names = {op.kind: op.outputs[0] for op in whole.graph.operators}
    part = import_graph(files / "classifier.pb", outputs=(names["MaxPool"],))
    assert len(part.network.nodes) < len(whole.network.nodes)
    assert part.network.output.shape == (4, 4, 8)
    with pytest.raises(FormatError, match="nowhere"):
        import_graph(files / "classifier.pb", outputs=("nowhere",))


@needs_tensorflow
def test_a_saved_model_of_keras(files):
    kept = np.load(files / "classifier.npz")
    assert distance(infer(import_graph(files / "classifier").model_file(), kept["x"]), kept["y"]) < 1e-5


@needs_tensorflow
def test_what_cannot_be_imported_is_listed(files):
    with pytest.raises(UnsupportedError) as caught:
        el.load(files / "unsupported.keras")
    assert {(problem.kind, problem.name) for problem in caught.value.problems} == {
        ("Lambda", "code"), ("custom layer", "mine"), ("SimpleRNN", "memory"),
        ("MultiHeadAttention", "wide"), ("GroupQueryAttention", "window"), ("MultiHeadAttention", "each"),
        ("Attention", "added"),
    }  # fmt: skip


def constant(name, array):
    kind = {"float32": 1, "int32": 3}[str(array.dtype)]
    tensor = field(1, kind) + field(2, shape(*array.shape)) + field(4, array.tobytes())
    return node(name, "Const", value=field(8, tensor), dtype=field(6, kind))


KERNEL = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture
def graph(tmp_path):
    """graph(bytes): the path of a GraphDef."""

    def make(data):
        (tmp_path / "g.pb").write_bytes(data)
        return tmp_path / "g.pb"

    return make


def test_a_graph_with_a_front_end(graph):
    """Its input is a text: inputs have to be named, and candidates are."""
    path = graph(
        node("wav", "Placeholder", dtype=field(6, 7)) + node("decoded", "DecodeWav", ["wav"])
        + constant("sizes", np.array([-1, 4], np.int32)) + node("features", "Reshape", ["decoded", "sizes"])
        + constant("kernel", KERNEL) + node("scores", "MatMul", ["features", "kernel"])
    )  # fmt: skip
    with pytest.raises(FormatError, match=r"'features' \(None, 4\).*'scores'"):
        el.load(path)
    model = el.load(path, inputs=("features",))
    x = np.float32([[1, 2, 3, 4]])
    assert np.allclose(model.predict(x, 1), x @ KERNEL)


def test_a_graph_with_one_placeholder_and_one_softmax(graph):
    """Of a training: its labels and its accuracy are left out, and that is said."""
    path = graph(
        node("picture", "Placeholder", dtype=field(6, 3), shape=field(7, shape(-1, 4)))
        + node("labels", "Placeholder", dtype=field(6, 9), shape=field(7, shape(-1)))
        + constant("kernel", KERNEL) + constant("axis", np.array([1], np.int32))
        + node("floats", "Cast", ["picture"], DstT=field(6, 1)) + node("scores", "MatMul", ["floats", "kernel"])
        + node("classes", "Softmax", ["scores"]) + node("found", "ArgMax", ["classes", "axis"])
        + node("right", "Equal", ["found", "labels"])
    )  # fmt: skip
    model = el.load(path)
    x = np.float32([[1, 0, 3, 1]])
    raised = np.exp(x @ KERNEL - (x @ KERNEL).max())
    assert np.allclose(model.predict(x), raised / raised.sum(), atol=1e-6)
    assert "'picture'" in model.metadata["part that was read"]
    assert any("'picture'" in note and "'classes'" in note for note in el.inspect(path).notes)
