"""Lists of launches, rewritten so that lost buffers come back. In these, kernel "b" makes buffer b."""

from itertools import pairwise

import pytest

from edgelearn.compile.rematerialisation import rematerialise, replays
from edgelearn.errors import PlanError
from edgelearn.launch import Buffer, In, InOut, Launch, Out, Role

LETTERS = {letter: Buffer(letter, 64, Role.TEMPORARY) for letter in "abcdefgh"}
LASTING = Buffer("lasting", 64, Role.STATISTICS)


def launch(kernel: str, *arguments, replay=()) -> Launch:
    return Launch("a.cl", kernel, (), (1,), 1, arguments, replay=replay)


def made(letter: str, *of: str) -> Launch:
    return launch(letter, *(In(LETTERS[o]) for o in of), Out(LETTERS[letter]))


def reading(letter: str) -> Launch:
    return launch(f"use {letter}", In(LETTERS[letter]))


CHAIN = [made("a"), *(made(letter, before) for before, letter in zip("abcdefg", "bcdefgh", strict=True))]


def rewritten(forward, backward, lost: dict[str, int], kept: str = "", inverses=None, wanted=None) -> list[Launch]:
    found = replays(
        forward,
        {LETTERS[k] for k in kept},
        {LETTERS[name]: level for name, level in lost.items()},
        {LETTERS[name]: (inverse,) for name, inverse in (inverses or {}).items()},
    )
    launches, _ = rematerialise(backward, found, {at: LETTERS[name] for at, name in (wanted or {}).items()})
    for index, run in enumerate(launches):  # whatever is read is an original that was kept, or a copy made before
        for buffer in run.reads:
            there = [b for other in launches[:index] for b in other.writes]
            assert buffer in there or buffer.name not in lost, (index, buffer)
    return launches


def order(*arguments, **keywords) -> str:
    return " ".join(run.kernel for run in rewritten(*arguments, **keywords))


def test_a_segment_comes_back_once():
    backward = [reading(letter) for letter in "gfeb"]
    found = order(CHAIN, backward, dict.fromkeys("bcdefg", 1), kept="ah")
    assert found == "b c d e f g use g use f use e use b"


def test_what_is_kept_is_read_as_it_is():
    (run,) = rewritten(CHAIN, [reading("d")], {"e": 1}, kept="d")
    assert run.reads == [LETTERS["d"]]


def test_nothing_comes_back_that_nobody_reads():
    assert order(CHAIN, [reading("d")], dict.fromkeys("bcdefg", 1), kept="ah") == "b c d use d"


def test_checkpoints_within_checkpoints():
    """d, of a lower level, stays once it is there; what led to it is made again when it is needed."""
    lost = {**dict.fromkeys("bcefg", 2), "d": 1}
    found = order(CHAIN, [reading(letter) for letter in "gfedcb"], lost, kept="ah")
    assert found == "b c d e f g use g use f use e use d b c use c use b"


def test_what_lies_between_is_transient():
    """b was no layer's: it comes back for c, and again for d."""
    forward = [made("a"), made("b", "a"), made("c", "b"), made("d", "b")]
    assert order(forward, [reading("c"), reading("d")], {"c": 1, "d": 1}, kept="a") == "b c use c b d use d"


def test_buffers_written_in_several_goes():
    forward = [made("a"), made("b", "a"), launch("more", InOut(LETTERS["b"]), In(LETTERS["a"]))]
    launches = rewritten(forward, [reading("b")], {"b": 1}, kept="a")
    assert [run.kernel for run in launches] == ["b", "more", "use b"]
    assert len({buffer for run in launches for buffer in run.writes}) == 1


def test_what_must_not_happen_twice():
    """c comes back by another launch, from the statistics d that the first one has left."""
    replay = launch("c again", In(LETTERS["a"]), In(LETTERS["d"]), Out(LETTERS["c"]))
    once = launch("c", In(LETTERS["a"]), Out(LETTERS["c"]), Out(LETTERS["d"]), InOut(LASTING), replay=(replay,))
    forward = [made("a"), once]
    found = rewritten(forward, [reading("c")], {"c": 1}, kept="a")
    assert [run.kernel for run in found] == ["c again", "use c"] and LETTERS["d"] in found[0].reads
    with pytest.raises(PlanError, match="'d'"):
        rewritten(forward, [reading("d")], {"d": 1}, kept="a")


def test_inverses_run_when_they_are_wanted():
    inverse = launch("a inverse", In(LETTERS["c"]), In(LETTERS["b"]), Out(LETTERS["a"]))
    forward = [made("d"), made("a"), made("b", "d"), launch("c", In(LETTERS["a"]), In(LETTERS["b"]), Out(LETTERS["c"]))]
    backward = [reading("c"), reading("b"), reading("a")]
    lost = {"a": 1, "b": 1}
    late = order(forward, backward, lost, "cd", {"a": inverse})
    assert late == "use c b use b a inverse use a"
    early = order(forward, backward, lost, "cd", {"a": inverse}, {0: "a"})
    assert early == "b a inverse use c use b use a"


def test_circles():
    inverses = {"a": made("a", "b"), "b": made("b", "a")}
    with pytest.raises(PlanError, match="'a' needs 'b' and 'b' needs 'a'"):
        rewritten(CHAIN, [reading("a")], {"a": 1, "b": 1}, "cdefgh", inverses)


def test_long_chains():
    """Deeper than Python's stack."""
    buffers = [Buffer(str(i), 64, Role.TEMPORARY) for i in range(3000)]
    forward = [launch("first", Out(buffers[0]))]
    forward += [launch(b.name, In(a), Out(b)) for a, b in pairwise(buffers)]
    found = replays(forward, {buffers[0]}, dict.fromkeys(buffers[1:], 1), {})
    launches, _ = rematerialise([launch("use", In(buffers[-1]))], found, {})
    assert [run.kernel for run in launches] == [*map(str, range(1, 3000)), "use"]
