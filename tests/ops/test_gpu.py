"""What GPUs do otherwise (four channels a work-item, sums shared by a work-group), run on the devices there are. For
convolutions and dense layers see test_tiles.py."""

import numpy as np
import pytest

from edgelearn.ops import (
    Add,
    AveragePooling2D,
    Concatenate,
    Conv2D,
    Conv2DTranspose,
    DepthwiseConv2D,
    Dropout,
    Flatten,
    GlobalAveragePooling2D,
    GroupNormalization,
    LayerNormalization,
    LocalResponseNormalization,
    Max,
    MaxPooling2D,
    Mean,
    Pad,
    ReLU,
    Resize,
    SiLU,
    Slice,
    Softmax,
    Sum,
    Traits,
    Transpose,
    ZeroPadding2D,
)
from edgelearn.ops.families import LOCAL

from . import (
    test_batchnorm,
    test_dropout,
    test_emit,
    test_finish,
    test_optimizers,
    test_quantize,
    test_softmax_cross_entropy,
    test_sub_spectral_normalization,
)
from .linear import check_linear
from .normalized import check_weighted
from .plain import check_plain

PLAIN = {
    "activation": (ReLU(6), (9, 7, 33)),
    "silu": (SiLU(), (9, 7, 33)),
    "maximum": (MaxPooling2D(3, 2, "same"), (6, 11, 33)),
    "average": (AveragePooling2D(3, 2, "same"), (6, 11, 33)),
    "global average": (GlobalAveragePooling2D(), (5, 7, 33)),
    "global average of few": (GlobalAveragePooling2D(), (1, 2, 3)),
    "padding": (ZeroPadding2D(((0, 1), (2, 0))), (5, 6, 33)),
    "flatten": (Flatten(), (3, 5, 33)),
    "add": (Add(), (5, 6, 33), (5, 6, 33), (5, 6, 33)),
    "add to each row": (Add(), (1, 6, 33), (5, 6, 33)),
    "mean": (Mean(), (5, 6, 33)),
    "concatenate": (Concatenate(), (4, 5, 15), (4, 5, 33)),
    "transpose": (Transpose((2, 1, 3)), (4, 5, 33)),
    "transposed channels": (Transpose((3, 2, 1)), (4, 5, 33)),
    "slice": (Slice((1, -1, 17), (2, -1, -1), (2, -1, 1)), (4, 5, 33)),
    "pad": (Pad(((1, 0), (0, 2), (1, 17)), value=2.5), (4, 5, 33)),
    "mirrored": (Pad(((1, 0), (0, 2), (0, 0)), "reflect"), (4, 5, 33)),
    "mean of all": (Mean((1, 2, 3)), (9, 7, 33)),
    "sum of channels": (Sum(3, keepdims=False), (9, 7, 33)),
    "maximum of an image": (Max((1, 2)), (9, 7, 33)),
    "maximum of channels": (Max((2, 3), keepdims=False), (9, 7, 33)),
    "softmax": (Softmax(), (5, 333)),
    "resize": (Resize((7, 9)), (5, 6, 33)),
    "neighbours": (LocalResponseNormalization(alpha=0.5), (5, 6, 33)),
}


@pytest.fixture
def gpu(bench):
    bench.traits = Traits(gpu=True, compute_units=8)
    return bench


@pytest.mark.parametrize("name", PLAIN)
def test_layers_without_weights(gpu, rng, name):
    op, *shapes = PLAIN[name]
    check_plain(op, gpu, rng, *shapes)


def test_tiles_fit_small_gpus():
    for tile in LOCAL.tiles:
        rows, columns, item_rows, item_columns, slices = tile.values()
        team = rows * columns // (item_rows * item_columns)
        assert team * slices <= 256
        assert 4 * max(16 * slices * (rows + 4 + columns), rows * columns * (slices > 1)) <= 32 << 10


@pytest.mark.parametrize("op", [Conv2D(33, 3, strides=2, padding="same"), DepthwiseConv2D(3, padding="same")])
def test_sums_of_many_groups(gpu, rng, op):
    """More image rows than members of a work-group."""
    check_linear(op, gpu, rng, (40, 5, 20), n=3)


@pytest.mark.parametrize(
    "op", [Conv2D(18, (2, 3), (1, 2), ((3, 0), (1, 2)), dilation_rate=(2, 1)), Conv2D(18, 1, 3), Conv2D(18, 3, 3)]
)
def test_windows(gpu, rng, op):
    """Some pixels meet few of the taps, or none; and an image may have fewer rows than strides."""
    check_linear(op, gpu, rng, (8, 13, 33))
    check_linear(op, gpu, rng, (3, 7, 17), n=1)


