import numpy as np
import pytest

from edgelearn.launch import Role
from edgelearn.ops import Conv2D, Dense, Format, batchnorm, finish, pack
from edgelearn.ops.constants import Counter
from edgelearn.ops.emit import GradientSum, start_sum
from edgelearn.ops.optimizers import emit_commit

from .harness import AS_GPUS_TOO, GPU, close
from .integers import Drawn, F
from .test_batchnorm import OP, draw_weights, put_all


def put_parts(bench, parts: np.ndarray, rows: int) -> GradientSum:
    """A sum of parts (groups, rows, channels) that kernels have written."""
    found, count = start_sum(bench, bench.empty(parts.shape[1:]), rows, len(parts))
    assert count * len(parts) >= rows and found.groups == len(parts)
    if found.partials:
        bench.allocate(found.partials.buffer)
    words = np.concatenate([pack(part).ravel() for part in parts])
    bench.context.write(bench.memory[found.target.buffer].handle, words)
    return found


@AS_GPUS_TOO
@pytest.mark.parametrize("groups", (1, 2, 7, 17, 100))
@pytest.mark.parametrize("shape", [(1,), (17,), (5, 33), (40, 70), (900, 20)])
def test_partial_sums_are_added_up(bench, rng, groups, shape):
    parts = rng.standard_normal((groups, *shape))
    found = put_parts(bench, parts, 20)
    finish.emit_sum(bench, found)
    bench.run()
    close(bench.get(found.total), parts.sum(0))


