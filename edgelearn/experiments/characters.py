"""The next character of a text, learned by a small GPT as in nanoGPT's runs (github.com/karpathy/nanoGPT).

    edgelearn characters                    # EDGELEARN_DATA's tinyshakespeare, else drawn sums such as "12+7=19"
    edgelearn characters --text mine.txt    # a text of your own

Guide: docs/guides/sequences.md.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import exp
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.compile import account
from edgelearn.data.tfds import data_folder
from edgelearn.display import megabytes, plain
from edgelearn.errors import DataError
from edgelearn.lab.runs import Run, figures
from edgelearn.models.language import gpt, gpt_by_steps, gpt_weights
from edgelearn.ops import AdamW
from edgelearn.ops.emit import STORED
from edgelearn.tables import Table
from edgelearn.train import Callback, CosineDecay, History, Model
from edgelearn.train.generation import draw
from edgelearn.train.model import Phases

from .config import Config, device_setting, setting
from .experiment import Experiment, Log, Training, silent
from .tasks import drawn_weights, save_model

FILE = "sequences/tinyshakespeare.txt"  # in the folder that EDGELEARN_DATA names
SUMS = 20_000  # lines of the drawn text
TEST_SHARE = 0.1  # of the text, at its end
EPOCHS = 10  # that a training is logged in
Windows = tuple[np.ndarray, np.ndarray]
_SPEECH = re.compile(r"^([^\n:]+):\n((?:.+\n?)*)", re.MULTILINE)  # a role's name, and lines up to an empty one


@dataclass(frozen=True)
class CharactersConfig(Config):
    """Settings of a training on the characters of a text. The defaults are nanoGPT's small run on a CPU.

    Raises ConfigError for an invalid value.
    """

    text: str | None = setting(
        None, "the text (default: EDGELEARN_DATA's tinyshakespeare, else drawn sums)", metavar="FILE"
    )
    layers: int = setting(4, "blocks", minimum=1)
    heads: int = setting(4, "heads of attention", minimum=1)
    channels: int = setting(128, "channels of a step", minimum=1)
    context: int = setting(64, "characters that are seen at once", minimum=2)
    batch_size: int = setting(12, "windows of an update", minimum=1)
    steps: int = setting(2000, "updates", minimum=1)
    learning_rate: float = setting(1e-3, "learning rate after 100 updates, from where it decays to a tenth", above=0)
    dropout: float = setting(0.0, "share of values that training leaves out", minimum=0, maximum=0.9)
    compute: str = setting("fp32", "type that dense layers and attention multiply in", choices=tuple(STORED))
    budget: str | None = setting(None, "memory limit of the plan, such as '4 MB stored'", metavar="BUDGET")
    tests: int = setting(1000, "windows of the text's end to test with", minimum=1)
    sample: int = setting(200, "characters to write afterwards", minimum=0)
    temperature: float = setting(0.8, "divides the logits of what is written", above=0)
    seed: int = setting(0, "draws weights, windows and what is written", minimum=0)
    device: str | None = device_setting()


@dataclass(frozen=True)
class CharactersResult:
    """A finished training.

    Arguments:
    - `text`: where it is from. `characters`: different ones in it.
    - `parameters`: number of trained values.
    - `loss`, `accuracy`: on windows of the text's end: mean cross-entropy in nats, share of right characters.
    - `losses`: of the training, by tenths.
    - `milliseconds`: of an update, in the median of the tenths after the first.
    - `planned`: device memory of the plan, bytes; `stored`: activations that it stores, bytes.
    - `device`: name.
    - `written`: what the model wrote.
    """

    text: str
    characters: int
    parameters: int
    loss: float
    accuracy: float
    losses: tuple[float, ...]
    milliseconds: float
    planned: int
    stored: int
    device: str
    written: str

    @property
    def perplexity(self) -> float:
        return exp(self.loss)

    def table(self) -> Table:
        """The figures as a table."""
        rows = [
            ("text", f"{self.text}, {self.characters} different characters"), ("parameters", f"{self.parameters:,}"),
            ("loss on its end", f"{self.loss:.3f} nats (perplexity {self.perplexity:.2f})"),
            ("right characters", f"{self.accuracy:.1%}"), ("an update", f"{self.milliseconds:.1f} ms on {self.device}"),
            ("memory", f"{megabytes(self.planned)} planned, {megabytes(self.stored)} of stored activations"),
        ]  # fmt: skip
        return Table(("", ""), rows)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "losses": list(self.losses), "perplexity": self.perplexity}


def drawn_sums(lines: int = SUMS, seed: int = 0) -> str:
    """A text of sums of two numbers below 100, a line each: "12+7=19"."""
    pairs = np.random.default_rng(seed).integers(0, 100, (lines, 2))
    return "".join(f"{a}+{b}={a + b}\n" for a, b in pairs.tolist())


def read_text(path: str | None = None) -> tuple[str, str]:
    """(a text, where it is from): of the file `path`, or as `CharactersConfig.text` says. Raises DataError for a file
    that can't be read as UTF-8."""
    if path is None:
        found = Path(os.environ.get("EDGELEARN_DATA", "")) / FILE
        if not os.environ.get("EDGELEARN_DATA") or not found.is_file():
            return drawn_sums(), "drawn sums"
        path = str(found)
    try:
        return Path(path).read_text("utf-8"), Path(path).name
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} can't be read as a text in UTF-8: {error}. Give another file with --text.") from None


