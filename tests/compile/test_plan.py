"""Promises of a plan before anything runs, and the sessions that keep them.

Tensors that a plan keeps for the backward pass.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgelearn import ops
from edgelearn.compile import Kind, Plan, Request, Store, make_plan
from edgelearn.compile.plan import stored
from edgelearn.compile.storage import Lifetime, lifetimes, place
from edgelearn.display import megabytes
from edgelearn.errors import DeviceError, PlanError
from edgelearn.graph import Network
from edgelearn.launch import Buffer, In, InOut, Launch, Out, Role
from edgelearn.models import mobilenet_v1
from edgelearn.ops import SGD, Adam, pack
from edgelearn.runtime import Context, Session

from .steps import batches

BATCH = 163  # of the flowers job


def small() -> Network:
    net = Network("small", (8, 8, 3))
    for name, op in (
        ("conv", ops.Conv2D(16, 3, strides=2, padding="same", use_bias=False)),
        ("dw", ops.DepthwiseConv2D(3, padding="same", use_bias=False)),
        ("pw", ops.Conv2D(24, 1)),
    ):
        net.add(name, op)
        net.add(f"{name}_bn", ops.BatchNormalization())
        net.add(f"{name}_relu", ops.ReLU(6))
    net.add("pool", ops.GlobalAveragePooling2D())
    net.add("dense", ops.Dense(5))
    net.add("softmax", ops.Softmax())
    return net


def flowers() -> Network:
    """The main job in small: conv_pw_13 and a dense layer are trained, BatchNorm is not."""
    return mobilenet_v1((32, 32, 3), 0.25, 5).freeze().unfreeze("conv_pw_13", "dense")


def draw(network: Network, n: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    weights = network.initialize(seed)
    for name, w in weights.items():
        if name.endswith(("moving_mean", "beta")):
            weights[name] = (0.2 * rng.standard_normal(w.shape)).astype(np.float32)
        elif name.endswith("moving_variance"):  # so that signals neither die nor saturate in depth
            weights[name] = rng.uniform(0.1, 0.4, w.shape).astype(np.float32)
    x = rng.uniform(-1, 1, (n, *network.input_shape)).astype(np.float32)
    return weights, x, rng.integers(0, 5, n).astype(np.int32)


# -- bytes -----------------------------------------------------------------------------------------------------------

SIZES = {"last_batches": (5,), "remainders": (5,)}
REQUESTS = {
    "micro-batch of all": Request(small(), 6, 6, SGD(0.1), **SIZES),
    "micro-batches of 1, Adam": Request(small(), 6, 1, Adam(), **SIZES),
    "uneven micro-batches": Request(small(), 6, 4, SGD(0.1, momentum=0.9), last_batches=(5,), remainders=(6,)),
    "batch statistics": Request(small(), 6, 4, SGD(0.1), "batch", last_batches=(5,), remainders=(2,)),
    "frozen below": Request(small().freeze().unfreeze("dense"), 6, 3, ops.AdamW(), last_batches=(5,), remainders=(1,)),
    "prediction": Request(small(), 6, 3),
    "prediction without a loss": Request(small(), 6, 3, loss=None),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_planned_is_what_is_allocated(kernels, name):
    request = REQUESTS[name]
    weights, x, labels = draw(request.network, 6)
    context = Context(kernels.context.device)
    plan = make_plan(request, context.device)
    assert context.ledger.held == 0, "a plan allocates nothing"
    told: list[tuple] = []
    session = Session(plan, context, progress=lambda *counts: told.append(counts))
    planned, compiled = plan.peak_bytes, len(told)
    assert context.ledger.held == session.allocated_bytes == planned > 0
    session.load(weights)
    if request.optimizer:
        for step in (1, 2):
            assert session.train(batches(session, x, labels), 6, 0.1, step)[2]
        assert len(told) == compiled > 0
        part = draw(request.network, 5)
        assert session.train(batches(session, *part[1:]), 5, 0.1, 3)[2], "the last mini-batch of an epoch is shorter"
    for n in (request.micro_batch, *request.remainders):
        packed = pack(x[:n], plan.storage.input.block)
        if request.loss:
            session.evaluate(packed, labels[:n])
        session.predict(packed, n)
    if name == "batch statistics":
        assert len(told) > compiled, "evaluation has kernels of its own, which weren't needed before"
    session.weights()
    session.load(weights)
    assert context.ledger.peak == plan.peak_bytes == planned
    session.close()
    assert context.ledger.held == 0


def test_weights_outlast_steps(start):
    """Activations are given back first: what is read has room where they were."""
    request = Request(small(), 6, 6, SGD(0.1))
    weights, x, labels = draw(request.network, 6)
    session = start(request, weights)
    session.train(batches(session, x, labels), 6, 0.1, 1)
    expected, before = session.weights(), session.allocated_bytes
    session.end_steps()
    assert before - session.allocated_bytes == session.plan.arena_bytes > 0
    assert all((w == expected[name]).all() for name, w in session.weights().items())
    with pytest.raises(DeviceError, match="micro-batch of 6"):
        session.train(batches(session, x, labels), 6, 0.1, 2)


@pytest.mark.parametrize(
    "batch, expected", ((6, {(6, True)}), (18, {(6, True), (6, False)}), (8, {(6, True), (2, False)}))
)
def test_programs_of_a_mini_batch(kernels, batch, expected):
    plan = make_plan(Request(small(), batch, 6, SGD(0.1)), kernels.context.device)
    assert {(key.examples, key.first) for key in plan.programs if key.kind is Kind.TRAIN} == expected


@pytest.mark.parametrize("micro", (4, 15))
@pytest.mark.parametrize(
    "make", (small, flowers, lambda: mobilenet_v1((32, 32, 3), 0.25, 5)), ids=("small", "flowers", "all")
)
def test_shorter_micro_batches_fit_the_same_plan(kernels, make, micro):
    request, shorter = Request(make(), 30, micro, SGD(0.1)), range(1, micro)
    all_sizes = replace(request, last_batches=(*shorter, *(micro + n for n in shorter)), remainders=shorter)
    alone, plan = (make_plan(r, kernels.context.device) for r in (request, all_sizes))
    for n in shorter:
        for kind, first in ((Kind.TRAIN, True), (Kind.TRAIN, False), (Kind.EVALUATE, True), (Kind.PREDICT, True)):
            assert plan.program(kind, n, first=first).inputs["input"].shape[0] == n
    assert plan.peak_bytes == alone.peak_bytes


def test_no_two_buffers_alive_at_once_overlap(kernels):
    plan = make_plan(Request(small(), 6, 4, Adam()), kernels.context.device)
    for program in plan.programs.values():
        for part in (program.prepare, program.micro, program.finish):
            lives = lifetimes(part)
            for i, a in enumerate(lives):
                assert plan.offsets[a.buffer] + a.buffer.nbytes <= plan.arena_bytes
                for b in lives[:i]:
                    if a.first <= b.last and b.first <= a.last:
                        (s, x), (t, y) = sorted((plan.offsets[v.buffer], v.buffer.nbytes) for v in (a, b))
                        assert s + x <= t or min(x, y) == 0


def test_parts_of_a_role_do_not_overlap(kernels):
    """Parameters, constants and the like: everything that has its place for good."""
    plan = make_plan(Request(small().freeze("conv*"), 6, 4, Adam()), kernels.context.device)
    reserved = [t.buffer for t in plan.storage._tensors.values()] + plan.storage.slots
    for role, size in plan.storage.sizes.items():
        places = sorted((plan.storage.offsets[b], b.nbytes) for b in reserved if b.role is role)
        for (start, nbytes), (after, _) in zip(places, [*places[1:], (size, 0)], strict=True):
            assert start % plan.alignment == 0 and start + nbytes <= after


# -- traffic -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("micro", (6, 4, 1))
def test_predicted_traffic_is_what_is_enqueued(start, micro):
    request = Request(small(), 6, micro, Adam(), last_batches=(5,))
    weights, x, labels = draw(request.network, 6)
    session = start(request, weights)
    assert not session.traffic
    for step in (1, 2):
        session.train(batches(session, x, labels), 6, 0.1, step)
    plan = session.plan
    assert session.traffic == plan.traffic() + plan.traffic()
    session.train(batches(session, x[:5], labels[:5]), 5, 0.1, 3)
    assert session.traffic == plan.traffic() + plan.traffic() + plan.traffic(5)


def test_traffic_of_a_layer_by_hand(kernels):
    """A pointwise convolution: 24 channels are stored as 32."""
    plan = make_plan(Request(small(), 6, 3, SGD(0.1)), kernels.context.device)
    rows = 3 * 4 * 4
    moved = {m: n for m, n in plan.traffic().items() if m.layer == "pw" and m.kernel.endswith("_forward")}
    assert {(m.tensor, m.direction): n for m, n in moved.items()} == {
        ("dw/output", "read"): 2 * 4 * rows * 16,
        ("pw/kernel", "read"): 2 * 4 * 16 * 32,
        ("pw/scale", "read"): 2 * 4 * 32,
        ("pw/shift", "read"): 2 * 4 * 32,
        ("pw/output", "written"): 2 * 4 * rows * 32,
    }
    assert sum(plan.traffic().by("direction").values()) == plan.traffic().total()


# -- budgets and impossible requests -----------------------------------------------------------------------------------


def test_budget_too_small_says_what_would_fit(kernels):
    request, device = Request(small(), 8, 8, SGD(0.1)), kernels.context.device
    need = make_plan(request, device).peak_bytes
    least = make_plan(replace(request, micro_batch=1), device).peak_bytes
    assert least < need
    assert make_plan(request, device, budget=need).peak_bytes == need
    with pytest.raises(PlanError) as caught:
        make_plan(request, device, budget=least)
    assert megabytes(need) in str(caught.value) and "micro-batch that fits is 1 (now 8)" in str(caught.value)
    five = make_plan(replace(request, micro_batch=5), device, "20 GB").peak_bytes
    with pytest.raises(PlanError, match=r"micro-batch that fits is 5 \(now 8\)"):
        make_plan(replace(request, activation_memory={"pw": Store()}), device, budget=five)
    for micro in (8, 1):
        with pytest.raises(PlanError, match="Freeze more layers"):
            make_plan(replace(request, micro_batch=micro), device, budget=1000)


def test_device_too_small(kernels):
    request, device = Request(small(), 8, 8, SGD(0.1)), kernels.context.device
    need = make_plan(request, device).peak_bytes
    with pytest.raises(DeviceError, match=megabytes(need)):
        make_plan(request, replace(device, memory=need - 1))
    with pytest.raises(DeviceError, match="one buffer"):
        make_plan(request, replace(device, largest_buffer=1000))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 0, "micro_batch": 0}, "at least 1"),
        ({"micro_batch": 9}, "larger than the mini-batch"),
        ({"batchnorm": "frozen"}, "'moving'.*'batch'"),
        ({"network": Network("empty", (3,))}, "no layers"),
        ({"network": small().freeze()}, "Nothing to train"),
    ],
)
def test_impossible_requests(kernels, change, words):
    with pytest.raises(PlanError, match=words):
        make_plan(replace(Request(small(), 8, 8, SGD(0.1)), **change), kernels.context.device)


def test_loss_of_an_image(kernels):
    net = Network("image", (4, 4, 3))
    net.add("conv", ops.Conv2D(4, 1))
    plan = make_plan(Request(net), kernels.context.device)  # a class for each pixel
    assert make_plan(Request(net, loss=None), kernels.context.device).peak_bytes < plan.peak_bytes


# -- the backward pass stops at the lowest trained layer ---------------------------------------------------------------


def test_nothing_is_planned_below_the_lowest_trained_layer(kernels):
    device, batch = kernels.context.device, 15
    plan = make_plan(Request(flowers(), batch, batch, SGD(0.1)), device)
    forward = make_plan(Request(flowers(), batch, batch), device)
    whole = make_plan(Request(mobilenet_v1((32, 32, 3), 0.25, 5), batch, batch, SGD(0.1)), device)
    program = plan.program(Kind.TRAIN, batch)

    trained = ("conv_pw_13", "global_average_pooling2d", "dense", "loss")
    more = program.micro[len(forward.program(Kind.EVALUATE, batch).micro) - 1 :]  # both end by counting
    assert {launch.layer for launch in more} <= set(trained)
    backward = [launch for launch in program.micro if "backward" in launch.kernel]
    assert {launch.layer for launch in backward} == {"conv_pw_13", "global_average_pooling2d", "dense"}
    needless = [launch for launch in backward if launch.layer == "conv_pw_13" and "data" in launch.kernel]
    assert not needless, "nobody reads the gradient of the lowest trained layer's input"
    assert {launch.layer for launch in program.prepare} <= {"conv_pw_13", "dense"}
    assert {launch.layer for launch in program.finish} <= {"conv_pw_13", "dense", "optimizer"}

    size = 4 * (256 * 256 + 256 * 16 + 16)  # conv_pw_13 and the dense layer, channels padded to 16
    assert plan.bytes_by_role[Role.PARAMETER] == plan.bytes_by_role[Role.GRADIENT]
    assert size <= plan.bytes_by_role[Role.GRADIENT] <= size + 4 * plan.alignment
    assert Role.OPTIMIZER not in plan.bytes_by_role
    assert plan.bytes_by_role[Role.TEMPORARY] == forward.bytes_by_role[Role.TEMPORARY], "no activation is kept longer"
    assert whole.bytes_by_role[Role.TEMPORARY] > 3 * plan.bytes_by_role[Role.TEMPORARY]
    assert len(whole.program(Kind.TRAIN, batch).launches) > 2 * len(program.launches)


def test_frozen_layers_are_folded(kernels):
    plan = make_plan(Request(flowers(), 4, 4, SGD(0.1)), kernels.context.device)
    names = [buffer.name for buffer in plan.storage.fill]
    assert not [n for n in names if "_bn/" in n and "pw_13" not in n], "their BatchNorm is part of their kernels"
    assert "conv1/folded kernel" in names and "conv_pw_13/kernel" in names


# -- one mini-batch, several micro-batches -----------------------------------------------------------------------------


@pytest.mark.parametrize("make", (flowers, lambda: mobilenet_v1((32, 32, 3), 0.25, 5)), ids=("flowers", "all layers"))
def test_micro_batches_give_the_weights_of_the_mini_batch(start, make):
    network = make()
    weights, x, labels = draw(network, BATCH)
    found = {}
    for micro in (BATCH, 15, 1):  # 163 = 10 × 15 + 13
        session = start(Request(network, BATCH, micro, SGD(0.1)), weights)
        assert len(session.plan.micro_batches(BATCH)) == -(-BATCH // micro)
        loss, correct, finite = session.train(batches(session, x, labels), BATCH, 0.1, 1)
        assert finite
        found[micro] = loss, correct, session.weights(), session.gradients()
        session.close()
    loss, correct, *whole = found[BATCH]
    assert set(whole[0]) == set(whole[1]) == network.trainable
    for micro in (15, 1):
        assert found[micro][0] == pytest.approx(loss, rel=1e-5)
        assert found[micro][1] == correct
        for mine, others in zip(whole, found[micro][2:], strict=True):  # weights, then gradients
            for name, expected in mine.items():
                assert np.abs(expected).max() > 0
                assert np.linalg.norm(others[name] - expected) <= 1e-5 * np.linalg.norm(expected), name


def test_the_same_run_twice_gives_the_same_bits(start):
    network = small()
    weights, x, labels = draw(network, 7)

    def run():
        session = start(Request(network, 7, 3, Adam()), weights)
        for step in (1, 2, 3):
            session.train(batches(session, x, labels), 7, 0.01, step)
        return session.weights()

    first, second = run(), run()
    assert all(np.array_equal(first[name], second[name]) for name in first)


# -- what training leaves alone ----------------------------------------------------------------------------------------


def frozen_on_device(session: Session):
    return session._unpacked(session.plan.storage.frozen)


@pytest.mark.parametrize("batchnorm", ("moving", "batch"))
def test_frozen_statistics_keep_every_bit(start, batchnorm):
    """BatchNorm between trained layers, itself frozen: neither mode may move its statistics."""
    network = small().freeze("dw_bn")
    weights, x, labels = draw(network, 6)
    session = start(Request(network, 6, 4, SGD(0.1, momentum=0.9), batchnorm), weights)
    for step in range(1, 6):
        assert session.train(batches(session, x, labels), 6, 0.1, step)[2]
    kept = frozen_on_device(session)
    for role in ("gamma", "beta", "moving_mean", "moving_variance"):
        assert np.array_equal(kept[f"dw_bn/{role}"], weights[f"dw_bn/{role}"])
    moved = not np.array_equal(kept["conv_bn/moving_mean"], weights["conv_bn/moving_mean"])
    assert moved == (batchnorm == "batch")
    after = session.weights()
    assert not np.array_equal(after["conv/kernel"], weights["conv/kernel"])
    assert ("conv_bn/moving_mean" in after) == (batchnorm == "batch")


@pytest.mark.parametrize(
    "optimizer", (SGD(weight_decay=0.5), SGD(weight_decay=0.5, momentum=0.9), ops.AdamW(weight_decay=0.5))
)
def test_decay_shrinks_kernels_alone(start, optimizer):
    network = small()
    weights, x, labels = draw(network, 4)
    after = []
    for rule in (optimizer, replace(optimizer, weight_decay=0.0)):
        session = start(Request(network, 4, 4, rule), weights)
        session.train(batches(session, x, labels), 4, 0.1, 1)
        after.append(session.weights())
    for name, w in after[0].items():
        if name.endswith("kernel"):
            assert np.abs(after[1][name] - w - 0.1 * 0.5 * weights[name]).max() < 1e-6
        else:
            assert np.array_equal(w, after[1][name])


@pytest.mark.parametrize("where", ("input", "weight"))
def test_nan_leaves_the_weights_and_is_found(start, where):
    network = small()
    weights, x, labels = draw(network, 5)
    good = start(Request(network, 5, 2, Adam()), weights)
    assert good.train(batches(good, x, labels), 5, 0.1, 1)[2]
    if where == "input":
        x = x.copy()
        x[3, 2, 2, 1] = np.nan
        layer = "conv"
    else:
        weights = weights | {"pw/bias": np.full(24, np.nan, np.float32)}
        layer = "pw"
    session = start(Request(network, 5, 2, Adam()), weights)
    before = session.weights()
    loss, _, finite = session.train(batches(session, x, labels), 5, 0.1, 1)
    assert not finite and np.isnan(loss)
    after = session.weights()
    assert all(np.array_equal(before[name], after[name], equal_nan=True) for name in before)
    launch, _ = session.first_nonfinite(batches(session, x, labels), 5, 0.1, 1)
    assert launch.layer == layer


def test_overflow_in_the_backward_pass_is_found_where_it_is(start):
    """The forward pass is fine. What an earlier failed step left in the arena must not be blamed."""
    network = Network("steep", (4,))
    network.add("first", ops.Dense(4, use_bias=False))
    network.add("second", ops.Dense(3, use_bias=False))
    network.add("logits", ops.Dense(3, use_bias=False))
    weights = {
        "first/kernel": np.zeros((4, 4), np.float32),
        "second/kernel": np.full((4, 3), 1e25, np.float32),
        "logits/kernel": np.array([[1e25, 0, 0]] * 3, np.float32),
    }
    session = start(Request(network, 3, 3, SGD()), weights)
    x, labels = np.ones((3, 4), np.float32), np.array([1, 1, 2], np.int32)
    for _ in range(2):
        loss, _, finite = session.train(batches(session, x, labels), 3, 0.1, 1)
        assert np.isfinite(loss) and not finite
    arena = session.by_role[Role.TEMPORARY]
    session.context.write(arena.handle, np.full(arena.nbytes // 4, np.nan, np.float32))
    launch, buffer = session.first_nonfinite(batches(session, x, labels), 3, 0.1, 1)
    assert launch.layer == "second" and launch.kernel.endswith("backward_data")
    assert "first" in buffer.name
    after = session.weights()
    assert all(np.array_equal(after[name], weights[name]) for name in weights)


def test_labels_of_any_integer_type(start):
    network = small()
    weights, x, labels = draw(network, 3)
    session = start(Request(network, 8, 8, SGD(), remainders=(3,)), weights)
    packed = pack(x, session.plan.storage.input.block)
    assert session.evaluate(packed, labels.astype(np.int64)) == session.evaluate(packed, labels)


# -- optimizer state ---------------------------------------------------------------------------------------------------


def test_state_carries_training_on(start):
    network = small()
    weights, x, labels = draw(network, 5)
    one = start(Request(network, 5, 5, Adam()), weights)
    for step in (1, 2):
        one.train(batches(one, x, labels), 5, 0.01, step)
    two = start(Request(network, 5, 5, Adam()), one.weights() | {n: w for n, w in weights.items() if "moving" in n})
    two.load_optimizer_state(one.optimizer_state())
    for session in (one, two):
        session.train(batches(session, x, labels), 5, 0.01, 3)
    first, second = one.weights(), two.weights()
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_plans_are_complete(start):
    """Sizes that a request doesn't name are refused; freezing layers later changes nothing."""
    network = small()
    weights, x, labels = draw(network, 6)
    session = start(Request(network, 6, 4, SGD(0.1)), weights)
    network.freeze("conv")
    packed = pack(x[:3], session.plan.storage.input.block)
    with pytest.raises(PlanError, match=r"\[4\].*remainders=\(3,\)"):
        session.evaluate(packed, labels[:3])
    with pytest.raises(PlanError, match=r"last_batches=\(3,\)"):
        session.train([(packed, labels[:3])], 3, 0.1, 1)
    assert session.train(batches(session, x, labels), 6, 0.1, 1)[2]


