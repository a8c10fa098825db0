"""Training steps on integers beside the same steps simulated in float32."""

from dataclasses import replace

import numpy as np
import pytest

from edgelearn.compile import Kind, Precision, Request, make_plan
from edgelearn.errors import PlanError
from edgelearn.graph import Network
from edgelearn.launch import Role, Traffic
from edgelearn.ops import SGD, BatchNormalization, Conv2D, Dense, Flatten, Float16, Format, MaxPooling2D, ReLU
from edgelearn.ops.constants import RangeField
from edgelearn.ops.observers import DSGC, CurrentMinMax, Fixed, InHindsightMinMax

from .quantized_reference import fitting
from .steps import batches
from .test_networks import CLASSES, EXAMPLES, convolutions, drawn, entangled, residual, separable
from .test_plan import saved_bytes

FORMATS = {"weights": Format(symmetric=True), "activations": Format(), "gradients": Format()}
STATIC = Precision(**FORMATS, observer=InHindsightMinMax(0.5), simulated=False)
PRECISIONS = {
    "in hindsight": STATIC,
    "current": replace(STATIC, observer=CurrentMinMax()),
    "searched": replace(STATIC, gradient_observer=DSGC(every=2), norm_inputs=Format()),
    "some in float32": replace(STATIC, exceptions={"pw*": None, "b1": None, "input": None}, norm_inputs=Format()),
}


def pooled() -> Network:
    """Maxima between convolutions: of windows that overlap, and of others."""
    net = Network("pooled", (13, 11, 3))
    for name, pool in (("a", MaxPooling2D(3, 2, "same")), ("b", MaxPooling2D())):
        net.add(name, Conv2D(20, 3, padding="same"))
        net.add(f"{name}_norm", BatchNormalization())
        net.add(f"{name}_relu", ReLU())
        net.add(f"{name}_pool", pool)
    return flattened(net)


@pytest.mark.parametrize(
    ("make", "name", "batchnorm"),
    [*((residual, name, batchnorm) for name in PRECISIONS for batchnorm in ("batch", "moving")),
     *((separable, name, "batch") for name in PRECISIONS), (separable, "in hindsight", "moving"),
     *((pooled, "in hindsight", batchnorm) for batchnorm in ("batch", "moving"))],
)  # fmt: skip
def test_steps_agree_with_simulated_ones(start, make, name, batchnorm):
    """With kept statistics, kernels for the pass to data are rounded a second time, with scales in them. A value near a
    corner, which float32 rounds either way, changes many behind it: of a few draws, one has none on any device."""
    network = make()
    request = Request(network, EXAMPLES, 2, SGD(0.0), batchnorm, seed=5, precision=fitting(PRECISIONS[name], network))
    differing: list[str] = []
    for seed in range(3):
        differing = _differing(start, request, seed)
        if not differing:
            return
    pytest.fail(f"Gradients differ: {differing}")


def _differing(start, request: Request, seed: int) -> list[str]:
    """The parameters whose gradients differ from those of simulated integers after three steps."""
    weights, x, labels = drawn(request.network, seed)
    found = []
    for simulated in (False, True):
        session = start(replace(request, precision=replace(request.precision, simulated=simulated)), weights)
        for step in (1, 2, 3):
            loss, _, finite = session.train(batches(session, x, labels), EXAMPLES, 0.0, step)
            assert finite
        found.append((loss, session.gradients(), session.records()))
    (loss, gradients, records), (other_loss, others, other_records) = found
    assert loss == pytest.approx(other_loss, rel=3e-3)
    assert set(records) == set(other_records)
    sizes = {name: np.linalg.norm(other) for name, other in others.items()}
    return [name for name, g in gradients.items() if np.linalg.norm(g - others[name]) > 0.05 * sizes[name] + 1e-4]


def test_maxima_are_selected_among_integers(kernels):
    plan = make_plan(Request(pooled(), 3, 3, SGD(0.1), "batch", precision=STATIC), kernels.context.device)
    for part in plan.program(Kind.TRAIN, 3), plan.program(Kind.EVALUATE, 3):
        launches = [launch for launch in part.launches if launch.layer in ("a_pool", "b_pool")]
        assert {launch.kernel for launch in launches} <= {"max_forward", "max_taps", "max_backward_taps"}
        assert sum(launch.kernel == "max_forward" for launch in launches) == 2


def summed(start, network: Network, precision: Precision) -> tuple[np.ndarray, list[str], bool]:
    """Predictions after a training step, the layers whose kernels run for them, and whether kernels can add sums."""
    weights, x, labels = drawn(network, 0)
    session = start(Request(network, EXAMPLES, 2, SGD(0.1), "batch", seed=5, precision=precision), weights)
    session.train(batches(session, x, labels), EXAMPLES, 0.1, 1)
    program = session.plan.program(Kind.PREDICT, 2, session.plan.ranges(Kind.PREDICT, known=True))
    adds = not session.plan.traits.matrix_unit
    return session.predict(session.pack(x[:2]), 2), [launch.layer for launch in program.micro], adds


