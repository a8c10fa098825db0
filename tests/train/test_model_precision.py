"""Models that train with quantized tensors: ranges are part of what training leaves, keeps and traces."""

from dataclasses import replace

import numpy as np
import pytest

from edgelearn.compile import Precision
from edgelearn.errors import FormatError, PlanError
from edgelearn.ops import SGD, CurrentMinMax, Fixed, Format, InHindsightMinMax
from edgelearn.ops.quantize import FIELDS
from edgelearn.train import Model, RangeTrace, TraceRanges

from .test_model_state import kept_and_new, moved
from .toys import StopAfter, examples, same, toy_network, weights_after

GRADIENTS = Format(8, rounding="stochastic")
INT8 = Precision(
    Format(8, True, per_channel=True),
    Format(8),
    GRADIENTS,
    InHindsightMinMax(0.9),
    exceptions={"dense": None},
    traced=True,
)


def make(precision: Precision = INT8, batchnorm: str = "batch") -> Model:
    return Model(toy_network(), seed=4).compile(SGD(0.1, momentum=0.9), batchnorm=batchnorm, precision=precision)


@pytest.mark.parametrize("precision", [INT8, replace(INT8, simulated=False)], ids=["simulated", "integers"])
@pytest.mark.parametrize("updates", [1, 4])
def test_resumed(updates, precision):
    """From a checkpoint, and by the same model: the bits of a training that wasn't stopped."""
    whole = weights_after(make(precision))
    stopped = make(precision)
    weights_after(stopped, callbacks=[StopAfter(updates)])
    assert same(weights_after(moved(stopped, make(precision))), whole)
    assert same(weights_after(stopped), whole)


def test_evaluation_has_trainings_ranges():
    x, y = examples(20)
    model = make()
    history = model.fit(x, y, 5, 2, validation_data=(x, y)).history
    again = model.evaluate(x, y, 5)
    assert again["loss"] == pytest.approx(history["val_loss"][-1], rel=1e-6)
    assert moved(model, make()).evaluate(x, y, 5) == again
    model.compile(SGD(0.1), batchnorm="batch")
    assert model.evaluate(x, y, 5) != again, "no precision, no quantization"


def test_learns_as_float32_does():
    x, y = examples(60)
    losses = {}
    for name, precision in (("float32", Precision()), ("int8", INT8)):
        losses[name] = make(precision, "moving").fit(x, y, 10, 8).history["loss"]
    assert losses["int8"][-1] < 0.7 * losses["int8"][0]
    assert losses["int8"][-1] == pytest.approx(losses["float32"][-1], abs=0.05)
    assert losses["int8"] != losses["float32"]


def test_a_checkpoint_of_another_precision():
    x, y = examples(10)
    plain, quantized = make(Precision()), make()
    for model in (plain, quantized):
        model.fit(x, y, 5, 1)
    with pytest.raises(FormatError, match="precision"):
        moved(quantized, make(Precision()))
    for found, precision in (plain, INT8), (quantized, Precision(gradients=GRADIENTS)):
        other = moved(found, make(precision))
        with pytest.raises(FormatError, match="lack '"):
            other.fit(x, y, 5, 2)
    tensors, state = quantized.state()
    cut = make()
    cut.restore({name: t[:3] if name.startswith("ranges/") else t for name, t in tensors.items()}, state)
    with pytest.raises(FormatError, match=r"is \(3,\), not \(16,\)"):
        cut.fit(x, y, 5, 2)


def test_features_are_not_cached():
    with pytest.raises(PlanError, match="cache"):
        Model(toy_network().freeze("stem")).compile(SGD(), precision=INT8).plan(4, cache="fp32")


