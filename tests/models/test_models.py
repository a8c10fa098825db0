"""The shapes of the networks, which can be trained from their own beginning."""

import numpy as np
import pytest

from edgelearn import models
from edgelearn.errors import ShapeError
from edgelearn.graph import Network
from edgelearn.models.keywords import Size
from edgelearn.ops import Adam, Coupling
from edgelearn.train import Model
from edgelearn.train.model import summary

# Parameters as Keras and PyTorch count them (trained, all), and millions of multiply-adds of an example.
FULL_SIZE = {
    "efficientnet_lite0": (4_652_008, 4_694_024, 385.2),
    "lenet5": (61_706, 61_706, 0.4165),
    "lenet_deepcl": (43_484, 43_484, 0.8239),
    "lenet_transfercl": (44_018, 44_018, 0.8244),
    "proxylessnas_mobile": (4_080_512, 4_115_008, 320.4),
    "resnet8": (78_186, 78_666, 12.50),
    "resnet34": (21_797_672, 21_814_696, 3_663.8),
    "resnet50": (25_557_032, 25_610_152, 4_089.2),
    "shufflenet_v2": (2_278_604, 2_294_784, 144.9),
    "squeezenet": (1_235_496, 1_235_496, 349.2),
    "alexnet": (60_965_224, 60_965_224, 724.4),
    "alexnet_one_column": (61_100_840, 61_100_840, 714.2),
    "bcresnet": (9_232, 11_648, 2.482),
    "ds_cnn": (23_180, 24_332, 2.657),
    "mobilenet_v1": (4_231_976, 4_253_864, 568.7),
    "mobilenet_v2": (3_504_872, 3_538_984, 300.8),
    "mobilenet_v2_cifar": (2_236_682, 2_270_794, 87.99),
    "efficientnet_b0": (5_288_548, 5_330_564, 385.8),
    "mobilenet_v3_large": (5_483_032, 5_507_432, 216.6),
    "mobilenet_v3_small": (2_542_856, 2_554_968, 56.51),
    "mobilenet_v2_reversible": (3_504_872, 3_538_984, 300.8),
    "mobilenet_v2_split_cifar": (1_729_418, 1_763_530, 64.58),
    "revnet38": (464_890, 467_562, 77.23),  # in millions 0.46, 1.73 and 1.75, as table 1 of the paper has it
    "revnet110": (1_729_194, 1_737_450, 253.3),
    "revnet164": (1_748_778, 1_773_546, 250.2),
    "resnet18": (11_689_512, 11_699_112, 1_814.1),
    "resnet18_cifar": (11_173_962, 11_183_562, 555.4),
    "vgg16": (138_357_544, 138_357_544, 15_470.3),
}


def products(network: Network) -> int:
    """Multiply-adds of convolutions and dense layers."""
    return sum(
        node.op.flops(*network.input_shapes(node.inputs)) // 2
        for node in network.nodes.values()
        if f"{node.name}/kernel" in network.parameters
    )


@pytest.mark.parametrize("name", FULL_SIZE)
def test_full_size(name):
    network = getattr(models, name)()
    trained, total, millions = FULL_SIZE[name]
    assert (network.count(network.trainable), network.count()) == (trained, total)
    assert products(network) / 1e6 == pytest.approx(millions, rel=1e-3)
    assert Network.from_json(network.to_json()).nodes == network.nodes
    assert f"Total parameters: {total:,}" in summary(network)


def test_variants_for_small_pictures_end_at_4_x_4():
    for name, last in ("resnet18_cifar", "conv5_block2_out"), ("mobilenet_v2_cifar", "out_relu"):
        assert getattr(models, name)().shape_of(last)[:2] == (4, 4)


def test_mobilenet_v2_has_a_shortcut_wherever_the_shape_stays():
    adds = [name for name in models.mobilenet_v2().nodes if name.endswith("_add")]
    assert adds == [f"block_{i}_add" for i in (2, 4, 5, 7, 8, 9, 11, 12, 14, 15)]


