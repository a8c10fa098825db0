"""Trainings on sequences: motion, characters, sentences, and texts for language models."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from edgelearn.display import megabytes
from edgelearn.experiments.activity import ActivityConfig, ActivityExperiment, leave_one_out
from edgelearn.experiments.characters import CharactersConfig, CharactersExperiment, stream_text
from edgelearn.experiments.config import setting
from edgelearn.experiments.intents import IntentsConfig, IntentsExperiment, classify
from edgelearn.experiments.language import BASE_HELP, Adapted, LanguageConfig, LanguageExperiment
from edgelearn.experiments.tasks import FILE, load_model
from edgelearn.interop.llama import write_llama
from edgelearn.lab.runs import RunStore
from edgelearn.tables import Table
from edgelearn.train import ProgressBar, load

from .answer import Answer, log, show, shown
from .parser import DEVICE, GROUPS, MARKDOWN, RESUME, RUNS, argument, command, writable
from .training import TRAINING, train

GROUPS[
    "activity"
] = """Activity recognition from the motion sensors of phones and watches, tested on people who were left out.

`train` leaves one person out, `people` each in turn. Without data people are drawn."""
GROUPS["intents"] = "Intent classification: train a network on sentences, and let it classify others."
GROUPS["language"] = "Language models: adapters for a text of your own, and what a model writes with them."


@command("activity train", "leave one person out", one=TRAINING | {
    "results": "as of the other trainings, and personal: accuracy on all recordings but the first, before and after "
    "training on that; null after an interrupt",
})  # fmt: skip
def train_one(config: ActivityConfig, runs: RunStore = RUNS, resume: str | None = RESUME) -> Answer:
    return train(ActivityExperiment, config, runs, resume)


@command("activity people", "leave each person out in turn", one={
    "network, sensors, precision, device, description": "names, and the data in words",
    "accuracy, lift": "means over the people, and half of their 95 % intervals: of the accuracy, and of what a "
    "person's first recording adds", "median, published": "accuracy: median over the people, and "
    "that of the study, or null",
    "people": "by person: accuracy, run, and before and after training on the first recording",
}, skip=("person",))  # fmt: skip
def people(
    config: ActivityConfig,
    people: tuple[str, ...] = setting((), "names (default: everybody)", metavar="NAME"),
    markdown: bool = MARKDOWN,
    runs: RunStore = RUNS,
) -> dict[str, Any]:
    """Train without each person in turn, and test on that person.

    Each training is a run; the same command finds finished ones again and continues an interrupted one.
    """
    return shown(leave_one_out(config, people, store=runs, log=log, callbacks=lambda: [ProgressBar()]), markdown)


RESULTS = {
    "text, device": "names", "characters, parameters": "different characters of the text; trained values",
    "loss, perplexity, accuracy": "on windows of the text's end", "losses": "of the training, by tenths",
    "milliseconds": "of an update", "planned, stored": "bytes of the plan; of activations that it stores",
    "written": "what the model wrote",
}  # fmt: skip


@command("characters", one=RESULTS | {"run": "id of the run", "status": "finished, or interrupted (exit status 130); "
                                      "then all others are null"})  # fmt: skip
def characters(
    config: CharactersConfig,
    model: Path | None = setting(
        None, "save the trained model there (.safetensors)", check=writable, metavar="FILE"
    ),
    runs: RunStore = RUNS,
    resume: str | None = RESUME,
) -> Answer:  # fmt: skip
    """Train a small GPT on a text, character by character, test it on the text's end, and let it write.

    Ctrl-C saves at a step boundary, --resume continues with the same bits.
    """
    found = train(CharactersExperiment, config, runs, resume)
    run, results = found.record["run"], found.record["results"] or {}
    if model and results:
        shutil.copyfile(runs.open(run).folder / FILE, model)
    record = {name: results.get(name) for names in RESULTS for name in names.split(", ")}
    return Answer(record | {"run": run, "status": found.record["status"]}, found.status)


@command("write", one={"model": "the file", "written": "the text", "seconds": "of the writing"})
def write_characters(
    model: str = argument(
        help="a file that `characters` saved, or a run of it, by its id or the start", metavar="MODEL"
    ),
    begin: str = setting("", "text to go on from", metavar="TEXT"),
    count: int = setting(500, "characters", minimum=1),
    temperature: float = setting(0.8, "divides the logits; 0 takes the most probable character", minimum=0),
    seed: int = setting(0, "of the draws", minimum=0),
    runs: RunStore = RUNS,
    device: str | None = DEVICE,
) -> dict[str, Any]:
    """Let a model of `characters` write, each character as it is drawn, with keys and values of earlier ones kept."""
    path = Path(model) if Path(model).is_file() else runs.open(model).folder / FILE
    began, written = time.perf_counter(), []
    print(begin, end="")
    for each in stream_text(load(path, device=device), begin, count, temperature, seed):
        print(each, end="", flush=True)
        written.append(each)
    print()
    return {"model": str(path), "written": "".join(written), "seconds": time.perf_counter() - began}


@command("intents train", "train on sentences and their intents", one=TRAINING | {
    "results": "as of the other trainings, of sentences that neither training nor validation had, and validation: "
    "accuracy; least: the probability that 95 % of the validation's sentences reach; refused: share of the sentences "
    "of no known intent that don't; null after an interrupt",
})  # fmt: skip
def train_intents(config: IntentsConfig, runs: RunStore = RUNS, resume: str | None = RESUME) -> Answer:
    return train(IntentsExperiment, config, runs, resume)


@command("intents ask", "what sentences ask for", many={
    "text": "the sentence", "intent": "the most probable one", "probability": "its share, from 0 to 1",
})  # fmt: skip
def ask(
    run: str = argument(help="a run of `intents train`, by its id or the start", metavar="RUN"),
    texts: tuple[str, ...] = argument(help="sentences", metavar="TEXT"),
    runs: RunStore = RUNS,
    device: str | None = DEVICE,
) -> list[Any]:
    found = classify(load_model(runs.open(run), device), texts)
    rows = [
        {"text": text, "intent": intent, "probability": probability}
        for text, (intent, probability) in zip(texts, found, strict=True)
    ]
    show(Table(("text", "intent", "probability"), [(r["text"], r["intent"], f"{r['probability']:.1%}") for r in rows]))
    return rows


BASE = setting(None, BASE_HELP, metavar="GGUF")
ADAPTERS = setting(None, "a folder of adapters, of a run or of peft (default: the model as it is)", metavar="DIR")


@command("language train", "train adapters on a text", one=TRAINING | {
    "results": "loss and perplexity on the text's last tenth, before: perplexity before training, tokens_per_second, "
    "memory in bytes, adapters: their folder, prompt and written: a text; null after an interrupt",
})  # fmt: skip
def train_adapters(config: LanguageConfig, runs: RunStore = RUNS, resume: str | None = RESUME) -> Answer:
    """Train low-rank adapters of a language model on a text.

    The model's weights stay in the file's blocks of few bits. Ctrl-C saves at a step boundary, --resume continues.
    """
    return train(LanguageExperiment, config, runs, resume)


@command("language write", "let a model write", one={
    "prompt, written": "texts", "tokens_per_second": "of what was read and written, without the time to begin",
})  # fmt: skip
def write(
    prompt: str = argument(help="beginning of the text"),
    adapters: Path | None = ADAPTERS,
    base: str | None = BASE,
    tokens: int = setting(100, "most tokens to write", minimum=1),
    temperature: float = setting(0.8, "divides the logits; 0 takes the most probable token", minimum=0),
    top_k: int | None = setting(40, "draw among so many of the most probable tokens", minimum=1),
    seed: int = setting(0, "of the draws", minimum=0),
    device: str | None = DEVICE,
) -> dict[str, Any]:
    """Let a language model go on with a text, piece by piece as it is drawn."""
    model, pieces, times = Adapted.read(adapters, base, device), [], []
    print(prompt, end="", flush=True)
    for piece in model.write(prompt, tokens, temperature=temperature, top_k=top_k, seed=seed):
        pieces.append(piece)
        times.append(time.perf_counter())
        print(piece, end="", flush=True)
    print()
    rate = (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else None
    return {"prompt": prompt, "written": "".join(pieces), "tokens_per_second": rate}


@command("language merge", "write a model with its adapters as one GGUF file", one={
    "file": "its path", "bytes": "its size",
})  # fmt: skip
def merge(
    adapters: Path = setting(help="a folder of adapters, of a run or of peft", metavar="DIR"),
    to: Path = setting(help="the file to write (.gguf)", check=writable, metavar="GGUF"),
    base: str | None = BASE,
    format: str = setting("Q8_0", "of the sums", choices=("Q8_0", "Q4_1", "Q4_0", "F16")),  # noqa: A002
) -> dict[str, Any]:
    """Add adapters to a model's weights and write them as GGUF, for llama.cpp or here."""
    write_llama(to.with_suffix(".gguf"), Adapted.read(adapters, base).merged(format))
    found = to.with_suffix(".gguf")
    log(f"{found}: {megabytes(found.stat().st_size)}")
    return {"file": str(found), "bytes": found.stat().st_size}
