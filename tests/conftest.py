"""Tests see the results of tuning that are shipped, and none of the user's own."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _no_results_of_the_user(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGELEARN_TUNED", str(tmp_path_factory.mktemp("tuned")))
        yield
