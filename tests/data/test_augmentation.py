"""Augmentation of pictures: against SciPy and TensorFlow, and the same for a picture whatever surrounds it."""

import subprocess
from importlib.util import find_spec

import numpy as np
import pytest

import edgelearn as el
from edgelearn.data.augmentation import Chain, Colour, CutOut, RotateShiftZoom, transformed, turned
from edgelearn.data.draws import FlipAndCrop
from edgelearn.errors import DataError
from edgelearn.ops import Conv2D, Dense, GlobalAveragePooling2D
from edgelearn.train import VariedSource

KINDS = [RotateShiftZoom(3), Colour(3), CutOut(3, 5, 2), FlipAndCrop(3)]
KINDS.append(Chain(KINDS[:]))


@pytest.fixture
def pictures():
    return np.random.default_rng(0).integers(0, 256, (7, 9, 12, 3)).astype(np.uint8)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
def test_a_picture_is_varied_by_its_number_and_the_epoch_alone(pictures, kind):
    indices = np.array([4, 0, 11, 2, 30, 6, 5])
    found = kind(pictures, indices, 1)
    assert (found.shape, found.dtype) == (pictures.shape, pictures.dtype)
    one = kind(pictures[2:4], indices[2:4], 1)
    assert np.array_equal(one, found[2:4])
    assert not np.array_equal(found, pictures)
    assert not np.array_equal(found, kind(pictures, indices, 2))


@pytest.mark.parametrize(("angle", "shift", "zoom"), [(0.3, (1.5, -2), 1.2), (-1, (0, 0), 0.7), (np.pi / 2, (0, 0), 1)])
def test_geometry_against_scipy(angle, shift, zoom):
    from scipy.ndimage import affine_transform

    picture = np.random.default_rng(0).standard_normal((10, 10, 2)).astype(np.float32)
    matrix = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]) / zoom
    centre = np.array([4.5, 4.5])
    offset = centre - matrix @ (centre + shift)
    expected = np.stack(
        [affine_transform(picture[..., c], matrix, offset, order=1, mode="grid-constant") for c in range(2)], -1
    )
    np.testing.assert_allclose(transformed(picture, angle, shift, zoom), expected, atol=1e-4)


def test_a_quarter_turn_is_rot90():
    picture = np.arange(5 * 5 * 1.0, dtype=np.float32).reshape(5, 5, 1)
    np.testing.assert_allclose(transformed(picture, np.pi / 2, (0, 0), 1), np.rot90(picture, 1), atol=1e-4)


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_hue_against_tensorflow(python_with_tensorflow, tmp_path):
    rgb, shares = np.random.default_rng(0).uniform(size=(8, 8, 3)).astype(np.float32), (-0.4, 0.0, 0.13, 0.5)
    np.save(tmp_path / "rgb.npy", rgb)
    script = (
        "import numpy, tensorflow, sys; rgb = numpy.load(sys.argv[1]);"
        f"numpy.save(sys.argv[1], [tensorflow.image.adjust_hue(rgb, share) for share in {shares}])"
    )
    subprocess.run([*python_with_tensorflow, "-c", script, tmp_path / "rgb.npy"], check=True)
    np.testing.assert_allclose([turned(rgb, share) for share in shares], np.load(tmp_path / "rgb.npy"), atol=1e-5)


def test_resumed_equals_uninterrupted(pictures, tmp_path):
    network = el.Network("small", (9, 12, 3))
    for name, op in {"conv": Conv2D(8, 3), "pool": GlobalAveragePooling2D(), "dense": Dense(3)}.items():
        network.add(name, op)
    source = VariedSource(pictures, KINDS[-1], lambda x: np.float32(x / 255))
    y = np.arange(7) % 3
    whole, part = (el.Model(network, seed=1).compile(el.SGD(0.1)) for _ in range(2))
    whole.fit(source, y, batch_size=3, epochs=4)
    part.fit(source, y, batch_size=3, epochs=2)
    part.save(tmp_path / "m.safetensors")
    again = el.load(tmp_path / "m.safetensors", optimizer=el.SGD(0.1))
    again.fit(source, y, batch_size=3, epochs=4)
    assert all(np.array_equal(array, again.weights[name]) for name, array in whole.weights.items())


def test_bad_settings(pictures):
    for make in (lambda: RotateShiftZoom(0, -1), lambda: Colour(0, -1), lambda: CutOut(0, 0)):
        with pytest.raises(DataError, match="Expected"):
            make()
    with pytest.raises(DataError, match="RGB"):
        Colour(0)(pictures[..., :1], np.arange(7), 0)
