"""Language models: adapters for a text of your own, and what a model writes with them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from edgelearn.display import megabytes
from edgelearn.experiments.config import setting
from edgelearn.experiments.language import BASE_HELP, Adapted, LanguageConfig, LanguageExperiment
from edgelearn.interop.llama import write_llama
from edgelearn.lab.runs import RunStore

from .answer import Answer, log
from .parser import DEVICE, RESUME, RUNS, argument, command, writable
from .training import TRAINING, train

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
