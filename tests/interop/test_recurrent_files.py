"""ONNX files of recurrent networks whose states are inputs and outputs, and branches that an input chooses."""

import numpy as np
import pytest

import edgelearn as el
from edgelearn.errors import FormatError, UnsupportedError
from edgelearn.interop import import_graph, read_model
from edgelearn.interop.canonical import TensorInfo, with_batch_axes

onnx = pytest.importorskip("onnx")
numpy_helper = onnx.numpy_helper
RNG = np.random.default_rng(5)


def draw(*shape, scale=0.5):
    return (scale * RNG.standard_normal(shape)).astype(np.float32)


def written(path, text, arrays, opset=17):
    """Write the model that `text` describes, with `arrays` as its constants."""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items())
    path.write_bytes(proto.SerializeToString())
    return path


def session(path):
    runtime = pytest.importorskip("onnxruntime")
    runtime.set_default_logger_severity(3)
    return runtime.InferenceSession(path)


# As silero-vad has it: magnitudes of a Fourier transform, convolutions, an LSTM (or its formula) from a state to the
# next one, both (2, batch, units); the rate of the sound chooses between two networks.
DETECTOR = """
voice (float[batch, samples] signal, float[2, batch, 5] state, int64 rate)
    => (float[batch, 1] speech, float[2, batch, 5] next)
{
  wide = Equal(rate, wide_rate)
  h, c = Split<axis = 0>(state)
  speech, next = If(wide) <
    then_branch = wide_band () => (float[batch, 1] p, float[2, batch, 5] n) {
      size = Shape(signal)
      samples = Gather(size, last)
      odd = Equal(samples, none)
      padded = If(odd) <
        then_branch = nothing () => (float e) { e = Det(signal) },
        else_branch = reflected () => (float e) { e = Pad<mode = "reflect">(signal, right) }
      >
      row = Unsqueeze(padded, one)
      waves = Conv<strides = [4]>(row, basis)
      real = Slice(waves, zero, middle, one)
      imaginary = Slice(waves, middle, far, one)
      real2 = Pow(real, two)
      imaginary2 = Pow(imaginary, two)
      power = Add(real2, imaginary2)
      size_of_wave = Sqrt(power)
      features = Conv<pads = [1, 1], strides = [4]>(size_of_wave, k, b)
      positive = Relu(features)
      vector = Squeeze(positive, last)
      sequence = Unsqueeze(vector, zero)
      y, h1, c1 = LSTM<hidden_size = 5>(sequence, w, r, bias, , h, c)
      h2 = Squeeze(h1, zero)
      c2 = Squeeze(c1, zero)
      h3 = Unsqueeze(h2, zero)
      c3 = Unsqueeze(c2, zero)
      n = Concat<axis = 0>(h3, c3)
      h4 = Unsqueeze(h2, last)
      h5 = Relu(h4)
      score = Conv(h5, head, head_bias)
      probability = Sigmoid(score)
      flat = Squeeze(probability, one)
      mean = ReduceMean<axes = [1], keepdims = 0>(flat)
      p = Unsqueeze(mean, one)
    },
    else_branch = narrow_band () => (float[batch, 1] p, float[2, batch, 5] n) {
      h0 = Squeeze(h, zero)
      c0 = Squeeze(c, zero)
      of_state = Gemm<transB = 1>(h0, r2, b2)
      of_input = Gemm<transB = 1>(signal, w2)
      sums = Add(of_input, of_state)
      i, f, g, o = Split<axis = 1>(sums)
      i1 = Sigmoid(i)
      f1 = Sigmoid(f)
      g1 = Tanh(g)
      o1 = Sigmoid(o)
      kept = Mul(f1, c0)
      added = Mul(i1, g1)
      c1 = Add(kept, added)
      c2 = Tanh(c1)
      h1 = Mul(o1, c2)
      h2 = Unsqueeze(h1, zero)
      c3 = Unsqueeze(c1, zero)
      n = Concat<axis = 0>(h2, c3)
      score = Gemm(h1, column)
      p = Sigmoid(score)
    }
  >
}
"""
ARRAYS = {
    "wide_rate": np.int64(16000), "last": np.int64([-1]), "none": np.int64(1), "right": np.int64([0, 0, 0, 4]),
    "one": np.int64([1]), "zero": np.int64([0]), "middle": np.int64([5]), "far": np.int64([100]), "two": np.float32(2),
    "basis": draw(10, 1, 8), "k": draw(6, 5, 3), "b": draw(6), "w": draw(1, 20, 6), "r": draw(1, 20, 5),
    "bias": draw(1, 40), "head": draw(1, 5, 1), "head_bias": draw(1), "r2": draw(20, 5), "b2": draw(20),
    "w2": draw(20, 16), "column": draw(5, 1),
}  # fmt: skip


