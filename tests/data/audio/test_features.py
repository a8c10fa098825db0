"""Features of clips: those of TensorFlow and torchaudio, streamed, cached, augmented; the embedded words."""

import json
import subprocess
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgelearn.data import features, synthetic_words
from edgelearn.data.audio import load_clips, load_folder
from edgelearn.data.draws import AddNoise, Reverberate, Shift, SpecAugment, Speed, mix, stretch, synthetic_noises
from edgelearn.data.features import (
    BC_RESNET,
    DS_CNN_ARM,
    DS_CNN_MLPERF,
    MFCC,
    FeatureStream,
    LogMel,
    compute_features,
    load_features,
    mel_matrix,
)
from edgelearn.data.synthetic_words import SOUNDS, WORDS, Spoken, embedded_words, spoken_words
from edgelearn.errors import DataError, ShapeError

TF = [  # as tf.signal computes: from the first sample, triangles over mel
    LogMel(centred=False, triangles="mel"),
    LogMel(window=400, hop=101, fft=1024, bands=80, low=20, high=7600, power=1, centred=False, triangles="mel"),
    LogMel(window=640, hop=640, fft=640, bands=23, low=60, high=3800, centred=False, triangles="mel"),
    LogMel(window=200, hop=80, fft=256, bands=26, high=4000, centred=False, triangles="mel", rate=8000),
]


@pytest.fixture(scope="module")
def clips():
    """Noise, a word, silence, and a loud chirp: 0.93 of a second, so that frames don't fill it."""
    rng = np.random.default_rng(0)
    word = load_clips(embedded_words(1, 1, 1))[0]
    chirp = 0.5 * np.sin(np.arange(16000) ** 1.3 / 50)
    made = np.stack([rng.normal(0, 0.1, 16000), word, np.zeros(16000), chirp])
    return made[:, :14900].astype(np.float32)


@pytest.fixture(scope="module")
def tensorflow(clips, tmp_path_factory, request):
    """Features of the clips by TensorFlow: see tf_features.py."""
    if find_spec("tensorflow") is None:
        pytest.skip("tensorflow isn't installed: nothing to compare features with")
    folder = tmp_path_factory.mktemp("features")
    np.save(folder / "clips.npy", clips)
    (folder / "settings.json").write_text(json.dumps([asdict(settings) for settings in TF]))
    files = [folder / name for name in ("clips.npy", "settings.json", "out.npz")]
    python = request.getfixturevalue("python_with_tensorflow")
    command = [*python, Path(__file__).with_name("tf_features.py"), *files]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return np.load(files[-1])


@pytest.mark.parametrize("number", range(len(TF)))
def test_features_are_those_of_tf_signal(clips, tensorflow, number):
    settings, log_mel = TF[number], tensorflow[f"log_mel{number}"]
    assert settings.shape(clips.shape[1]) == log_mel.shape[1:]
    np.testing.assert_allclose(settings(clips), log_mel, atol=1e-3)
    np.testing.assert_allclose(MFCC(13, settings)(clips), tensorflow[f"mfcc{number}"][..., :13], atol=1e-3)


def test_arms_ds_cnn_gets_what_tensorflow_1_computes(clips, tensorflow):
    loud = [0, 1, 3]  # silence has another floor
    np.testing.assert_allclose(DS_CNN_ARM(clips[loud]), tensorflow["arm"][loud], atol=1e-3)


def test_bc_resnet_front_end(clips):
    """By the definition in torchaudio's documentation, in float64: a frame of n_fft samples around every hop, the
    window in its middle, the ends reflected; triangles over hertz, whose corners are even in mel."""
    padded = np.pad(clips.astype(np.float64), ((0, 0), (256, 256)), mode="reflect")
    window = np.zeros(512)
    window[16:496] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(480) / 480)
    frames = np.stack([padded[:, at : at + 512] * window for at in range(0, clips.shape[1] + 1, 160)], 1)
    energy = np.abs(np.fft.rfft(frames)) ** 2
    corners = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + 8000 / 700), 42) / 2595) - 1)
    hertz = np.linspace(0, 8000, 257)
    bank = np.array([np.interp(hertz, corners[k : k + 3], [0, 1, 0]) for k in range(40)]).T
    np.testing.assert_allclose(mel_matrix(BC_RESNET), bank, atol=1e-6)
    np.testing.assert_allclose(BC_RESNET(clips), np.log(energy @ bank + 1e-6), atol=1e-3)
    assert BC_RESNET.shape(16000) == (101, 40) and DS_CNN_MLPERF.shape(16000) == (49, 10)


