"""Reuse distances, worked out by hand."""

import pytest

from edgelearn.lab.profile import roofline
from edgelearn.launch import Access, Buffer, In, InOut, Launch, Out, Role

PAGE = roofline.PAGE


def launch(*accesses: Access) -> Launch:
    return Launch("", "", (), (1,), 1, accesses)


def find(launches):
    """Every buffer in memory of its own, told apart by how they are named."""
    first = {}
    for access in (a for found in launches for a in found.accesses):
        first.setdefault(access.buffer, 100 * PAGE * len(first))
    return [
        dict(map(reversed, moved)) for moved in roofline.distances(launches, lambda a: (a.buffer.role, first[a.buffer]))
    ]


@pytest.fixture
def buffers():
    return [Buffer(name, pages * PAGE, Role.TEMPORARY) for name, pages in (("a", 1), ("b", 2), ("c", 4))]


def test_distance_counts_what_was_touched_since(buffers):
    a, b, c = buffers
    first, second = find([launch(In(a), Out(b)), launch(In(a), Out(c))])
    # a was touched before c was, five pages ago; the two pages of b before a, c and a: 1 + 4 + the rest of b
    assert first == {5 * PAGE: PAGE, 7 * PAGE: 2 * PAGE}
    assert second == {3 * PAGE: PAGE, 7 * PAGE: 4 * PAGE}


def test_a_loop_over_one_launch_finds_what_it_left(buffers):
    _, b, _ = buffers
    assert find([launch(InOut(b))]) == [{2 * PAGE: 4 * PAGE}]  # read and written


def test_bytes_are_those_of_the_launch(buffers):
    a, b, c = buffers
    launches = [launch(In(b, PAGE // 2), Out(a, 64)), launch(InOut(c, 3 * PAGE + 64), In(a))]
    for moved, one in zip(find(launches), launches, strict=True):
        assert sum(moved.values()) == one.nbytes


def test_many_bytes_have_large_pages(monkeypatch, buffers):
    monkeypatch.setattr(roofline, "MOST", 4)
    _, b, c = buffers
    (moved,) = find([launch(In(b), Out(c))])
    assert sum(moved.values()) == 6 * PAGE and set(moved) <= {4 * PAGE, 6 * PAGE, 8 * PAGE}
