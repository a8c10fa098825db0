"""State dicts of PyTorch: whatever is put onto a network is checked; nothing is left out in silence."""

import os
from collections import OrderedDict

import numpy as np
import pytest

import edgelearn as el
from edgelearn import ops
from edgelearn.errors import FormatError
from edgelearn.interop import read_model, safetensors
from edgelearn.interop.state_dict import from_torch_layout, read_bcresnet, to_torch_layout, torch_name
from tests.networks import chain

from .torch_files import Global, torch_save, torch_save_before_1_6


def classifier():
    network = el.Network("classifier", (4, 6, 3))
    network.add("conv", ops.Conv2D(8, 3, padding="same"))
    network.add("bn", ops.BatchNormalization())
    network.add("relu", ops.ReLU())
    network.add("depthwise", ops.DepthwiseConv2D(3, padding="same", use_bias=False))
    network.add("pool", ops.MaxPooling2D(2))
    network.add("flat", ops.Flatten())
    network.add("drop", ops.Dropout(0.5))
    network.add("dense", ops.Dense(5))
    return network


def as_state(network, weights, modules=None):
    """A state dict under PyTorch's names; `modules`: other names of layers, in the file's order."""
    modules = modules or {parameter.layer: parameter.layer for parameter in network.parameters.values()}
    state = OrderedDict()
    for layer, module in modules.items():
        for name in (name for name in network.parameters if name.partition("/")[0] == layer):
            state[f"{module}.{torch_name(name).rpartition('.')[2]}"] = to_torch_layout(network, name, weights[name])
        if f"{layer}/moving_mean" in network.parameters:
            state[f"{module}.num_batches_tracked"] = np.array(3)
    return state


def drawn(network):
    rng = np.random.default_rng(7)
    return {n: rng.random(p.weight.shape, np.float32) for n, p in network.parameters.items()}


def same(model, weights):
    return all(np.array_equal(model.weights[name], array) for name, array in weights.items())


@pytest.fixture
def network():
    return classifier()


@pytest.fixture
def weights(network):
    return drawn(network)


MODULES = {"conv": "features.0", "bn": "features.1", "depthwise": "features.3", "dense": "head.1"}


@pytest.mark.parametrize(
    "arrays", [{"foo": np.zeros(3, np.float32)}, {}, None], ids=["other", "none", "one is missing"]
)
def test_safetensors_files_of_other_networks_are_refused(tmp_path, network, weights, arrays):
    path = tmp_path / "x.safetensors"
    if arrays is None:
        arrays = {name: array for name, array in weights.items() if name != "dense/bias"}
    path.write_bytes(safetensors.to_bytes(arrays))
    with pytest.raises(FormatError, match=r"x\.safetensors") as caught:
        el.load(path, network)
    if "foo" in arrays:
        assert "weights of 1 module," in str(caught.value) and "'foo'" in str(caught.value)
    elif arrays:
        assert "lacks 1 of 9 weights ('dense/bias')" in str(caught.value) and "skip=" in str(caught.value)
        assert same(el.load(path, network, skip=("dense",)), {n: a for n, a in arrays.items() if "dense" not in n})


def test_what_is_left_over_or_of_another_shape_is_named(tmp_path, network, weights):
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors.to_bytes(weights | {"more/kernel": np.zeros(3, np.float32)}))
    with pytest.raises(FormatError, match=r"has 1 that the network has no place for \('more/kernel'\)"):
        el.load(path, network)
    assert same(el.load(path, network, skip=("more",)), weights)
    path.write_bytes(safetensors.to_bytes(weights | {"dense/bias": np.zeros(4, np.float32)}))
    with pytest.raises(FormatError, match=r"1 of another shape \('dense/bias \(4,\), not \(5,\)'\)"):
        el.load(path, network)


def test_models_of_another_network_are_refused(tmp_path, network, weights):
    el.Model(network, weights).save(tmp_path / "m.safetensors")
    other = el.models.mobilenet_v1((32, 32, 3), 0.25, 2)
    with pytest.raises(
        FormatError, match=r"lacks 135 of 137 weights .* and 132 more\), and has 7 .*, and has 2 of another shape"
    ):
        el.load(tmp_path / "m.safetensors", other)


