import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgelearn.compile.storage import Lifetime, lifetimes, place
from edgelearn.launch import Buffer, In, InOut, Launch, Out, Role


def buffer(nbytes: int, role: Role = Role.TEMPORARY) -> Buffer:
    return Buffer("b", nbytes, role)


def launch(*accesses) -> Launch:
    return Launch("a.cl", "a", (), (1,), 1, accesses)


LIFE = st.builds(
    lambda nbytes, first, length: Lifetime(buffer(nbytes), first, first + length),
    st.integers(0, 5000), st.integers(0, 30), st.integers(0, 10),
)  # fmt: skip


@settings(deadline=None, derandomize=True, max_examples=300)
@given(lives=st.lists(LIFE, max_size=40), alignment=st.sampled_from((1, 64, 128, 4096)))
def test_no_two_live_buffers_overlap(lives, alignment):
    offsets, size = place(lives, alignment)
    assert set(offsets) == {life.buffer for life in lives}
    assert size % alignment == 0
    for life in lives:
        start = offsets[life.buffer]
        assert start % alignment == 0
        assert start >= 0 and start + life.buffer.nbytes <= size
    for i, a in enumerate(lives):
        for b in lives[:i]:
            if a.first <= b.last and b.first <= a.last:
                apart_ab = offsets[a.buffer] + a.buffer.nbytes <= offsets[b.buffer]
                apart_ba = offsets[b.buffer] + b.buffer.nbytes <= offsets[a.buffer]
                assert apart_ab or apart_ba
    moments = [sum(life.buffer.nbytes for life in lives if life.first <= t <= life.last) for t in range(50)]
    assert size >= max(moments, default=0)
    assert size <= sum(-(-life.buffer.nbytes // alignment) * alignment for life in lives)


def test_buffers_of_different_times_share_a_place():
    lives = [Lifetime(buffer(100), t, t) for t in range(10)]
    assert place(lives, 64)[1] == 128


def test_a_gap_between_two_is_used():
    first, middle, last, later = (buffer(64) for _ in range(4))
    big = buffer(640)
    lives = [Lifetime(big, 0, 9), Lifetime(first, 0, 9), Lifetime(middle, 0, 4), Lifetime(last, 0, 9)]
    offsets, size = place([*lives, Lifetime(later, 5, 9)], 64)
    assert offsets[later] == offsets[middle]
    assert size == 640 + 3 * 64


def test_nothing_to_place():
    assert place([], 64) == ({}, 0)


def test_lifetimes_reach_from_first_to_last_use():
    x, y, z, weight = buffer(4), buffer(4), buffer(4), buffer(4, Role.PARAMETER)
    launches = [launch(Out(x)), launch(In(x), In(weight), Out(y)), launch(InOut(y)), launch(In(x), Out(z)), launch()]
    found = {life.buffer: (life.first, life.last) for life in lifetimes(launches)}
    assert found == {x: (0, 3), y: (1, 2), z: (3, 3)}
    kept = {life.buffer: (life.first, life.last) for life in lifetimes(launches, keep=[y, buffer(4)])}
    assert kept == {x: (0, 3), y: (1, 4), z: (3, 3)}


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.TEMPORARY])
def test_only_temporaries_share(role):
    assert lifetimes([launch(Out(buffer(4, role)))]) == []
