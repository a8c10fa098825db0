"""The parser of all commands: help that fits the terminal, and --json for each."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from textwrap import wrap
from types import ModuleType
from typing import Any, NoReturn

from edgelearn.display import escaped
from edgelearn.extensions import nearest

from .files import written

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
