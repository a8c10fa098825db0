"""The cache gives what the frozen layers give."""

import errno
import os

import numpy as np
import pytest

from edgelearn.errors import DataError
from edgelearn.ops import SGD
from edgelearn.ops.tensor import pack
from edgelearn.runtime import FeatureCache, pages
from edgelearn.train import Model

from .toys import examples, frozen_stem, same, weights_after


def trained(cache, folder=None, channels=20):
    """The weights after training."""
    model = Model(frozen_stem(stem=channels)).compile(SGD(0.1, momentum=0.9), batchnorm="moving")
    return weights_after(model, cache=cache, cache_folder=folder)


def test_fp32_gives_the_same_bits(tmp_path):
    without = trained(None)
    assert same(trained("fp32"), without)
    assert same(trained("fp32", tmp_path), without)
    assert not list(tmp_path.iterdir())


def test_few_features_are_handed_on_unpadded():
    """Another kernel reads them then, which adds in another order."""
    without, cached = trained(None, channels=5), trained("fp32", channels=5)
    for name, array in without.items():
        np.testing.assert_allclose(cached[name], array, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("channels", [20, 5])
def test_fp16_is_close(tmp_path, channels):
    without, half = trained(None, channels=channels), trained("fp16", channels=channels)
    assert same(trained("fp16", tmp_path, channels), half)
    assert not same(half, without)
    for name, array in without.items():
        np.testing.assert_allclose(half[name], array, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("shape", [(3, 5, 40), (3, 5, 16), (2, 2, 5), (7,), (40,)])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_put_and_taken(shape, dtype):
    block = 16 if shape[-1] >= 16 else shape[-1]
    features = np.random.default_rng(0).normal(size=(9, *shape)).astype(np.float16).astype(np.float32)
    cache = FeatureCache(shape, 9, dtype, block=block)
    for first, count in (0, 4), (4, 4), (8, 1):
        cache.put(first, count, pack(features[first : first + count]).ravel())
    assert len(cache) == 9 and cache.shape == (9, *shape)
    assert cache.nbytes == 9 * -(-shape[-1] // block) * block * np.prod(shape[:-1]) * (4 if dtype == "fp32" else 2)
    chosen = np.array([8, 0, 3])
    words = cache.device_layout(chosen)
    assert words.dtype == cache[chosen].dtype == np.float32
    np.testing.assert_array_equal(cache[chosen], features[chosen])
    np.testing.assert_array_equal(words, pack(features[chosen], block))


def test_no_folder(tmp_path):
    with pytest.raises(DataError, match=r"1,600.*missing"):
        FeatureCache((4,), 25, folder=tmp_path / "missing", block=16)


def test_no_room(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pages, "on_disk", full)
    with pytest.raises(DataError, match="No space left"):
        FeatureCache((4,), 25, folder=tmp_path)
    with pytest.raises(DataError, match="memory"):
        FeatureCache((1 << 20, 1 << 20), 1 << 20)


def test_validation_has_a_cache_of_its_own():
    x, y = examples(10)
    x2, y2 = examples(6, seed=9)

    def losses(cache):
        model = Model(frozen_stem()).compile(SGD(0.1))
        return model.fit(x, y, 4, 2, validation_data=(x2, y2), cache=cache).history["val_loss"]

    assert losses("fp32") == losses(None)
