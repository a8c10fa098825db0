import numpy as np
import pytest

from edgelearn.errors import ShapeError
from edgelearn.ops import SubSpectralNormalization, Target, Traits, batchnorm
from edgelearn.ops.tensor import RELU

from .harness import SIZES, close
from .test_batchnorm import check_backward, check_forward, check_quantized, draw_weights, put_all

SHAPES = [(1, 5, 7, 1), (2, 5, 1, 33), (3, 10, 13, 16), (2, 20, 101, 17)]  # images, frequency, time, channels


def norm(sub_bands=5):
    return SubSpectralNormalization(momentum=0.9, sub_bands=sub_bands)


@pytest.mark.parametrize("shape", SHAPES)
def test_batch_statistics(bench, rng, shape):
    bench.traits = Traits(compute_units=2, vector_width=bench.traits.vector_width)
    assert len(check_forward(bench, rng, *shape, op=norm())["batchnorm_forward"]) == 2


@pytest.mark.parametrize("kept", (True, False), ids=("kept", "batch"))
@pytest.mark.parametrize("shape", SHAPES)
def test_backward(bench, rng, shape, kept):
    assert len(check_backward(bench, rng, *shape, kept=kept, op=norm())["batchnorm_backward"]) == 4


def test_quantized_as_it_is_written(bench, rng):
    check_quantized(bench, rng, 4, 10, 13, 17, dtype="float32", rounding="stochastic", op=norm())


@pytest.mark.parametrize("channels", SIZES)
@pytest.mark.parametrize("sub_bands", (1, 2))
def test_kept_statistics(bench, rng, sub_bands, channels):
    op, x = norm(sub_bands), rng.standard_normal((3, 6, 4, channels))
    w, tz = draw_weights(rng, (sub_bands, channels)), bench.empty(x.shape)
    s = batchnorm.emit_kept_statistics(bench, op, put_all(bench, w), None)
    batchnorm.emit_normalize(bench, bench.put(x), s, Target(tz), RELU)
    bench.run()
    close(bench.get(tz), np.maximum(op.reference_forward([x], w), 0))


def test_sub_bands_do_not_meet(rng):
    """Moving one sub-band by any amount changes nothing."""
    x = rng.standard_normal((2, 6, 5, 3))
    moved = x.copy()
    moved[:, 2:4] += 7.0
    w = draw_weights(rng, (3, 3))
    before, after = (norm(3).reference_forward([v], w, batch=True) for v in (x, moved))
    assert np.abs(after - before).max() < 1e-12


@pytest.mark.parametrize(("sub_bands", "shape"), [(5, (12, 4, 3)), (0, (12, 4, 3)), (5, (10,))])
def test_heights_that_do_not_divide(sub_bands, shape):
    with pytest.raises(ShapeError):
        norm(sub_bands).output_shape(shape)
