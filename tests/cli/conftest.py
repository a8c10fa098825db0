"""Fixtures that the tests of commands share."""

import re
from functools import partial

import pytest

from edgelearn.cli import main
from edgelearn.lab.bench import run


@pytest.fixture(autouse=True, scope="module")
def _blocks_of_the_benchmark_are_one_step():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "BenchConfig", partial(run.BenchConfig, block_seconds=0.0))
        yield


@pytest.fixture
def status_of():
    """status_of(*words): the exit status, also where the parser of arguments ends the program."""

    def status_of(*words):
        try:
            return main([str(word) for word in words])
        except SystemExit as stop:
            return stop.code

    return status_of


@pytest.fixture
def said(capsys, status_of):
    """said(*words): what a command prints that ends well."""

    def said(*words):
        capsys.readouterr()
        assert status_of(*words) == 0
        return capsys.readouterr().out

    return said


@pytest.fixture
def refused(capsys, status_of):
    """refused(problem, *words): the command ends with status 1, or 2 for wrong usage, and one error on stderr, which
    has these words or fits this pattern. `status`: the only one that will do."""

    def refused(problem, *words, status=None):
        capsys.readouterr()
        assert status_of(*words) in ((1, 2) if status is None else (status,)), words
        error = capsys.readouterr().err
        starts = [line for line in error.splitlines() if line.startswith(("edgelearn: ", "usage: edgelearn "))]
        assert len(starts) == 1 and "Traceback" not in error, error
        assert problem in error or re.search(problem, error), error
        return error

    return refused