def test_trace(tmp_path):
    x, y = examples(20)
    tracer = TraceRanges(every=3)
    make().fit(x, y, 5, 2, callbacks=[tracer])
    trace = tracer.trace
    assert trace.steps.tolist() == [1, 4, 7]
    assert trace.tensors == [
        "input/activations", "stem/weights", "stem_relu/activations", "body/weights", "body_relu/activations",
        "pool/activations", "body/gradients", "stem/gradients",
    ]  # fmt: skip
    assert (trace.staleness[0] == 0).all(), "the first step measures"
    assert (trace.staleness[1:, [0, 2]] > 0).all() and (trace.staleness[:, [1, 3]] == 0).all()
    assert (trace.cosine > 0.99).all() and (trace.cosine < 1.0001).all() and (trace.clipped < 0.1).all()
    assert (trace.signal_to_noise > 15).all() and trace.first_divergence() is None
    path = tmp_path / "trace.safetensors"
    path.write_bytes(trace.to_bytes())
    again = RangeTrace.read(path)
    assert again.tensors == trace.tensors and np.array_equal(again.steps, trace.steps)
    assert np.array_equal(again.records, trace.records)


def test_the_first_tensor_that_diverges():
    """Activations fit their ranges; gradients all round to 0, and that of the layer above is made first."""
    x, y = examples(20)
    precision = Precision(
        gradients=Format(8), gradient_observer=Fixed(-1e3, 1e3), activations=Format(8), observer=CurrentMinMax(),
        traced=True,
    )  # fmt: skip
    tracer = TraceRanges(every=1)
    make(precision).fit(x, y, 5, 1, callbacks=[tracer])
    assert tracer.trace.first_divergence() == (1, "dense/gradients")
    assert tracer.trace.cosine[0][tracer.trace.tensors.index("dense/gradients")] == 0


@pytest.mark.parametrize("size", [1e-24, 1e-8, 1.0, 1e24])
def test_cosines_of_tensors_of_any_size(size):
    """Sums of squares of small gradients are far below 1, and their products below what float32 holds."""
    records = np.zeros((1, 2, len(FIELDS)), np.float32)
    for name, values in {"signal": (1, 1), "product": (0.8, 0), "result": (1, 0), "noise": (0.4, 1)}.items():
        records[0, :, FIELDS.index(name)] = size * np.array(values)
    trace = RangeTrace(["a/gradients", "b/gradients"], np.array([1]), records)
    assert trace.cosine[0] == pytest.approx([0.8, 0])
    assert trace.signal_to_noise[0] == pytest.approx([3.98, 0], abs=0.01)
    assert trace.first_divergence(0.5) == (1, "b/gradients"), "all of it has become 0"


def test_traces_that_cannot_be(tmp_path):
    x, y = examples(10)
    with pytest.raises(PlanError, match="precision"):
        make(Precision()).fit(x, y, 5, 1, callbacks=[TraceRanges()])
    with pytest.raises(PlanError, match="1 or more"):
        TraceRanges(0)
    assert TraceRanges(1).trace.first_divergence() is None, "no step, no tensor that diverged"
    untraced = TraceRanges(1)
    make(Precision(gradients=Format(8))).fit(x, y, 5, 1, callbacks=[untraced])
    with pytest.raises(PlanError, match="traced=True"):
        untraced.trace.first_divergence()
    assert len(FIELDS) == untraced.trace.records.shape[2]
    path = tmp_path / "weights.safetensors"
    path.write_bytes(untraced.trace.to_bytes()[:-4])
    with pytest.raises(FormatError):
        RangeTrace.read(path)


def test_a_precision_that_quantizes_nothing_here_can_be_resumed():
    """`norm_inputs` are what BatchNorm normalizes by the batch's statistics: with kept ones there are none."""
    precision = Precision(norm_inputs=Format(8))
    stopped = make(precision, "moving")
    weights_after(stopped, callbacks=[StopAfter(2)])
    assert same(weights_after(moved(stopped, make(precision, "moving"))), weights_after(make(precision, "moving")))


def test_unfreezing_measures_the_ranges_of_quantized_tensors_again():
    kept_and_new(SGD(0.1, momentum=0.9), lambda network: network.unfreeze("stem"), precision=INT8)
