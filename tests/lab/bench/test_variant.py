"""Variants of a workload: the fastest peer, and those that compute other numbers."""

from edgelearn.lab.bench.report import Variant, disagreeing, fastest_peer
from edgelearn.lab.measure import Block


def variant(contender, seconds, probe=(), **options):
    blocks = [Block(value, 3, 0.01, 1, False) for value in seconds]
    return Variant("train:1", contender, "v", blocks=blocks, probe=list(probe), **options)


def test_fastest_peer_leaves_out_the_subject_and_what_failed():
    variants = [
        variant("edgelearn", [1]),
        variant("a", [3]),
        variant("b", [2]),
        variant("c", [1], error="died"),
        variant("d", []),
    ]
    assert fastest_peer(variants, "edgelearn").contender == "b"
    assert fastest_peer(variants[:1], "edgelearn") is None


def test_one_that_computes_something_else_is_found_however_many_variants_it_has():
    honest = [variant("a", [1], (7.0, 6.5)), variant("b", [1], (7.0001, 6.5001))]
    odd = [variant("c", [1], (7.0, 7.0)) for _ in range(5)]
    assert disagreeing(honest + odd) == odd
    assert disagreeing(honest) == []


def test_halves_may_differ_by_their_rounding():
    full, halves = variant("a", [1], (7.0, 6.5)), variant("b", [1], (7.1, 6.6), compute="bf16")
    far = variant("c", [1], (7.0, 8.0), compute="int8")
    assert disagreeing([full, halves, far]) == [far]
    assert disagreeing([full, variant("b", [1], (7.1, 6.6))]) != []


def test_of_two_that_differ_both_are_named():
    pair = [variant("a", [1], (7.0,)), variant("b", [1], (5.0,))]
    assert disagreeing(pair) == pair