def test_a_clip_has_the_same_features_in_any_batch(clips):
    many = np.tile(clips, (25, 1))
    np.testing.assert_allclose(BC_RESNET(many)[::4], np.tile(BC_RESNET(clips[:1]), (25, 1, 1)), atol=1e-5)
    assert BC_RESNET(clips[:0]).shape == (0, *BC_RESNET.shape(clips.shape[1]))


def test_what_cannot_be_is_refused(clips):
    numbers = {"hop": 0}, {"window": 600}, {"high": 9000}, {"low": 8000}, {"power": 3}
    wrong: list[dict[str, Any]] = [*numbers, {"triangles": "bark"}]
    for each in wrong:
        with pytest.raises(DataError):
            LogMel(**each)
    with pytest.raises(DataError, match=r"1 to 40 .*41"):
        MFCC(41, LogMel())
    for samples, settings in ((240, BC_RESNET), (479, DS_CNN_MLPERF.log_mel)):
        with pytest.raises(ShapeError, match=f" {samples} .* {settings.window}"):
            settings(clips[:, :samples])
        assert settings(clips[:, : samples + 1]).shape[0] == 4
    with pytest.raises(ShapeError, match=r"\(\d+,\)"):
        BC_RESNET(clips[0])
    with pytest.raises(ShapeError, match="int16"):
        BC_RESNET(clips.astype(np.int16))


FRONT_ENDS = [BC_RESNET, DS_CNN_MLPERF, MFCC(13, LogMel(window=400, hop=397)), LogMel(window=300, hop=500, bands=20)]


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("cut", [1, 7, 159, 161, 16_000, 30_011])
def test_a_stream_has_the_features_of_the_whole(front_end, cut):
    samples = np.random.default_rng(cut).normal(0, 0.1, 30_011 if cut > 1 else 2_501).astype(np.float32)
    stream = FeatureStream(front_end)
    pieces = [stream.push(samples[start : start + cut]) for start in range(0, len(samples), cut)]
    found = np.concatenate([*pieces, stream.finish()])
    np.testing.assert_allclose(found, front_end(samples[None])[0], rtol=1e-4, atol=1e-4)


def test_frames_come_as_soon_as_their_samples_have():
    stream = FeatureStream(BC_RESNET)
    assert [len(stream.push(np.zeros(count, np.float32))) for count in (240, 1, 159, 160, 320)] == [0, 1, 1, 1, 2]


def test_a_stream_holds_what_a_frame_sees():
    stream = FeatureStream(BC_RESNET)
    for _ in range(50):
        stream.push(np.zeros(5_000, np.float32))
        assert len(stream._held) < BC_RESNET.window + BC_RESNET.hop


def test_what_is_no_sound_is_refused():
    stream = FeatureStream(BC_RESNET)
    with pytest.raises(ShapeError, match="int16"):
        stream.push(np.zeros(100, np.int16))
    stream.push(np.zeros(100, np.float32))
    with pytest.raises(ShapeError, match=r"100 .*480"):
        stream.finish()


@pytest.fixture
def computed(monkeypatch):
    """How many times features were computed."""
    times = []
    monkeypatch.setattr(features, "compute_features", lambda *given: (times.append(1), compute_features(*given))[1])
    return times


