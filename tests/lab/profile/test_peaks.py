from edgelearn.lab.profile import Peaks


def test_measured(peaks, device):
    assert 1e8 < peaks.flops < 1e15
    assert 0 < peaks.launch < 0.01
    assert min(peaks.bandwidth) == 1 << 20 and max(peaks.bandwidth) <= device.memory // 4
    assert all(1e8 < speed < 1e14 for speed in peaks.bandwidth.values())
    assert peaks.memory <= peaks.cache
    assert Peaks.from_dict(peaks.to_dict()) == peaks


def test_bandwidth_is_that_of_the_cache_that_is_large_enough():
    peaks = Peaks(1.0, {1 << 10: 30.0, 1 << 20: 20.0, 1 << 30: 10.0}, 0.0)
    assert [peaks.bandwidth_at(x) for x in (0, 1 << 10, 1025, 1 << 20, 1 << 25, 1 << 40)] == [30, 30, 20, 20, 10, 10]
    assert (peaks.cache, peaks.memory) == (30, 10)
