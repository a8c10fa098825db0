import sys
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from edgelearn.data import audio
from edgelearn.data.audio import decode, file_blocks, microphone_blocks
from edgelearn.errors import DataError


@pytest.mark.parametrize("rate", [16_000, 44_100])
def test_blocks_of_a_file_are_the_file(tmp_path, tone, rate):
    path = tmp_path / "long.wav"
    soundfile.write(path, np.stack([tone(440, 3.07, rate), tone(880, 3.07, rate)], 1), rate)
    blocks = list(file_blocks(path))
    assert max(map(len, blocks)) < 8_000
    np.testing.assert_allclose(np.concatenate(blocks), decode(path, "long"), atol=1e-3)


def test_a_file_that_cannot_be_heard_is_named(tmp_path, encode, tone):
    with pytest.raises(DataError, match=r"nothing\.wav"):
        list(file_blocks(tmp_path / "nothing.wav"))
    (tmp_path / "text.wav").write_text("not sound")
    with pytest.raises(DataError, match=r"text\.wav"):
        list(file_blocks(tmp_path / "text.wav"))
    (tmp_path / "sun.wav").write_bytes(encode(tone(), kind="AU"))
    with pytest.raises(DataError, match=r"sun\.wav is AU"):
        list(file_blocks(tmp_path / "sun.wav"))
    (tmp_path / "odd.wav").write_bytes(encode(np.array([0.0, np.nan]), subtype="FLOAT"))
    with pytest.raises(DataError, match=r"odd\.wav .*NaN"):
        list(file_blocks(tmp_path / "odd.wav"))


@pytest.mark.parametrize("kind", ["WAV", "FLAC"])
def test_a_truncated_file_is_heard_and_named(tmp_path, encode, tone, kind):
    whole = encode(tone(seconds=2.0), kind=kind)
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    heard = []
    with pytest.raises(DataError, match=r"cut "):
        heard.extend(file_blocks(tmp_path / "cut"))
    assert 0 < sum(map(len, heard)) < 2 * 16_000


def test_an_empty_file_is_named(tmp_path, encode):
    (tmp_path / "empty.wav").write_bytes(encode(np.empty(0, np.float32)))
    with pytest.raises(DataError, match=r"empty\.wav"):
        list(file_blocks(tmp_path / "empty.wav"))


def test_without_sounddevice_it_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(DataError, match="pip install sounddevice"):
        microphone_blocks()


def fake(blocks, problem=None):
    """A sounddevice whose microphone has heard `blocks` as soon as it is opened."""

    def check_input_settings(device, channels, dtype, samplerate):
        if problem:
            raise problem

    class InputStream:
        def __init__(self, rate, size, device, channels, dtype, callback):
            for block in blocks:
                callback(block[:, None], len(block), None, None)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    return SimpleNamespace(
        InputStream=InputStream, PortAudioError=RuntimeError, check_input_settings=check_input_settings
    )


def test_the_microphone(monkeypatch):
    blocks = [np.full(1600, level, np.float32) for level in (0.1, 0.2)]
    monkeypatch.setitem(sys.modules, "sounddevice", fake(blocks))
    heard = microphone_blocks()
    np.testing.assert_array_equal([next(heard), next(heard)], blocks)
    heard.close()


def test_a_microphone_that_falls_silent_is_not_waited_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "sounddevice", fake([np.zeros(1600, np.float32)]))
    monkeypatch.setattr(audio, "_SILENT", 0.01)
    with pytest.raises(DataError, match=r"0\.01 seconds"):
        list(microphone_blocks())


def test_a_microphone_that_is_missing_or_too_fast(monkeypatch):
    monkeypatch.setitem(sys.modules, "sounddevice", fake([], RuntimeError("no input")))
    with pytest.raises(DataError, match="no input"):
        microphone_blocks()
    monkeypatch.setitem(sys.modules, "sounddevice", fake([np.zeros(1600, np.float32)] * 101))
    with pytest.raises(DataError, match="10 s behind"):
        list(microphone_blocks())
