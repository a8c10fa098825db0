import numpy as np
import pytest

from edgelearn.data.features import BC_RESNET, DS_CNN_MLPERF, MFCC, FeatureStream, LogMel
from edgelearn.errors import ShapeError

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
