import numpy as np
import pytest

from edgelearn.errors import ShapeError
from edgelearn.ops import LocalResponseNormalization

from .harness import SIZES
from .plain import check_plain


@pytest.mark.parametrize("channels", SIZES)
@pytest.mark.parametrize("size", (1, 4, 5, 40))
def test_channels(bench, rng, channels, size):
    check_plain(LocalResponseNormalization(size, 0.3, 0.6, 1.5), bench, rng, (3, 4, channels))


def test_averages(bench, rng):
    check_plain(LocalResponseNormalization(alpha=0.5, average=True), bench, rng, (33,))


def test_windows():
    """Those of tf.nn.local_response_normalization and, averaged, of ONNX."""
    x = np.arange(1.0, 6.0)[None]
    for size, sums in ((5, [14, 30, 55, 54, 50]), (3, [5, 14, 29, 50, 41]), (4, [14, 30, 54, 50, 41])):
        y = LocalResponseNormalization(size, 2.0, 1.0).reference_forward([x], {})
        assert np.allclose(y, x / (1 + 2 * np.array(sums)))
        y = LocalResponseNormalization(size, 2.0, 1.0, average=True).reference_forward([x], {})
        assert np.allclose(y, x / (1 + 2 * np.array(sums) / size))


@pytest.mark.parametrize("arguments", [{"size": 0}, {"bias": 0.0}, {"alpha": -1.0}])
def test_arguments_that_do_not_fit(arguments):
    with pytest.raises(ShapeError):
        LocalResponseNormalization(**arguments)