@pytest.mark.parametrize("save", [torch_save, torch_save_before_1_6])
@pytest.mark.parametrize("modules", [None, MODULES], ids=["by name", "by order"])
def test_state_dicts(tmp_path, network, weights, save, modules):
    state = as_state(network, weights, modules)
    if save is torch_save_before_1_6:
        state = OrderedDict((name, array) for name, array in state.items() if "tracked" not in name)
    assert same(el.load(save(tmp_path / "state.pt", state), network), weights)
    assert state[f"{(modules or {}).get('dense', 'dense')}.weight"].shape == (5, 48)


def test_safetensors_and_npz_with_names_of_pytorch(tmp_path, network, weights):
    for modules in (None, MODULES):
        state = as_state(network, weights, modules)
        (tmp_path / "x.safetensors").write_bytes(safetensors.to_bytes(state))
        np.savez(tmp_path / "x.npz", **state)
        for path in (tmp_path / "x.safetensors", tmp_path / "x.npz"):
            assert same(el.load(path, network), weights)


def test_a_checkpoint_has_a_state_dict_among_other_entries(tmp_path, network, weights):
    state = as_state(network, weights, MODULES)
    optimizer = {"state": {0: {"momentum_buffer": np.zeros(3, np.float32)}}, "param_groups": [{"lr": 0.1}]}
    checkpoint = {
        "epoch": np.array(3),
        "model": state,
        "optimizer": optimizer,
        "args": Global("argparse", "Namespace", 1),
    }
    assert same(el.load(torch_save(tmp_path / "x.pt", checkpoint), network), weights)
    with pytest.raises(FormatError, match="several state dicts: model, ema"):
        el.load(torch_save(tmp_path / "x.pt", checkpoint | {"ema": state}), network)
    with pytest.raises(FormatError, match=r"object of __main__\.Net, whose code isn't run.*state_dict\(\)"):
        el.load(torch_save(tmp_path / "x.pt", Global("__main__", "Net", 1)), network)


def test_no_code_of_a_file_is_run(tmp_path, network, weights):
    (tmp_path / "harmless").mkdir()
    state = as_state(network, weights) | {"x": Global("os", "mkdir", str(tmp_path / "harm"))}
    assert same(el.load(torch_save(tmp_path / "x.pt", state), network), weights)
    with pytest.raises(FormatError):
        el.load(torch_save(tmp_path / "x.pt", Global("os", "rmdir", str(tmp_path / "harmless"))), network)
    assert (tmp_path / "harmless").is_dir() and not (tmp_path / "harm").exists()


def test_a_module_that_is_one_layer(tmp_path):
    network = el.Network("n", (3,))
    network.add("dense", ops.Dense(2))
    weights = drawn(network)
    state = {torch_name(n)[6:]: to_torch_layout(network, n, a) for n, a in weights.items()}
    assert same(el.load(torch_save(tmp_path / "x.pt", state), network), weights)


def test_views_of_storages(tmp_path):
    network = el.Network("n", (3,))
    network.add("dense", ops.Dense(2, use_bias=False))
    base = np.float64(np.arange(6)).reshape(3, 2)
    model = el.load(torch_save(tmp_path / "x.pt", {"dense.weight": base.T}), network)
    assert np.array_equal(model.weights["dense/kernel"], base)


def test_a_classifier_for_other_classes(tmp_path, network, weights):
    state = as_state(network, weights, MODULES)
    path = torch_save(tmp_path / "x.pt", state)
    other = classifier()
    other.nodes.pop("dense")
    for name in ("dense/kernel", "dense/bias"):
        other.parameters.pop(name)
        other.trainable.discard(name)
    other.add("few", ops.Dense(2))
    (tmp_path / "x.safetensors").write_bytes(safetensors.to_bytes(state))
    for file in (path, tmp_path / "x.safetensors"):
        with pytest.raises(FormatError, match=r"head\.1|left for 'few'"):
            el.load(file, other)
        found = el.load(file, other, skip=("few",))
        assert same(found, {name: array for name, array in weights.items() if "dense" not in name})