@pytest.fixture
def detector(tmp_path):
    return written(tmp_path / "voice.onnx", DETECTOR, ARRAYS)


def load(path, rate=16000):
    return el.load(path, input_shape=(16,), constants={"rate": rate})


@pytest.mark.parametrize("rate", (16000, 8000))
@pytest.mark.parametrize("exported", (False, True), ids=("read", "and written"))
def test_a_stream_of_chunks_with_its_state(detector, rate, exported, tmp_path):
    model, theirs = load(detector, rate), session(detector)
    assert model.network.inputs == {"signal": (16,), "state": (2, 5)}
    assert ("LSTM" in {type(node.op).__name__ for node in model.network.nodes.values()}) == (rate == 16000)
    if exported:  # the batch is the first axis then
        model.export(tmp_path / "out.onnx")
        ours, names = session(tmp_path / "out.onnx"), model.network.outputs
    state, states = draw(2, 3, 5), []
    own = state.transpose(1, 0, 2)
    for chunk in draw(6, 3, 16):
        expected, state = theirs.run(None, {"signal": chunk, "state": state, "rate": np.array(rate)})
        given = {"signal": chunk, "state": np.ascontiguousarray(own)}
        found, own = ours.run(list(names), given) if exported else model.predict(given).values()
        assert found.shape == expected.shape == (3, 1)
        assert np.allclose(found, expected, atol=1e-6) and np.allclose(own, state.transpose(1, 0, 2), atol=1e-5)
        states.append(own)
    assert np.abs(states[0] - states[-1]).max() > 0.01


def outputs_of(network, weights, given):
    """Outputs by name, in float64."""
    found = dict(given)
    for node in network.nodes.values():
        own = {p.role: weights[p.name] for p in network.parameters.values() if p.layer == node.owner}
        found[node.name] = node.op.reference_forward([found[name] for name in node.inputs], own)
    return {name: found[name] for name in network.outputs}


@pytest.mark.parametrize("rate", (16000, 8000))
def test_gradients_go_through_the_state_and_what_is_before_it(detector, rate):
    """Against differences in float64."""
    model = load(detector, rate)
    model.compile(el.SGD(0.1), el.losses.MeanSquaredError())
    network, weights = model.network, {name: np.float64(array) for name, array in model.weights.items()}
    given = {"signal": draw(4, 16), "state": draw(4, 2, 5)}
    targets = {name: draw(4, *network.shape_of(name)) for name in network.outputs}

    def loss(changed, place, step):
        arrays = {**weights, **{name: np.float64(array) for name, array in given.items()}}
        arrays[changed] = arrays[changed].copy()
        arrays[changed].flat[place] += step
        found = outputs_of(network, arrays, {name: arrays[name] for name in given})
        return sum(np.mean((found[name] - targets[name]) ** 2) for name in found)

    found = {**model.gradients(given, targets), **model.gradients(given, targets, of="inputs")}
    assert set(found) == {*weights, *given}
    for name, gradient in found.items():
        places = RNG.choice(gradient.size, min(gradient.size, 8), replace=False)
        expected = [(loss(name, n, 1e-5) - loss(name, n, -1e-5)) / 2e-5 for n in places]
        assert np.allclose(gradient.flat[places], expected, atol=1e-6 + 1e-4 * np.abs(expected).max()), name
        assert np.abs(gradient).max() > 1e-5, name


