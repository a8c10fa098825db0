import numpy as np
import pytest

from edgelearn.data.draws import AddNoise, Shift, SpecAugment, mix, stretch, synthetic_noises
from edgelearn.errors import DataError

CLIPS = np.tile(np.arange(1, 101, dtype=np.float32) / 200, (400, 1))
FEATURES = np.random.default_rng(0).normal(5, 1, (400, 30, 20)).astype(np.float32)
ALL = np.arange(400)
VARIATIONS = [(Shift, CLIPS), (lambda seed: AddNoise(seed, synthetic_noises(1, 0.1)), CLIPS), (SpecAugment, FEATURES)]


@pytest.mark.parametrize("make, values", VARIATIONS, ids=["shift", "noise", "masks"])
def test_choices_depend_on_seed_epoch_and_number_alone(make, values):
    vary = make(5)
    whole = vary(values, ALL, 3)
    assert whole.shape == values.shape and whole.dtype == np.float32
    some = np.array([377, 0, 200, 0])
    np.testing.assert_array_equal(make(5)(values[some], some, 3), whole[some])
    for other in make(6)(values, ALL, 3), vary(values, ALL, 4):
        assert (other != whole).any(tuple(range(1, values.ndim))).mean() > 0.5
    assert vary(values[:0], ALL[:0], 0).shape == (0, *values.shape[1:])


def test_clips_are_shifted_either_way_with_zeros_coming_in():
    shifted = Shift(1, limit=0.1)(CLIPS, ALL, 0)
    cases = {np.concatenate([np.zeros(k), CLIPS[0]])[:100].astype(np.float32).tobytes(): k for k in range(11)}
    cases |= {np.concatenate([CLIPS[0, k:], np.zeros(k)]).astype(np.float32).tobytes(): -k for k in range(11)}
    found = [cases[clip.tobytes()] for clip in shifted]
    assert set(found) == set(range(-10, 11))


def test_noise_is_as_far_below_as_was_drawn():
    noise = np.random.default_rng(0).normal(0, 0.2, 50000).astype(np.float32)
    clips = (0.1 * np.random.default_rng(1).normal(0, 1, (400, 1000)) / 4).astype(np.float32)
    noisy = AddNoise(0, [noise], probability=0.5, low=5, high=15)(clips, ALL, 0)
    changed = (noisy != clips).any(1)
    assert 0.4 < changed.mean() < 0.6
    clean, added = clips[changed], (noisy - clips)[changed]
    ratio = 10 * np.log10((clean**2).mean(1) / (added**2).mean(1))
    assert 4.99 < ratio.min() < 6 and 14 < ratio.max() < 15.01
    np.testing.assert_array_equal(mix(np.zeros(9), noise[:9], 5), np.zeros(9))
    assert np.abs(mix(np.ones(9), noise[:9], 0)).max() <= 1
    with pytest.raises(DataError, match="noises"):
        AddNoise(0, [])


def test_stretches_cover_a_recording_and_short_ones_repeat():
    noise = np.arange(10)
    assert {stretch(noise, 4, where)[0] for where in np.linspace(0, 0.999, 50)} == set(range(7))
    assert stretch(noise, 25, 0.999).tolist() == [*range(5, 10), *range(10), *range(10)]


def test_synthetic_noises_fall_as_they_say():
    rate = 16000
    for slope, noise in enumerate(synthetic_noises(0, 10, rate)):
        power = np.abs(np.fft.rfft(noise)) ** 2
        frequency = np.fft.rfftfreq(len(noise), 1 / rate)
        low, high = (power[(frequency > f / 1.1) & (frequency < f * 1.1)].mean() for f in (400, 4000))
        assert abs(np.log10(low / high) - slope) < 0.1
        assert abs(noise.std() - 0.1) < 1e-3 and noise.dtype == np.float32


def test_masks():
    masked = SpecAugment(0, times=1, frames=6, frequencies=1, bands=4, fill=-1.0)(FEATURES, ALL, 0) == -1
    frames, bands = masked.all(2), masked.all(1)
    np.testing.assert_array_equal(masked, frames[:, :, None] | bands[:, None, :])
    for hidden, limit in ((frames, 6), (bands, 4)):
        assert set(hidden.sum(1)) == set(range(limit + 1))
        assert (np.abs(np.diff(hidden.astype(int), axis=1)).sum(1) <= 2).all()  # one piece
        assert hidden.any(0).all()  # anywhere
    mean = SpecAugment(0)(FEATURES, ALL, 0)
    change = mean != FEATURES
    np.testing.assert_allclose(mean[change], np.broadcast_to(FEATURES.mean((1, 2))[:, None, None], mean.shape)[change])
    wide = SpecAugment(0, frames=1000, bands=1000)(FEATURES, ALL, 0)
    assert wide.shape == FEATURES.shape


@pytest.mark.parametrize(
    "make",
    [
        lambda: Shift(0, -0.1),
        lambda: Shift(0, float("nan")),
        lambda: AddNoise(0, synthetic_noises(0, 0.1), probability=1.5),
        lambda: AddNoise(0, synthetic_noises(0, 0.1), low=20, high=0),
    ],
)
def test_variations_that_cannot_be(make):
    with pytest.raises(DataError, match=r"-0\.1|nan|1\.5|20"):
        make()
