"""Low-rank adapters of a Llama in peft's files: adapter_model.safetensors and adapter_config.json in a folder.

peft names modules as Hugging Face's transformers, where rotary positions turn the halves of a head; GGUF and llama2.c
turn neighbouring channels. Rows of the adapters of queries and keys change their order on the way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn import atomic, records
from edgelearn.errors import FormatError
from edgelearn.models.language import LlamaSizes

from .llama import MODULES
from .safetensors import read_weights, to_bytes
from .weights import Weights

WEIGHTS_FILE, CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"
_NAME = re.compile(r"base_model\.model\.model\.layers\.(\d+)\.(.+)\.lora_(A|B)\.weight")


def write_adapters(
    folder: str | Path, sizes: LlamaSizes, adapters: Mapping[str, np.ndarray], base: str = ""
) -> None:  # fmt: skip
    """Write adapters for peft's `PeftModel.from_pretrained(model, folder)`.

    Arguments:
    - `folder`: is made if it isn't there.
    - `sizes`: of the model.
    - `adapters`: "block1_query_down/kernel" and "block1_query_up/kernel" by name, as edgelearn.graph.Branches calls
      them; other names are ignored.
    - `base`: name of the model that they are for (default none).

    Raises RunError if a file can't be written.
    """
    folder, tensors, modules, rank = Path(folder), Weights(), set[str](), 0
    for name, kernel in adapters.items():
        layer, _, end = name.removesuffix("/kernel").rpartition("_")
        if end not in ("down", "up") or layer.partition("_")[2] not in MODULES:
            continue
        number, _, part = layer.removeprefix("block").partition("_")
        module = f"base_model.model.model.layers.{int(number) - 1}.{MODULES[part]}"
        modules.add(MODULES[part].rpartition(".")[2])
        if end == "down":
            tensors[f"{module}.lora_A.weight"], rank = kernel.T, kernel.shape[1]
        else:
            tensors[f"{module}.lora_B.weight"] = _reordered(sizes, part, kernel.T, to_halves=True)
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "r": rank, "lora_alpha": rank,
        "lora_dropout": 0.0, "bias": "none", "inference_mode": True, "target_modules": sorted(modules),
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    atomic.write_bytes(folder / WEIGHTS_FILE, to_bytes(tensors))
    atomic.write_json(folder / CONFIG_FILE, config)


def read_adapters(folder: str | Path, sizes: LlamaSizes) -> Weights:
    """Read adapters of peft for a model of `sizes`, under the names that `write_adapters` takes, with lora_alpha / r in
    the upper factor. Raises FormatError for files that are missing, damaged or of another kind or model."""
    folder = Path(folder)
    try:
        config: Any = records.read(folder / CONFIG_FILE, dict)
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
    except (OSError, records.RecordError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{folder} holds no adapters of peft ({error}): name a folder with {CONFIG_FILE}.") from None
    parts, found = {module: part for part, module in MODULES.items()}, Weights()
    factor = alpha / (rank**0.5 if config.get("use_rslora") else rank)
    for name, array in read_weights(folder / WEIGHTS_FILE).items():
        match = _NAME.fullmatch(name)
        if not match or match[2] not in parts or int(match[1]) >= sizes.layers or array.ndim != 2:
            raise FormatError(f"{folder}: '{name:.100}' is no adapter of a dense layer of this model.")
        layer, kernel = f"block{int(match[1]) + 1}_{parts[match[2]]}", np.asarray(array.T, np.float32)
        if match[3] == "A":
            found[f"{layer}_down/kernel"] = np.ascontiguousarray(kernel)
        else:
            rows = _reordered(sizes, parts[match[2]], kernel.T, to_halves=False)
            found[f"{layer}_up/kernel"] = np.ascontiguousarray(rows.T) * np.float32(factor)
    return found


def ranks_of(adapters: Mapping[str, np.ndarray]) -> dict[str, int]:
    """The rank of each layer's adapter, as edgelearn.graph.Branches takes them."""
    ends = "_down/kernel"
    return {name.removesuffix(ends): kernel.shape[1] for name, kernel in adapters.items() if name.endswith(ends)}


def _reordered(sizes: LlamaSizes, part: str, rows: np.ndarray, to_halves: bool) -> np.ndarray:
    """Rows (outputs, rank) of queries and keys in the order of transformers, or back; others as they are."""
    if part not in ("query", "key"):
        return rows
    size = sizes.channels // sizes.heads
    if rows.shape[0] % size:
        raise FormatError(f"An adapter with {rows.shape[0]} outputs is of another model: heads have {size} channels.")
    pair = (size // 2, 2) if to_halves else (2, size // 2)
    return rows.reshape(-1, *pair, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)
