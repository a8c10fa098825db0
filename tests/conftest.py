"""Tests see the results of tuning that are shipped, and none of the user's own; and compile kernels once, not again for
the binaries that would be kept. No features of sound are kept either."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _nothing_of_the_user(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGELEARN_TUNED", str(tmp_path_factory.mktemp("tuned")))
        patch.setenv("EDGELEARN_PROGRAMS", "")
        patch.setenv("EDGELEARN_FEATURES", "")
        yield
