"""Choices of policies, and the plans that follow from them, byte by byte."""

import re

import pytest

from edgelearn.compile import Invert, Kind, Offload, Recompute, Request, account, make_plan
from edgelearn.compile.plan import explain, stored
from edgelearn.compile.policies import POLICIES, cuts, invertible, nested, square_root
from edgelearn.errors import PlanError
from edgelearn.graph import INPUT, Network, reversible
from edgelearn.models import bcresnet, mobilenet_v1, mobilenet_v2, mobilenet_v2_reversible, resnet18_cifar, revnet
from edgelearn.ops import SGD, Add, AveragePooling2D, Concatenate, Conv2D, Coupling, ReLU, SiLU, SpaceToDepth
from edgelearn.runtime import Context, Session

from .steps import batches, first_step, same_bits
from .test_networks import EXAMPLES, head
from .test_plan import draw
from .test_rematerialiser import preactivated

MB = 10**6


def chain(layers: int) -> Network:
    """Convolutions of the same size, one after the other."""
    net = Network("chain", (8, 8, 16))
    for number in range(layers):
        net.add(f"conv{number}", Conv2D(16, 3, padding="same"))
        net.add(f"relu{number}", ReLU())
    return head(net)


def planned(kernels, network: Network, activation_memory, n: int = 1, batchnorm: str = "batch"):
    return make_plan(
        Request(network, n, n, SGD(0.1), batchnorm, activation_memory=activation_memory), kernels.context.device
    )


# -- where blocks end --------------------------------------------------------------------------------------------------


def test_blocks_end_where_networks_are_narrow():
    network = mobilenet_v2()
    ends = [name for name in network.nodes if name.endswith(("_add", "_project_BN"))]
    inside = {f"{name.removesuffix('_add')}_project_BN" for name in ends if name.endswith("_add")}
    expected = [name for name in ends if name not in inside] + ["predictions"]
    assert cuts(network) == [{name} for name in expected]


def test_amid_streams_two_tensors_are_cut():
    found = cuts(reversible(preactivated()))
    assert {"row0_1_add", "row0_2_add"} in found and {"row0_0_add", "row0_1_add"} in found


def test_every_root_of_a_chain_is_kept():
    network = chain(16)
    kept = {name for name in network.nodes if name not in square_root(network)}
    assert kept == {f"relu{number}" for number in (0, 4, 8, 12)}
    ways = nested(network)
    assert ways["relu5"] == Recompute(1) and ways["conv5"] == Recompute(2) and "relu4" not in ways


def test_streams_are_inverted_but_for_the_last_two():
    ways = invertible(reversible(preactivated()))
    inverses = {name: way.layer for name, way in ways.items() if isinstance(way, Invert)}
    assert inverses == {
        "stem0_stream": "row0_1_add", "row0_0_add": "row0_2_add", "row0_1_add": "row0_3_add",
        "stem1_stream": "row1_1_add", "row1_0_add": "row1_2_add",
    }  # fmt: skip
    assert not {"row0_2_add", "row0_3_add", "row1_1_add", "row1_2_add"} & set(ways)


def test_a_plan_says_what_comes_back_how(kernels):
    network = reversible(preactivated())
    plan = planned(kernels, network, invertible(network))
    assert re.search(r"activations: recompute \d+, invert 5, store others", str(plan))
    recorded = plan.to_dict()["activation_memory"]
    assert recorded["row0_0_add"] == "invert by row0_2_add" and recorded["row0_0_conv1"] == "recompute"


def test_reversible_leaves_layers_and_parameters():
    plain = preactivated()
    twin = reversible(plain)
    assert twin.parameters == plain.parameters and twin.trainable == plain.trainable
    assert set(plain.nodes) < set(twin.nodes)
    one = reversible(plain, "row0_*", step=0)
    assert set(one.nodes) - set(plain.nodes) == {"row0_3_add_streams"}
    assert one.nodes["row1_0_add"].op == Add()
    assert Network.from_json(twin.to_json()).to_json() == twin.to_json()


def test_what_is_coupled_stays_so():
    once = reversible(preactivated())
    assert reversible(once).nodes == once.nodes