def test_reversible_mobilenet_v2_takes_the_weights_of_the_plain_one():
    plain, twin = models.mobilenet_v2(), models.mobilenet_v2_reversible()
    assert twin.parameters == plain.parameters
    assert products(twin) == products(plain)
    couplings = [node for node in twin.nodes.values() if isinstance(node.op, Coupling)]
    assert [node.name for node in couplings] == [name for name in plain.nodes if name.endswith("_add")]


@pytest.mark.parametrize("number", (38, 110, 164))
def test_layers_of_a_revnet(number):
    """Convolutions and the dense layer, shortcuts left out."""
    net = getattr(models, f"revnet{number}")()
    layers = [n for n in net.nodes if f"{n}/kernel" in net.parameters and not n.endswith("_shortcut")]
    assert len(layers) == number


def test_vgg16_drops_only_where_it_is_told_to():
    plain, dropping = models.vgg16((32, 32, 3)), models.vgg16((32, 32, 3), dropout=0.5)
    assert set(dropping.nodes) - set(plain.nodes) == {"fc1_dropout", "fc2_dropout"}
    assert dropping.parameters == plain.parameters


def test_a_picture_too_small_for_vgg16():
    with pytest.raises(ShapeError, match="block5_pool"):
        models.vgg16((30, 30, 3))


@pytest.mark.parametrize(("tau", "thousands"), [(1, 9.2), (1.5, 17.2), (2, 27.3), (3, 54.2), (6, 188), (8, 321)])
def test_bcresnets_have_as_many_parameters_as_in_their_paper(tau, thousands):
    network = models.bcresnet(tau=tau)
    assert network.count(network.trainable) / 1e3 == pytest.approx(thousands, rel=0.006)


@pytest.mark.parametrize(("size", "millions"), [("S", 5.4), ("M", 19.8), ("L", 56.9)])
def test_ds_cnns_have_as_many_operations_as_in_their_paper(size, millions):
    assert 2 * products(models.ds_cnn(size=size)) / 1e6 == pytest.approx(millions, rel=0.02)


def test_embeddings_end_before_the_classifier():
    assert models.bcresnet((40, 51, 1), tau=2, classes=None).output.shape == (64,)
    plain = models.ds_cnn((40, 101, 1), Size(128, 3, (2, 2), (1, 1), (4, 10)), classes=None)
    assert (plain.name, plain.output.name, plain.output.shape) == ("ds_cnn_128x3_40", "pool", (128,))
    assert set(models.ds_cnn().parameters) - set(models.ds_cnn(classes=None).parameters) == {
        "classifier/kernel",
        "classifier/bias",
    }


def test_shapes_that_keyword_networks_refuse():
    with pytest.raises(ShapeError, match=r"Layer 'stage1_block1_ssn'.*equal parts"):
        models.bcresnet((44, 101, 1))
    with pytest.raises(ShapeError, match="sizes S, M, L, not 'XL'"):
        models.ds_cnn(size="XL")


LEARNERS = {
    "bcresnet": models.bcresnet((40, 31, 1), dropout=0.0),
    "ds_cnn": models.ds_cnn(),
    "mobilenet_v2_cifar": models.mobilenet_v2_cifar(alpha=0.5),
    "mobilenet_v2_split_cifar": models.mobilenet_v2_split_cifar(alpha=0.5),
    "mobilenet_v3_small": models.mobilenet_v3_small((32, 32, 3), 0.5, 10, dropout=0.0),
    "resnet18_cifar": models.resnet18_cifar(alpha=0.25),
    "revnet": models.revnet("revnet14", 1, (16, 32, 64, 128), bottleneck=False),
    "vgg16": models.vgg16((32, 32, 3), alpha=0.25, classes=10, units=40),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_eight_examples_are_soon_known(name):
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((8, *LEARNERS[name].input_shape)).astype(np.float32), np.arange(8)
    rate = 0.02 if name in ("bcresnet", "ds_cnn") else 0.001  # they are small
    model = Model(LEARNERS[name], seed=1).compile(Adam(rate), batchnorm="batch")
    loss = model.fit(x, y, 8, 20, shuffle=False).history["loss"]
    assert loss[-1] < 0.1 * loss[0], loss