def test_what_chooses_a_branch_must_be_given(detector):
    with pytest.raises(FormatError, match=r"'rate'.*int64.*constants=\{'rate'"):
        el.load(detector, input_shape=(16,))
    for constants, words in [({"pace": 1}, "no input 'pace'.*signal, state, rate"), ({"rate": [1, 2]}, "int64"),
                             ({"rate": "fast"}, "'fast'")]:  # fmt: skip
        with pytest.raises(FormatError, match=words):
            el.load(detector, input_shape=(16,), constants=constants)
    report = el.inspect(detector, input_shape=(16,), constants={"rate": 16000})
    assert report.supported and report.inputs == {"signal": (16,), "state": (2, 5)}
    assert sum("batch as axis 1" in note for note in report.notes) == 2


def test_a_branch_that_a_value_chooses_is_refused(tmp_path):
    text = """
    chosen (float[batch, 4] x) => (float[batch, 4] y) {
      total = ReduceSum<keepdims = 0>(x)
      large = Greater(total, one)
      y = If(large) <then_branch = a () => (float[batch, 4] s) { s = Relu(x) },
                     else_branch = b () => (float[batch, 4] s) { s = Neg(x) }>
    }"""
    path = written(tmp_path / "chosen.onnx", text, {"one": np.float32(1)})
    (problem,) = import_graph(path).problems
    assert problem.kind == "If" and "computed" in problem.reason and "constants" in problem.nearest


def test_an_unsupported_operator_in_the_branch_is_named(tmp_path):
    text = """
    chosen (float[batch, 4] x, float[1, batch, 3] h, bool large) => (float[batch, 4] y) {
      y = If(large) <then_branch = a () => (float[batch, 4] s) { r = Relu(h)  s = CumSum(r, one) },
                     else_branch = b () => (float[batch, 4] s) { s = Neg(x) }>
      z = Relu(y)
    }"""
    path = written(tmp_path / "chosen.onnx", text, {"one": np.int64(1)})
    assert [p.kind for p in import_graph(path, outputs=("z",), constants={"large": True}).problems] == ["CumSum"]
    found = import_graph(path, outputs=("z",), constants={"large": False})
    assert [type(node.op).__name__ for node in found.network.nodes.values()] == ["Rescaling", "ReLU"]
    assert found.network.inputs == {"x": (4,)} and any("'h': it is left out" in note for note in found.notes)


def test_a_layer_that_a_branch_reads_twice(tmp_path):
    """A bias behind a convolution becomes a part of it, unless something else reads the convolution."""
    text = """
    shared (float[batch, 4, 9] x, bool large) => (float[batch, 5, 7] y) {
      c = Conv(x, k)
      d = If(large) <then_branch = a () => (float[batch, 5, 7] s) {
          shift = Constant<value = float[5, 1] {1, 2, 3, 4, 5}>()
          t = Add(c, shift)
          s = Mul(t, c)
        }, else_branch = b () => (float[batch, 5, 7] s) { e = Conv(x, k)  s = Tanh(e) }>
      y = Relu(d)
    }"""
    path = written(tmp_path / "shared.onnx", text, {"k": draw(5, 4, 3)})
    x, model = draw(2, 4, 9), el.load(path, constants={"large": True})
    (expected,) = session(path).run(None, {"x": x, "large": np.array(True)})
    assert model.network.input_shape == (9, 4), "its channels are first, as the convolution says"
    assert np.allclose(model.predict(x.transpose(0, 2, 1)), expected.transpose(0, 2, 1), atol=1e-5)


CELLS = {
    "all outputs": ("LSTM", 4, 1, {}, "x, w, r, b, , h, c", "y, h1, c1"),
    "both directions": ("LSTM", 4, 2, {"direction": "bidirectional"}, "x, w, r, b, , h, c", "y, h1, c1"),
    "both directions, states alone": ("LSTM", 4, 2, {"direction": "bidirectional"}, "x, w, r, b, , h, c", ", h1, c1"),
    "last h alone of both directions": ("LSTM", 4, 2, {"direction": "bidirectional"}, "x, w, r, b, , h, c", ", h1"),
    "backwards": ("LSTM", 4, 1, {"direction": "reverse"}, "x, w, r, , , h, c", "y, h1, c1"),
    "cell alone": ("LSTM", 4, 1, {}, "x, w, r, b, , , c", ", , c1"),
    "no state": ("LSTM", 4, 1, {}, "x, w, r, b", "y, h1, c1"),
    "a constant state": ("LSTM", 4, 1, {}, "x, w, r, b, , fixed, c", "y, h1"),
    "gru": ("GRU", 3, 1, {"linear_before_reset": 1}, "x, w, r, b, , h", "y, h1"),
    "gru in both directions": ("GRU", 3, 2, {"linear_before_reset": 1, "direction": "bidirectional"},
                               "x, w, r, b, , h", ", h1"),
}  # fmt: skip


