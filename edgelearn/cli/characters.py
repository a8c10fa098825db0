"""The next character of a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgelearn.experiments.characters import CharactersConfig, train_characters

from .answer import log, show
from .parser import command, setting


@command("characters", one={
    "text, device": "names", "characters, parameters": "different characters of the text; trained values",
    "loss, perplexity, accuracy": "on windows of the text's end", "losses": "of the training, by tenths",
    "milliseconds": "of an update", "planned, stored": "bytes of the plan; of activations that it stores",
    "written": "what the model wrote",
})  # fmt: skip
def characters(
    config: CharactersConfig,
    model: Path | None = setting(None, "save the trained model there (.safetensors)", metavar="FILE"),
) -> dict[str, Any]:
    """Train a small GPT on a text, character by character, test it on the text's end, and let it write."""
    found = train_characters(config, model=model, log=log)
    show(found.table())
    print(found.written)
    return found.to_dict()
