"""Refusals of ops, optimizers, losses and formats: shapes that don't fit, and settings that can't be."""

import numpy as np
import pytest

from edgelearn import ops
from edgelearn.errors import FormatError, PlanError, ShapeError
from edgelearn.ops import SGD, Adam, Conv2D, Conv2DTranspose, Format, Max, Mean, Pad, Prototypical, Reshape, Resize
from edgelearn.ops.observers import DSGC, Fixed, InHindsightMinMax, Observer, Percentile, RunningMinMax

NAN, INFINITY = float("nan"), float("inf")
SHAPES = [  # op, shapes of its inputs
    *((op, (3, 5)) for op in (
        Pad(((1, 1),)), Pad(((0, -1), (0, 0))), Pad(((3, 0), (0, 0)), "reflect"), Pad(((0, 4), (0, 0)), "symmetric"),
        Pad(((1, 1), (1, 1)), "wrap"),
    )),
    *((ops.Slice(*arguments), (2, 4)) for arguments in (
        ((0,), (1,)), ((0, 4), (1, 1)), ((0, -5), (1, 1)), ((0, 2), (1, 3)), ((0, 0), (0, 1)), ((0, 0), (1, 1), (0, 1)),
        ((0, 0), (2, -1), (2, 1)), ((0, 1), (-1, 3), (1, -1)),
    )),
    *((ops.Transpose(axes), (3, 4, 5))
      for axes in ((1, 2), (1, 2, 2), (0, 1, 2), (1, 2, 4), (-4, 2, 3), (1, 1, -1))),
    *((Reshape(target), (3, 4)) for target in ((), (5, -1), (-1, -1), (0, -1), (3, 5), (-2, 6))),
    (ops.ZeroPadding2D(1), (3,)), (ops.ZeroPadding2D(((0, -1), (0, 0))), (3, 4, 5)),
    *((op, (4, 5, 5)) for op in (
        ops.SliceChannels(-1, 2), ops.SliceChannels(3, 3), ops.SliceChannels(0, 0), ops.PadChannels(-1, 3),
    )),
    (ops.SpaceToDepth(2), (3, 4, 5)), (ops.SpaceToDepth(2), (4,)), (ops.SpaceToDepth(0), (4, 4, 4)),
    *((op, (4, 4, 1)) for op in (
        Resize(3, "cubic"), Resize(3, coordinates="centre"), Resize(0), Resize(3, rounding="up"), Resize(3, scale=0.0),
        ops.UpSampling2D(0), ops.AdaptiveAveragePooling2D(0),
    )),
    (Resize(3), (4, 1)), (ops.UpSampling2D(), (4,)), (ops.SpatialDropout2D(), (33,)),
    (Mean(0), (3, 4, 5)), (Mean(4), (3, 4, 5)), (Mean((1, 1)), (3, 4)), (Mean((1, 2), False), (3, 4)),
    (Mean(()), (3, 4)), (Max(-3), (5, 6)), (ops.GlobalMaxPooling2D(), (5, 6)),
    *((ops.MaxPooling2D(2, 1, padding), (4, 4, 1)) for padding in (((2, 0), (0, 0)), ((0, 0), (0, 2)))),
    *((ops.Add(), *shapes) for shapes in (((3, 5, 4), (2, 5, 4)), ((3, 5, 4), (3, 5, 2)), ((5, 4), (2, 4)))),
    *((op, *shapes) for op in (ops.Add(), ops.Concatenate())
      for shapes in (((3, 4),), ((3, 4), (4, 4)), ((3, 4), (3,)))),
    *((ops.MatMul(), *shapes) for shapes in (
        ((3, 4), (3, 4)), ((4,), (4,)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (1, 4, 5)), ((3, 4),),
    )),
    *((ops.Multiply(), *shapes) for shapes in (
        ((3, 5, 4), (2, 5, 4)), ((3, 4),), ((3, 4),) * 3, ((2, 3, 4, 5), (2, 1, 4, 5)),
    )),
    (ops.Subtract(), (5, 4), (3, 4)), (ops.Where(), (3, 4), (3, 4)), (ops.Where(), (3, 4), (3, 4), (2, 4)),
    *((ops.Scale(shape), (3, 5, 4)) for shape in ((2,), (3, 3, 5, 4))), (ops.Scale((3, 5, 4)), (1, 5, 4)),
    (ops.PReLU((4,)), (3, 5, 4)), (ops.PReLU((0,)), (3, 5, 4)), (ops.Constant(()), (4,)),
    (ops.BroadcastTo((3, 4)), (2, 4)), (ops.BroadcastTo((1, 4)), (3, 4)),
    *((op, (2, 3, 8)) for op in (
        ops.GroupNormalization(groups=3), ops.GroupNormalization(groups=0), ops.LayerNormalization(axis=1),
        ops.LayerNormalization(axis=()), ops.LayerNormalization(axis=(1, 3)), ops.LayerNormalization(axis=4),
    )),
    *((ops.SubSpectralNormalization(momentum=0.9, sub_bands=bands), shape)
      for bands, shape in ((5, (12, 4, 3)), (0, (12, 4, 3)), (5, (10,)))),
    *((op, (5, 5, 1)) for op in (
        ops.DepthwiseConv2D(7), Conv2DTranspose(0, 3), Conv2DTranspose(2, 3, groups=2), Conv2DTranspose(1, 3, 0),
        Conv2DTranspose(1, 3, 2, "valid", 2), Conv2DTranspose(1, 3, 2, "odd"),
        Conv2DTranspose(1, 3, 2, ((9, 9), (9, 9))), Conv2DTranspose(1, 4, 2, "same", 0),
        Conv2DTranspose(1, 2, 2, "valid", -1),
    )),
    (ops.Coupling(), (4,), (5,)), (ops.Coupling(), (4,), (1,)),
]  # fmt: skip
NAMED = [  # words of the message, op, shapes
    *(("groups=", Conv2D(filters, 3, groups=groups), (8, 8, channels))
      for groups, channels, filters in ((2, 3, 4), (2, 4, 3), (0, 4, 4), (-1, 4, 4))),
    *(("Take", ops.Take(), *shapes) for shapes in (((5,), (2,)), ((5, 2), (2, 1)), ((5, 2),))),
    ("Embedding", ops.Embedding(3, 2), (2, 2)), ("3", ops.Coupling(), (4,), (4,), (4,)),
]  # fmt: skip