def test_what_else_reads_a_sum_gets_both_streams():
    """As if x ← x + F(x): a row ends where more than the next block reads it."""
    net = Network("read", (4, 4, 16))
    x = net.add("stem", Conv2D(16, 1))
    for block in range(4):
        f = net.add(f"b{block}_conv", Conv2D(16, 1), x)
        x = net.add(f"b{block}_add", Add(), x, f)
    side = net.add("side", Conv2D(16, 1), "b1_add")
    net.add("join", Concatenate(), x, side)
    found = reversible(head(net)).nodes
    assert found["b1_add_streams"].inputs == ("b1_add", "b0_add")
    for name in ("side", "b2_conv"):
        assert found[name].inputs == ("b1_add_streams",)
    assert found["b2_add"].inputs == ("b1_add_streams", "b2_conv") and found["b3_conv"].inputs == ("b2_add",)
    assert found["join"].inputs == ("b3_add_streams", "side")


# -- bytes -------------------------------------------------------------------------------------------------------------


def test_published_figures_of_mobilenet_v2(kernels):
    found = account(planned(kernels, mobilenet_v2(), {}))
    assert found.framework / MB == pytest.approx(53.78, abs=0.005)
    assert found.conv_inputs / MB == pytest.approx(27.06, abs=0.005)
    assert found.framework_not_in_place / MB == pytest.approx(78.20, abs=0.005)
    assert found.stored / MB == pytest.approx(54.67, abs=0.01), "with statistics, the input and padded channels"
    assert "53.78 MB  framework " in str(found)


def test_frameworks_save_what_any_activation_reads(kernels):
    found = []
    for activation in (ReLU(), SiLU()):
        net = Network("activated", (8, 8, 16))
        net.add("conv", Conv2D(16, 3, padding="same"))
        net.add("activation", activation)
        found.append(account(planned(kernels, head(net), {})).framework_not_in_place)
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ("stem", "loss"))
def test_a_layer_may_be_called_loss(kernels, name):
    net = Network("named", (8, 8, 3))
    net.add(name, Conv2D(16, 3, padding="same"))
    net.add("conv", Conv2D(16, 3, padding="same"))
    net.add("relu", ReLU())
    for activation_memory in ({}, {name: Offload()}):
        plan = planned(kernels, net if "dense" in net.nodes else head(net), activation_memory)
        found = account(plan)
        kept = {buffer.name for buffer in stored(plan.program(Kind.TRAIN, 1))}
        assert (f"{name}/output" in kept) == (not activation_memory) and {"conv/output", "pool/output"} <= kept
        assert found.paged == (4096 if activation_memory else 0) and explain(plan).timeline[-1].forward is False


@pytest.mark.parametrize("batchnorm", ("moving", "batch"))
def test_invertible_mobilenet_v2(kernels, batchnorm):
    network = mobilenet_v2_reversible()
    plan = planned(kernels, network, invertible(network), batchnorm=batchnorm)
    found = account(plan)
    assert found.stored <= 4.19 * MB and found.framework >= 12.8 * found.stored
    assert found.peak <= 20 * MB
    streams = {"block_7_add": False, "block_8_add": True, "block_9_add": True}
    names = {buffer.layer for buffer in stored(plan.program(Kind.TRAIN, 1)) if buffer.name.endswith("/output")}
    assert {name: name in names for name in streams} == streams


@pytest.mark.parametrize(("filters", "bottleneck"), [((32, 32, 64, 128), False), ((32, 128, 256, 512), True)])
def test_memory_of_revnets_does_not_grow_with_depth(kernels, filters, bottleneck):
    """Stored activations are counted for a micro-batch of 32: statistics, which do grow, count for little."""

    def of(units: int, policy: str) -> int:
        network = revnet("revnet", units, filters, bottleneck)
        return account(planned(kernels, network, POLICIES[policy](network), 32)).stored

    assert of(9, "invertible") == pytest.approx(of(3, "invertible"), rel=0.01)
    assert of(9, "checkpoints") > 2 * of(3, "checkpoints")