def test_features_are_computed_once_for_each_content_and_setting(tmp_path, folder, computed, encode, tone):
    first = load_features(load_folder(folder), folder=tmp_path)
    np.testing.assert_array_equal(load_features(load_folder(folder), folder=tmp_path), first)
    assert len(computed) == 1 and first.shape == (6, 101, 40) and first.dtype == np.float32
    assert load_features(load_folder(folder), DS_CNN_ARM, folder=tmp_path).shape == (6, 49, 10)
    assert load_features(load_folder(folder), BC_RESNET, 0.5, tmp_path).shape == (6, 51, 40)
    other = replace(BC_RESNET, offset=1.0)  # of the same shape
    assert (load_features(load_folder(folder), other, folder=tmp_path) != first).all()
    file = folder / "no" / "ann_b_nohash_0.wav"
    file.write_bytes(encode(tone(500)))  # the same name, size and, on a coarse clock, time
    changed = load_features(load_folder(folder), folder=tmp_path)
    assert len(computed) == 5
    assert np.flatnonzero((changed != first).any((1, 2))).tolist() == [1]


def test_features_of_synthesised_clips_are_found_without_synthesis(tmp_path, monkeypatch):
    """Half of the time of a federation's start went into clips whose features were kept."""
    words = embedded_words(2, 2, 2)
    whole, spoken = load_features(words, folder=tmp_path), []
    np.testing.assert_array_equal(whole, compute_features(words))
    speak = synthetic_words.speak
    monkeypatch.setattr(synthetic_words, "speak", lambda *given: spoken.append(given) or speak(*given))
    np.testing.assert_array_equal(load_features(embedded_words(2, 2, 2), folder=tmp_path), whole)
    assert spoken == []
    others = embedded_words(2, 2, 2, seed=1), embedded_words(2, 4, 1), spoken_words(["xaxu", WORDS[1]], range(2), 2, 0)
    for number, other in enumerate(others, start=2):
        assert not np.array_equal(load_features(other, folder=tmp_path), whole)
        assert len(list(tmp_path.iterdir())) == number and len(spoken) == 8 * (number - 1)
    slow = replace(BC_RESNET, rate=8000, high=4000.0)
    assert load_features(words, slow, folder=tmp_path).shape == (8, *slow.shape(8000)), "another rate, other samples"


def test_an_identity_says_all_that_a_clip_is_made_of(monkeypatch):
    ones = {Spoken(word, who, take, seed).identity for word in ("a", "e") for who, take, seed in np.ndindex(2, 2, 2)}
    assert len(ones) == 16 and Spoken("a", 0, 0, 0).identity in ones
    synthetic_words._program.cache_clear()
    monkeypatch.setattr(np, "__version__", "another")
    assert Spoken("a", 0, 0, 0).identity not in ones
    monkeypatch.undo()
    synthetic_words._program.cache_clear()


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "text"])
def test_a_damaged_file_is_noticed_and_made_anew(tmp_path, computed, damage):
    dataset = embedded_words(2, 1, 2)
    whole = load_features(dataset, folder=tmp_path)
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[-1000] ^= 1
    path.write_bytes({"flipped": content, "cut": content[:-4000], "empty": b"", "text": b"{}" * 99}[damage])
    for times in (2, 2):  # made anew, and then kept
        np.testing.assert_array_equal(load_features(dataset, folder=tmp_path), whole)
        assert len(computed) == times
    assert list(tmp_path.iterdir()) == [path]


def test_where_they_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGELEARN_FEATURES", str(tmp_path / "kept"))
    load_features(embedded_words(1, 1, 1))
    assert len(list((tmp_path / "kept").iterdir())) == 1
    monkeypatch.setenv("EDGELEARN_FEATURES", "")
    assert features.cache_folder() is None and load_features(embedded_words(1, 1, 1)).shape == (1, 101, 40)
    monkeypatch.delenv("EDGELEARN_FEATURES")
    kept = features.cache_folder()
    assert kept is not None and kept.parts[-2:] == ("edgelearn", "features")


def test_no_place_to_keep_them(tmp_path, computed):
    (tmp_path / "file").write_text("")
    for times in (1, 2):
        assert load_features(embedded_words(1, 1, 2), folder=tmp_path / "file" / "below").shape == (2, 101, 40)
        assert len(computed) == times