@pytest.mark.parametrize("make", (residual, entangled))
def test_predictions_are_the_same_with_sums_in_launches_of_their_own(start, make, monkeypatch):
    network = make()
    precision = fitting(STATIC, network)
    found, layers, adds = summed(start, network, precision)
    monkeypatch.setattr("edgelearn.compile.lower.Lowering._stages_after", lambda *_: [])
    others, all_layers, _ = summed(start, network, precision)
    assert np.array_equal(found, others)
    left = set(all_layers) - set(layers)
    assert left == {name for name in left if name.endswith(("add", "relu"))}
    assert make is not residual or ({"a_add", "a_relu"} <= left) == adds


@pytest.mark.parametrize("name", ("in hindsight", "some in float32"))
def test_updates_leave_the_ranges_that_kernels_have(start, name):
    """A session that goes on, and one that starts from its state and measures the kernels."""
    network = residual()
    weights, x, labels = drawn(network, 0)
    precision = fitting(PRECISIONS[name], network)
    request = Request(network, EXAMPLES, 2, SGD(0.1, momentum=0.9), "batch", seed=5, precision=precision)
    one = start(request, weights)
    for step in (1, 2, 3):
        one.train(batches(one, x, labels), EXAMPLES, 0.1, step)
    other = start(request, weights | one.weights())
    other.load_records(one.records())
    other.load_optimizer_state(one.optimizer_state())
    for session in (one, other):
        session.train(batches(session, x, labels), EXAMPLES, 0.1, 4)
    for parameter, w in one.weights().items():
        assert np.array_equal(w, other.weights()[parameter]), parameter


def flattened(net: Network) -> Network:
    net.add("flatten", Flatten())
    net.add("dense", Dense(CLASSES))
    return net


def chain() -> Network:
    """Nothing but convolutions, and the loss: 8 x 8 pixels, 32 channels."""
    return flattened(convolutions(Network("chain", (8, 8, 16)), "abc", 32, relu=ReLU()))


def planned(kernels, precision: Precision, batch: int = 6, micro: int = 3):
    return make_plan(Request(chain(), batch, micro, SGD(0.1), precision=precision), kernels.context.device)


def test_saved_activations_are_a_quarter(kernels):
    sizes = [saved_bytes(planned(kernels, precision), 3) for precision in (STATIC, Precision())]
    assert sizes == [3 * 8 * 8 * (4 * 32 + 16), 4 * 3 * 8 * 8 * 4 * 32], "of integers the input too"


def normalized() -> Network:
    net = Network("normalized", (8, 8, 16))
    return flattened(convolutions(net, "abc", 32, norm=BatchNormalization(), relu=ReLU()))


def test_kernels_behind_kept_statistics_are_integers_alone(kernels):
    """One for the forward pass and one, with scales in it, for the backward pass: no floats to transpose and round, and
    none for gamma's gradient."""
    plan = make_plan(Request(normalized(), 3, 3, SGD(0.1), precision=STATIC), kernels.context.device)
    launches = plan.program(Kind.TRAIN, 3).launches
    prepared = {a.buffer for launch in launches for a in launch.accesses if a.buffer.role is Role.PREPARED}
    floats = [b for b in prepared if b.dtype == "float32" and not b.name.endswith("extremes")]  # those: by work-group
    assert all(b.nbytes < 9 * 32 * 32 for b in floats)
    assert sum(b.nbytes == 9 * 32 * 32 for b in prepared) == 4, "b and c: a's input is the network's"


def test_integers_are_written_by_those_who_make_them(kernels):
    """With static ranges, no float tensor lies between convolutions, in either direction; with dynamic ones all do."""
    for precision, floats in ((STATIC, 0), (PRECISIONS["current"], 2 * 4 * 3 * 8 * 8 * 32)):
        launches = planned(kernels, precision).program(Kind.TRAIN, 3).micro
        own = [launch for launch in launches if launch.layer == "b"]
        passes = [launch for launch in own if launch.kernel.startswith(("quantized_convolution", "quantized_units"))]
        assert {launch.kernel.split("_", 2)[2] for launch in passes} == {"forward", "backward_data", "backward_weights"}
        tensors = {a.buffer for launch in passes for a in launch.accesses if a.buffer.role is Role.TEMPORARY}
        large = [b for b in tensors if b.dtype == "float32" and b.nbytes > 1 << 14]
        assert sum(b.nbytes for b in large) == floats


