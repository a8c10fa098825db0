import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgelearn.ops import Compute, Conv2D, Epilogue, Target

from .harness import Workbench
from .linear import check_every_choice, check_linear, check_long_sums


class Winograd(Workbench):
    """A workbench that takes no other kernels for what these can compute."""

    def choose(self, kernel, shape, candidates):
        return super().choose(kernel, shape, [c for c in candidates if "chunk" in c] or candidates[:1])


@pytest.fixture
def bench(kernels) -> Workbench:
    bench = Winograd(kernels.context, kernels)
    if bench.traits.gpu:
        pytest.skip("for CPUs")
    return bench


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        (Conv2D(33, 3, padding="same"), (9, 11, 20)),
        (Conv2D(64, 3, padding="valid"), (7, 8, 48)),
    ],
)
def test_right_with_every_size(bench, rng, op, shape):
    tried = check_every_choice(op, bench, rng, shape)
    assert {kernel for kernel, choices in tried.items() if all("chunk" in c for c in choices)} >= {
        "convolution_forward", "convolution_backward_data", "convolution_backward_weights",
    }  # fmt: skip


@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    padding=st.tuples(*[st.tuples(st.integers(1, 3), st.integers(1, 3))] * 2),
    images=st.integers(1, 3),
)
def test_geometry(kernels, size, padding, images):
    bench, rng = Winograd(kernels.context, kernels), np.random.default_rng(0)
    check_linear(Conv2D(5, 3, padding=padding), bench, rng, (*size, 4), n=images)


def test_long_sums_keep_their_digits(bench, rng):
    check_long_sums(bench, rng, 16, 4)


def chosen(bench: Workbench, op: Conv2D, shape: tuple[int, ...], images: int = 1) -> set[str]:
    """Kernels of all passes of a convolution."""
    x, y = bench.tensor("x", (images, *shape)), bench.tensor("y", (images, *op.output_shape(shape)))
    kernel = bench.tensor("kernel", op.weights(shape)["kernel"].packed_shape)
    prepared = bench.tensor("prepared", (9, op.filters, shape[-1]))
    op.emit_linear(bench, x, kernel, y, Epilogue())
    op.emit_backward_data(bench, x, prepared, y, Target(x))
    op.emit_backward_weights(bench, x, y, kernel, None, add=False)
    kernels = {launch.kernel for launch in bench.launches}
    bench.launches.clear()
    return kernels


WINOGRAD = {"winograd_kernel", "winograd_forward", "winograd_backward_data", "winograd_backward_weights"}
PLAIN = {"convolution_forward", "convolution_backward_data", "convolution_backward_weights"}


@pytest.mark.parametrize(
    ("images", "shape", "op", "expected"),
    [
        (1, (56, 56, 64), Conv2D(64, 3, padding="same"), WINOGRAD),
        (1, (14, 14, 256), Conv2D(256, 3, padding="same"), WINOGRAD),
        (1, (7, 7, 512), Conv2D(512, 3, padding="same"), PLAIN),  # few tiles for so large a kernel
        (1, (14, 14, 16), Conv2D(16, 3, padding="same"), PLAIN),  # the workspace would be larger than the layer
        (1, (56, 56, 64), Conv2D(64, 3, strides=2, padding="same"), PLAIN),
        (1, (56, 56, 64), Conv2D(64, 3, dilation_rate=2, padding="same"), PLAIN),
        (8, (32, 32, 64), Conv2D(64, (3, 2), padding="same"), PLAIN),
    ],
)
@pytest.mark.parametrize("width", [16, 8])
def test_chosen_where_it_was_measured_faster(kernels, images, shape, op, expected, width):
    bench = Workbench(kernels.context, kernels)
    bench.traits = type(bench.traits)(compute_units=2, vector_width=width)
    assert chosen(bench, op, shape, images) == expected


def test_not_for_other_types_nor_for_gpus_nor_narrow_registers(kernels):
    bench, op, shape = Workbench(kernels.context, kernels), Conv2D(64, 3, padding="same"), (56, 56, 64)
    bench.traits = type(bench.traits)(gpu=True, compute_units=8, vector_width=1)
    assert chosen(bench, op, shape).isdisjoint(WINOGRAD)
    bench.traits = type(bench.traits)(compute_units=1, vector_width=4, bare=True)  # those of plain C
    assert chosen(bench, op, shape) == PLAIN
    bench.traits = type(bench.traits)(compute_units=2, vector_width=16)
    bench.compute = Compute("tf32", plain=True)
    assert chosen(bench, op, shape) == PLAIN