def test_requests_are_values(kernels):
    network = small()
    request = Request(network, 6, 4, SGD(0.1), last_batches=(23,), remainders=(9, 4, 5), activation_memory={})
    assert (request.last_batches, request.remainders) == ((5,), (1,))
    same = Request(network, 6, 4, SGD(0.1), last_batches=(5,), remainders=(1,))
    assert request == same and hash(request) == hash(same)
    network.freeze("conv")
    assert request != replace(request) and request == same, "what is trained is part of it"
    assert request != Request(small(), 6, 4, SGD(0.1), last_batches=(5,), remainders=(1,))
    with pytest.raises(PlanError, match="frozen or unfrozen"):
        make_plan(request, kernels.context.device)


def buffer(nbytes: int, role: Role = Role.TEMPORARY) -> Buffer:
    return Buffer("b", nbytes, role)


def launch(*accesses) -> Launch:
    return Launch("a.cl", "a", (), (1,), 1, accesses)


LIFE = st.builds(
    lambda nbytes, first, length: Lifetime(buffer(nbytes), first, first + length),
    st.integers(0, 5000), st.integers(0, 30), st.integers(0, 10),
)  # fmt: skip


@settings(deadline=None, derandomize=True, max_examples=300)
@given(lives=st.lists(LIFE, max_size=40), alignment=st.sampled_from((1, 64, 128, 4096)))
def test_no_two_live_buffers_overlap(lives, alignment):
    offsets, size = place(lives, alignment)
    assert set(offsets) == {life.buffer for life in lives}
    assert size % alignment == 0
    for life in lives:
        start = offsets[life.buffer]
        assert start % alignment == 0
        assert start >= 0 and start + life.buffer.nbytes <= size
    for i, a in enumerate(lives):
        for b in lives[:i]:
            if a.first <= b.last and b.first <= a.last:
                apart_ab = offsets[a.buffer] + a.buffer.nbytes <= offsets[b.buffer]
                apart_ba = offsets[b.buffer] + b.buffer.nbytes <= offsets[a.buffer]
                assert apart_ab or apart_ba
    moments = [sum(life.buffer.nbytes for life in lives if life.first <= t <= life.last) for t in range(50)]
    assert size >= max(moments, default=0)
    assert size <= sum(-(-life.buffer.nbytes // alignment) * alignment for life in lives)


def test_buffers_of_different_times_share_a_place():
    lives = [Lifetime(buffer(100), t, t) for t in range(10)]
    assert place(lives, 64)[1] == 128


def test_a_gap_between_two_is_used():
    first, middle, last, later = (buffer(64) for _ in range(4))
    big = buffer(640)
    lives = [Lifetime(big, 0, 9), Lifetime(first, 0, 9), Lifetime(middle, 0, 4), Lifetime(last, 0, 9)]
    offsets, size = place([*lives, Lifetime(later, 5, 9)], 64)
    assert offsets[later] == offsets[middle]
    assert size == 640 + 3 * 64


def test_nothing_to_place():
    assert place([], 64) == ({}, 0)


def test_lifetimes_reach_from_first_to_last_use():
    x, y, z, weight = buffer(4), buffer(4), buffer(4), buffer(4, Role.PARAMETER)
    launches = [launch(Out(x)), launch(In(x), In(weight), Out(y)), launch(InOut(y)), launch(In(x), Out(z)), launch()]
    found = {life.buffer: (life.first, life.last) for life in lifetimes(launches)}
    assert found == {x: (0, 3), y: (1, 2), z: (3, 3)}
    kept = {life.buffer: (life.first, life.last) for life in lifetimes(launches, keep=[y, buffer(4)])}
    assert kept == {x: (0, 3), y: (1, 4), z: (3, 3)}


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.TEMPORARY])
def test_only_temporaries_share(role):
    assert lifetimes([launch(Out(buffer(4, role)))]) == []


def saved_bytes(plan: Plan, examples: int) -> int:
    """Bytes of the temporaries that the forward pass has written and the backward pass reads."""
    found = stored(plan.program(Kind.TRAIN, examples))
    return sum(buffer.nbytes for buffer in found if buffer.role is Role.TEMPORARY)