def read_roles(data: str | None = None) -> tuple[dict[str, str], str]:
    """(what each role of tinyshakespeare says, longest first; where it is from): of the folder `data` (default:
    EDGELEARN_DATA). Where there is none, drawn roles, of which each adds to a number of its own."""
    named = data_folder(data)
    path = Path(named) / FILE if named else None
    if path is None or not path.is_file():
        lines = [line.split("+") for line in drawn_sums().splitlines()]
        drawn = {f"adds to {first}": "" for first, _ in lines}
        for first, rest in lines:
            drawn[f"adds to {first}"] += f"{first}+{rest}\n"
        return _longest_first(drawn), "drawn sums"
    roles: dict[str, str] = {}
    for role, said in _SPEECH.findall(read_text(str(path))[0]):
        roles[role] = roles.get(role, "") + said.strip("\n") + "\n"
    return _longest_first(roles), path.name


def _longest_first(roles: Mapping[str, str]) -> dict[str, str]:
    return dict(sorted(roles.items(), key=lambda role: (-len(role[1]), role[0])))


class CharacterWindows:
    """Source of windows of a text, made when they are needed: examples are numbers of `context` characters.

    Arguments:
    - `numbers`: of the text's characters, int (n,).
    - `starts`: where each window begins, int (examples,).
    - `context`: characters of a window.
    """

    def __init__(self, numbers: np.ndarray, starts: np.ndarray, context: int) -> None:
        self.numbers, self.starts, self.context = numbers, starts, context
        self.shape = (len(starts), context)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        return self.numbers[self.starts[indices][:, None] + np.arange(self.context)].astype(np.float32)

    @property
    def labels(self) -> np.ndarray:
        """The numbers of the characters after each window, int32 (examples,)."""
        return self.numbers[self.starts + self.context].astype(np.int32)


def draw_windows(numbers: np.ndarray, count: int, context: int, rng: np.random.Generator) -> Windows:
    """(`count` windows of `context` characters' numbers, float32; the numbers of the characters after each, int32)."""
    starts = rng.integers(0, len(numbers) - context, count)[:, None] + np.arange(context)
    return numbers[starts].astype(np.float32), numbers[starts + 1].astype(np.int32)


class _Tenths(Callback):
    """Logs the loss of each tenth, and notes when it ends."""

    def __init__(self, log: Log = silent) -> None:
        self.log, self.ends = log, [time.perf_counter()]

    def on_epoch_begin(self, epoch: int, logs: Any) -> None:
        if len(self.ends) == 1:
            self.ends = [time.perf_counter()]

    def on_epoch_end(self, epoch: int, logs: Any) -> None:
        self.ends.append(time.perf_counter())
        self.log(f"{(epoch + 1) / EPOCHS:.0%} of the updates: loss {logs['loss']:.3f}")

    @property
    def seconds(self) -> float:
        """Of a tenth, in the median of those after the first; NaN if none of this process was whole."""
        took = np.diff(self.ends)
        return float(np.median(took[1:] if len(took) > 1 else took)) if len(took) else float("nan")


