import numpy as np

from edgelearn.data.draws import draws


def test_numbers_depend_on_seed_stream_epoch_and_index_alone():
    whole = draws(1, 2, 3, np.arange(1000), 4)
    assert whole.shape == (1000, 4) and whole.min() >= 0 and whole.max() < 1
    some = np.array([999, 0, 5, 0])
    np.testing.assert_array_equal(draws(1, 2, 3, some, 4), whole[some])
    np.testing.assert_array_equal(draws(1, 2, 3, np.arange(3), 4), whole[:3])
    assert draws(1, 2, 3, [], 4).shape == (0, 4)
    others = [draws(*which, np.arange(1000), 4) for which in ((9, 2, 3), (1, 9, 3), (1, 2, 9))]
    assert all((other != whole).all() for other in others)