@pytest.mark.parametrize("row", [*(("", *row) for row in SHAPES), *NAMED], ids=str)
def test_shapes_that_do_not_fit(row):
    words, op, *shapes = row
    with pytest.raises(ShapeError, match=words or None):
        op.output_shape(*shapes)


OPS = [  # words of the message, class, its arguments: one, several, or by name
    *(("", make, given) for make, given in (
        (ops.ReLU, 0), (ops.ReLU, NAN), (ops.Clip, (2, 1)), (ops.Clip, (1, 1)), (ops.LeakyReLU, -0.1), (ops.ELU, -1),
        (ops.SELU, -1), (ops.LayerNormalization, 0.0), (ops.Embedding, (0, 3)), (ops.Dropout, -0.1), (ops.Dropout, 1.0),
        *((kind, step) for kind in (ops.Coupling, ops.Stream) for step in (-1.0, 0.3, 3.0)),
        *((ops.LocalResponseNormalization, given) for given in ({"size": 0}, {"bias": 0.0}, {"alpha": -1.0})),
    )),
    *(("epsilon", ops.BatchNormalization, {"epsilon": value}) for value in (0.0, -1e-3)),
    *(("momentum", ops.BatchNormalization, {"momentum": value}) for value in (-0.1, 1.5, NAN)),
]  # fmt: skip
OTHERS = [
    *((words, SGD, given) for words, given in (
        (r"momentum.*1\.0", {"momentum": 1.0}), ("momentum.*nan", {"momentum": NAN}), ("nesterov", {"nesterov": True}),
        ("weight_decay.*-0.1", {"weight_decay": -0.1}), ("proximal", {"proximal": -1}), ("clipnorm", {"clipnorm": 0}),
        ("global_clipnorm", {"global_clipnorm": -1}), ("global_clipnorm", {"global_clipnorm": "1"}),
        ("clipvalue", {"clipvalue": NAN}), ("clipnorm or clipvalue", {"clipnorm": 1.0, "clipvalue": 1.0}),
        ("ema_momentum", {"ema_momentum": 1.0}), ("learning_rate", {"learning_rate": "0.1"}),
        ("learning_rate", {"learning_rate": 1j}),
    )),
    ("weight_decay", ops.AdamW, {"weight_decay": INFINITY}),
    *((min(given), Adam, given) for given in ({"beta_1": 1.0}, {"beta_2": -0.1}, {"epsilon": 0.0})),
    *(("", make, given) for make, given in (
        *((ops.Huber, delta) for delta in (0, -1, NAN)), *((ops.BinaryCrossentropy, share) for share in (1.0, -0.1)),
        (ops.BinaryFocalCrossentropy, {"gamma": -1}), (ops.BinaryFocalCrossentropy, {"alpha": 1.5}),
        (ops.CategoricalCrossentropy, 1.0), (ops.CategoricalFocalCrossentropy, {"gamma": -1}),
        (ops.CategoricalFocalCrossentropy, {"alpha": -1}), (ops.MinimumEntropy, -1), (ops.PositiveHinge, -1),
        (ops.PositiveHinge, 1.5), (ops.PositiveHinge, NAN), (ops.CodewordHinge().check, ((4, 4, 16), 2)),
        (ops.TripletLoss, {"margin": -1}), (ops.TripletLoss().check, ((4, 4, 16), 2)), (ops.CTC, {"blank": -1}),
        (ops.CTC().check, ((5,), 2)), (ops.CTC(blank=7).check, ((9, 7), 2)),
        (Prototypical(3, 2).check, ((16,), 6)),
        *((Prototypical, {"num_classes": 3, "shots": 2} | given) for given in (
            {"num_classes": 1}, {"shots": 0}, {"dummy_prototypes": -1}, {"distance": "hamming"}, {"scale": 0.0},
            {"dummy_temperature": -1.0},
        )),
        *((Format, bits) for bits in (1, 17, 8.0, True)), (RunningMinMax, 1.1), (InHindsightMinMax, -0.1),
        (Fixed, (1, 2)), (Fixed, (0, 0)), (Fixed, (0, INFINITY)), (DSGC, 0), (DSGC, {"smallest": 1.0}),
        (Percentile, {"percent": 0}),
    )),
    ("2 times", Prototypical(3, 2, dummy_prototypes=2).check, ((16,), 8)), ("up", Format, {"rounding": "up"}),
    ("uniform", Format(8, rounding="stochastic").encode, (np.ones(1), np.float64(1), 0)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "words", "make", "given"), [*((ShapeError, *row) for row in OPS), *((PlanError, *row) for row in OTHERS)]
)
def test_settings_that_cannot_be(error, words, make, given):
    by_name, by_place = (
        (given, ()) if isinstance(given, dict) else ({}, given if isinstance(given, tuple) else (given,))
    )
    with pytest.raises(error, match=words or None):
        make(*by_place, **by_name)


def test_observers_that_no_file_can_mean():
    for record, words in (({"observer": "Nonsense"}, "Nonsense"), ({"observer": "DSGC", "never": 1}, "never")):
        with pytest.raises(FormatError, match=words):
            Observer.from_dict(record)
    with pytest.raises(NotImplementedError, match="next"):
        Observer().next(0, 0, 0, 0, 0)
