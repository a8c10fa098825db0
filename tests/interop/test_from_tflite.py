"""TFLite files of every kind compute here what they do in LiteRT."""

import numpy as np
import pytest
import tflite_files
from imported import infer

import edgelearn as el
from edgelearn.errors import FormatError, UnsupportedError
from edgelearn.interop import import_graph, litert
from edgelearn.ops import Add, BatchNormalization, Conv2D, Dense, DepthwiseConv2D, GlobalAveragePooling2D, ReLU

RNG = np.random.default_rng(0)


def test_scales_along_an_axis_that_a_bias_does_not_have(tmp_path):
    """As in TensorFlow Lite Micro's person_detect: quantized_dimension 3 of a bias."""
    file, kernel = tflite_files.File(), RNG.integers(-127, 128, (4, 1, 1, 3), np.int8)
    bias, scales = RNG.integers(-99, 99, 4, np.int32), np.float32([0.01, 0.02, 0.03, 0.04])
    file.tensor("x", (1, 5, 5, 3), "int8", scale=0.1)
    file.constant("kernel", kernel, scale=scales)
    file.constant("bias", bias, scale=0.1 * scales, axis=3)
    file.tensor("y", (1, 5, 5, 4), "int8", scale=0.5)
    file.operator("CONV_2D", ["x", "kernel", "bias"], ["y"], "Conv2DOptions", strideW=1, strideH=1)
    path = file.write(tmp_path / "m.tflite", ["x"], ["y"])
    weights = import_graph(path).model_file().weights
    assert np.allclose(weights["y/bias"], bias * 0.1 * scales, rtol=1e-6)
    (note,) = (note for note in el.inspect(path).notes if "'bias'" in note)
    assert "axis" in note
    file.constant("bias", bias, scale=0.1 * scales[:3], axis=3)
    with pytest.raises(FormatError, match="'bias'"):
        import_graph(file.write(tmp_path / "m.tflite", ["x"], ["y"]))


