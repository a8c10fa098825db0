"""Fixtures that the tests of commands share."""

import pytest

from edgelearn.cli import main


@pytest.fixture
def status_of():
    """status_of(*words): the exit status, also where the parser of arguments ends the program."""

    def status_of(*words):
        try:
            return main([str(word) for word in words])
        except SystemExit as stop:
            return stop.code

    return status_of