@dataclass(kw_only=True, repr=False)
class CharactersTraining(Training[CharactersConfig]):
    """A training on the characters of a text. An epoch is a tenth of the updates.

    Arguments: those of Training, whose `train` and `test` are the numbers of characters, twice each, and
    - `source`: where the text is from. `tenths`: logs and times epochs (default: silent).
    """

    source: str
    tenths: _Tenths = field(default_factory=_Tenths)

    @property
    def steps(self) -> int:
        """Updates of an epoch."""
        return -(-self.config.steps // EPOCHS)

    @cached_property
    def phases(self) -> Phases:
        plan = self.model.plan(batch_size=self.config.batch_size, budget=self.config.budget)
        return Phases(train=plan, test=self.model.forward_plan())

    def fit(self, callbacks: Sequence[Callback] = ()) -> None:
        """Train on windows that are drawn one after the other from the seed: those of earlier epochs are drawn again,
        and left."""
        config, rng = self.config, np.random.default_rng(self.config.seed)

        def batches() -> Iterator[Windows]:
            while True:
                yield draw_windows(self.train[0], config.batch_size, config.context, rng)

        drawn = batches()
        for _ in range(self.model.position.epoch * self.steps):
            next(drawn)
        self.model.fit(
            drawn, epochs=EPOCHS, steps_per_epoch=self.steps, budget=config.budget,
            callbacks=[self.tenths, *callbacks], verbose=0,
        )  # fmt: skip

    def result(self, losses: Sequence[float]) -> CharactersResult:
        """Test the model on windows of the text's end, and let it write. `losses`: by tenths."""
        config, learner = self.config, self.model
        windows = draw_windows(self.test[0], config.tests, config.context, np.random.default_rng([config.seed, 1]))
        found = learner.evaluate(*windows)
        alphabet = list(learner.class_names)
        written = write_text(learner, alphabet, config.sample, config.temperature, config.seed) if config.sample else ""
        plan = self.phases["train"]
        return CharactersResult(
            self.source, len(alphabet), learner.network.count(), float(found["loss"]), float(found["accuracy"]),
            tuple(map(float, losses)), 1e3 * self.tenths.seconds / self.steps, plan.peak_bytes, account(plan).stored,
            learner.device.id, written,
        )  # fmt: skip


def load_characters(config: CharactersConfig) -> CharactersTraining:
    """Load the text and the network. Raises DataError for a text that is too short, or a file that can't be read."""
    text, source = read_text(config.text)
    alphabet = sorted(set(text))
    numbers = np.array([*map({c: n for n, c in enumerate(alphabet)}.get, text)], np.int32)
    train, test = np.split(numbers, [round(len(numbers) * (1 - TEST_SHARE))])
    if len(test) <= config.context:
        raise DataError(
            f"The text, {source}, has {len(text):,} characters: its last tenth is to be longer than the context of "
            f"{config.context}. Give a longer text with --text, or a smaller --context."
        )
    network = gpt(len(alphabet), config.context, config.layers, config.heads, config.channels, config.dropout)
    learner = Model(network, gpt_weights(network, config.seed), device=config.device, seed=config.seed)
    learner.class_names = tuple(alphabet)
    rate = CosineDecay(
        config.learning_rate, decay_steps=config.steps, warmup_steps=min(100, config.steps // 2), alpha=0.1
    )
    learner.compile(AdamW(rate, beta_2=0.99, weight_decay=0.1, global_clipnorm=1.0), compute=config.compute)
    description = f"{source}: {len(text):,} characters, {len(alphabet)} different ones; {network.count():,} parameters"
    data = {
        "origin": f"{source} {hashlib.sha256(text.encode()).hexdigest()[:12]}", "description": description,
        "classes": alphabet, "train": len(train), "test": len(test),
    }  # fmt: skip
    return CharactersTraining(
        config=config, model=learner, train=(train, train), test=(test, test), epochs=EPOCHS,
        batch_size=config.batch_size, finish=_finish, data=data, weights=drawn_weights(config.seed),
        sources=[description], source=source,
    )  # fmt: skip


def _finish(training: CharactersTraining, run: Run, seconds: float) -> tuple[dict[str, Any], str]:
    rows = run.history()
    found = training.result([row["loss"] for row in rows])
    save_model(run, training.model, training.model.class_names)
    figures.plot_learning_curves(rows, run.folder / "curves.png")
    results = found.to_dict() | {"epochs": EPOCHS, "seconds": seconds, "memory": training.memory()}
    return plain(results), f"{found.table()}\n{found.written}"


def _resolve(config: CharactersConfig) -> CharactersConfig:
    """A text's path, so that the run can be continued from any folder."""
    return replace(config, text=str(Path(config.text).resolve())) if config.text else config


CharactersExperiment = Experiment("characters", CharactersConfig, load_characters, resolve=_resolve)


def train_characters(
    config: CharactersConfig | None = None, *, model: str | Path | None = None, log: Log = silent
) -> CharactersResult:
    """Train a GPT on a text, test it on its end, and let it write; no run is kept.

    Arguments:
    - `config`: the settings (default: those of nanoGPT's small run).
    - `model`: a file to save the trained model in (default None: none).
    - `log`: gets lines on the progress (default: nobody).

    Raises DataError for a text that is too short, or a file that can't be read.
    """
    training = load_characters(config or CharactersConfig())
    training.tenths.log = log
    log(training.sources[0])
    history = History()
    training.fit([history])
    if model is not None:
        training.model.save(model)
    return training.result(history.history["loss"])


def write_text(model: Model, alphabet: list[str], count: int, temperature: float = 0.8, seed: int = 0) -> str:
    """Let a model of `train_characters` write `count` characters, each drawn from its predictions.

    Arguments:
    - `model`, `alphabet`: the model and the characters in the order of their numbers.
    - `count`: number of characters.
    - `temperature`: divides the logits (default 0.8).
    - `seed`: of the draws (default 0).
    """
    (context,), rng = model.network.input_shape, np.random.default_rng([seed, 2])
    numbers = [alphabet.index("\n") if "\n" in alphabet else 0]
    for _ in range(count):
        seen = numbers[-context:]
        x = np.zeros((1, context), np.float32)
        x[0, : len(seen)] = seen
        numbers.append(draw(model.predict(x)[0, len(seen) - 1], temperature, None, rng))
    return "".join(alphabet[number] for number in numbers[1:])


def stream_text(
    model: Model, begin: str = "", count: int = 200, temperature: float = 0.8, seed: int = 0
) -> Iterator[str]:  # fmt: skip
    """Yield the characters that a model writes after others, each as it is drawn. Keys and values of earlier characters
    are kept on the device, so that each takes one step of the network. Where the context is full, its later half is
    what the model goes on from.

    >>> for character in stream_text(el.load("mine.safetensors"), "TO BE", 500): print(character, end="", flush=True)

    Arguments:
    - `model`: of `train_characters`, or from the file of one.
    - `begin`: text to go on from (default: a line's end).
    - `count`: number of characters (default 200).
    - `temperature`: divides the logits; 0 takes the most probable character (default 0.8).
    - `seed`: of the draws (default 0).

    Raises DataError for a model of something else, or a character that it doesn't know.
    """
    alphabet, shape = list(model.class_names), model.network.input_shape
    if len(shape) != 1 or model.network.output.shape != (*shape, len(alphabet)):
        raise DataError(f"'{model.network.name}' writes no characters: take a model that `edgelearn characters` saved.")
    if unknown := sorted(set(begin) - set(alphabet)):
        raise DataError(f"The model doesn't know {unknown[0]!r}: it was in no line of its text. Begin without it.")
    steps, weights = gpt_by_steps(model.network, model.weights)
    writer, rng = Model(steps, weights, device=model.device.id, seed=0), np.random.default_rng([seed, 2])
    (context,), place = shape, 0
    seen = [alphabet.index(each) for each in begin] or [alphabet.index("\n") if "\n" in alphabet else 0]
    for _ in range(count):
        if len(seen) > context:
            seen, place = seen[-max(1, context // 2) :], 0
        logits = np.empty(0)
        while place < len(seen):
            step = {"token": np.full((1, 1), seen[place], np.float32), "position": np.full((1, 1), place, np.float32)}
            logits, place = writer.predict_on_batch(step).reshape(-1), place + 1
        seen.append(draw(logits, temperature, None, rng))
        yield alphabet[seen[-1]]
