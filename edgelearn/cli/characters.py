"""The next character of a text: train a model, and let it write."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from edgelearn.experiments.characters import CharactersConfig, CharactersExperiment, stream_text
from edgelearn.experiments.config import setting
from edgelearn.experiments.tasks import FILE
from edgelearn.lab.runs import RunStore
from edgelearn.train import load

from .answer import Answer
from .parser import DEVICE, RESUME, RUNS, argument, command, writable
from .training import train

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
def write(
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
