"""Configurations of experiments: frozen dataclasses whose fields describe themselves.

A field declared by `setting` needs nothing else: its option of the command line (cli/parser.py), its control in a
notebook's form (widgets/views.py) and its validation are generated from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, fields
from functools import cache
from math import isfinite
from types import NoneType
from typing import Any, Self, get_args, get_origin, get_type_hints

from edgelearn.errors import EdgelearnError, RunError, UsageError
from edgelearn.extensions import check_references, is_reference


class ConfigError(UsageError):
    """A setting's value is invalid. `name` is the field, `problem` says why."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.name, self.problem = name, problem


def setting(
    default: Any, help: str, *,  # noqa: A002
    choices: Sequence[Any] | None = None, ordered: bool = False,
    minimum: float | None = None, maximum: float | None = None, above: float | None = None,
    check: Callable[[Any], object] | None = None, metavar: str | None = None, positional: bool = False,
    extensible: bool = False,
) -> Any:  # fmt: skip
    """A dataclass field of type bool, int, float, str or tuple of one of these, each also `| None`.

    Arguments:
    - `default`: the default value; None if the experiment chooses.
    - `help`: a short description, for the command line and for forms.
    - `choices`: the allowed values; `ordered` if they form a scale (a form then shows a slider).
    - `minimum`, `maximum`, `above`: inclusive bounds and an exclusive lower bound of a number, or of each in a tuple.
    - `check`: called with the value, unless that is None; raises EdgelearnError for an invalid one.
    - `metavar`: the value's name in the command's help (default: from the type).
    - `positional`: the command takes the value without the option's name.
    - `extensible`: MODULE:CLASS is allowed besides `choices`: see edgelearn.extensions.
    """
    metadata = {
        "help": help, "choices": None if choices is None else tuple(choices), "ordered": ordered, "minimum": minimum,
        "maximum": maximum, "above": above, "check": check, "metavar": metavar, "positional": positional,
        "extensible": extensible,
    }  # fmt: skip
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Setting:
    """A field of a configuration, read from its type and its metadata (see `setting`). `type` is bool, int, float or
    str: the value's, or with `many` that of each value of a tuple. `optional` values may be None."""

    name: str
    type: type
    many: bool
    optional: bool
    default: Any
    help: str = ""
    choices: tuple[Any, ...] | None = None
    ordered: bool = False
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    check: Callable[[Any], object] | None = None
    metavar: str | None = None
    positional: bool = False
    extensible: bool = False

    @property
    def label(self) -> str:
        """The name in words: "Batch size"."""
        return self.name.replace("_", " ").capitalize()

    def validate(self, value: Any) -> None:
        """Raises ConfigError if the setting can't have this value."""
        if value is None:
            if not self.optional:
                raise ConfigError(self.name, "a value is required.")
            return
        for each in value if self.many else (value,):
            self._validate_one(each)
        if self.check is not None:
            try:
                self.check(value)
            except EdgelearnError as error:
                raise ConfigError(self.name, str(error)) from None

    def _validate_one(self, value: Any) -> None:
        if self.choices is not None:
            if value not in self.choices and not (self.extensible and isinstance(value, str) and is_reference(value)):
                raise ConfigError(self.name, f"{value!r} is not one of {', '.join(map(str, self.choices))}.")
        elif self.type in (int, float):
            if isinstance(value, bool) or not isinstance(value, int if self.type is int else (int, float)):
                raise ConfigError(self.name, f"expected a number ({self.type.__name__}), got {value!r}.")
            if not isfinite(value):
                raise ConfigError(self.name, f"{value} is not finite.")
            if self.minimum is not None and value < self.minimum:
                raise ConfigError(self.name, f"{value} is too small: the minimum is {self.minimum}.")
            if self.maximum is not None and value > self.maximum:
                raise ConfigError(self.name, f"{value} is too large: the maximum is {self.maximum}.")
            if self.above is not None and value <= self.above:
                raise ConfigError(self.name, f"{value} is too small: it must be greater than {self.above}.")


@cache
def settings(config: type[Config]) -> dict[str, Setting]:
    """The fields of a configuration class, by name."""
    hints = get_type_hints(config)
    return {each.name: _setting(each.name, hints[each.name], each.default, each.metadata) for each in fields(config)}


def find_setting(config: type[Config], name: str) -> Setting:
    """The field of a configuration class that is called `name`. Raises ConfigError if there is none."""
    known = settings(config)
    if name not in known:
        raise ConfigError(name, f"there is no such setting: choose among {', '.join(known)}.")
    return known[name]


def _setting(name: str, hint: Any, default: Any, metadata: Any) -> Setting:
    parts = [hint] if get_origin(hint) is tuple or not get_args(hint) else list(get_args(hint))
    optional = NoneType in parts
    kinds = [part for part in parts if part is not NoneType]
    many = get_origin(kinds[0]) is tuple
    type_ = get_args(kinds[0])[0] if many else str if str in kinds else kinds[0]
    return Setting(name, type_, many, optional, default, **metadata)


@dataclass(frozen=True)
class Config:
    """Base of the experiments' configurations: frozen dataclasses, kept in a run's record. Their fields are declared by
    `setting`. Raises ConfigError for an invalid value."""

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Validate every field. Raises ConfigError."""
        for name, each in settings(type(self)).items():
            each.validate(getattr(self, name))

    def to_dict(self) -> dict:
        return asdict(self)

    @classmethod
    def from_dict(cls, record: dict) -> Self:
        """Raises RunError for a record with unknown fields, ExtensionError for code of modules outside of the current
        folder."""
        if unknown := set(record) - set(settings(cls)):
            raise RunError(
                f"This run's configuration has '{min(unknown)}', which this edgelearn doesn't know: a newer one wrote "
                f"it. Update edgelearn, or start a new run."
            )
        check_references(record, "this run's configuration")
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in record.items()})


DATA = "folder with data sets and weights (default: EDGELEARN_DATA)"
DOWNLOAD = "use the network where data or weights are missing"
SEED_LIMIT = (1 << 64) - 1


def seed_setting() -> Any:
    """The field `seed` of a configuration."""
    return setting(0, "seed of everything random", minimum=0, maximum=SEED_LIMIT)


def device_setting() -> Any:
    """The field `device` of a configuration."""
    return setting(None, "part of a device's name (see `edgelearn devices`)", metavar="NAME")


@dataclass(frozen=True)
class TrainingConfig(Config):
    """Settings of a training of one of an experiment's tasks.

    Arguments:
    - `task`: name of the task (default "sample").
    - `epochs`: passes over the examples (default None: the task's).
    - `micro_batch`: examples that are on the device at once (default None: the task's).
    - `data`: folder with data sets and weights (default None: EDGELEARN_DATA).
    - `download`: use the network where data or weights are missing (default True).
    - `seed`: of everything random (default 0).
    - `device`: part of a device's name (default None: the best one).

    Raises ConfigError for an invalid value.
    """

    task: str = setting("sample", "name of the task", positional=True)
    _: KW_ONLY
    epochs: int | None = setting(None, "passes over the examples (default: the task's)", minimum=1)
    micro_batch: int | None = setting(None, "examples at a time on the device (default: the task's)", minimum=1)
    data: str | None = setting(None, DATA, metavar="DIR")
    download: bool = setting(True, DOWNLOAD)
    seed: int = seed_setting()
    device: str | None = device_setting()