@pytest.mark.parametrize("case", CELLS)
def test_cells_that_begin_and_end_with_states(case, tmp_path):
    """Sequences and states have the batch as second axis in the file, and as first here."""
    kind, gates, directions, settings, reads, outputs = CELLS[case]
    inputs = [name for name in ("x", "h", "c") if name in reads.split(", ")]
    names = [name for name in outputs.split(", ") if name]
    shapes = {"x": "steps, batch, 6", "h": f"{directions}, batch, 5", "c": f"{directions}, batch, 5"}
    attributes = ", ".join(f'{k} = "{v}"' if isinstance(v, str) else f"{k} = {v}" for k, v in settings.items())
    text = f"""
    cell ({", ".join(f"float[{shapes[name]}] {name}" for name in inputs)})
        => ({", ".join(f"float[{'s, d, b, u' if name == 'y' else 'd, b, u'}] {name}" for name in names)}) {{
      {outputs} = {kind}<hidden_size = 5{", " * bool(attributes)}{attributes}>({reads})
    }}"""
    arrays = {
        "w": draw(directions, 5 * gates, 6), "r": draw(directions, 5 * gates, 5), "b": draw(directions, 10 * gates),
        "fixed": np.repeat(draw(1, 1, 5), 3, 1),
    }  # fmt: skip
    used = {name: array for name, array in arrays.items() if name in reads.split(", ")}
    path = written(tmp_path / "cell.onnx", text, used)
    given = {name: draw(7, 3, 6) if name == "x" else draw(directions, 3, 5) for name in inputs}
    expected = session(path).run(None, given)
    model = el.load(path, input_shape=(7, 6))
    ours = {name: array.swapaxes(0, 1) for name, array in given.items()}
    found = model.predict(ours if len(ours) > 1 else ours["x"])
    found = list(found.values()) if isinstance(found, dict) else [found]
    for name, one, other in zip(names, found, expected, strict=True):
        other = np.moveaxis(other, 2 if name == "y" else 1, 0)
        assert one.shape == other.shape and np.allclose(one, other, atol=1e-5), name
    kinds = [type(node.op).__name__ for node in model.network.nodes.values()]
    assert kinds.count(kind) == directions


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_states_with_the_batch_first(kind, gates, tmp_path):
    """layout=1, which ONNX Runtime doesn't have on processors: against a file with layout=0."""
    names = ["h", "c"] if kind == "LSTM" else ["h"]
    ends = ", ".join(f"{name}1" for name in names)
    settings = "hidden_size = 5" + ", linear_before_reset = 1" * (kind == "GRU")
    arrays = {"w": draw(1, 5 * gates, 6), "r": draw(1, 5 * gates, 5), "b": draw(1, 10 * gates)}
    paths = []
    for layout, steps, state, rows in ((0, "7, n, 6", "1, n, 5", "d, n, u"), (1, "n, 7, 6", "n, 1, 5", "n, d, u")):
        text = f"""
        cell (float[{steps}] x, {", ".join(f"float[{state}] {name}" for name in names)})
            => (float[a, b, c, d] y, {", ".join(f"float[{rows}] {name}1" for name in names)}) {{
          y, {ends} = {kind}<{settings}, layout = {layout}>(x, w, r, b, , {", ".join(names)})
        }}"""
        paths.append(written(tmp_path / f"cell{layout}.onnx", text, arrays))
    given = {"x": draw(3, 7, 6), **{name: draw(3, 1, 5) for name in names}}
    expected = session(paths[0]).run(None, {name: array.swapaxes(0, 1) for name, array in given.items()})
    found = list(el.load(paths[1]).predict(given).values())
    assert np.allclose(found[0], np.moveaxis(expected[0], 2, 0).reshape(found[0].shape), atol=1e-5)
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert np.allclose(one.reshape(3, 5), other[0], atol=1e-5)


