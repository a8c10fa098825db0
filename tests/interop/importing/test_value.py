"""A value reshaped and transposed as NumPy does it, without a layer that moves anything."""

import numpy as np
import pytest

from edgelearn.interop import shapes
from edgelearn.interop.builder import Builder, Value
from edgelearn.interop.canonical import TensorInfo


def as_array(b, x, memory):
    """The file's array from the values of x's layer, whatever layers were added since the input."""
    arrays = {"input": memory}
    for name, layer in b.layers.items():
        arrays[name] = layer.op.reference_forward([arrays[n] for n in layer.inputs], {})
    order = [factor for axis in x.axes for factor in axis if factor >= 0]
    return arrays[x.layer].reshape(x.sizes).transpose(order).reshape(x.shape)


@pytest.fixture
def image():
    b = Builder("tiny", "NCHW")
    x = b.input(TensorInfo("x", (1, 6, 4, 5), layout="NCHW"))
    memory = np.arange(120.0).reshape(1, 4, 5, 6)
    return b, x, memory, memory.transpose(0, 3, 1, 2)


def test_an_image_in_the_order_of_the_file(image):
    b, x, memory, expected = image
    assert x.shape == (1, 6, 4, 5)
    assert b.shape(x.layer) == (4, 5, 6)
    assert np.array_equal(as_array(b, x, memory), expected)


def test_channel_shuffle(image):
    b, x, memory, expected = image
    x = shapes.reshape(b, x, (1, 2, 3, 4, 5))
    x = shapes.transpose(b, x, (0, 2, 1, 3, 4))
    x = shapes.reshape(b, x, (1, -1, 4, 5))
    assert not b.layers
    expected = expected.reshape(1, 2, 3, 4, 5).transpose(0, 2, 1, 3, 4).reshape(1, 6, 4, 5)
    assert np.array_equal(as_array(b, x, memory), expected)


@pytest.mark.parametrize("shape", [(1, 120), (1, 12, 10), (120,), (6, 4, 5), (1, 3, 2, 20), (1, 1, 6, 20, 1)])
def test_reshapes_that_move_nothing(image, shape):
    b, x, memory, expected = image
    y = shapes.reshape(b, x, shape)
    assert y.shape == shape
    assert not b.layers
    assert np.array_equal(as_array(b, y, memory), expected.reshape(shape))
    assert shapes.reshape(b, y, (1, 6, 4, 5)).shape == (1, 6, 4, 5)


def test_squeeze_and_unsqueeze():
    b = Builder("tiny")
    x = b.input(TensorInfo("x", (1, 1, 7)))
    assert shapes.squeeze(b, x, [1]).shape == (1, 7)
    assert shapes.squeeze(b, x).shape == (7,)
    assert shapes.unsqueeze(b, x, [0, 3]).shape == (1, 1, 1, 1, 7)
    assert shapes.unsqueeze(b, shapes.squeeze(b, x), [0]).batch_axis == 0


def test_a_batch_stays_a_batch():
    x = Value.of("input", (4, 5, 6), (2, 0, 1), batch=2)
    assert x.shape == (2, 6, 4, 5)
    assert x.reshaped((2, 120)).shape == (2, 120)
    merged = x.reshaped((12, 20))
    assert merged.shape == (12, 20)
    assert merged.batch_axis is None
    assert merged.reshaped((2, 6, 20)).batch_axis == 0
    assert x.reshaped((3, 80)) is None
