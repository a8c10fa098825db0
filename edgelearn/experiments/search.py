"""Sampled sweeps: Optuna proposes settings from ranges and choices, at random or from the results of earlier trials.

Nothing but runs is stored: a sweep that goes on asks the seeded sampler again, and tells it what finished runs gave. So
it makes the trials that an uninterrupted one makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import fsum, isfinite
from typing import Any

from edgelearn.errors import RunError, UsageError

from .config import ConfigError, Setting
from .sweep import Engine, Job, Outcome

SAMPLERS = ("random", "tpe")


@dataclass(frozen=True)
class Range:
    """Numbers to draw from: whole ones if `low` and `high` are ints.

    Arguments:
    - `low`, `high`: the smallest and the largest number.
    - `log`: draw uniformly in the logarithm (default False).

    Raises UsageError for an empty or a reversed range, and for the logarithm of 0 or less.
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not (isfinite(self.low) and isfinite(self.high) and self.low < self.high):
            raise UsageError(
                f"a range goes from a smaller number to a larger one, LOW..HIGH, not {self.low}..{self.high}."
            )
        if self.log and self.low <= 0:
            raise UsageError(f"a logarithmic range begins above 0, not at {self.low}: give another, or leave :log out.")


Space = Mapping[str, Range | Sequence[Any]]  # by name of the setting: a range, or the values to choose from


def parse_range(setting: Setting, text: str) -> Range | None:
    """The range that a text LOW..HIGH or LOW..HIGH:log gives a setting; None for other texts, and settings that
    aren't numbers.

    Raises ConfigError for an invalid range, or one with values that the setting can't have.
    """
    numbers, _, scale = text.partition(":")
    low, dots, high = numbers.partition("..")
    if not dots or setting.type not in (int, float):
        return None
    if scale not in ("", "log"):
        raise ConfigError(setting.name, f"a range is LOW..HIGH or LOW..HIGH:log, not '{text}'.")
    try:
        found = Range(setting.type(low), setting.type(high), scale == "log")
    except ValueError:
        raise ConfigError(setting.name, f"a range is of two numbers ({setting.type.__name__}), not '{text}'.") from None
    except UsageError as error:
        raise ConfigError(setting.name, str(error)) from None
    for end in (found.low, found.high):
        setting.validate_one(end)
    return found


class Sampler:
    """Proposes settings, the same ones for the same seed and the same scores.

    Arguments:
    - `kind`: `"random"`, or `"tpe"`, the tree-structured Parzen estimator (Bergstra et al. 2011), which draws at random
      at first and then prefers what is like the trials with the highest scores.
    - `space`: what varies.
    - `seed`: of the random numbers.

    Raises RunError if Optuna isn't installed, UsageError for an unknown kind or if nothing varies.
    """

    def __init__(self, kind: str, space: Space, seed: int = 0) -> None:
        if kind not in SAMPLERS:
            raise UsageError(f"'{kind}' is no sampler: there are {', '.join(SAMPLERS)}.")
        if not space:
            raise UsageError("Nothing varies: give a setting a range, NAME=LOW..HIGH, or values, NAME=VALUE,VALUE.")
        if find_spec("optuna") is None:
            raise RunError("Samplers need Optuna: pip install 'edgelearn[sweeps]'. Sweeps of all values need nothing.")
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.learns = kind == "tpe"  # from scores
        self._space = {name: _distribution(each) for name, each in space.items()}
        sampler = optuna.samplers.TPESampler(seed=seed) if self.learns else optuna.samplers.RandomSampler(seed=seed)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)

    def ask(self) -> dict[str, Any]:
        """Return the settings of the next trial, by name."""
        return self._study.ask(self._space).params

    def tell(self, trial: int, score: float) -> None:
        """Report the score of a trial, by its number; a higher one is better."""
        self._study.tell(trial, score)


def _distribution(each: Range | Sequence[Any]) -> Any:
    from optuna import distributions

    if not isinstance(each, Range):
        return distributions.CategoricalDistribution(each)
    whole = isinstance(each.low, int) and isinstance(each.high, int)
    kind: Any = distributions.IntDistribution if whole else distributions.FloatDistribution
    return kind(each.low, each.high, log=each.log)


def search(
    sampler: Sampler, trials: int, jobs: Callable[[Mapping[str, Any]], Sequence[Job]], engine: Engine
) -> Iterator[tuple[int, Job, Outcome]]:
    """Train what a sampler proposes; yields (number of the trial, job, outcome) as jobs end. Trials that draw at random
    don't wait for each other.

    Arguments:
    - `trials`: number of trials.
    - `jobs`: returns the jobs of settings, one a seed.
    - `engine`: runs them.

    Raises RunError for results without an accuracy, by which trials are compared.
    """
    together = 1 if sampler.learns else trials
    for first in range(0, trials, together):
        asked = {trial: list(jobs(sampler.ask())) for trial in range(first, first + together)}
        distinct = list(dict.fromkeys(job.config for each in asked.values() for job in each))  # of choices, some recur
        wanted = {config: [(trial, job) for trial, each in asked.items() for job in each if job.config == config]
                  for config in distinct}  # fmt: skip
        outcomes: dict[int, list[Outcome]] = {trial: [] for trial in asked}
        for number, outcome in engine([wanted[config][0][1] for config in distinct]):
            accuracy(outcome)  # before others are trained in vain
            for trial, job in wanted[distinct[number]]:
                outcomes[trial].append(outcome)
                yield trial, job, outcome
        for trial, each in outcomes.items():
            sampler.tell(trial, score(each))


def score(outcomes: Sequence[Outcome]) -> float:
    """The mean accuracy of a trial over its seeds. A training that failed counts as 0, so that the sampler turns away
    from its settings.

    Raises RunError for results without an accuracy.
    """
    return fsum(map(accuracy, outcomes)) / len(outcomes)  # exact: the order in which they ended doesn't matter


def accuracy(outcome: Outcome) -> float:
    """The accuracy of a training, 0 if it failed. Raises RunError for results without one."""
    if outcome.results is None:
        return 0.0
    if (share := outcome.results.get("accuracy")) is None:
        raise RunError(
            f"Run {outcome.run} has no accuracy, by which a sampler compares trials: sweep without --sampler."
        )
    return share
