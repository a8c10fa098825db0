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


INVERSE = launch("a inverse", In(LETTERS["c"]), In(LETTERS["b"]), Out(LETTERS["a"]))
INVERTED = [made("d"), made("a"), made("b", "d"), launch("c", In(LETTERS["a"]), In(LETTERS["b"]), Out(LETTERS["c"]))]
ORDERS = {  # forward, read by the backward pass, lost at which level, kept, and more; kernels in their order
    "a segment comes back once": (
        CHAIN, "gfeb", dict.fromkeys("bcdefg", 1), "ah", {}, "b c d e f g use g use f use e use b"),
    "nothing comes back that nobody reads": (CHAIN, "d", dict.fromkeys("bcdefg", 1), "ah", {}, "b c d use d"),
    # d, of a lower level, stays once it is there; what led to it is made again when it is needed.
    "checkpoints within checkpoints": (
        CHAIN, "gfedcb", {**dict.fromkeys("bcefg", 2), "d": 1}, "ah", {},
        "b c d e f g use g use f use e use d b c use c use b"),
    # b was no layer's: it comes back for c, and again for d.
    "what lies between is transient": (
        [made("a"), made("b", "a"), made("c", "b"), made("d", "b")], "cd", {"c": 1, "d": 1}, "a", {},
        "b c use c b d use d"),
    "inverses run when they are wanted": (
        INVERTED, "cba", {"a": 1, "b": 1}, "cd", {"inverses": {"a": INVERSE}}, "use c b use b a inverse use a"),
    "inverses run as early as they are wanted": (
        INVERTED, "cba", {"a": 1, "b": 1}, "cd", {"inverses": {"a": INVERSE}, "wanted": {0: "a"}},
        "b a inverse use c use b use a"),
}  # fmt: skip


@pytest.mark.parametrize("case", ORDERS)
def test_order_of_launches(case):
    forward, reads, lost, kept, more, expected = ORDERS[case]
    launches = rewritten(forward, [reading(letter) for letter in reads], lost, kept, **more)
    assert " ".join(run.kernel for run in launches) == expected


def test_what_is_kept_is_read_as_it_is():
    (run,) = rewritten(CHAIN, [reading("d")], {"e": 1}, kept="d")
    assert run.reads == [LETTERS["d"]]


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
