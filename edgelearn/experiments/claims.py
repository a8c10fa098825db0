"""Published claims as data, and the one runner that holds them against measurements."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from edgelearn.display import plural
from edgelearn.errors import EdgelearnError
from edgelearn.tables import Table, Tabular

R = TypeVar("R")
RELATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "<": operator.lt, "≤": operator.le, "≥": operator.ge
}  # fmt: skip


class NotMeasured(EdgelearnError):
    """The results that a claim is about are missing, or don't decide it. The text says why."""


@dataclass(frozen=True)
class Claim(Generic[R]):
    """A published claim.

    Arguments:
    - `sentence`: the claim in words; "{target}" in it stands for the target.
    - `figure`: function of the results that returns a figure, and the figure in words. Raises NotMeasured where results
      are missing or don't decide.
    - `relation`: of the figure to the target: one of RELATIONS (default "=").
    - `target`: default True.
    """

    sentence: str
    figure: Callable[[R], tuple[Any, str]]
    relation: str = "="
    target: Any = True

    def check(self, results: R | NotMeasured) -> Verdict:
        """Hold the claim against results, or say why there are none."""
        sentence = self.sentence.format(target=self.target)
        try:
            if isinstance(results, NotMeasured):
                raise results
            figure, measured = self.figure(results)
        except NotMeasured as why:
            return Verdict(sentence, str(why), None)
        return Verdict(sentence, measured, bool(RELATIONS[self.relation](figure, self.target)))


@dataclass(frozen=True)
class Verdict:
    """A claim that was checked.

    Arguments:
    - `claim`: the claim in words.
    - `measured`: the measurement in words, or why there is none.
    - `passed`: None if it was not measured, or if the measurement doesn't decide.
    """

    claim: str
    measured: str
    passed: bool | None

    @property
    def word(self) -> str:
        """ "passed", "failed" or "not measured"."""
        return {True: "passed", False: "failed", None: "not measured"}[self.passed]


@dataclass(frozen=True, repr=False)
class Verdicts(Tabular):
    """Claims that were checked, shown as a table. They can be added.

    Arguments:
    - `verdicts`: one for each claim, in order.
    """

    verdicts: tuple[Verdict, ...]

    @property
    def headline(self) -> str:
        words = [each.word for each in self.verdicts]
        return f"{plural(len(words), 'claim')}: " + ", ".join(
            f"{words.count(word)} {word}" for word in dict.fromkeys(words)
        )

    @property
    def status(self) -> int:
        """Exit status of a command that checks claims: 1 if one failed, else 0."""
        return int(any(each.passed is False for each in self.verdicts))

    def table(self) -> Table:
        """A row for each claim."""
        return Table(("", "claim", "measured"), [(each.word, each.claim, each.measured) for each in self.verdicts])

    def __add__(self, other: Verdicts) -> Verdicts:
        return Verdicts(self.verdicts + other.verdicts)


def check_claims(
    claims: Iterable[Claim[R]], measure: Callable[[], R], each: Callable[[Verdict], object] = lambda verdict: None
) -> Verdicts:
    """Hold claims against the results that they are about.

    Arguments:
    - `measure`: returns the results. If it raises NotMeasured, no claim is measured.
    - `each`: called with each verdict, as soon as there is one.
    """
    results: R | NotMeasured
    try:
        results = measure()
    except NotMeasured as why:
        results = why
    found = []
    for claim in claims:
        found.append(claim.check(results))
        each(found[-1])
    return Verdicts(tuple(found))
