"""The next character of a text, learned by a small GPT as in nanoGPT's runs (github.com/karpathy/nanoGPT).

    edgelearn characters                    # EDGELEARN_DATA's tinyshakespeare, else drawn sums such as "12+7=19"
    edgelearn characters --text mine.txt    # a text of your own

Guide: docs/guides/sequences.md.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import exp
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.compile import account
from edgelearn.display import megabytes
from edgelearn.errors import DataError
from edgelearn.models.language import gpt, gpt_weights
from edgelearn.ops import AdamW
from edgelearn.tables import Table
from edgelearn.train import Callback, CosineDecay, Model

from .config import Config, device_setting, setting
from .experiment import Log, silent

FILE = "sequences/tinyshakespeare.txt"  # in the folder that EDGELEARN_DATA names
SUMS = 20_000  # lines of the drawn text
TEST_SHARE = 0.1  # of the text, at its end
EPOCHS = 10  # that a training is logged in
Windows = tuple[np.ndarray, np.ndarray]


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


def draw_windows(numbers: np.ndarray, count: int, context: int, rng: np.random.Generator) -> Windows:
    """(`count` windows of `context` characters' numbers, float32; the numbers of the characters after each, int32)."""
    starts = rng.integers(0, len(numbers) - context, count)[:, None] + np.arange(context)
    return numbers[starts].astype(np.float32), numbers[starts + 1].astype(np.int32)


class _Tenths(Callback):
    """Logs the loss of each tenth, and notes when it ends."""

    def __init__(self, log: Log) -> None:
        self.log, self.ends = log, [time.perf_counter()]

    def on_epoch_end(self, epoch: int, logs: Any) -> None:
        self.ends.append(time.perf_counter())
        self.log(f"{(epoch + 1) / EPOCHS:.0%} of the updates: loss {logs['loss']:.3f}")


def train_characters(
    config: CharactersConfig | None = None, *, model: str | Path | None = None, log: Log = silent
) -> CharactersResult:
    """Train a GPT on a text, test it on its end, and let it write.

    Arguments:
    - `config`: the settings (default: those of nanoGPT's small run).
    - `model`: a file to save the trained model in (default None: none).
    - `log`: gets lines on the progress (default: nobody).

    Raises DataError for a text that is too short, or a file that can't be read.
    """
    config = config or CharactersConfig()
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
    tenth = -(-config.steps // EPOCHS)
    rate = CosineDecay(
        config.learning_rate, decay_steps=config.steps, warmup_steps=min(100, config.steps // 2), alpha=0.1
    )
    learner.compile(AdamW(rate, beta_2=0.99, weight_decay=0.1, global_clipnorm=1.0))
    rng, tenths = np.random.default_rng(config.seed), _Tenths(log)

    def batches() -> Iterator[Windows]:
        while True:
            yield draw_windows(train, config.batch_size, config.context, rng)

    log(f"{source}: {len(text):,} characters, {len(alphabet)} different ones; {network.count():,} parameters")
    history = learner.fit(
        batches(), epochs=EPOCHS, steps_per_epoch=tenth, budget=config.budget, callbacks=[tenths]
    ).history  # fmt: skip
    plan = learner.plan(batch_size=config.batch_size, budget=config.budget)
    windows = draw_windows(test, config.tests, config.context, np.random.default_rng([config.seed, 1]))
    found = learner.evaluate(*windows)
    if model is not None:
        learner.save(model)
    written = write_text(learner, alphabet, config.sample, config.temperature, config.seed) if config.sample else ""
    seconds = np.median(np.diff(tenths.ends)[1:]) / tenth
    return CharactersResult(
        source, len(alphabet), network.count(), float(found["loss"]), float(found["accuracy"]),
        tuple(map(float, history["loss"])), 1e3 * float(seconds), plan.peak_bytes, account(plan).stored,
        learner.device.id, written,
    )  # fmt: skip


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
        logits = model.predict(x)[0, len(seen) - 1].astype(np.float64) / temperature
        weights = np.exp(logits - logits.max())
        numbers.append(int(rng.choice(len(alphabet), p=weights / weights.sum())))
    return "".join(alphabet[number] for number in numbers[1:])