@pytest.mark.parametrize("name", PRECISIONS)
def test_predicted_traffic_and_memory_are_what_is_moved_and_allocated(start, name):
    network = normalized()
    weights, x, labels = drawn(network, 0)
    precision = fitting(PRECISIONS[name], network)
    session = start(Request(network, EXAMPLES, 2, SGD(0.1), "batch", precision=precision), weights)
    predicted = Traffic()
    for step in (1, 2, 3):
        predicted += session.plan.traffic(ranges=session.plan.ranges(Kind.TRAIN, session.ranges_known, step))
        session.train(batches(session, x, labels), EXAMPLES, 0.1, step)
    assert session.traffic == predicted
    assert session.allocated_bytes == session.plan.peak_bytes


def test_a_failed_step_changes_nothing(start):
    network = chain()
    weights, x, labels = drawn(network, 0)
    session = start(Request(network, EXAMPLES, 2, SGD(0.1), precision=STATIC), weights)
    assert session.train(batches(session, x, labels), EXAMPLES, 0.1, 1)[2]
    before, ranges = session.weights(), session.records()
    bad = x.copy()
    bad[1, 2, 3, 4] = np.inf
    assert not session.train(batches(session, bad, labels), EXAMPLES, 0.1, 2)[2]
    for name, w in session.weights().items():
        assert (w == before[name]).all()
    for name, record in session.records().items():
        assert (record[RangeField.NEXT_LOW :] == ranges[name][RangeField.NEXT_LOW :]).all(), name
    culprit = session.first_nonfinite(batches(session, bad, labels), EXAMPLES, 0.1, 2)
    assert culprit and "input" in culprit[1].name


def test_a_culprit_is_found_in_weights_that_no_step_has_seen(start):
    """Updates leave the extremes of kernels: those of weights as they are loaded must be known without a step."""
    network = chain()
    weights, x, labels = drawn(network, 0)
    session = start(Request(network, EXAMPLES, 2, SGD(0.1), precision=STATIC), weights)
    assert session.train(batches(session, x, labels), EXAMPLES, 0.1, 1)[2]
    for load in (session, start(session.plan.request, weights)):
        load.load({name: w * np.float32(1e25 if name.endswith("kernel") else 1) for name, w in weights.items()})
        culprit = load.first_nonfinite(batches(load, x, labels), EXAMPLES, 0.1, 1)
        assert culprit, "products of such kernels overflow"


def test_predictions_prepare_weights_once_until_they_change(start):
    network = chain()
    weights, x, labels = drawn(network, 0)
    request = Request(network, EXAMPLES, 2, SGD(0.1), precision=STATIC)
    session, fresh, moved = start(request, weights), start(request, weights), [0]

    def predict() -> np.ndarray:
        y = session.predict(session.pack(x[:2]), 2)
        moved.append(sum(session.traffic.values()))
        return y

    for step in (1, 2):
        session.train(batches(session, x, labels), EXAMPLES, 0.1, step)
        moved.append(sum(session.traffic.values()))
        first, second = predict(), predict()
        assert (first == second).all() and moved[-1] - moved[-2] < moved[-2] - moved[-3]
        fresh.load(session.weights())
        fresh.load_records(session.records())
        assert (fresh.predict(fresh.pack(x[:2]), 2) == first).all()
    session.load(weights)
    session.load_records(fresh.records())
    fresh.load(weights)
    fresh.load_records(session.records())
    assert (predict() == fresh.predict(fresh.pack(x[:2]), 2)).all()
    assert not (first == predict()).all()


def test_micro_batches_of_any_size_round_alike(start):
    network = chain()
    weights, x, labels = drawn(network, 0)
    rounding = {kind: replace(fmt, rounding="stochastic") for kind, fmt in FORMATS.items()}
    precision = Precision(**rounding, observer=Fixed(-4.0, 4.0), gradient_observer=Fixed(-0.1, 0.1), simulated=False)
    found = []
    for micro in (1, EXAMPLES):
        session = start(Request(network, EXAMPLES, micro, SGD(0.0), precision=precision), weights)
        loss, _, _ = session.train(batches(session, x, labels), EXAMPLES, 0.0, 1)
        found.append((loss, session.gradients()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    for name, g in found[0][1].items():
        assert g == pytest.approx(found[1][1][name], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gradients": None}, "gradients are float32"),
        ({"gradients": Float16()}, "gradients are half precision"),
        ({"activations": Format(9)}, "activations are 9 bits"),
        ({"norm_inputs": Format(9)}, "norm_inputs are 9 bits"),
        ({"weights": Format()}, "symmetric weights"),
    ],
)
def test_formats_without_integer_kernels(change, words):
    with pytest.raises(PlanError, match=words):
        replace(STATIC, **change)