def test_a_table_of_names(tmp_path, network, weights):
    state = as_state(network, weights, {"dense": "a", "conv": "b", "depthwise": "c", "bn": "d"})
    path = torch_save(tmp_path / "x.pt", state)
    with pytest.raises(FormatError, match=r"'a' \(weight .*doesn't fit 'conv' .*names="):
        el.load(path, network)
    names = {"dense": "a", "conv": "b", "depthwise": "c", "bn": "d"}
    assert same(el.load(path, network, names=names), weights)
    in_part = {"dense/kernel": "a.weight", "dense/bias": "a.bias", "bn": "d"}
    assert same(el.load(path, network, names=in_part), weights)
    with pytest.raises(FormatError, match=r"no 'e\.weight', which names gives for 'conv/kernel'. It has 'a\.weight'"):
        el.load(path, network, names=names | {"conv": "e"})
    with pytest.raises(FormatError, match="names has 'cnov', but layers of"):
        el.load(path, network, names={"cnov": "b"})
    with pytest.raises(FormatError, match=r"'c\.weight' is float32 of shape .* needs numbers of shape \(8, 3, 3, 3\)"):
        el.load(path, network, names=names | {"depthwise": "b", "conv/kernel": "c.weight"})
    el.Model(network).save(tmp_path / "m.safetensors")
    with pytest.raises(FormatError, match="leave names out"):
        el.load(tmp_path / "m.safetensors", network, names=names)


def residual():
    """Two blocks with projected shortcuts, which stand before what they bypass."""
    network = el.Network("residual", (8, 8, 4))
    for block, channels in enumerate((6, 8)):
        start = network.output.name if network.nodes else "input"
        network.add(f"{block}_0", ops.Conv2D(channels, 1, use_bias=False), start)
        shortcut = network.add(f"{block}_0_bn", ops.BatchNormalization())
        network.add(f"{block}_1", ops.Conv2D(channels, 3, padding="same", use_bias=False), start)
        network.add(f"{block}_1_bn", ops.BatchNormalization())
        network.add(f"{block}_2", ops.Conv2D(channels, 3, padding="same", use_bias=False))
        network.add(f"{block}_2_bn", ops.BatchNormalization())
        network.add(f"{block}_add", ops.Add(), shortcut, f"{block}_2_bn")
    network.add("flat", ops.Flatten())
    network.add("dense", ops.Dense(3))
    return network


BLOCK = {"1": "conv1", "1_bn": "bn1", "2": "conv2", "2_bn": "bn2", "0": "down.0", "0_bn": "down.1"}
ORDER = {f"{block}_{mine}": f"layer{block}.{theirs}" for block in (0, 1) for mine, theirs in BLOCK.items()}


def test_branches_in_another_order(tmp_path):
    network = residual()
    weights = drawn(network)
    state = as_state(network, weights, ORDER | {"dense": "fc"})
    assert same(el.load(torch_save(tmp_path / "x.pt", state), network), weights)
    (tmp_path / "x.safetensors").write_bytes(safetensors.to_bytes(state))
    with pytest.raises(FormatError, match=r"fits .* alike|doesn't fit.*\.pt files do"):
        el.load(tmp_path / "x.safetensors", network)
    assert same(el.load(tmp_path / "x.safetensors", network, names=ORDER), weights)


def test_branches_that_are_alike_are_not_guessed(tmp_path):
    network = el.Network("twins", (8, 8, 4))
    first = network.add("a", ops.Conv2D(4, 1), "input")
    second = network.add("b", ops.Conv2D(4, 1), "input")
    network.add("c", ops.Conv2D(2, 1), first)
    network.add("d", ops.Conv2D(2, 3, padding="same"), second)
    network.add("sum", ops.Add(), "c", "d")
    state = as_state(network, drawn(network), {"b": "1", "d": "2", "a": "3", "c": "4"})
    with pytest.raises(FormatError, match=r"'1' .*fits 'a', 'b' alike"):
        el.load(torch_save(tmp_path / "x.pt", state), network)


def test_layouts_lead_back():
    network = chain(
        "n", (4, 4, 6), up=ops.Conv2DTranspose(8, 3, strides=2, padding="same", groups=2),
        many=ops.DepthwiseConv2D(3, depth_multiplier=2), grouped=ops.Conv2D(8, 3, groups=4), slope=ops.PReLU(),
        flat=ops.Flatten(), norm=ops.BatchNormalization(), dense=ops.Dense(5),
    )  # fmt: skip
    for name, array in drawn(network).items():
        theirs = to_torch_layout(network, name, array)
        assert np.array_equal(from_torch_layout(network, name, theirs), array)
        if name == "norm/gamma":
            shape = network.nodes["slope"].shape
            assert np.array_equal(theirs, array.reshape(shape).transpose(2, 0, 1).ravel())
        if name == "many/kernel":
            assert theirs.shape == (16, 1, 3, 3) and np.array_equal(theirs[5, 0], array[:, :, 2, 1])


