"""Sentences and what they ask for: CLINC150 (Larson et al. 2019, "An evaluation dataset for intent classification and
out-of-scope prediction", EMNLP; CC BY 3.0), and drawn ones."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from edgelearn.display import plural
from edgelearn.errors import DataError

from .tfds import data_folder

FILE = "sequences/clinc150.json.gz"  # in the folder that EDGELEARN_DATA names
PARTS = {"train": "train", "validation": "val", "test": "test"}  # of the file
Sentences = tuple[list[str], np.ndarray]


@dataclass(frozen=True, eq=False)
class IntentDataset:
    """Sentences by what they ask for.

    Arguments:
    - `parts`: "train", "validation" and "test": sentences, and the number of the intent of each, int32 (n,).
    - `unknown`: sentences for testing that ask for none of these intents.
    - `class_names`: the intents.
    - `origin`: "drawn", or where the data is from.
    - `description`: the same in words.
    """

    parts: Mapping[str, Sentences]
    unknown: list[str]
    class_names: tuple[str, ...]
    origin: str
    description: str


def load_intents(data: str | os.PathLike | None = None, drawn: bool = False) -> IntentDataset:
    """Load CLINC150's full set, 150 intents, or draw sentences where it isn't there.

    Arguments:
    - `data`: folder with sequences/clinc150.json.gz, data_full.json of github.com/clinc/oos-eval in gzip (default:
      EDGELEARN_DATA).
    - `drawn`: draw sentences in any case (default False).

    Raises DataError for a folder `data` that lacks the file, or a file that can't be read.
    """
    named = data_folder(data)
    path = Path(named) / FILE if named else None
    if drawn or path is None or not path.is_file():
        if data and not drawn:
            raise DataError(
                f"{data} has no {FILE}: put data_full.json of github.com/clinc/oos-eval there, compressed by gzip, or "
                f"leave the folder out to train on drawn sentences."
            )
        return drawn_intents()
    try:
        found = json.loads(gzip.decompress(path.read_bytes()))
        names = tuple(sorted({intent for _, intent in found["train"]}))
        numbers = {name: number for number, name in enumerate(names)}
        parts = {
            part: ([text for text, _ in found[key]], np.array([numbers[intent] for _, intent in found[key]], np.int32))
            for part, key in PARTS.items()
        }
        unknown = [text for text, _ in found["oos_test"]]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is no data_full.json of CLINC150 ({error!r:.80}): copy it again.") from None
    return _described(parts, unknown, names, "clinc150", "CLINC150 (Larson et al. 2019, CC BY 3.0)")


def _described(
    parts: Mapping[str, Sentences], unknown: list[str], names: tuple[str, ...], origin: str, words: str
) -> IntentDataset:
    sizes = ", ".join(
        f"{len(labels):,} to {'train' if part == 'train' else part}" for part, (_, labels) in parts.items()
    )
    return IntentDataset(parts, unknown, names, origin, f"{words}: {plural(len(names), 'intent')}, sentences: {sizes}")


_SLOTS = {
    "time": ("seven", "half past nine", "noon", "six this evening"), "place": ("paris", "rome", "boston", "the coast"),
    "person": ("anna", "my brother", "the office", "doctor reed"), "dish": ("soup", "a pizza", "pancakes", "rice"),
    "song": ("jazz", "my favourite song", "something calm", "the news"),
}  # fmt: skip
_ASKED = {
    "alarm": ("time", "set an alarm for {}", "wake me up at {}", "i have to get up at {}"),
    "appointment": ("time", "put a meeting into my calendar at {}", "i see somebody at {}", "plan lunch for {}"),
    "weather": ("place", "will it rain in {}", "how warm is it in {}", "do i need a coat for {}"),
    "flight": ("place", "book a flight to {}", "i want to fly to {}", "when is the next plane to {}"),
    "call": ("person", "call {}", "i would like to talk to {}", "ring {} up"),
    "message": ("person", "write a message to {}", "tell {} that i am late", "send a text to {}"),
    "recipe": ("dish", "how do i cook {}", "what do i need for {}", "find a recipe of {}"),
    "music": ("song", "play {}", "i want to hear {}", "put on {}"),
}
_OPENINGS = ("", "please ", "can you help, ", "hey, ", "now ", "okay, ")
_UNKNOWN = ("who wrote this book", "what is the square root of two", "my shoes are wet", "how old is the moon")


def drawn_intents(seed: int = 0) -> IntentDataset:
    """Sentences of eight intents: 72 of each, of which 48 are to train with. `seed`: divides them (default 0)."""
    rng = np.random.default_rng(seed)
    parts: dict[str, tuple[list[str], list[int]]] = {part: ([], []) for part in PARTS}
    for number, (slot, *forms) in enumerate(_ASKED.values()):
        said = [opening + form.format(what) for opening, form, what in product(_OPENINGS, forms, _SLOTS[slot])]
        order = [said[place] for place in rng.permutation(len(said))]
        for part, some in zip(PARTS, (order[:48], order[48:60], order[60:]), strict=True):
            parts[part][0].extend(some)
            parts[part][1].extend([number] * len(some))
    arrays = {part: (texts, np.array(labels, np.int32)) for part, (texts, labels) in parts.items()}
    return _described(arrays, [*_UNKNOWN], tuple(_ASKED), "drawn", "Drawn sentences")
