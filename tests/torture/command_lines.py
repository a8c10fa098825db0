"""Hostile command lines: options and names of other types, huge numbers, control characters, missing files, folders for
files. A command must end with status 0, 1 or 2 within seconds, without a traceback, and print no escape sequences.

    python -m tests.torture --only commands --jobs "memory fit"     attack one command
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Generator, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random

import edgelearn as el
from edgelearn.cli import full_parser, main
from edgelearn.lab.runs import RunStore
from edgelearn.ops import Dense

from .attacks import Attack, Outcome

LONGEST = 10.0  # seconds of computing of a command
PATIENCE = 60.0  # seconds of a command that waits
CLOCKS = ((signal.SIGPROF, signal.ITIMER_PROF, LONGEST), (signal.SIGALRM, signal.ITIMER_REAL, PATIENCE))
STATUS = (0, 1, 2)
ESCAPE = "\x1b[31m"
NETWORK = """
import edgelearn as el
from edgelearn.ops import Dense

def net():
    network = el.Network("tiny", (4,))
    network.add("dense", Dense(2))
    return network

def broken():
    return 1 // 0

def ends():
    raise SystemExit(7)

number = 5
"""
# Each ends early or is quick, so that what an option is given is what decides.
LINES = {
    "memory fit": ("{net}", "--budget", "1 MB", "--batch-size", "2", "--precision", "fp32"),
    "plan": ("{net}", "--html", "{folder}/plan.html"),
    "memory plan": ("{net}", "--budget", "1 MB stored"),
    "precision time": ("{net}", "--rounds", "1", "--steps", "1", "--batch-size", "2", "--variants", "fp32"),
    "compare": ("kept", "--runs", "{runs}"),
    "federated personal": ("kept", "--runs", "{runs}"),
    "federated run": ("sample", "--runs", "{file}"),
    "federated rounds": ("kept", "--runs", "{runs}"),
    "federated compare": ("kept", "--runs", "{runs}"),
    "federated verify train": ("sample", "--runs", "{file}"),
    "federated verify enrol": ("{file}", "--user", "{folder}/user", "--network", "{file}", "--runs", "{runs}"),
    "federated verify test": ("{file}", "--user", "{file}", "--network", "{file}", "--runs", "{runs}"),
    "sweep": ("federated", "strategy=fedavg,fedyogi", "--seeds", "0", "--runs", "{file}"),
    "convert": ("{model}", "{folder}/out.onnx"),
    "inspect": ("{model}",),
    "finetune": ("{file}", "--images", "{folder}", "--runs", "{runs}"),
    "tune": ("{net}",),
    "profile": ("{file}/train:4", "--device", "none"),
    "bench": ("--network", "{file}", "forward:1"),
    "runs": ("kept", "--runs", "{runs}"),
}
NETWORKS = ("{module}:broken", "{module}:ends", "{module}:number", "{module}:", "{module}:no", ":net", "os:system",
            "nowhere:net", "{folder}/no.py:net", "{file}:net", "mobilenet_v2/x", "{net}:net")  # fmt: skip
SUFFIXES = ("onnx", "tflite", "pb", "keras", "h5", "npz", "safetensors", "json", "pt", "xyz")
VALUES = (
    "", " ", "-1", "0", "1", "-0.0", "1e400", "-1e400", "nan", "inf", "99999999999999999999", "1" * 5000, "0x10",
    "1_0", "²", "١٢", "1,5", "2 MB", "9" * 30 + " TB", "-2 MB stored", "MB", "=", "a=", "=a", "seed=", "strategy=,",
    "seed=" + "9" * 400, ESCAPE + "red", "a\nb", "a\tb\x07", "\u202eabc", "é", "\udcff\udcfe", "../../../etc", "/",
    ".", "..", "~", "*", "%s%n{0}{x}", "$(id)", "; true", "'", '"', "\\", "--", "-", "@{file}", "a" * 5000,
    "a/" * 2000, "{folder}", "{file}", "{empty}", "{folder}/none", "{file}/x", "/dev/null", "/dev/full",
    "/proc/self/mem", "{text}", "{picture}", "None", "null", "[]", "{{}}", "true", "kept", "k", "fp32", "topk:",
    "topk:nan", "topk:0.1+", "int8+int8", "cpu", "sample", "local", "{model}",
    *(f"{{folder}}/out.{suffix}" for suffix in SUFFIXES), *NETWORKS,
)  # fmt: skip


class TooLong(BaseException):
    """A command took longer than LONGEST, or PATIENCE."""


def attacks(options: argparse.Namespace) -> list[Attack]:
    """`options.lines` lines for each command of LINES."""
    return [Attack(f"command lines: {name}", partial(steps, name, options.seed, options.lines)) for name in LINES]


def steps(name: str, seed: int, count: int, outcome: Outcome, deadline: float) -> Generator[None]:
    """`count` hostile lines of the command `name`."""
    rng = Random(f"{name} {seed} {outcome.attacks}")
    with tempfile.TemporaryDirectory() as folder:
        for line in islice(_lines(name, rng, _places(Path(folder))), max(0, count - outcome.attacks)):
            start = time.monotonic()
            status, problem = attack([*name.split(), *line], Path(folder))
            said = f"{[word[:60] for word in line]}: {problem}" if problem else ""
            outcome.note(
                "that broke it" if problem else f"with status {status}", said, seconds=time.monotonic() - start
            )
            yield


def attack(words: list[str], folder: Path) -> tuple[int, str]:
    """Run a command in `folder`; returns its exit status, and what is wrong with its end ("" if nothing is)."""
    out, before = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace"), Path.cwd()
    status, problem = -1, ""
    os.chdir(folder)
    for number, clock, seconds in CLOCKS:
        signal.signal(number, _too_long)
        signal.setitimer(clock, seconds)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            status = main(words)
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else -1
    except BaseException:
        frames = traceback.format_exc(limit=-3).splitlines()[1:]
        problem = "\n    ".join(line[:200] for line in frames if "^^^" not in line)[-900:]
    finally:
        for number, clock, _ in CLOCKS:
            signal.setitimer(clock, 0)
            signal.signal(number, signal.SIG_DFL)
        os.chdir(before)
    out.flush()
    said = out.buffer.getvalue().decode("utf-8", "replace")  # pyright: ignore[reportAttributeAccessIssue]
    if not problem and status not in STATUS:
        problem = f"exit status {status}: {said[-200:]}"
    if not problem and ESCAPE in said:
        problem = "it prints escape sequences"
    return status, problem


def _too_long(signum: int, frame: object) -> None:
    raise TooLong


def _places(folder: Path) -> dict[str, str]:
    names = {name: folder / name for name in ("file", "empty", "text", "picture.png", "folder", "runs")}
    names["file"].write_bytes(bytes(range(256)))
    names["empty"].touch()
    names["text"].write_text('{"a": 1}\n')
    names["picture.png"].write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
    names["folder"].mkdir()
    (folder / "tiny_network.py").write_text(NETWORK)
    with RunStore(names["runs"]).create("kept", {"seed": 1}) as run:
        run.finish({"correct": 1, "total": 2})
    network = el.Network("tiny", (4,))
    network.add("dense", Dense(2))
    el.Model(network).save(folder / "model.safetensors")
    names["model"] = folder / "model.safetensors"
    places = {name.removesuffix(".png"): str(path) for name, path in names.items()}
    return places | {"net": "tiny_network:net", "module": "tiny_network", "kept": run.id}


def _lines(name: str, rng: Random, places: dict[str, str]) -> Iterator[list[str]]:
    """The command's own line, and then endless ones with some words replaced and options added."""

    def filled(word: str) -> str:
        for place, path in places.items():
            word = word.replace(f"{{{place}}}", path)
        return places["kept"] if word == "kept" else word

    line, options = LINES[name], _options(name)
    yield [filled(word) for word in line]
    values = [place for place, word in enumerate(line) if not word.startswith("--")]
    for network in NETWORKS:
        yield [filled(word) for word in (*line[: values[0]], network, *line[values[0] + 1 :])]
    while True:
        words = list(line)
        if rng.random() < 0.4:
            words[rng.choice(values)] = rng.choice(VALUES)
        for _ in range(rng.choice((0, 1, 1, 2))):
            option = rng.choice(options)
            words += [option, rng.choice(VALUES)] if rng.random() < 0.95 else [option]
        if rng.random() < 0.05:
            del words[rng.randrange(len(words))]
        if line[-2:] == ("--runs", "{file}"):  # or it would train
            words += line[-2:]
        yield [filled(word) for word in words]


def _options(name: str) -> list[str]:
    """All options of a command."""
    parser = full_parser()
    for word in name.split():
        actions = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        parser = next(actions).choices[word]
    return [option for action in parser._actions for option in action.option_strings if option not in ("-h", "--help")]
