import json
import subprocess
import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from edgelearn.data.audio import load_clips
from edgelearn.data.features import BC_RESNET, DS_CNN_ARM, DS_CNN_MLPERF, MFCC, LogMel, mel_matrix
from edgelearn.data.synthetic_words import embedded_words
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
def tensorflow(clips, tmp_path_factory):
    """Features of the clips by TensorFlow: see tf_features.py."""
    if find_spec("tensorflow") is None:
        pytest.skip("tensorflow isn't installed: nothing to compare features with")
    folder = tmp_path_factory.mktemp("features")
    np.save(folder / "clips.npy", clips)
    (folder / "settings.json").write_text(json.dumps([asdict(settings) for settings in TF]))
    files = [folder / name for name in ("clips.npy", "settings.json", "out.npz")]
    command = [sys.executable, Path(__file__).with_name("tf_features.py"), *files]
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
    for settings in ({"hop": 0}, {"window": 600}, {"high": 9000}, {"low": 8000}, {"power": 3}, {"triangles": "bark"}):
        with pytest.raises(DataError):
            LogMel(**settings)
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