@pytest.mark.parametrize(
    "op", [LayerNormalization(), LayerNormalization(axis=(1, 2, 3)), GroupNormalization(groups=11)], ids=repr
)
def test_normalization_of_examples(gpu, rng, op):
    check_weighted(op, gpu, rng, (7, 9, 33))


@pytest.mark.parametrize(
    "op",
    [Conv2DTranspose(33, 3, 2, "same"), Conv2DTranspose(35, 3, 2, groups=5), DepthwiseConv2D(3, depth_multiplier=2)],
)
def test_transposed_and_multiplied(gpu, rng, op):
    check_linear(op, gpu, rng, (5, 6, 20))


@pytest.mark.parametrize("channels", (1, 33))
def test_normalization(gpu, rng, channels):
    test_batchnorm.test_kept_statistics_fold_to_scale_and_shift(gpu, rng, channels=channels, with_bias=True)
    test_batchnorm.test_backward(gpu, rng, rows=1537, channels=channels, kept=False)
    test_sub_spectral_normalization.test_backward(gpu, rng, shape=(2, 20, 101, channels), kept=False)
    for dtype in ("float32", "int8"):
        test_batchnorm.test_quantized_as_it_is_written(gpu, rng, channels, dtype, "stochastic")
    test_sub_spectral_normalization.test_quantized_as_it_is_written(gpu, rng)


@pytest.mark.parametrize("groups", (1, 16, 17, 100))
def test_finished_sums(gpu, rng, groups):
    test_finish.test_partial_sums_are_added_up(gpu, rng, shape=(40, 70), groups=groups)


@pytest.mark.parametrize("groups", (1, 40))
@pytest.mark.parametrize("bad", (None, np.nan))
def test_bad_elements(gpu, rng, bad, groups):
    test_finish.test_a_bad_element_is_found_wherever_it_is(gpu, rng, bad=bad, groups=groups)


@pytest.mark.parametrize("channels", (1, 33))
def test_finished_gradients(gpu, rng, channels):
    test_finish.test_finished_gradients(gpu, rng, channels=channels, with_bias=True)


@pytest.mark.parametrize("rows", (1, 255, 257, 5000))
def test_channel_sums(gpu, rng, rows):
    test_emit.test_channel_sums_over_rows(gpu, rng, rows=rows)


@pytest.mark.parametrize("classes", (1, 63, 64, 65, 300))
def test_softmax(gpu, rng, classes):
    test_softmax_cross_entropy.check(gpu, rng.standard_normal((70, classes)), rng.integers(0, classes, 70), 0.1)


def test_ties_go_to_the_first_class(gpu):
    """Whichever work-item sees it."""
    logits = np.zeros((3, 200))
    logits[0, [70, 6]] = logits[1, [199, 130]] = 1.0
    test_softmax_cross_entropy.check(gpu, logits, np.array([6, 130, 0]))


def test_dropout_draws_the_same(gpu, rng):
    test_dropout.test_forward_and_backward(gpu, rng, kind=Dropout, channels=33)


@pytest.mark.parametrize("name", ("SGD", "momentum", "AdamW"))
def test_updates(gpu, rng, name):
    test_optimizers.test_several_steps(gpu, rng, name=name, decays=True)
    test_optimizers.test_a_bad_gradient_changes_nothing(gpu, rng, bad=np.nan, place=15)


@pytest.mark.parametrize("channels", (1, 33))
def test_quantized_tensors(gpu, rng, channels):
    test_quantize.test_static_range(gpu, rng, channels=channels, symmetric=False)
    test_quantize.test_stochastic_rounding(gpu, rng, channels=channels, block=16, dtype="int8")
    test_quantize.test_weights(gpu, rng, channels=channels, per_channel=True, rounding="stochastic")
    test_quantize.test_weights(gpu, rng, channels=channels, per_channel=False, rounding="nearest")


def test_ranges(gpu, rng):
    test_quantize.test_dynamic_range(gpu, rng, bits=8)
    test_quantize.test_plain_images(gpu, rng)
    test_quantize.test_micro_batches_add_up(gpu, rng)
    test_quantize.test_direction_sensitive_clipping(gpu, rng, symmetric=False)
    test_quantize.test_percentile(gpu, rng)
