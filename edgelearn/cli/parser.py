"""The parser of all commands: types of arguments, options of configurations, help that fits the terminal."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from math import inf
from pathlib import Path
from textwrap import wrap
from types import ModuleType
from typing import Any, NoReturn, TypeVar

from edgelearn.compile.search import budgets
from edgelearn.display import escaped
from edgelearn.errors import EdgelearnError
from edgelearn.experiments.config import Config, ConfigError, Setting, settings
from edgelearn.extensions import import_object, is_reference, nearest

FIRST = """\
What to do first:

  edgelearn doctor                 is everything there that training needs?
  edgelearn flowers --sample       train a small network, in seconds
  edgelearn runs                   what was trained, and where it lies

Then with networks and pictures of your own:

  edgelearn inspect mine.onnx      can it be trained here?
  edgelearn finetune mine.onnx --images my/pictures
  edgelearn memory fit mine.onnx --budget "20 MB peak"

All commands: edgelearn --help. Each explains itself: edgelearn runs --help."""


class Help(argparse.HelpFormatter):
    """Help whose lines fit the terminal without breaking a word; paragraphs of a description stay apart."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        settings: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
        paragraphs = [" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n")]
        lines = [wrap(p, width, initial_indent=indent, subsequent_indent=indent, **settings) for p in paragraphs]
        return "\n\n".join("\n".join(paragraph) for paragraph in lines)

    def _metavar_formatter(self, action: argparse.Action, default_metavar: str):
        """Choices too long for a line are called by the option's name; the help lists them."""
        if action.metavar is None and _are_many(action):
            return lambda size: (default_metavar,) * size
        return super()._metavar_formatter(action, default_metavar)


class Parser(argparse.ArgumentParser):
    """A parser whose help, and that of its commands, is of class `Help`."""

    def __init__(self, *arguments, **settings) -> None:
        super().__init__(*arguments, **{"formatter_class": Help, **settings})

    def error(self, message: str) -> NoReturn:
        super().error(escaped(message))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Name what is most like a word that is none of the choices."""
        if action.choices is not None and value not in action.choices:
            known = list(map(str, action.choices))
            like = nearest(str(value), known) or f" Choose {', '.join(known)}."
            raise argparse.ArgumentError(action, f"invalid choice: {value!r:.60}.{like}")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Parse; name the option that is most like one that isn't known."""
        words = sys.argv[1:] if args is None else list(args)
        found, unknown = self.parse_known_args(words, namespace)
        if unknown:
            at: argparse.ArgumentParser = self
            for word in words:
                at = next((choices[word] for choices in _below(at) if word in choices), at)
            like = nearest(unknown[0].partition("=")[0], at._option_string_actions)
            more = f" {at.prog} --help lists its options." if not like else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}.{like}{more}")
        return found


def make_parser(commands: dict[str, ModuleType], version: str) -> Parser:
    """A parser with a command for each module: its docstring is the description, `add_arguments` adds its options,
    `run` executes it."""
    parser = Parser("edgelearn", description="On-device learning on any OpenCL device.")
    parser.add_argument("--version", action="version", version=version)
    parser.set_defaults(execute=lambda _: print(f"{parser.description}\n\n{FIRST}"))
    parsers = parser.add_subparsers(metavar="COMMAND")
    for name, module in commands.items():
        text = module.__doc__ or ""
        command = parsers.add_parser(name, help=text.partition("\n")[0], description=text)
        module.add_arguments(command)
        command.set_defaults(execute=module.run)  # commands have an argument called run
        for _, leaf in leaves(command, name):
            if getattr(module, "ANSWERS", True):
                leaf.add_argument("--json", action="store_true", help="print JSON alone (fields: see the manual)")
                leaf.add_argument("--save", type=written, metavar="FILE", help="write that JSON to a file, too")
    _list_choices(parser)
    return parser


def _below(parser: argparse.ArgumentParser) -> Iterator[dict[str, argparse.ArgumentParser]]:
    """The commands of a parser by their words."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield action.choices


def leaves(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The commands below `parser`, with their words, such as "memory plan"."""
    below = list(_below(parser))
    if not below:
        yield name, parser
    for commands in below:
        for word, each in commands.items():
            yield from leaves(each, f"{name} {word}".strip())


def _are_many(action: argparse.Action) -> bool:
    """True for choices that would make a word of the usage too long for a line."""
    return action.choices is not None and len(",".join(map(str, action.choices))) > (12 if action.nargs else 30)


def _list_choices(parser: argparse.ArgumentParser) -> None:
    """Name the choices in the help where the metavar doesn't."""
    for _, leaf in leaves(parser):
        for action in leaf._actions:
            if _are_many(action):
                names = ", ".join(map(str, action.choices or ()))
                action.help = f"{action.help or ''}; one of {names}".lstrip("; ")


def whole(least: int) -> Callable[[str], int]:
    """A type: whole numbers of at least `least`."""

    def parse(text: str) -> int:
        try:
            if (value := int(text)) >= least:
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least {least}")

    return parse


def number(least: float = -inf, most: float = inf) -> Callable[[str], float]:
    """A type: finite numbers from `least` to `most`."""

    def parse(text: str) -> float:
        try:
            if least <= (value := float(text)) <= most and abs(value) < inf:
                return value
        except ValueError:
            pass
        limits = [f"at {word} {limit:g}" for word, limit in (("least", least), ("most", most)) if abs(limit) < inf]
        raise argparse.ArgumentTypeError(f"'{text}' is not a number{' of ' * bool(limits)}{' and '.join(limits)}")

    return parse


def written(text: str) -> Path:
    """A type: a file to write, in a folder that exists."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"'{text}' is a folder: name a file")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"'{text}' can't be written: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"'{text}' can't be written: the folder {path.parent} doesn't allow it")
    return path


TYPES = "fp32", "tf32", "bf16", "fp16", "int8"
NETWORK = "a name of edgelearn.models, a model file, or MODULE:FUNCTION"


def network(text: str) -> str:
    """A type: what `edgelearn.interop.find_network` finds."""
    from edgelearn.interop import check_network_name

    return _checked(text, check_network_name)


def device(text: str) -> str:
    """A type: part of the name of a device that is there."""
    from edgelearn.runtime import choose_device

    return _checked(text, choose_device)


def add_device(parser: argparse.ArgumentParser) -> None:
    """--device NAME."""
    parser.add_argument(
        "--device",
        type=device,
        metavar="NAME",
        help="any part of its name (default: the best; see `edgelearn devices`)",
    )


def budget(text: str) -> str:
    """A type: a limit on memory."""
    return _checked(text, budgets)


def one_of(names: Iterable[str], what: str) -> Callable[[str], str]:
    """A type: one of `names`, or MODULE:CLASS."""
    known = list(names)

    def parse(text: str) -> str:
        if text in known:
            return text
        if is_reference(text):
            return _checked(text, import_object)
        raise argparse.ArgumentTypeError(
            f"there is no {what} '{text}'.{nearest(text, known)} Choose {', '.join(known)}, or MODULE:CLASS"
        )

    return parse


def add_compute(parser: argparse.ArgumentParser) -> None:
    """Add --compute."""
    parser.add_argument(
        "--compute", nargs="+", choices=TYPES, default=["fp32"], metavar="TYPE",
        help="types to compute in: fp32, tf32, bf16, fp16, or int8 with ranges in hindsight (default: fp32)",
    )  # fmt: skip


def _checked(text: str, check: Callable[[str], object]) -> str:
    try:
        check(text)
    except EdgelearnError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


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
