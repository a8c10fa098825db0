"""Command-line options generated from an experiment's configuration class, and the configuration that they choose."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import Any, TypeVar

from edgelearn.experiments.config import Config, ConfigError, Setting, settings

from .names import device, one_of

NONE = "none"  # leaves an optional setting without a value, where that isn't its default
C = TypeVar("C", bound=Config)


def add_options(parser: argparse.ArgumentParser, config: type[Config], skip: Collection[str] = ()) -> None:
    """Add an option for each field of `config`, except those in `skip`.

    `batch_size` becomes `--batch-size`, a bool `--flag` and `--no-flag`, a tuple an option with several values. An
    option that is not given leaves no attribute in the namespace, so that the configuration's default holds.
    """
    for setting in settings(config).values():
        if setting.name not in skip:
            parser.add_argument(option(setting), default=argparse.SUPPRESS, help=_help(setting), **_arguments(setting))


def read_config(config: type[C], options: argparse.Namespace) -> C:
    """The configuration that `options` choose. Raises ConfigError, with the option's name, for an invalid value."""
    try:
        return config(**{s.name: _value(s, options) for s in settings(config).values() if hasattr(options, s.name)})
    except ConfigError as error:
        raise ConfigError(option(settings(config)[error.name]), error.problem) from None


def changed(config: Config) -> list[str]:
    """The options whose values in `config` aren't the default."""
    return [option(each) for each in settings(type(config)).values() if getattr(config, each.name) != each.default]


def option(setting: Setting) -> str:
    """A setting on the command line: "--batch-size", or its name if the command takes it without."""
    return setting.name if setting.positional else f"--{setting.name.replace('_', '-')}"


def _arguments(setting: Setting) -> dict[str, Any]:
    if setting.type is bool:
        return {"action": argparse.BooleanOptionalAction}
    choices = setting.choices
    if choices and _takes_none(setting):
        choices = (*choices, NONE)
    arguments: dict[str, Any] = {"type": device if setting.name == "device" else _parser(setting), "choices": choices}
    if setting.extensible and choices:
        arguments = {"type": one_of(choices, setting.label.lower())}
    if not setting.positional:
        arguments["metavar"] = setting.metavar or (
            "NAME" if setting.extensible else None if choices else setting.type.__name__.upper()
        )
    if setting.many:
        arguments["nargs"] = "+"
    elif setting.positional:
        arguments["nargs"] = "?"
    return arguments


def _parser(setting: Setting) -> Any:
    if not _takes_none(setting) or setting.type is str:
        return setting.type

    def parse(text: str) -> Any:
        return text if text == NONE else setting.type(text)

    parse.__name__ = setting.type.__name__  # argparse names it in an error
    return parse


def _takes_none(setting: Setting) -> bool:
    return setting.optional and setting.default is not None


def _value(setting: Setting, options: argparse.Namespace) -> Any:
    value = getattr(options, setting.name)
    if value == NONE and _takes_none(setting):
        return None
    return tuple(value) if setting.many else value


def _help(setting: Setting) -> str:
    default, text = setting.default, setting.help
    if setting.extensible:
        text += f": {', '.join(map(str, setting.choices or ()))}, or MODULE:CLASS"
    if default is None:
        return text.replace("%", "%%")
    if setting.type is bool:
        default = "yes" if default else "no"
    elif setting.many:
        default = " ".join(map(str, default))
    return f"{text} (default: {default})".lstrip().replace("%", "%%")