@AS_GPUS_TOO
@pytest.mark.parametrize("groups", (1, 3, 40))
@pytest.mark.parametrize("bad", (None, np.nan, np.inf))
def test_a_bad_element_is_found_wherever_it_is(bench, rng, bad, groups):
    """In a kernel's gradient of several work-items, with and without scale, and in vectors."""
    channels, rows = 33, 600
    s = batchnorm.emit_kept_statistics(bench, OP, put_all(bench, draw_weights(rng, channels)), None)
    for kind in ("plain", "kept", "gamma"):
        for place in (0, rows // 2, rows - 1):
            gradient = rng.standard_normal((groups, rows, channels))
            if bad is not None:
                gradient[-1, place, channels - 1] = bad
            found, kernel = put_parts(bench, gradient, rows), bench.put(rng.standard_normal((rows, channels)))
            if kind == "plain":
                finish.emit_sum(bench, found)
            else:
                finish.emit_kernel_sum(bench, found, s, kernel if kind == "gamma" else None)
            flags = next(b for b in bench.launches[-1].writes if b.role is Role.CHECK)
            control = bench.control()
            finish.emit_finite_check(bench, flags, control)
            bench.run()
            assert bench.count(control, Counter.NONFINITE) == (bad is not None)


@pytest.mark.parametrize("count", (1, 4096, 4097, 10_001))
def test_flags_of_a_gpu_are_counted_in_parts(bench, rng, count):
    bench.traits, given = GPU, F(rng.random(count) < 0.1)
    flags, control = bench.put(given, 1), bench.control()
    finish.emit_finite_check(bench, flags.buffer, control)
    assert len(bench.launches) == (1 if count <= 4096 else 2)
    bench.run()
    assert bench.count(control, Counter.NONFINITE) == given.sum()
    assert not bench.get(flags).any()


@AS_GPUS_TOO
@pytest.mark.parametrize("with_bias", (False, True))
@pytest.mark.parametrize("channels", (1, 16, 33))
def test_finished_gradients(bench, rng, channels, with_bias):
    """gamma's gradient from the weights' gradients alone, beside a convolution and a BatchNorm one after the other."""
    conv = Conv2D(channels, 3, padding="same", use_bias=with_bias)
    x, dz = rng.standard_normal((3, 5, 6, 4)), rng.standard_normal((3, 5, 6, channels))
    own = {"kernel": rng.standard_normal((3, 3, 4, channels)), "bias": rng.standard_normal(channels)}
    w = draw_weights(rng, channels)
    y = conv.reference_forward([x], own)
    (dy,), expected = OP.reference_backward([y], w, dz)
    _, expected_own = conv.reference_backward([x], own, dy)

    bias = bench.put(own["bias"]) if with_bias else None
    s = batchnorm.emit_kept_statistics(bench, OP, put_all(bench, w), bias)
    shape = (9, 4, channels)
    _, behind_scale = conv.reference_backward([x], own, dz)
    kernel, dkernel = bench.put(own["kernel"].reshape(shape)), bench.put(behind_scale["kernel"].reshape(shape))
    dbeta, dgamma, dbias = bench.put(dz.sum((0, 1, 2))), bench.empty((channels,)), bench.empty((channels,))
    products = finish.emit_kernel_sum(bench, GradientSum(dkernel), s, kernel)
    finish.emit_gamma(bench, products, s, bias, dbeta, dgamma)
    finish.emit_bias(bench, dbeta, s, dbias)
    bench.run()
    close(bench.get(dkernel), expected_own["kernel"].reshape(shape))
    close(bench.get(dgamma), expected["gamma"], 1e-4)
    if with_bias:
        close(bench.get(dbias), expected_own["bias"])


@pytest.mark.parametrize("per_channel", (False, True))
@pytest.mark.parametrize("channels", (1, 16, 33))
def test_gamma_from_kernels_as_they_are_stored(bench, rng, channels, per_channel):
    """Integers and halves."""
    w, shape = draw_weights(rng, channels), (9, 4, channels)
    s = batchnorm.emit_kept_statistics(bench, OP, put_all(bench, w), None)
    integers = Drawn(bench, rng, shape, Format(symmetric=True, per_channel=per_channel))
    halves = rng.standard_normal(shape).astype(np.float16)
    for kernel, values in ((integers.ranged, integers.values), (bench.put(halves, dtype="float16"), halves)):
        gradient = rng.standard_normal(shape)
        products = finish.emit_kernel_sum(bench, GradientSum(bench.put(gradient)), s, kernel)
        bench.run()
        sums = bench.get(products).reshape(-(-channels // 16), -1, 16).sum(1).ravel()[:channels]
        close(sums, (gradient * values).sum((0, 1)), 1e-4)


def test_finished_kernel_gradient_without_gamma(bench, rng):
    w, dkernel = draw_weights(rng, 20), rng.standard_normal((9, 4, 20))
    s = batchnorm.emit_kept_statistics(bench, OP, put_all(bench, w), None)
    gradient = bench.put(dkernel)
    finish.emit_kernel_sum(bench, GradientSum(gradient), s, None)
    bench.run()
    close(bench.get(gradient), dkernel * w["gamma"] / np.sqrt(w["moving_variance"] + OP.epsilon))


@pytest.mark.parametrize("shape", [(1,), (5, 33)])
def test_gradients_are_divided_by_the_scale_of_the_loss(bench, rng, shape):
    gradients = rng.standard_normal(shape).astype(np.float32)
    tensor = bench.put(gradients)
    finish.emit_unscaled(bench, tensor.buffer, bench.control(unscale=1 / 1024))
    bench.run()
    np.testing.assert_array_equal(bench.get(tensor), gradients / 1024)


@pytest.mark.parametrize("bad", (0, 2))
@pytest.mark.parametrize("shape", [(1,), (70, 33)])
def test_statistics_are_kept_if_the_step_is_finite(bench, rng, shape, bad):
    new, old = rng.standard_normal(shape), rng.standard_normal(shape)
    source, target = bench.put(new), bench.put(old)
    emit_commit(bench, source.buffer, target.buffer, bench.control(nonfinite=bad))
    bench.run()
    close(bench.get(target), old if bad else new)


@pytest.mark.parametrize("bad", (None, np.nan, -np.inf))
def test_a_gradient_without_parts_is_checked_where_it_is_written(bench, rng, bad):
    if bench.traits.gpu:
        pytest.skip("GPUs split even small sums: the launch that adds the parts up checks them")
    x, dy = rng.standard_normal((3, 37)), rng.standard_normal((3, 21))
    if bad is not None:
        dy[1, 20] = bad
    found, _ = Dense(21).emit_backward_weights(
        bench, bench.put(x), bench.put(dy), bench.empty((37, 21)), None, add=False
    )
    assert found.checked
    flags = next(buffer for buffer in bench.launches[-1].writes if buffer.role is Role.CHECK)
    control = bench.control()
    finish.emit_finite_check(bench, flags, control)
    bench.run()
    close(bench.get(found.total)[:, :20], x.T @ dy[:, :20])
    assert (bench.count(control, Counter.NONFINITE) > 0) == (bad is not None)
