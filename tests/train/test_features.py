"""Features of the frozen prefix: what the frozen layers give, kept while a training is stopped."""

import errno
import os

import numpy as np
import pytest

import edgelearn as el
from edgelearn.errors import DataError
from edgelearn.ops import SGD, Conv2D, Dense, Flatten, ReLU, Softmax
from edgelearn.ops.tensor import pack
from edgelearn.runtime import FeatureCache, pages
from edgelearn.train import Callback, Model, PictureSource, Subset
from edgelearn.train.trainer import Features
from tests.train.toys import examples, frozen_stem, same, weights_after


class Log(Callback):
    """Counts extracted examples, and stops after an epoch."""

    def __init__(self, last: int = 100) -> None:
        self.extracted, self.last = 0, last

    def on_extract(self, done: int, total: int) -> None:
        self.extracted = done

    def on_epoch_end(self, epoch: int, logs) -> None:
        self.model.stop_training = epoch + 1 >= self.last


@pytest.fixture
def model():
    network = el.Network("two", (6,))
    network.add("frozen", Dense(20))
    network.add("relu", ReLU())
    network.add("head", Dense(3))
    network.add("softmax", Softmax())
    network.freeze().unfreeze("head")
    return el.Model(network, seed=3).compile(el.SGD(0.1, momentum=0.9))


rng = np.random.default_rng(0)
X, Y = rng.standard_normal((10, 6)).astype(np.float32), rng.integers(0, 3, 10)


def fit(model, epochs, log, x=X):
    model.fit(x, Y, 4, epochs, cache="fp32", callbacks=[log], verbose=0)
    return log.extracted


def test_a_stopped_training_extracts_nothing_again(model):
    whole = el.Model(model.network, model.weights, seed=3).compile(el.SGD(0.1, momentum=0.9))
    assert fit(whole, 4, Log()) == 10
    assert fit(model, 4, Log(last=2)) == 10
    assert fit(model, 4, Log()) == 0
    assert all((model.weights[name] == array).all() for name, array in whole.weights.items())
    assert fit(model, 5, Log()) == 10, "a training that has ended keeps nothing"


def test_examples_that_were_edited_have_other_features(model):
    x = X.copy()
    fit(model, 9, Log(last=1), x)
    x[0] += 1
    assert fit(model, 9, Log(last=2), x) == 10


def test_other_examples_or_weights_have_other_features(model):
    fit(model, 9, Log(last=1))
    assert fit(model, 9, Log(last=2), X.copy()) == 10
    model.weights = model.weights | {"frozen/bias": np.ones(20, np.float32)}
    assert fit(model, 9, Log(last=3)) == 10


def test_the_next_training_of_the_same_pictures_extracts_none():
    """Each run in a notebook extracted the features of the run before it."""
    pictures = rng.standard_normal((10, 4, 4, 3)).astype(np.float32)
    shared = Features(keep=True)

    def train(key, keep=shared):
        network = el.Network("small", (4, 4, 3))
        network.add("frozen", Conv2D(5, 3))
        network.add("flat", Flatten())
        network.add("head", Dense(3))
        network.freeze().unfreeze("head")
        model, log = el.Model(network, seed=3).compile(el.SGD(0.1)), Log()
        model.features = keep
        source = PictureSource(10, 4, lambda indices, size: pictures[indices], lambda x: x, key)
        fit(model, 2, log, Subset(source, np.arange(10)))
        return log.extracted, model.weights["head/kernel"]

    plain = train("mine", Features())[1]
    assert [train(key)[0] for key in ("mine", "mine", "others", None, None)] == [10, 0, 10, 10, 10]
    train("mine")
    extracted, kernel = train("mine")
    assert extracted == 0 and (kernel == plain).all()


def test_the_prefix_follows_outputs_and_layers(model):
    assert model.phases(4, cache="fp32")["extract"].request.network.outputs == ("relu",)
    model.network.outputs = ("relu", "softmax")
    with pytest.raises(el.errors.PlanError, match="no frozen prefix"):
        model.phases(4, cache="fp32")
    model.network.outputs = ("softmax",)
    model.network.add("last", ReLU())
    model.network.outputs = ("last",)
    assert list(model.phases(4, cache="fp32")["train"].request.network.nodes) == ["head", "softmax", "last"]


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
