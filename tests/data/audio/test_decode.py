import struct
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest

from edgelearn.data import audio as module
from edgelearn.data.audio import decode, fit, resample
from edgelearn.errors import DataError

KINDS = [("WAV", None), ("WAV", "FLOAT"), ("WAVEX", None), ("FLAC", None), ("OGG", "VORBIS"), ("OGG", "OPUS")]


@pytest.mark.parametrize("kind, subtype", KINDS)
def test_formats(encode, tone, kind, subtype):
    samples = decode(encode(tone(), 16000, kind, subtype), "x")
    assert samples.dtype == np.float32 and samples.shape == (16000,)
    exact = kind != "OGG"
    inner = slice(None) if exact else slice(2000, 14000)
    np.testing.assert_allclose(samples[inner], tone()[inner], atol=1e-4 if exact else 0.03)


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000])
def test_rates(encode, tone, rate):
    samples = decode(encode(tone(440, 1, rate), rate), "x")
    assert abs(len(samples) - 16000) <= 1
    np.testing.assert_allclose(samples[800:15000], tone()[800:15000], atol=2e-3)


def test_what_a_lower_rate_cannot_hold_is_gone_and_not_mirrored(tone):
    high = resample(tone(11000, 1, 48000), 48000, 16000)  # would sound as 5 kHz
    assert np.abs(high[1000:-1000]).max() < 1e-4


def test_channels_are_averaged(encode, tone):
    both = np.stack([tone(440), tone(880), np.zeros(16000, np.float32)], 1)
    np.testing.assert_allclose(decode(encode(both), "x"), both.mean(1), atol=1e-4)


@pytest.mark.parametrize("kind, subtype", KINDS)
@pytest.mark.parametrize("part", [0.9, 0.5, 0.02, 0.0])
def test_truncated_files_are_refused(encode, tone, kind, subtype, part):
    whole = encode(tone(), 16000, kind, subtype)
    with pytest.raises(DataError, match=r"^clip\.x "):
        decode(whole[: int(len(whole) * part)], "clip.x")


def test_a_wav_of_unknown_length_is_read(encode, tone):
    """A program that writes to a pipe can't go back to say how long it was."""
    piped = bytearray(encode(tone()))
    at = piped.index(b"data") + 4
    piped[at : at + 4] = struct.pack("<I", 0xFFFFFFFF)
    assert decode(bytes(piped), "x").shape == (16000,)


def test_other_files_are_refused(encode, tone, tmp_path):
    for content in (b"hello" * 100, encode(tone(), kind="AIFF")):
        with pytest.raises(DataError, match=r"^x "):
            decode(content, "x")
    with pytest.raises(DataError, match=r"^x "):
        decode(encode(np.zeros(0, np.float32)), "x")
    broken = tone().copy()
    broken[7] = np.nan
    with pytest.raises(DataError, match="NaN"):
        decode(encode(broken, subtype="FLOAT"), "x")
    (tmp_path / "notes.raw").write_bytes(b"x" * 100)
    with pytest.raises(DataError, match=r"^notes\.raw "):
        decode(tmp_path / "notes.raw", "notes.raw")
    with pytest.raises(DataError, match=r"gone\.wav"):
        decode(tmp_path / "gone.wav", "gone.wav")


def test_a_rate_that_cannot_be_is_refused_before_it_fills_the_memory(encode, tone):
    for rate in (1, 3999, 2_000_000):
        with pytest.raises(DataError, match=f"{rate:,} .*4,000 to 768,000"):
            decode(encode(tone(), rate), "x")


def test_what_would_exhaust_the_memory_is_refused(encode, monkeypatch):
    monkeypatch.setattr(module, "MAX_SAMPLES", 15999)
    with pytest.raises(DataError, match=r"^x "):
        decode(encode(np.zeros(16000, np.float32), kind="FLAC"), "x")


def test_damage_is_refused_or_read_but_never_crashes(encode, tone):
    rng = np.random.default_rng(0)
    for kind, subtype in KINDS:
        whole = encode(tone(), 16000, kind, subtype)
        for _ in range(30):
            damaged = bytearray(whole)
            for at in rng.integers(0, min(len(whole), 2000), 3):
                damaged[at] = rng.integers(256)
            with suppress(DataError):
                assert np.isfinite(decode(bytes(damaged), "x")).all()


def test_shorter_recordings_are_padded_and_of_longer_ones_the_loudest_stretch_is_kept(tone):
    short = tone()[:5000]
    np.testing.assert_array_equal(fit(short, 8000), np.r_[short, np.zeros(3000)])
    long = np.zeros(50000, np.float32)
    long[21000:29000] = tone()[:8000]
    assert np.square(fit(long, 16000)).sum() == np.square(long).sum()
    np.testing.assert_array_equal(fit(long[:16000], 16000), long[:16000])


def test_a_missing_library_is_named(encode, tone):
    code = (
        "import sys; sys.modules['soundfile'] = None\n"
        "from edgelearn.data.audio import decode\n"
        "try: decode(b'', 'x')\n"
        "except Exception as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'edgelearn[audio]'" in done.stdout