def test_an_order_of_features_that_cannot_be_told(tmp_path):
    network = chain("n", (4, 4, 6), turned=ops.Transpose((3, 1, 2)), flat=ops.Flatten(), dense=ops.Dense(5))
    with pytest.raises(FormatError, match="'flat' of 'n' can't be told"):
        el.load(torch_save(tmp_path / "x.pt", {"dense.weight": np.zeros((5, 96), np.float32)}), network)


def test_what_pytorch_computes_with_these_weights(tmp_path, network, weights):
    torch = pytest.importorskip("torch")
    nn = torch.nn
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8, eps=1e-3), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(),
        nn.Linear(48, 5),
    )  # fmt: skip
    x = torch.randn(3, 3, 4, 6)
    module(x)  # moves the statistics
    module.eval()
    for options in ({}, {"_use_new_zipfile_serialization": False}):
        torch.save(module.state_dict(), tmp_path / "x.pt", **options)
        found = el.load(tmp_path / "x.pt", network).predict(x.permute(0, 2, 3, 1).numpy())
        assert np.abs(found - module(x).detach().numpy()).max() < 1e-5
    torch.save({"model": module.half().state_dict(), "epoch": torch.tensor(3)}, tmp_path / "x.pth")
    assert el.load(tmp_path / "x.pth", network).weights["conv/kernel"].dtype == np.float32
    torch.save(module.bfloat16().state_dict(), tmp_path / "x.pth")
    kernel = el.load(tmp_path / "x.pth", network).weights["conv/kernel"]
    assert np.array_equal(kernel, module[0].weight.detach().float().numpy().transpose(2, 3, 1, 0))
    torch.save(module, tmp_path / "x.pth")
    with pytest.raises(FormatError, match="code isn't run"):
        el.load(tmp_path / "x.pth", network)


def test_exported_state_dicts_come_back(tmp_path, network, weights):
    pytest.importorskip("torch")
    model = el.Model(network, weights)
    model.class_names, model.preprocessing = tuple("abcde"), {"size": 4}
    model.export(tmp_path / "m.pt")
    again = el.load(tmp_path / "m.pt", network)
    assert same(again, weights) and again.class_names == model.class_names and again.preprocessing == {"size": 4}


def test_files_of_exports_before(tmp_path, network, weights):
    """Version 1 had channels last in linear layers."""
    state = as_state(network, weights)
    state["dense.weight"] = np.ascontiguousarray(weights["dense/kernel"].T)
    state._metadata = {"edgelearn": {"version": 1, "class_names": '["a"]'}}
    found = read_model(torch_save(tmp_path / "x.pt", state), network)
    assert np.array_equal(found.weights["dense/kernel"], weights["dense/kernel"]) and found.class_names == ("a",)


# -- the published BC-ResNet, whose state dict is an .npz file ---------------------------------------------------------


@pytest.fixture(scope="module")
def published():
    """Arrays as PyTorch names and shapes them, each of other values."""
    shapes = {"cnn_head.0.weight": (16, 1, 5, 5), "classifier.0.weight": (20, 1, 5, 5),
              "classifier.1.weight": (32, 20, 1, 1), "classifier.5.weight": (12, 32, 1, 1),
              "classifier.5.bias": (12,)}  # fmt: skip
    norms, before = {"cnn_head.1": 16, "classifier.2": 32}, 16
    for stage, (c, blocks) in enumerate(zip((8, 12, 16, 20), (2, 2, 4, 4), strict=True)):
        for block in range(blocks):
            name, first = f"BCBlocks.{stage}.{block}", block == 0
            if first:
                shapes[f"{name}.f2.0.block.0.weight"] = (c, before, 1, 1)
                norms[f"{name}.f2.0.block.1"] = c
            shapes[f"{name}.f2.{int(first)}.block.0.weight"] = (c, 1, 3, 1)
            norms[f"{name}.f2.{int(first)}.block.1.ssnorm"] = 5 * c
            shapes[f"{name}.f1.0.block.0.weight"] = (c, 1, 1, 3)
            norms[f"{name}.f1.0.block.1"] = c
            shapes[f"{name}.f1.1.weight"] = (c, c, 1, 1)
        before = c
    for name, count in norms.items():
        shapes |= {f"{name}.{role}": (count,) for role in ("weight", "bias", "running_mean", "running_var")}
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return arrays | {f"{name}.num_batches_tracked": np.array(7) for name in norms}


