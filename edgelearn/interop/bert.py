"""BERT encoders in Hugging Face's files: config.json, model.safetensors and tokenizer.json, in a folder or ZIP archive.

Matrices are (outputs, inputs) there. Every token is of the first type, whose row is added to the positions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np

from edgelearn import atomic
from edgelearn.errors import FormatError
from edgelearn.graph import Network
from edgelearn.models.language import BertSizes

from .safetensors import from_bytes, to_bytes
from .weights import Weights

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
# Parts of a block: their names here and in the file.
NORMS = {"norm1": "attention.output.LayerNorm", "norm2": "output.LayerNorm"}
PARTS = {
    "query": "attention.self.query", "key": "attention.self.key", "value": "attention.self.value",
    "mixed": "attention.output.dense", "wide": "intermediate.dense", "narrow": "output.dense",
}  # fmt: skip
# In config.json, in the order of BertSizes.
SIZES = (
    "vocab_size", "num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size",
    "max_position_embeddings",
)  # fmt: skip
# Settings that change what a BERT computes, and their only values that are known here.
KNOWN = {
    "model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute", "pad_token_id": 0,
    "is_decoder": False,
}  # fmt: skip


@dataclass(frozen=True)
class Bert:
    """A BERT of files: networks of any context are made of it.

    Arguments:
    - `sizes`: its sizes.
    - `weights`: by "layer/role" of `edgelearn.models.language.bert`; "positions/bias" has all positions.
    - `tokenizer`: the text of tokenizer.json, for `tokenizers.Tokenizer.from_str`.
    """

    sizes: BertSizes
    weights: Weights
    tokenizer: str

    def weights_of(self, network: Network, seed: int = 0) -> Weights:
        """The weights for one of its networks; those that it lacks, of classes, are drawn from `seed`."""
        missing = [name for name in network.parameters if name not in self.weights]
        found = {**self.weights, **network.initialize(seed, names=missing)}
        found["positions/bias"] = found["positions/bias"][: network.input_shape[0]]
        return {name: found[name] for name in network.parameters}


def read_bert(path: str | Path) -> Bert:
    """Read a BERT.

    Arguments:
    - `path`: a folder, or a ZIP archive, with config.json, model.safetensors and tokenizer.json.

    Raises FormatError for files that are missing, damaged, or describe another network, naming them.
    """
    path = Path(path)
    try:
        if path.is_dir():
            contents = {name: (path / name).read_bytes() for name in (CONFIG, WEIGHTS, TOKENIZER)}
        else:
            with ZipFile(path) as archive:
                contents = {name: archive.read(name) for name in (CONFIG, WEIGHTS, TOKENIZER)}
    except (OSError, KeyError, BadZipFile, RuntimeError, EOFError) as error:
        raise FormatError(
            f"{path} can't be read as an encoder ({error}). Give a folder, or a ZIP archive, with {CONFIG}, {WEIGHTS} "
            f"and {TOKENIZER}, as Hugging Face's models have them."
        ) from None
    sizes = _sizes(path, contents[CONFIG])
    weights = _weights(path, sizes, from_bytes(contents[WEIGHTS], f"{path}: {WEIGHTS}"))
    return Bert(sizes, weights, contents[TOKENIZER].decode(errors="replace"))


def write_bert(folder: str | Path, model: Bert) -> None:
    """Write a BERT for `read_bert`, and for transformers' `BertModel.from_pretrained(folder)`.

    Arguments:
    - `folder`: is made if it isn't there.
    - `model`: weights that it has besides a BERT's, such as those of classes, are left out.

    Raises RunError if a file can't be written.
    """
    sizes, found = model.sizes, Weights()
    found["embeddings.word_embeddings.weight"] = model.weights["tokens/embeddings"]
    found["embeddings.position_embeddings.weight"] = model.weights["positions/bias"]
    found["embeddings.token_type_embeddings.weight"] = np.zeros((1, sizes.channels), np.float32)  # is in the positions
    for layer, name in _norms(sizes).items():
        found[f"{name}.weight"], found[f"{name}.bias"] = model.weights[f"{layer}/gamma"], model.weights[f"{layer}/beta"]
    for layer, name, _ in _matrices(sizes):
        found[f"{name}.weight"], found[f"{name}.bias"] = (
            model.weights[f"{layer}/kernel"].T,
            model.weights[f"{layer}/bias"],
        )
    config = KNOWN | dict(zip(SIZES, astuple(sizes), strict=False)) | {
        "architectures": ["BertModel"], "type_vocab_size": 1, "layer_norm_eps": sizes.epsilon,
    }  # fmt: skip
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    atomic.write_bytes(folder / WEIGHTS, to_bytes(found))
    atomic.write_json(folder / CONFIG, config)
    atomic.write_bytes(folder / TOKENIZER, model.tokenizer.encode())


def _norms(sizes: BertSizes) -> dict[str, str]:
    """Names of layer normalizations in the file, by layer."""
    blocks = {
        f"block{number + 1}_{part}": f"encoder.layer.{number}.{name}"
        for number in range(sizes.layers)
        for part, name in NORMS.items()
    }
    return {"embedded": "embeddings.LayerNorm", **blocks}


def _matrices(sizes: BertSizes) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """(layer, name in the file, (outputs, inputs)) of all dense layers."""
    shapes = {"wide": (sizes.hidden, sizes.channels), "narrow": (sizes.channels, sizes.hidden)}
    for number in range(sizes.layers):
        for part, name in PARTS.items():
            shape = shapes.get(part, (sizes.channels, sizes.channels))
            yield f"block{number + 1}_{part}", f"encoder.layer.{number}.{name}", shape


def _sizes(path: Path, content: bytes) -> BertSizes:
    try:
        config: dict[str, Any] = json.loads(content)
        for name, value in KNOWN.items():
            if config.get(name, value) != value:
                raise FormatError(
                    f"{path}: {CONFIG} has {name} = {config[name]!r:.40}, and only {value!r} is known here. Give "
                    f"another model."
                )
        numbers = [config[name] for name in SIZES]
        epsilon = float(config.get("layer_norm_eps", 1e-12))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{path}: {CONFIG} doesn't describe a BERT ({error!r:.80}). Give another model.") from None
    if any(not isinstance(number, int) or number < 1 for number in numbers) or numbers[3] % numbers[2]:
        raise FormatError(f"{path}: {CONFIG} has sizes that don't fit each other. Give another model, or restore it.")
    return BertSizes(*numbers, epsilon=epsilon)


def _weights(path: Path, sizes: BertSizes, tensors: Weights) -> Weights:
    tensors = {name.removeprefix("bert."): array for name, array in tensors.items()}

    def take(name: str, *shape: int) -> np.ndarray:
        array = tensors.get(name)
        if array is None or array.shape != shape or array.dtype.kind != "f":
            raise FormatError(
                f"{path}: {WEIGHTS} has no '{name}' of shape {shape}: it is damaged, or no BERT. Give another model."
            )
        return array.astype(np.float32, copy=False)

    c, found = sizes.channels, Weights()
    found["tokens/embeddings"] = take("embeddings.word_embeddings.weight", sizes.vocabulary, c)
    types = tensors.get("embeddings.token_type_embeddings.weight", np.zeros((0, 0)))
    first = take("embeddings.token_type_embeddings.weight", len(types), c)[:1].sum(0)
    found["positions/bias"] = take("embeddings.position_embeddings.weight", sizes.context, c) + first
    for layer, name, shape in _matrices(sizes):
        found[f"{layer}/kernel"] = np.ascontiguousarray(take(f"{name}.weight", *shape).T)
        found[f"{layer}/bias"] = take(f"{name}.bias", shape[0])
    for layer, name in _norms(sizes).items():
        found[f"{layer}/gamma"], found[f"{layer}/beta"] = take(f"{name}.weight", c), take(f"{name}.bias", c)
    return found