def test_states_of_examples_are_no_constants(tmp_path):
    text = """cell (float[4, batch, 6] x) => (float[4, 1, batch, 5] y) {
        y = GRU<hidden_size = 5, linear_before_reset = 1>(x, w, r, , , h)
    }"""
    arrays = {"w": draw(1, 15, 6), "r": draw(1, 15, 5), "h": draw(1, 3, 5)}
    with pytest.raises(UnsupportedError, match="each example"):
        read_model(written(tmp_path / "cell.onnx", text, arrays))


SEQUENCE = """
chunks (float[chunks, 12] input, float[1, 1, 5] h, float[1, 1, 5] c)
    => (float[chunks] scores, float[1, 1, 5] hn, float[1, 1, 5] cn)
{
  row = Unsqueeze(input, one)
  waves = Conv<strides = [4]>(row, basis)
  positive = Relu(waves)
  pooled = ReduceMax<axes = [2]>(positive)
  sequence = Transpose<perm = [0, 2, 1]>(pooled)
  y, hn, cn = LSTM<hidden_size = 5>(sequence, w, r, bias, , h, c)
  flat = Squeeze(y, one)
  turned = Transpose<perm = [1, 2, 0]>(flat)
  score = Conv(turned, head)
  probability = Sigmoid(score)
  scores = Reshape(probability, last)
}
"""


def test_a_batch_that_is_the_time(tmp_path):
    """Chunks of one recording, which the convolutions read as a batch and the LSTM as steps."""
    arrays = {name: ARRAYS[name] for name in ("one", "last", "r", "bias", "head")}
    path = written(tmp_path / "chunks.onnx", SEQUENCE, arrays | {"basis": draw(6, 1, 8), "w": draw(1, 20, 6)})
    with pytest.raises(UnsupportedError, match=r"(?s)batch as axis 0.*input_shape"):
        el.load(path)
    model = el.load(path, input_shape=(4, 12))
    assert model.network.inputs == {"input": (4, 12), "h": (1, 5), "c": (1, 5)}
    h, c = draw(1, 1, 5), draw(1, 1, 5)
    ours = h, c
    for chunks in draw(3, 4, 12):
        expected, h, c = session(path).run(None, {"input": chunks, "h": h, "c": c})
        found, *ours = model.predict({"input": chunks[None], "h": ours[0], "c": ours[1]}).values()
        assert np.allclose(found[0], expected, atol=1e-6) and np.allclose(ours, [h, c], atol=1e-6)
    assert any("no axis for the batch" in note for note in import_graph(path, input_shape=(4, 12)).notes)
    scores = el.load(path, input_shape=(4, 12), outputs=("scores",))
    scores.compile(
        el.SGD(0.5), el.losses.BinaryCrossentropy()
    )  # takes the Sigmoid, which a Reshape follows in the file
    given = {name: draw(3, *shape) for name, shape in scores.network.inputs.items()}
    first, *_, last = (scores.train_on_batch(given, np.ones((3, 4), np.float32))["loss"] for _ in range(10))
    assert last < first / 2


@pytest.mark.parametrize(
    ("shapes", "axes"),
    [
        ((("n", 3), (2, "n", 5)), (0, 1)),
        ((("n", 3), ("n", 2, 5)), (0, 0)),
        ((("", 3), (2, "", 5)), (0, 1)),
        ((("", 3), (2, "other", 5)), (0, 1)),
        ((("n", 3), (2, "a", "b")), (0, 0)),
        ((("n", 3), (2, "n", "n")), (0, 0)),
        (((1, 3), (2, 1, 5)), (0, 1)),
        (((1, 3), (1, 1, 5)), (0, 0)),
        (((4, 3), (2, 7, 5)), (0, 0)),
        (((4, 3), (2, "n", 5)), (0, 0)),
        ((("n", 3), (7,)), (0, 0)),
        ((("n", 3), ()), (0, 0)),
    ],
)  # fmt: skip
def test_the_axis_of_the_batch(shapes, axes):
    """An input's batch has the name or size of the first input's, or is its one open axis; else the first axis."""
    found = with_batch_axes([TensorInfo(f"x{n}", shape) for n, shape in enumerate(shapes)], shapes)
    assert tuple(info.batch_axis for info in found) == axes