def test_root_and_nested_checkpoints_of_a_chain(kernels):
    """64 layers of 4,096 bytes: 8 checkpoints and a segment, or a single layer, recomputed."""
    peaks = {}
    for name in ("keep_all", "checkpoints", "square_root", "nested"):
        network = chain(64)
        found = account(planned(kernels, network, POLICIES[name](network)))
        peaks[name] = found.peak
        assert found.stored // 4096 == {"keep_all": 65, "checkpoints": 64, "square_root": 9, "nested": 9}[name]
    assert peaks["square_root"] < 0.4 * peaks["keep_all"]


@pytest.mark.parametrize("policy", POLICIES)
def test_planned_is_what_is_allocated(kernels, policy):
    network = reversible(preactivated())
    context = Context(kernels.context.device)
    plan = planned(kernels, network, POLICIES[policy](network), EXAMPLES)
    session = Session(plan, context)
    weights, x, labels = draw(network, EXAMPLES)
    session.load(weights)
    session.train(batches(session, x, labels), EXAMPLES, 0.0, 1)
    assert context.ledger.peak == session.allocated_bytes == plan.peak_bytes
    session.close()


# -- impossible --------------------------------------------------------------------------------------------------------


def test_impossible_choices(kernels):
    network = reversible(preactivated())
    for activation_memory, message in (
        ({"row9": Recompute()}, "row9"),
        ({"row0_0_conv1": "recompute"}, "'recompute'"),
        ({"row0_0_conv1": Invert("row0_0_add")}, "'row0_0_conv1'.*'row0_0_add'"),
        ({"row0_0_add": Invert("row0_1_add")}, "'row0_0_add'.*'row0_1_add'"),
        (invertible(network) | {"row0_3_add": Recompute(), "row0_2_add": Recompute()}, "cycle.*row0_"),
    ):
        with pytest.raises(PlanError, match=message):
            planned(kernels, network, activation_memory)
    with pytest.raises(PlanError, match="loss"):
        make_plan(Request(network, optimizer=SGD(0.1), loss=None), kernels.context.device)
    with pytest.raises(PlanError, match="optimizer"):
        account(make_plan(Request(network), kernels.context.device))


def test_marks_that_mark_nothing():
    with pytest.raises(PlanError, match=r"'row7_add'.*row0_0_add"):
        reversible(preactivated(), "row7_add")


@pytest.mark.parametrize("network", (mobilenet_v1(), resnet18_cifar(), bcresnet()), ids=lambda net: net.name)
def test_nothing_to_couple(kernels, network):
    """An activation lies between the blocks of ResNets, and there are none, or one in a row."""
    with pytest.raises(PlanError, match=network.name):
        reversible(network)
    with pytest.raises(PlanError, match="preactivated"):
        reversible(preactivated(), "row0_1_add")


def test_a_broadcast_sum_is_no_residual_block():
    """BC-ResNets add a row of a block's features to all of them: no stream of their shape can be had back from that."""
    net = Network("broadcast", (4, 4, 16))
    x = net.add("stem", Conv2D(16, 1))
    for block in range(3):
        f = net.add(f"b{block}_row", AveragePooling2D((4, 1)) if block == 2 else Conv2D(16, 1), x)
        x = net.add(f"b{block}_add", Add(), x, f)
    found = reversible(head(net)).nodes
    assert [name for name, node in found.items() if isinstance(node.op, Coupling)] == ["b0_add", "b1_add"]
    assert found["b2_add"].op == Add() and found["b2_add"].inputs == ("b1_add_streams", "b2_row")


def test_space_to_depth_is_inverted(start):
    net = Network("squares", (8, 8, 3))
    net.add("conv", Conv2D(16, 3, padding="same"), INPUT)
    net.add("relu", ReLU())
    net.add("squares", SpaceToDepth())
    net.add("mix", Conv2D(8, 1))
    net.add("mix_relu", ReLU())
    head(net)
    assert invertible(net)["relu"] == Invert("squares")
    request = Request(
        net, EXAMPLES, EXAMPLES, SGD(0.1), activation_memory={"relu": Invert("squares")}
    )  # "conv" is to be kept
    assert start(request, net.initialize(0)).plan.program(Kind.TRAIN, EXAMPLES).inverted == {}
    memories = {}, invertible(net)
    requests = (Request(net, EXAMPLES, EXAMPLES, SGD(0.1), activation_memory=m) for m in memories)
    same_bits(*(first_step(start, request)[1] for request in requests))