def sparse(file, array, order, blocked, formats):
    """(SparsityParameters, the values) of an array: levels as in TensorFlow Lite's format_converter."""
    s, rank = file.schema, array.ndim
    blocks = dict(zip(blocked, [2, 4], strict=False))
    split = array.reshape([n for axis, size in enumerate(array.shape)
                           for n in (size // blocks.get(axis, 1), blocks.get(axis, 1))])  # fmt: skip
    places = [2 * n if n < rank else 2 * blocked[n - rank] + 1 for n in order]
    levels = split.transpose([*places, *(2 * n + 1 for n in range(rank) if n not in blocks)])
    levels = levels.reshape(levels.shape[: len(order)])
    record, kept = s.SparsityParametersT(), [()]
    record.traversalOrder, record.blockMap, record.dimMetadata = list(order), list(blocked), []
    for place, kind in enumerate(formats):
        level = s.DimensionMetadataT()
        level.format = {"dense": 0, "csr": 1}[kind]
        children = [[i for i in range(levels.shape[place]) if kind == "dense" or levels[(*k, i)].any()] for k in kept]
        if kind == "dense":
            level.denseSize = levels.shape[place]
        else:
            lengths, wide = np.cumsum([0, *map(len, children)]), place % 2
            level.arraySegmentsType, level.arraySegments = 1, s.Int32VectorT()
            level.arraySegments.values = lengths.astype(np.int32)
            level.arrayIndicesType = 3 - wide
            level.arrayIndices = (s.Uint16VectorT if wide else s.Uint8VectorT)()
            level.arrayIndices.values = np.concatenate(children).astype(np.uint16 if wide else np.uint8)
        record.dimMetadata.append(level)
        kept = [(*k, i) for k, found in zip(kept, children, strict=True) for i in found]
    return record, np.array([levels[k] for k in kept], array.dtype)


@pytest.mark.parametrize(
    ("order", "blocked", "formats"),
    [
        ((0, 1), (), ("dense", "csr")),
        ((1, 0), (), ("csr", "csr")),
        ((0, 1, 2), (1,), ("dense", "csr", "dense")),
        ((1, 0, 2, 3), (0, 1), ("dense", "csr", "dense", "dense")),
        ((0, 1, 3, 2), (0, 1), ("csr", "csr", "dense", "dense")),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_sparse_weights(order, blocked, formats, dtype, tmp_path):
    kernel = RNG.standard_normal((6, 8)).astype(dtype)
    kernel[[0, 3], :4] = kernel[4:] = kernel[:, 6:] = 0
    file = tflite_files.File()
    record, values = sparse(file, kernel, order, blocked, formats)
    assert len(values) < kernel.size
    file.tensor("x", (1, 8))
    file.tensor("sparse", kernel.shape, dtype, values, sparsity=record)
    file.tensor("dense", kernel.shape, dtype)
    file.tensor("kernel", kernel.shape)
    file.tensor("y", (1, 6))
    file.operator("DENSIFY", ["sparse"], ["dense"])
    if dtype == "float16":
        file.operator("DEQUANTIZE", ["dense"], ["kernel"])
    file.operator("FULLY_CONNECTED", ["x", "kernel" if dtype == "float16" else "dense", ""], ["y"],
                  "FullyConnectedOptions")  # fmt: skip
    path = file.write(tmp_path / "m.tflite", ["x"], ["y"])
    imported = import_graph(path).model_file()
    assert np.array_equal(imported.weights["y/kernel"], kernel.T.astype(np.float32))
    x = RNG.standard_normal((1, 8)).astype(np.float32)
    assert np.allclose(infer(imported, x), tflite_files.run(path, x), atol=1e-5)


def test_damaged_sparsity(tmp_path):
    kernel = np.eye(4, dtype=np.float32)
    for damage in ("order", "segments", "indices", "size"):
        file = tflite_files.File()
        record, values = sparse(file, kernel, (0, 1), (), ("dense", "csr"))
        if damage == "order":
            record.traversalOrder = [0, 0]
        elif damage == "segments":
            record.dimMetadata[1].arraySegments.values = np.int32([0, 3, 2, 3, 4])
        elif damage == "indices":
            record.dimMetadata[1].arrayIndices.values[2] = 4
        else:
            record.dimMetadata[0].denseSize = 1 << 30
        file.tensor("x", (1, 4)), file.tensor("y", (1, 4))
        file.tensor("kernel", kernel.shape, data=values, sparsity=record)
        file.operator("FULLY_CONNECTED", ["x", "kernel", ""], ["y"], "FullyConnectedOptions")
        path = file.write(tmp_path / "m.tflite", ["x"], ["y"])
        with pytest.raises(FormatError, match=r"m\.tflite is damaged.*'kernel'"):
            el.load(path)


def test_an_operator_with_a_state_is_named(tmp_path):
    """As in TensorFlow Lite Micro's keyword_scrambled_8bit."""
    file = tflite_files.File()
    file.tensor("x", (1, 6)), file.tensor("state", (1, 12), isVariable=True), file.tensor("y", (1, 4))
    file.constant("features", np.zeros((4, 6), np.float32)), file.constant("time", np.zeros((4, 3), np.float32))
    file.operator("SVDF", ["x", "features", "time", "", "state"], ["y"], "SVDFOptions", rank=1)
    path = file.write(tmp_path / "m.tflite", ["x"], ["y"])
    for read in (import_graph, el.inspect):
        (problem,) = read(path).problems
        assert problem.kind == "SVDF" and "'state'" in problem.reason and "between calls" in problem.reason
    with pytest.raises(UnsupportedError, match="recurrent state"):
        el.load(path)


@pytest.mark.parametrize("time_major", [False, True])
def test_lstm(time_major, tmp_path):
    """As Keras's LSTM is converted; in LiteRT its state is zeros at the first call."""
    file = tflite_files.File()
    file.tensor("x", (1, 5, 3)), file.tensor("y", (1, 5, 4)), file.constant("order", np.int32([1, 0, 2]))
    file.tensor("turned", (5, 1, 3)), file.tensor("h turned", (5, 1, 4))
    names = [
        *(file.constant(f"w{gate}", RNG.standard_normal((4, 3)).astype(np.float32)) for gate in "ifco"),
        *(file.constant(f"r{gate}", RNG.standard_normal((4, 4)).astype(np.float32)) for gate in "ifco"),
        "", "", "",
        *(file.constant(f"b{gate}", RNG.standard_normal(4).astype(np.float32)) for gate in "ifco"),
        "", "", *(file.tensor(name, (1, 4), isVariable=True) for name in ("h", "c")),
    ]  # fmt: skip
    ends = ("turned", "h turned") if time_major else ("x", "y")
    if time_major:
        file.operator("TRANSPOSE", ["x", "order"], ["turned"], "TransposeOptions")
    file.operator("UNIDIRECTIONAL_SEQUENCE_LSTM", [ends[0], *names], [ends[1]], "UnidirectionalSequenceLSTMOptions",
                  fusedActivationFunction=4, timeMajor=time_major)  # fmt: skip
    lstm = file.operators[-1]
    if time_major:
        file.operator("TRANSPOSE", ["h turned", "order"], ["y"], "TransposeOptions")
    path = file.write(tmp_path / "m.tflite", ["x"], ["y"])
    x = RNG.standard_normal((1, 5, 3)).astype(np.float32)
    assert np.allclose(el.load(path).predict(x), tflite_files.run(path, x), atol=1e-5)
    lstm[-1]["cellClip"] = 1.0
    with pytest.raises(UnsupportedError, match="clip"):
        el.load(file.write(path, ["x"], ["y"]))


def test_an_input_without_a_batch(tmp_path):
    """As YAMNet's waveform."""
    file, kernel = tflite_files.File(), RNG.standard_normal((3, 3, 3, 1)).astype(np.float32)
    file.tensor("wave", (48,)), file.tensor("picture", (1, 6, 8, 1)), file.tensor("y", (1, 4, 6, 3))
    file.constant("kernel", kernel), file.constant("bias", np.zeros(3, np.float32))
    file.constant("sizes", np.int32([1, 6, 8, 1]))
    file.operator("RESHAPE", ["wave", "sizes"], ["picture"])
    file.operator("CONV_2D", ["picture", "kernel", "bias"], ["y"], "Conv2DOptions", padding=1, strideW=1, strideH=1)
    path = file.write(tmp_path / "m.tflite", ["wave"], ["y"])
    found = import_graph(path)
    assert found.network.inputs == {"input": (48,)}
    x = RNG.standard_normal((1, 48)).astype(np.float32)
    assert np.allclose(infer(found.model_file(), x), tflite_files.run(path, x[0]), atol=1e-5)
    assert any("(n, 48)" in note for note in found.notes)
    assert import_graph(path, input_shape=(48,)).network.inputs == {"input": (48,)}
    file.tensor("wave", ())
    file.write(path, ["wave"], ["y"])
    with pytest.raises(FormatError, match=r"\(\)"):
        import_graph(path)


def mobile() -> el.Network:
    """Inverted residual blocks as in MobileNet V2."""
    network = el.Network("mobile", (16, 16, 3))

    def block(name: str, op, clamped: bool = True) -> None:
        network.add(name, op)
        network.add(f"{name}_bn", BatchNormalization())
        if clamped:
            network.add(f"{name}_relu", ReLU(6))

    block("stem", Conv2D(16, 3, 2, "same", use_bias=False))
    block("depthwise", DepthwiseConv2D(3, padding="same", use_bias=False))
    block("project", Conv2D(8, 1, use_bias=False), False)
    block("expand", Conv2D(32, 1, use_bias=False))
    block("spread", DepthwiseConv2D(3, padding="same", use_bias=False))
    block("narrow", Conv2D(8, 1, use_bias=False), False)
    network.add("sum", Add(), "narrow_bn", "project_bn")
    block("last", Conv2D(32, 1, use_bias=False))
    network.add("pool", GlobalAveragePooling2D())
    network.add("scores", Dense(6))
    return network


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """(an int8 file of the project's exporter, pictures whose two largest scores are far apart)"""
    network, rng = mobile(), np.random.default_rng(1)
    weights = network.initialize(3)
    for name, array in weights.items():
        if name.endswith("gamma"):
            weights[name] = 3 * array
        elif name.endswith("beta"):
            weights[name] = 0.5 * rng.standard_normal(array.shape).astype(np.float32)
    x = rng.standard_normal((64, 16, 16, 3)).astype(np.float32)
    x += 2 * rng.standard_normal((64, 1, 1, 3)).astype(np.float32)
    model = el.Model(network, weights)
    model.weights = model.weights | {"scores/bias": -model.predict(x).mean(0)}
    path = tmp_path_factory.mktemp("exported") / "mobile.tflite"
    model.export(path, x, int8=True)
    scores = np.sort(model.predict(x), 1)
    chosen = np.argsort(scores[:, -2] - scores[:, -1])[:8]
    assert len(set(model.predict(x[chosen]).argmax(1))) > 2
    return path, x[chosen]


@pytest.mark.parametrize("unsigned", [False, True])
def test_clamps_that_ranges_of_integers_stand_for(exported, unsigned, tmp_path):
    """As in MobileNets of uint8: no activation, zero point 0, scale 6/255."""
    source, x = exported
    path = tflite_files.fold_clamps(source, tmp_path / "m.tflite", unsigned)
    found = import_graph(path)
    (theirs,), ours = litert.run(path, [x]), infer(found.model_file(), x)
    assert {layer.op for layer in found.network.nodes.values() if isinstance(layer.op, ReLU)} == {ReLU(6)}
    assert any(note.startswith("5 clamps") for note in found.notes)
    assert (ours.argmax(1) == theirs.argmax(1)).all()
    assert np.abs(ours - theirs).max() < 0.05 * np.abs(theirs).max()


def test_files_of_the_exporter_get_no_clamps(exported):
    path, x = exported
    found = import_graph(path)
    assert not any("clamps" in note for note in found.notes)
    assert all(name.endswith("relu6") for name, layer in found.network.nodes.items() if isinstance(layer.op, ReLU))
    (theirs,), ours = litert.run(path, [x]), infer(found.model_file(), x)
    assert (ours.argmax(1) == theirs.argmax(1)).all()
    assert np.abs(ours - theirs).max() < 0.05 * np.abs(theirs).max()


def test_inspect_tells_the_difference_to_integers(exported, monkeypatch, tmp_path):
    path, _ = exported
    (note,) = (note for note in el.inspect(path).notes if note.startswith("Predictions differ"))
    assert "% of the largest value" in note
    damaged = tmp_path / "m.tflite"
    damaged.write_bytes(path.read_bytes())
    monkeypatch.setattr(litert, "START", "import os; os.abort()")
    assert any("unknown. LiteRT can't run" in note for note in el.inspect(damaged).notes)
    monkeypatch.setattr(litert, "find_spec", lambda name: None)
    assert any("pip install ai-edge-litert" in note for note in el.inspect(path).notes)
    model = el.Model(mobile())
    model.export(tmp_path / "floats.tflite")
    assert not any("integers" in note for note in el.inspect(tmp_path / "floats.tflite").notes)


def agrees(path, shape, rounding=0.0):
    """The import, which computes what LiteRT does with a drawn input, up to `rounding` of the largest value."""
    found, x = import_graph(path), RNG.standard_normal((1, *shape)).astype(np.float32)
    assert not found.problems, found.problems
    y = tflite_files.run(path, x)
    assert np.abs(infer(found.model_file(), x).reshape(y.shape) - y).max() <= max(1e-5, rounding) * np.abs(y).max()
    return found


def test_a_layer_for_each_step_of_a_sequence(tmp_path):
    """As Keras's TimeDistributed(Conv2D), whose steps are the first axis: reshaped, taken apart, put together."""
    file = tflite_files.File()
    file.tensor("x", (1, 2, 5, 5, 3)), file.tensor("turned", (2, 1, 5, 5, 3)), file.tensor("packed", (2, 1, 3, 3, 4))
    file.tensor("y", (1, 2, 3, 3, 4)), file.tensor("mean", (1, 3, 3, 4))
    kernel, bias = (RNG.standard_normal(shape).astype(np.float32) for shape in ((4, 3, 3, 3), (4,)))
    file.constant("kernel", kernel), file.constant("bias", bias), file.constant("axis", np.int32([1]))
    file.constant("ones", np.int32([1] * 5))
    file.constant("to", np.int32([2, 1, 5, 5, 3])), file.constant("back", np.int32([1, 2, 3, 3, 4]))
    file.operator("RESHAPE", ["x", "to"], ["turned"])
    for step in range(2):
        file.constant(f"begin{step}", np.int32([step, 0, 0, 0, 0]))
        file.constant(f"end{step}", np.int32([step + 1, 1, 5, 5, 3]))
        file.tensor(f"x{step}", (1, 5, 5, 3)), file.tensor(f"y{step}", (1, 3, 3, 4))
        file.operator("STRIDED_SLICE", ["turned", f"begin{step}", f"end{step}", "ones"], [f"x{step}"],
                      "StridedSliceOptions", shrinkAxisMask=1, beginMask=30, endMask=30)  # fmt: skip
        file.operator("CONV_2D", [f"x{step}", "kernel", "bias"], [f"y{step}"], "Conv2DOptions", padding=1, strideW=1,
                      strideH=1)  # fmt: skip
    file.operator("PACK", ["y0", "y1"], ["packed"], "PackOptions", valuesCount=2)
    file.operator("RESHAPE", ["packed", "back"], ["y"])
    file.operator("MEAN", ["y", "axis"], ["mean"], "ReducerOptions")
    agrees(file.write(tmp_path / "m.tflite", ["x"], ["mean"]), (2, 5, 5, 3))


@pytest.mark.parametrize("switches", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("kind", ["Bilinear", "NearestNeighbor"])
def test_resizing(kind, switches, tmp_path):
    code = {"Bilinear": "RESIZE_BILINEAR", "NearestNeighbor": "RESIZE_NEAREST_NEIGHBOR"}[kind]
    for before, after in (((5, 7), (10, 14)), ((5, 7), (9, 4)), ((8, 6), (1, 1)), ((1, 1), (3, 2)), ((6, 8), (3, 4))):
        file = tflite_files.File()
        file.tensor("x", (1, *before, 2)), file.constant("size", np.int32(after)), file.tensor("y", (1, *after, 2))
        file.operator(code, ["x", "size"], ["y"], f"Resize{kind}Options", alignCorners=switches[0],
                      halfPixelCenters=switches[1])  # fmt: skip
        path = file.write(tmp_path / "m.tflite", ["x"], ["y"])
        if all(switches) and kind == "NearestNeighbor":
            assert "half_pixel_centers" in import_graph(path).problems[0].reason
        else:
            agrees(path, (*before, 2))


@pytest.mark.parametrize(("padding", "size"), [(1, 2), (1, 3), (2, 3)])
def test_mediapipe_s_transposed_convolution(padding, size, tmp_path):
    kernel, bias = (RNG.standard_normal(shape).astype(np.float32) for shape in ((3, size, size, 4), (3,)))
    x, strides = RNG.standard_normal((1, 6, 5, 4)).astype(np.float32), (2, 3)
    whole = np.zeros((1, 5 * 2 + size, 4 * 3 + size, 3)) + bias
    for row, column in np.ndindex(6, 5):
        spot = np.s_[:, 2 * row : 2 * row + size, 3 * column : 3 * column + size]
        whole[spot] += np.einsum("nc,ohwc->nhwo", x[:, row, column], kernel)
    cut = [max(0, size - (n - 1) % s - 1) if padding == 1 else 0 for n, s in zip(x.shape[1:3], strides, strict=True)]
    expected = whole[:, cut[0] // 2 : whole.shape[1] - cut[0] + cut[0] // 2,
                     cut[1] // 2 : whole.shape[2] - cut[1] + cut[1] // 2]  # fmt: skip
    file = tflite_files.File()
    file.tensor("x", x.shape), file.tensor("y", expected.shape)
    file.constant("kernel", kernel), file.constant("bias", bias)
    file.operator("CUSTOM", ["x", "kernel", "bias"], ["y"])
    path = file.write(tmp_path / "m.tflite", ["x"], ["y"])
    model = tflite_files.load(path)
    model.operatorCodes[0].customCode = "Convolution2DTransposeBias"
    model.subgraphs[0].operators[0].customOptions = np.frombuffer(np.int32([padding, 3, 2]).tobytes(), np.uint8)
    tflite_files.save(model, path)
    assert np.allclose(infer(import_graph(path).model_file(), x), expected, atol=1e-5)


def chain(file, *operators, shape=(1, 4, 5, 6)):
    """Append operators; each is (code, inputs, shape of the output, type, options, fields), and is called y0, y1, …"""
    file.tensor("x", shape)
    for number, (code, inputs, size, dtype, options, fields) in enumerate(operators):
        file.tensor(f"y{number}", size, dtype)
        file.operator(code, inputs, [f"y{number}"], options, **fields)
    return f"y{len(operators) - 1}"


IMAGE = (1, 4, 5, 6)
TRUTH = {"half": np.float32(0.5), "least": np.float32([-1, 0, 1, -1, 0, 1])}
CHAINS = {
    "greater and select": ([("GREATER", ["x", "half"], IMAGE, "bool", "", {}),
                            ("SELECT_V2", ["y0", "x", "half"], IMAGE, "float32", "", {})], TRUTH),
    "comparisons": ([("LESS_EQUAL", ["x", "half"], IMAGE, "bool", "", {}),
                     ("GREATER_EQUAL", ["x", "least"], IMAGE, "bool", "", {}),
                     ("LOGICAL_AND", ["y0", "y1"], IMAGE, "bool", "", {}),
                     ("LOGICAL_NOT", ["y2"], IMAGE, "bool", "", {}),
                     ("LESS", ["x", "least"], IMAGE, "bool", "", {}),
                     ("LOGICAL_OR", ["y3", "y4"], IMAGE, "bool", "", {}),
                     ("CAST", ["y5"], IMAGE, "float32", "CastOptions", {"inDataType": 6}),
                     ("MUL", ["x", "y6"], IMAGE, "float32", "MulOptions", {})], TRUTH),
    "tiles": ([("TILE", ["x", "twice"], (1, 8, 5, 6), "float32", "", {})], {"twice": np.int32([1, 2, 1, 1])}),
    "repeated": ([("MEAN", ["x", "axes"], (1, 1, 1, 6), "float32", "ReducerOptions", {"keepDims": True}),
                  ("TILE", ["y0", "many"], IMAGE, "float32", "", {}),
                  ("SUB", ["x", "y1"], IMAGE, "float32", "SubOptions", {})],
                 {"axes": np.int32([1, 2]), "many": np.int32([1, 4, 5, 1])}),
    "broadcast": ([("MEAN", ["x", "axes"], (1, 4, 1, 6), "float32", "ReducerOptions", {"keepDims": True}),
                   ("BROADCAST_TO", ["y0", "whole"], IMAGE, "float32", "", {})],
                  {"axes": np.int32([2]), "whole": np.int32(IMAGE)}),
    "two products": ([("BATCH_MATMUL", ["x", "x"], (1, 4, 5, 5), "float32", "BatchMatMulOptions", {"adjY": True}),
                      ("SOFTMAX", ["y0"], (1, 4, 5, 5), "float32", "SoftmaxOptions", {"beta": 1.0}),
                      ("BATCH_MATMUL", ["y1", "x"], IMAGE, "float32", "BatchMatMulOptions", {})], {}),
    "gather": ([("GATHER", ["x", "order"], (1, 4, 3, 6), "float32", "GatherOptions", {"axis": 2})],
               {"order": np.int32([4, 0, 4])}),
    "mirrors": ([("MIRROR_PAD", ["x", "sides"], (1, 7, 6, 6), "float32", "MirrorPadOptions", {"mode": 0}),
                 ("MIRROR_PAD", ["y0", "sides"], (1, 10, 7, 6), "float32", "MirrorPadOptions", {"mode": 1}),
                 ("PADV2", ["y1", "sides", "half"], (1, 13, 8, 6), "float32", "PadV2Options", {})],
                {"sides": np.int32([[0, 0], [1, 2], [0, 1], [0, 0]]), "half": np.float32(0.5)}),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_operators(name, tmp_path):
    operators, constants = CHAINS[name]
    file = tflite_files.File()
    for key, array in constants.items():
        file.constant(key, array)
    agrees(file.write(tmp_path / "m.tflite", ["x"], [chain(file, *operators)]), IMAGE[1:])


def test_numbers_that_become_whole_are_refused(tmp_path):
    file = tflite_files.File()
    chain(file, ("CAST", ["x"], IMAGE, "int32", "CastOptions", {"outDataType": 2}),
          ("ABS", ["x"], IMAGE, "float32", "", {}), ("CAST", ["y1"], IMAGE, "int32", "CastOptions", {"outDataType": 2}),
          ("CAST", ["y2"], IMAGE, "float32", "CastOptions", {"inDataType": 2}))  # fmt: skip
    (problem,) = import_graph(file.write(tmp_path / "m.tflite", ["x"], ["y3"])).problems
    assert problem.kind == "CAST" and "int32" in problem.reason
