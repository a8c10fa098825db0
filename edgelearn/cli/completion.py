"""Print a script that completes commands, options, choices and files in bash or zsh.

In bash: source <(edgelearn completion bash), or that line in ~/.bashrc. In zsh: edgelearn completion zsh > _edgelearn,
in a folder of $fpath. The package shtab writes the script: pip install 'edgelearn[completion]'.
"""

from __future__ import annotations

import argparse

from edgelearn.errors import ExtensionError

ANSWERS = False  # the script is for the shell: there is no --json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"))


def run(options: argparse.Namespace) -> None:
    from .parser import leaves

    try:
        import shtab
    except ImportError:
        raise ExtensionError("Completion needs the package shtab: pip install 'edgelearn[completion]'.") from None
    for _, leaf in leaves(options.parser):
        for action in leaf._actions:
            if action.metavar in _FILES:
                action.complete = _FILES[action.metavar]  # pyright: ignore[reportAttributeAccessIssue]
    print(shtab.complete(options.parser, options.shell))


_FILE = {"bash": "_shtab_compgen_files", "zsh": "_files"}
_FILES = {  # what completes a value, by its name in the help
    "FILE": _FILE, "PNG": _FILE, "MODEL": _FILE, "OUT": _FILE, "CLIP": _FILE, "NETWORK": _FILE, "NAME|FILE": _FILE,
    "DIR": {"bash": "_shtab_compgen_dirs", "zsh": "_files -/"},
}  # fmt: skip
