"""Tests see the results of tuning that are shipped, and none of the user's own; and compile kernels once, not again for
the binaries that would be kept. No features of sound are kept either. Tables are as wide as without a terminal."""

import signal

import pytest


@pytest.fixture(autouse=True, scope="session")
def _interrupts_are_heard():
    """By the tests and by what they start, also in the background, whose processes a shell makes deaf to Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True, scope="session")
def _nothing_of_the_user(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGELEARN_TUNED", str(tmp_path_factory.mktemp("tuned")))
        patch.setenv("EDGELEARN_PROGRAMS", "")
        patch.setenv("EDGELEARN_FEATURES", "")
        patch.delenv("COLUMNS", raising=False)  # processes that share the tests have 80
        yield
