"""Commands from functions: their arguments become options, their docstrings the help; shared kinds of arguments.

An argument is declared by `setting` (experiments/config.py); one whose type is a Config gets an option for each of its
fields. `@command` registers the function; the parser is made of what is registered.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import partial
from importlib import import_module
from inspect import getdoc, isclass
from pathlib import Path
from textwrap import wrap
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

from edgelearn.compile.search import budgets
from edgelearn.display import escaped
from edgelearn.errors import EdgelearnError, UsageError
from edgelearn.experiments.config import Config, ConfigError, Setting, setting, settings
from edgelearn.extensions import import_object, is_reference, nearest
from edgelearn.lab.runs import RunStore

C = TypeVar("C", bound=Config)
NONE = "none"  # leaves an optional setting without a value, where that isn't its default

# -- kinds of arguments ----------------------------------------------------------------------------------------------


def writable(path: Path) -> None:
    """Raises UsageError for a file that can't be written, before any work."""
    if path.is_dir():
        raise UsageError(f"'{path}' is a folder: name a file")
    if not path.parent.is_dir():
        raise UsageError(f"'{path}' can't be written: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"'{path}' can't be written: the folder {path.parent} doesn't allow it")


def is_network(text: str) -> None:
    """Raises EdgelearnError for what `edgelearn.interop.find_network` doesn't find."""
    from edgelearn.interop import check_network_name

    check_network_name(text)


def is_device(text: str) -> None:
    """Raises DeviceError for what is no part of the name of a device that is there."""
    from edgelearn.runtime import choose_device

    choose_device(text)


NETWORK = "a name of edgelearn.models, a model file, or MODULE:FUNCTION"
TYPES = "fp32", "tf32", "bf16", "fp16", "int8"
COMPUTE_HELP = f"types to compute in: {', '.join(TYPES[:-1])}, or int8 with ranges in hindsight"

argument = partial(setting, positional=True)
network = partial(setting, check=is_network, metavar="NETWORK")
budget = partial(setting, check=budgets, metavar="SIZE")
png = partial(setting, None, check=writable, metavar="PNG")
DEVICE = setting(None, "any part of its name (default: the best; see `edgelearn devices`)", metavar="NAME")
COMPUTE = setting(("fp32",), COMPUTE_HELP, choices=TYPES, metavar="TYPE")
RUNS_FOLDER = setting(None, "where runs are kept (default: EDGELEARN_RUNS, else ./runs)", metavar="DIR")
RUNS = setting(None, RUNS_FOLDER.metadata["help"], metavar="DIR", convert=RunStore)
RESUME = setting(None, "continue an interrupted run (default: the newest)", const="", metavar="RUN")
ALPHA = setting(1.0, "width of a network of edgelearn.models", minimum=0)
MARKDOWN = setting(False, "the table in Markdown")


# -- commands --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """A command.

    Arguments:
    - `function`: executes it; its arguments are the options. Returns an Answer, or the record of one.
    - `help`: a line (default: the first one of the function's docstring).
    - `skip`, `fixed`: fields of a configuration that are no options, with their defaults or these values.
    - `json`: False if it answers nothing.
    """

    function: Callable[..., Any]
    help: str
    skip: Collection[str]
    fixed: Mapping[str, Any]
    json: bool


REGISTERED: dict[str, Command] = {}  # by their words, such as "memory plan"
GROUPS = {"federated verify": "networks that accept their user's voice and no other"}

# The JSON that a command prints, a list or one object, and the entries of the object or of each in the list.
FIELDS: dict[str, tuple[str, dict[str, str]]] = {}


def command(
    words: str, help: str = "", *, one: dict[str, str] | None = None, many: dict[str, str] | None = None,  # noqa: A002
    skip: Collection[str] = (), fixed: Mapping[str, Any] = MappingProxyType({}),
) -> Callable:  # fmt: skip
    """Register a function as the command `words`.

    Arguments:
    - `help`, `skip`, `fixed`: see Command.
    - `one`, `many`: entries of its JSON and their meaning: of an object, or of each in a list.
    """
    entries = one or many
    if entries:
        FIELDS[words] = ("object" if one else "list"), entries

    def register(function: Callable) -> Callable:
        REGISTERED[words] = Command(function, help, (*skip, *fixed), fixed, entries is not None)
        return function

    return register


def option(each: Setting) -> str:
    """A setting on the command line: "--batch-size", or its name if the command takes it without."""
    return each.name if each.positional else each.spelled or f"--{each.name.replace('_', '-')}"


def add_options(parser: argparse.ArgumentParser, of: Any, skip: Collection[str] = ()) -> None:
    """Add an option for each argument of a function or field of a configuration, except those in `skip`.

    `batch_size` becomes `--batch-size`, a tuple an option with several values. A configuration's bool becomes `--flag`
    and `--no-flag`; its options that aren't given leave no attribute in the namespace, so that its defaults hold.
    """
    is_config = isclass(of)
    groups: dict[str, Any] = {"": parser}
    for each in settings(of).values():
        if issubclass(each.type, Config):
            add_options(parser, each.type, skip)
        elif each.name not in skip:
            if each.group not in groups:
                groups[each.group] = parser.add_mutually_exclusive_group()
            default = argparse.SUPPRESS if is_config else None if each.default is MISSING else each.default
            kind = _kind(each, is_config) | ({"dest": each.name} if each.spelled else {})
            groups[each.group].add_argument(option(each), default=default, help=_help(each, is_config), **kind)


def read_config(config: type[C], options: argparse.Namespace) -> C:
    """The configuration that `options` choose. Raises ConfigError, with the option's name, for an invalid value."""
    known = settings(config)
    given = {name: _value(known[name], value) for name, value in vars(options).items() if name in known}
    try:
        return config(**given)
    except ConfigError as error:
        raise ConfigError(option(known[error.name]), error.problem) from None


def changed(config: Config) -> list[str]:
    """The options whose values in `config` aren't the default."""
    return [option(each) for each in settings(type(config)).values() if getattr(config, each.name) != each.default]


def call(function: Callable, options: argparse.Namespace) -> Any:
    """Call a command's function with the arguments that `options` choose."""
    arguments = {}
    for name, each in settings(function).items():
        if issubclass(each.type, Config):
            arguments[name] = read_config(each.type, options)
        else:
            value = _value(each, getattr(options, name))
            arguments[name] = each.convert(value) if each.convert else value
    return function(**arguments)


def _value(each: Setting, value: Any) -> Any:
    if value == NONE and _takes_none(each):
        return None
    return tuple(value) if isinstance(value, list) else value


def _takes_none(each: Setting) -> bool:
    return each.optional and each.default is not None


def _kind(each: Setting, is_config: bool) -> dict[str, Any]:
    """Arguments of argparse's add_argument."""
    if each.type is bool:
        return {"action": argparse.BooleanOptionalAction if is_config else "store_true"}
    kind: dict[str, Any] = {"type": _parse(each), "metavar": each.metavar}
    if each.choices and not each.extensible:
        kind["choices"] = (*each.choices, NONE) if _takes_none(each) else each.choices
    elif is_config and not each.positional:
        kind["metavar"] = each.metavar or ("NAME" if each.extensible else each.type.__name__.upper())
    required = each.default is MISSING
    if each.many:
        kind["nargs"] = "*" if each.const is not None or (each.positional and not required) else "+"
    elif each.const is not None or (each.positional and not required):
        kind |= {"nargs": "?", "const": each.const}
    if required and not each.positional:
        kind["required"] = True
    return kind


def _parse(each: Setting) -> Callable[[str], Any]:
    """A type for argparse: a value of the setting, refused before any work if it can't be that."""

    def parse(text: str) -> Any:
        if text == NONE and _takes_none(each):
            return text
        value = text if each.convert else each.type(text)
        try:
            if each.extensible and is_reference(text):
                import_object(text)
            elif each.extensible or not each.choices:
                each.validate_one(value)
            if check := is_device if each.name == "device" else each.check:
                check(value)
        except ConfigError as error:
            problem, known = error.problem, list(map(str, each.choices or ()))
            if known:
                kind = each.label if each.metavar in (None, "NAME") else each.metavar
                choose = f"{nearest(text, known)} Choose {', '.join(known)}, or MODULE:CLASS"
                problem = f"there is no {kind.lower()} '{text}'.{choose}"
            raise argparse.ArgumentTypeError(problem) from None
        except EdgelearnError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return value

    parse.__name__ = each.type.__name__  # argparse names it in an error
    return parse


def _help(each: Setting, is_config: bool) -> str:
    default, text = each.default, each.help
    if each.extensible:
        text += ": " * bool(text) + f"{', '.join(map(str, each.choices or ()))}, or MODULE:CLASS"
    if default in (None, MISSING, (), "") or "(default" in text or (each.type is bool and not is_config):
        return text.replace("%", "%%")
    if each.type is bool:
        default = "yes" if default else "no"
    elif each.many:
        default = " ".join(map(str, default))
    return f"{text} (default: {default})".lstrip().replace("%", "%%")


# -- the parser ------------------------------------------------------------------------------------------------------

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


def make_parser(version: str, commands: Mapping[str, str], given: Sequence[str]) -> Parser:
    """The parser of what is registered.

    Arguments:
    - `commands`: the first words of all commands, and the modules that register them.
    - `given`: those whose options are needed: the others' modules aren't imported.
    """
    parser = Parser("edgelearn", description="On-device learning on any OpenCL device.")
    parser.add_argument("--version", action="version", version=version)
    parser.set_defaults(execute=lambda _: print(f"{parser.description}\n\n{FIRST}"))
    below: dict[str, Any] = {"": parser.add_subparsers(metavar="COMMAND")}
    for name, module in commands.items():
        if name not in given:
            below[""].add_parser(name)
            continue
        described = GROUPS.get(name, getdoc(import_module(module)) or "")
        for words, each in REGISTERED.items():
            if words.split(" ")[0] == name:
                leaf = _add_command(below, words, getdoc(each.function) or "", each.help, described)
                add_options(leaf, each.function, each.skip)
                leaf.set_defaults(execute=partial(call, each.function), **each.fixed)
                if each.json:
                    leaf.add_argument("--json", action="store_true", help="print JSON alone (fields: see the manual)")
                    leaf.add_argument("--save", type=_SAVED, metavar="FILE", help="write that JSON to a file, too")
    _list_choices(parser)
    return parser


_SAVED = _parse(Setting("save", Path, False, True, None, check=writable))


def _add_command(below: dict[str, Any], words: str, text: str, line: str, group: str) -> argparse.ArgumentParser:
    """Add the parser of a command, or of a group of commands, and of the groups that it is in.

    Arguments:
    - `below`: the commands of each group, to which new groups are added.
    - `text`, `line`: the description, and the help among others of the group (default: the first line of `text`).
    - `group`: description of the outermost group.
    """
    parents, _, name = words.rpartition(" ")
    if parents not in below:
        outer = " " not in parents
        own = _add_command(below, parents, group if outer else "", "" if outer else GROUPS[parents], group)
        below[parents] = own.add_subparsers(required=True, metavar="COMMAND")
    return below[parents].add_parser(name, help=line or text.partition("\n")[0], description=text or None)


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