@pytest.fixture
def read_published(tmp_path):
    """read_published(arrays, network, skip): the weights of a file of these arrays."""

    def read(arrays, network, skip=()):
        np.savez(tmp_path / "w.npz", **arrays)
        return read_bcresnet(tmp_path / "w.npz", network, skip=skip)

    return read


def test_arrays_get_our_names_and_layouts(read_published, published):
    network = el.models.bcresnet((40, 9, 1))
    found = read_published(published, network)
    assert found.keys() == network.parameters.keys()
    assert all(array.dtype == np.float32 and array.flags.c_contiguous for array in found.values())
    for ours, (theirs, order) in {
        "stem/kernel": ("cnn_head.0.weight", (2, 3, 1, 0)),
        "stem_bn/moving_variance": ("cnn_head.1.running_var", (0,)),
        "stage2_block1_pointwise/kernel": ("BCBlocks.1.0.f2.0.block.0.weight", (2, 3, 1, 0)),
        "stage2_block1_frequency/kernel": ("BCBlocks.1.0.f2.1.block.0.weight", (2, 3, 0, 1)),
        "stage2_block2_frequency/kernel": ("BCBlocks.1.1.f2.0.block.0.weight", (2, 3, 0, 1)),
        "stage4_block3_time/kernel": ("BCBlocks.3.2.f1.0.block.0.weight", (2, 3, 0, 1)),
        "stage4_block3_time_bn/beta": ("BCBlocks.3.2.f1.0.block.1.bias", (0,)),
        "classifier/bias": ("classifier.5.bias", (0,)),
    }.items():
        np.testing.assert_array_equal(found[ours], published[theirs].transpose(order))
    np.testing.assert_array_equal(found["classifier/kernel"], published["classifier.5.weight"][:, :, 0, 0].T)
    gamma, theirs = found["stage1_block2_ssn/gamma"], published["BCBlocks.0.1.f2.0.block.1.ssnorm.weight"]
    assert np.array_equal(gamma.ravel(), theirs.reshape(8, 5).T.ravel())


def test_an_embedding_skips_the_classifier(read_published, published):
    embedding = el.models.bcresnet((40, 9, 1), classes=None)
    for network in (embedding, el.models.bcresnet((40, 9, 1), classes=5)):
        assert read_published(published, network, skip=("classifier",)).keys() == embedding.parameters.keys()


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        ({"classifier.1.weight": None}, {}, r"w\.npz has no 'classifier\.1\.weight', which .*'tail/kernel'"),
        ({"classifier.5.bias": np.zeros(11, np.float32)}, {}, r"'classifier.5.bias' is float32 .*\(11,\), but .*12"),
        ({"classifier.5.bias": np.array(["a"] * 12)}, {}, r"'classifier\.5\.bias' is <U1 of shape"),
        ({"more": np.zeros(3)}, {}, "no layer is left for 'more'"),
        ({}, {"network": el.models.bcresnet((40, 9, 1), tau=2)}, r"of shape .*, but .* of 'bcresnet_2_9' needs"),
        ({}, {"network": el.models.bcresnet((40, 9, 1), classes=None)}, r"is left for 'classifier\.5'.*skip"),
        ({}, {"network": el.models.ds_cnn()}, "'conv' is no layer of a BC-ResNet"),
        ({}, {"skip": ("clasifier",)}, "'clasifier' is no layer"),
    ],
)  # fmt: skip
def test_published_arrays_that_do_not_fit(read_published, published, change, options, words):
    arrays = {name: array for name, array in (published | change).items() if array is not None}
    with pytest.raises(FormatError, match=words):
        read_published(arrays, **{"network": el.models.bcresnet((40, 9, 1))} | options)


@pytest.mark.skipif("EDGELEARN_DATA" not in os.environ, reason="no trained weights to read")
def test_trained_weights_give_the_logits_of_pytorch():
    """The logits are what tests/models/torch_networks.py computes for this input, in float64."""
    path = f"{os.environ['EDGELEARN_DATA']}/weights/bcresnet1_speech_commands.npz"
    model = el.load(path, el.models.bcresnet(softmax=False))
    frequency, time = np.ogrid[:40, :101]
    x = np.float32(-4 + 4 * np.sin(0.01 * frequency * time))[None, ..., None]
    assert model.predict(x, 1)[0] == pytest.approx(
        [2.2392, 1.1409, 2.1809, 0.2769, -0.9544, 0.1742, -1.4236, -0.5544, -0.9400, -0.4719, -1.7738, 0.3185], abs=1e-3
    )
