"""Settings that describe themselves: fields of experiments' configurations, and arguments of commands.

A field or an argument declared by `setting` needs nothing else: its option of the command line (cli/parser.py), its
control in a notebook's form (widgets/views.py) and its validation are generated from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, MISSING, Field, asdict, dataclass, field, fields
from functools import cache
from inspect import Parameter, isclass, signature
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


def setting(default: Any = MISSING, help: str = "", **details: Any) -> Any:  # noqa: A002
    """A dataclass field, or the default of a function's argument, of type bool, int, float, str or tuple of one of
    these, each also `| None`.

    Arguments:
    - `default`: the default value; None if the experiment chooses. Without one, a value is required.
    - `help`: a short description, for the command line and for forms.
    - `details`: further fields of Setting, such as `choices` and `minimum`.
    """
    return field(default=default, metadata={"help": help, **details})


@dataclass(frozen=True)
class Setting:
    """A field of a configuration or an argument of a function, read from its type and its metadata (see `setting`).

    Arguments:
    - `type`: bool, int, float or str: the value's, or with `many` that of each value of a tuple.
    - `optional`: the value may be None.
    - `choices`: the allowed values; `ordered` if they form a scale (a form then shows a slider).
    - `minimum`, `maximum`, `above`: inclusive bounds and an exclusive lower bound of a number, or of each in a tuple.
    - `check`: called with the value, unless that is None; raises EdgelearnError for an invalid one.
    - `extensible`: MODULE:CLASS is allowed besides `choices`: see edgelearn.extensions.

    On the command line:
    - `metavar`: the value's name in the help (default: from the type).
    - `positional`: the value is given without the option's name.
    - `const`: value of the option's name alone, which may then stand without a value.
    - `spelled`: the option (default: the name after two hyphens).
    - `group`: options of the same group exclude each other.
    - `convert`: makes the argument of the value.
    """

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
    extensible: bool = False
    metavar: str | None = None
    positional: bool = False
    const: Any = None
    spelled: str = ""
    group: str = ""
    convert: Callable[[Any], Any] | None = None

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
            self.validate_one(each)
        if self.check is not None:
            try:
                self.check(value)
            except EdgelearnError as error:
                raise ConfigError(self.name, str(error)) from None

    def validate_one(self, value: Any) -> None:
        """Raises ConfigError if the setting, or one of its values, can't be this one."""
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
def settings(of: Any) -> dict[str, Setting]:
    """The fields of a configuration class, or the arguments of a function, by name."""
    if isclass(of):
        kind: Any = of
        declared = {each.name: each for each in fields(kind)}
    else:
        declared = {name: _field(argument.default) for name, argument in signature(of).parameters.items()}
    hints = get_type_hints(of)
    return {name: _setting(name, hints[name], each.default, each.metadata) for name, each in declared.items()}


def _field(default: Any) -> Any:
    return default if isinstance(default, Field) else field(default=MISSING if default is Parameter.empty else default)


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
    details: dict[str, Any] = {k: tuple(v) if k == "choices" and v is not None else v for k, v in metadata.items()}
    return Setting(name, type_, many, optional, default, **details)


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
MOST_EPOCHS = 10**6


def seed_setting() -> Any:
    """The field `seed` of a configuration."""
    return setting(0, "seed of everything random", minimum=0, maximum=SEED_LIMIT)


def epochs_setting(default: int | None, help: str) -> Any:  # noqa: A002
    """The field `epochs` of a configuration, or another number of rounds."""
    return setting(default, help, minimum=1, maximum=MOST_EPOCHS)


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
    epochs: int | None = epochs_setting(None, "passes over the examples (default: the task's)")
    micro_batch: int | None = setting(None, "examples at a time on the device (default: the task's)", minimum=1)
    data: str | None = setting(None, DATA, metavar="DIR")
    download: bool = setting(True, DOWNLOAD)
    seed: int = seed_setting()
    device: str | None = device_setting()