CLIPS = np.tile(np.arange(1, 101, dtype=np.float32) / 200, (400, 1))
FEATURES = np.random.default_rng(0).normal(5, 1, (400, 30, 20)).astype(np.float32)
ALL = np.arange(400)
VARIATIONS = {
    "shift": (Shift, CLIPS), "noise": (lambda seed: AddNoise(seed, synthetic_noises(1, 0.1)), CLIPS),
    "speed": (Speed, CLIPS), "room": (lambda seed: Reverberate(seed, 0.9, 0.01, 0.02), CLIPS),
    "masks": (SpecAugment, FEATURES),
}  # fmt: skip


@pytest.mark.parametrize("make, values", VARIATIONS.values(), ids=VARIATIONS)
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


def test_speed_changes_pitch_about_the_middle():
    time = np.arange(16000) / 16000
    clips = np.tile(np.sin(2 * np.pi * 1000 * time) * np.hanning(16000), (50, 1)).astype(np.float32)
    varied = Speed(1, 0.2)(clips, np.arange(50), 0)
    pitch = np.abs(np.fft.rfft(varied)).argmax(1)  # hertz
    assert 800 <= pitch.min() < 850 and 1150 < pitch.max() <= 1200
    middle = (np.square(varied) * time).sum(1) / np.square(varied).sum(1)
    np.testing.assert_allclose(middle, 0.5, atol=2e-3)


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
        lambda: Speed(0, 1.5),
        lambda: Reverberate(0, low=20),
    ],
)
def test_variations_that_cannot_be(make):
    with pytest.raises(DataError, match=r"-0\.1|nan|1\.5|20"):
        make()


def test_the_sample_says_what_it_is():
    dataset = embedded_words(3, 2, 4)
    assert dataset.origin == "embedded sample" and "synthesised" in dataset.description
    assert dataset.class_names == WORDS[:3] and len(dataset) == 24
    assert np.unique(dataset.speakers).size == 2
    assert len(set(WORDS)) == len(WORDS) and set("".join(WORDS)) <= set(SOUNDS)
    with pytest.raises(DataError, match=r"1 to 24 .*25"):
        embedded_words(25)


def test_clips_depend_on_what_they_are_alone():
    few, many = embedded_words(2, 2, 2), embedded_words(4, 3, 5)
    at = np.flatnonzero((many.words == WORDS[1]) & (many.speakers == few.speakers[-1]))[1]
    np.testing.assert_array_equal(few.clip(7), many.clip(int(at)))
    assert (embedded_words(2, 2, 2, seed=1).clip(7) != few.clip(7)).any()


@pytest.mark.parametrize("rate", [8000, 16000, 44100])
def test_all_words_are_sound(rate):
    dataset = embedded_words(len(WORDS), 3, 1)
    clips = load_clips(dataset, rate=rate)
    assert clips.shape == (len(dataset), rate) and np.abs(clips).max() <= 1 and np.abs(clips).max(1).min() > 0.1
    assert len(np.unique(clips, axis=0)) == len(clips)


def portrait(features):
    """Twelve frames of where a clip is loud."""
    loudness = features.mean(1)
    loud = np.flatnonzero(loudness > (loudness.min() + loudness.max()) / 2)
    frames = features[np.linspace(loud[0], loud[-1], 12).round().astype(int)]
    return (frames - frames.mean()).ravel()


def test_words_are_told_apart_best_within_a_speaker():
    """The nearest mean of two takes tells twelve words of the same speaker, and fewer of another one's."""
    words, speakers = 12, 4
    features = BC_RESNET(load_clips(embedded_words(words, speakers, takes=4)))
    clips = np.array([portrait(one) for one in features]).reshape(words, speakers, 4, -1)
    means = clips[:, :, :2].mean(2)
    right = np.empty((speakers, speakers))
    for speaker in range(speakers):
        for other in range(speakers):
            gap = clips[:, speaker, 2:, None] - means[None, None, :, other]
            right[speaker, other] = np.mean(np.square(gap).sum(-1).argmin(-1) == np.arange(words)[:, None])
    own, others = right.diagonal().mean(), right[~np.eye(speakers, dtype=bool)].mean()
    assert own > 0.9 and 0.3 < others < own, (own, others)
