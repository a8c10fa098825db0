import io

import numpy as np
import pytest
import soundfile


@pytest.fixture(scope="session")
def encode():
    """encode(samples, rate, kind, subtype) -> bytes"""

    def encode(samples, rate=16000, kind="WAV", subtype=None):
        file = io.BytesIO()
        soundfile.write(file, samples, rate, format=kind, subtype=subtype)
        return file.getvalue()

    return encode


@pytest.fixture(scope="session")
def tone():
    """tone(hertz, seconds, rate) -> float32 samples"""

    def tone(hertz=440.0, seconds=1.0, rate=16000):
        return (0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)

    return tone


@pytest.fixture
def folder(tmp_path, encode, tone):
    """Two words of three recordings: two speakers named, one not."""
    root = tmp_path / "words"
    for word in ("yes", "no"):
        (root / word / "mine").mkdir(parents=True)
        (root / word / "ann_b_nohash_0.wav").write_bytes(encode(tone()))
        (root / word / "0c540988_nohash_1.flac").write_bytes(encode(tone(), kind="FLAC"))
        (root / word / "mine" / "a.ogg").write_bytes(encode(tone(rate=48000), 48000, "OGG", "OPUS"))
    return root
