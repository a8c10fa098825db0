"""Llama models in files: GGUF of llama.cpp, and llama2.c's own format; with the tokenizers that GGUF files describe,
and low-rank adapters in peft's files: adapter_model.safetensors and adapter_config.json in a folder.

Both keep matrices as (outputs, inputs) and turn neighbouring channels for rotary positions. llama2.c's format: seven
int32 (channels, hidden, layers, heads, heads of keys, vocabulary, negative if the logits have a table of their own,
context), then float32 weights, kind by kind (github.com/karpathy/llama2.c). peft names modules as Hugging Face's
transformers, where rotary positions turn the halves of a head: rows of the adapters of queries and keys change order.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn import atomic, records
from edgelearn.errors import FormatError
from edgelearn.graph import Network
from edgelearn.models.language import LlamaSizes, llama
from edgelearn.ops.block_formats import decode, encode

from .formats import FileFormat, register
from .gguf import GGUF, MAGIC, Tensor, read_gguf, write_gguf
from .safetensors import ModelFile, read_weights, to_bytes
from .weights import Weights

CONTEXT = 128  # steps of a network, unless it is told
# Parts of a block: their names here and in GGUF. Norms are vectors, the others matrices.
NORMS = {"norm1": "attn_norm", "norm2": "ffn_norm"}
PARTS = {
    "query": "attn_q", "key": "attn_k", "value": "attn_v", "mixed": "attn_output", "gate": "ffn_gate",
    "up": "ffn_up", "down": "ffn_down",
}  # fmt: skip
# Of the same model in Hugging Face's transformers, which peft's files name
MODULES = {
    "query": "self_attn.q_proj", "key": "self_attn.k_proj", "value": "self_attn.v_proj", "mixed": "self_attn.o_proj",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
}  # fmt: skip
DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva")  # each digit is a word
WORDS = ("gpt-2", "default", "mpt", "olmo", "jais")


@dataclass(frozen=True)
class Llama:
    """A Llama of a file: what networks of any context are made of.

    Arguments:
    - `sizes`: its sizes.
    - `weights`: by "layer/role" of `edgelearn.models.language.llama`; those in blocks stay in the file.
    - `formats`: block formats of matrices by layer; others are float32 (default none).
    - `metadata`: of the GGUF file (default none).
    """

    sizes: LlamaSizes
    weights: Weights
    formats: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def network(self, context: int = CONTEXT, cached: bool = False) -> Network:
        """The network over `context` steps, with all layers frozen if some weights are in blocks; `cached`: see
        `llama`."""
        network = llama(self.sizes, context, self.formats, cached)
        return network.freeze() if self.formats else network

    def weights_of(self, network: Network) -> Weights:
        """The weights for one of its networks: caches of keys and values begin as zeros."""
        missing = [name for name in network.parameters if name not in self.weights]
        return {**self.weights, **network.initialize(names=missing)}

    def merged(self, adapters: Mapping[str, np.ndarray], kind: str = "Q8_0") -> Llama:
        """The model with low-rank adapters added to its matrices.

        Arguments:
        - `adapters`: "layer_down/kernel" and "layer_up/kernel" by name, as edgelearn.graph.Branches calls them.
        - `kind`: block format of the sums where the matrix was in blocks (default "Q8_0"): sums in as few bits as
          before would lose most of what was trained.
        """
        weights, formats = dict(self.weights), dict(self.formats)
        for name in [name.removesuffix("_down/kernel") for name in adapters if name.endswith("_down/kernel")]:
            down, up = (adapters[f"{name}_{part}/kernel"].astype(np.float64) for part in ("down", "up"))
            if name in formats:
                rows = decode(weights[f"{name}/rows"], formats[name]) + (down @ up).T
                weights[f"{name}/rows"], formats[name] = encode(rows, kind), kind
            else:
                weights[f"{name}/kernel"] = (weights[f"{name}/kernel"] + down @ up).astype(np.float32)
        return replace(self, weights=weights, formats=formats)

    def tokenizer(self) -> Any:
        """The `tokenizers.Tokenizer` that the file describes. Raises FormatError if it describes none, or one of an
        unknown kind, or if the package tokenizers is missing."""
        return _tokenizer(self.metadata)


def read_llama(path: str | Path) -> Llama:
    """Read a Llama from a GGUF file, whose blocks stay in the file, or from llama2.c's format. Raises FormatError for
    other files, naming what is missing or unknown."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            is_gguf = file.read(4) == MAGIC
    except OSError as error:
        raise FormatError(f"{path} can't be read ({error.strerror}). Give a GGUF file, or llama2.c's.") from None
    return _of_gguf(path) if is_gguf else _of_llama2c(path)


def write_llama(path: str | Path, model: Llama) -> None:
    """Write a Llama as GGUF if the path ends in .gguf, in the formats that it has, else in llama2.c's format, float32.
    Raises RunError if it can't be written."""
    if Path(path).suffix.lower() == ".gguf":
        write_gguf(path, _to_gguf(model))
    else:
        _write_llama2c(path, model)


# -- GGUF ------------------------------------------------------------------------------------------------------------


def _names(sizes: LlamaSizes) -> Iterator[tuple[str, str, bool]]:
    """(layer, name in GGUF without ".weight", is a norm) of all weights."""
    yield "embedding", "token_embd", False
    for number in range(sizes.layers):
        for part, name in (NORMS | PARTS).items():
            yield f"block{number + 1}_{part}", f"blk.{number}.{name}", part in NORMS
    yield "norm", "output_norm", True
    if not sizes.tied:
        yield "logits", "output", False


def _of_gguf(path: Path) -> Llama:
    file = read_gguf(path)
    kind = file.metadata.get("general.architecture")
    if kind != "llama":
        raise FormatError(f"{path} has the architecture {kind!r:.40}, and only 'llama' is known here.")
    if "rope_freqs.weight" in file.tensors or file.metadata.get("llama.rope.scaling.type", "none") != "none":
        raise FormatError(f"{path} scales its rotary positions (Llama 3.1), which is unknown here. Give another model.")

    def entry(name: str, default: Any = None) -> Any:
        found = file.metadata.get(f"llama.{name}", default)
        if found is None:
            raise FormatError(f"{path} lacks llama.{name}: the file is damaged.")
        return found

    heads = entry("attention.head_count")
    table = _tensor(path, file, "token_embd")
    sizes = LlamaSizes(
        table.shape[0], entry("block_count"), entry("embedding_length"), entry("feed_forward_length"), heads,
        entry("attention.head_count_kv", heads), entry("rope.freq_base", 10000.0),
        float(f"{entry('attention.layer_norm_rms_epsilon'):.6g}"), "output.weight" not in file.tensors,
        entry("context_length"),
    )  # fmt: skip
    weights, formats = Weights(), dict[str, str]()
    for layer, name, is_norm in _names(sizes):
        tensor = _tensor(path, file, name)
        if is_norm:
            weights[f"{layer}/gamma"] = tensor.array
        elif tensor.kind == "F32":
            role, turned = ("embeddings", tensor.array) if layer == "embedding" else ("kernel", tensor.array.T)
            weights[f"{layer}/{role}"] = turned
        else:
            weights[f"{layer}/rows"], formats[layer] = tensor.array, tensor.kind
    return _checked(path, Llama(sizes, weights, formats, file.metadata))


def _tensor(path: Path, file: GGUF, name: str) -> Tensor:
    if f"{name}.weight" not in file.tensors:
        raise FormatError(f"{path} lacks '{name}.weight': it is no whole Llama.")
    return file.tensors[f"{name}.weight"]


def _checked(path: Path, model: Llama) -> Llama:
    """Raises FormatError for weights of other shapes than the sizes say."""
    for name, parameter in model.network(1).parameters.items():
        expected = parameter.weight.array_shape
        if name not in model.weights or model.weights[name].shape != expected:
            raise FormatError(f"{path}: '{name}' is not of shape {expected}: the file is damaged.")
    return model


def _to_gguf(model: Llama) -> GGUF:
    sizes = model.sizes
    metadata = {key: value for key, value in model.metadata.items() if not key.startswith("llama.")}
    metadata |= {
        "general.architecture": "llama", "llama.block_count": sizes.layers, "llama.context_length": sizes.context,
        "llama.embedding_length": sizes.channels, "llama.feed_forward_length": sizes.hidden,
        "llama.attention.head_count": sizes.heads, "llama.attention.head_count_kv": sizes.key_heads,
        "llama.rope.freq_base": float(sizes.base), "llama.rope.dimension_count": sizes.channels // sizes.heads,
        "llama.attention.layer_norm_rms_epsilon": sizes.epsilon, "llama.vocab_size": sizes.vocabulary,
    }  # fmt: skip
    tensors = {}
    for layer, name, is_norm in _names(sizes):
        if layer in model.formats:
            words, matrix = model.weights[f"{layer}/rows"], _shape_of(sizes, layer)
            tensors[f"{name}.weight"] = Tensor(model.formats[layer], matrix, words)
        else:
            array = model.weights[f"{layer}/gamma"] if is_norm else _rows(model, layer)
            tensors[f"{name}.weight"] = Tensor("F32", array.shape, array)
    return GGUF(metadata, tensors)


def _shape_of(sizes: LlamaSizes, layer: str) -> tuple[int, int]:
    """(outputs, inputs) of a matrix."""
    outer = {
        "mixed": sizes.channels, "query": sizes.channels, "key": sizes.key_channels, "value": sizes.key_channels,
        "gate": sizes.hidden, "up": sizes.hidden, "down": sizes.channels,
    }  # fmt: skip
    part = layer.rpartition("_")[2]
    return outer.get(part, sizes.vocabulary), sizes.hidden if part == "down" else sizes.channels


def _rows(model: Llama, layer: str) -> np.ndarray:
    """A matrix as (outputs, inputs), float32."""
    if layer in model.formats:
        return decode(model.weights[f"{layer}/rows"], model.formats[layer])
    if layer == "embedding":
        return model.weights["embedding/embeddings"]
    return np.ascontiguousarray(model.weights[f"{layer}/kernel"].T)


# -- llama2.c --------------------------------------------------------------------------------------------------------

KINDS = ("norm1", "query", "key", "value", "mixed", "norm2", "gate", "down", "up")  # in the order of the file


def _of_llama2c(path: Path) -> Llama:
    words = np.memmap(path, np.int32, "r", shape=(path.stat().st_size // 4,)) if path.stat().st_size >= 28 else None
    if words is None or min(abs(int(n)) for n in words[:7]) == 0 or (words[:5] < 0).any():
        raise FormatError(f"{path} is no Llama: give a GGUF file, or llama2.c's.")
    channels, hidden, layers, heads, key_heads, vocabulary, context = words[:7].tolist()
    if channels % heads or heads % key_heads:
        raise FormatError(f"{path} is no Llama: {heads} heads don't divide {channels} channels.")
    sizes = LlamaSizes(
        abs(vocabulary), layers, channels, hidden, heads, key_heads, tied=vocabulary > 0, context=context
    )  # fmt: skip
    values, at, weights = words[7:].view(np.float32), 0, Weights()

    def take(*shape: int) -> np.ndarray:
        nonlocal at
        start, at = at, at + int(np.prod(shape))
        if at > len(values):
            raise FormatError(f"{path} ends before its weights do: it is damaged, or no file of llama2.c.")
        return np.asarray(values[start:at]).reshape(shape)

    weights["embedding/embeddings"] = take(sizes.vocabulary, channels)
    for kind in KINDS:
        if kind in NORMS:
            arrays = {f"block{n + 1}_{kind}/gamma": gamma for n, gamma in enumerate(take(layers, channels))}
        else:
            shape = _shape_of(sizes, f"block_{kind}")
            arrays = {f"block{n + 1}_{kind}/kernel": matrix.T for n, matrix in enumerate(take(layers, *shape))}
        weights |= arrays
    weights["norm/gamma"] = take(channels)
    take(2, context, channels // heads // 2)  # cosines and sines of positions
    if not sizes.tied:
        weights["logits/kernel"] = take(sizes.vocabulary, channels).T
    return Llama(sizes, weights)


def _write_llama2c(path: str | Path, model: Llama) -> None:
    s, half = model.sizes, model.sizes.channels // model.sizes.heads // 2
    header = s.channels, s.hidden, s.layers, s.heads, s.key_heads, s.vocabulary * (1 if s.tied else -1), s.context
    parts = [_rows(model, "embedding")]
    for kind in KINDS:
        for number in range(1, s.layers + 1):
            layer = f"block{number}_{kind}"
            parts.append(model.weights[f"{layer}/gamma"] if kind in NORMS else _rows(model, layer))
    angles = np.arange(s.context)[:, None] * float(s.base) ** (-np.arange(half) / half)
    parts += [model.weights["norm/gamma"], np.cos(angles), np.sin(angles)]
    parts += [] if s.tied else [_rows(model, "logits")]
    words = [np.ascontiguousarray(part, np.float32).tobytes() for part in parts]
    atomic.write_bytes(path, struct.pack("<7i", *header) + b"".join(words))


# -- tokenizers ------------------------------------------------------------------------------------------------------


def _tokenizer(metadata: Mapping[str, Any]) -> Any:
    try:
        from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
    except ImportError:
        raise FormatError("Texts need the package tokenizers: pip install 'edgelearn[language]'.") from None
    kind, tokens = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.tokens")
    if not tokens:
        raise FormatError("The file describes no tokenizer: give a GGUF file that has tokens.")
    numbers = {token: number for number, token in enumerate(tokens)}
    if kind == "gpt2":
        words = metadata.get("tokenizer.ggml.pre", "default")
        if words not in (*DIGITS, *WORDS):
            raise FormatError(f"The file's tokenizer splits words as {words!r:.40}, which is unknown here.")
        merges = [tuple(merge.split(" ", 1)) for merge in metadata.get("tokenizer.ggml.merges", ())]
        found = Tokenizer(models.BPE(numbers, merges))
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False)
        digits = [pre_tokenizers.Digits(individual_digits=True)] if words in DIGITS else []
        found.pre_tokenizer = pre_tokenizers.Sequence([*digits, bytes_])
        found.decoder = decoders.ByteLevel()
    elif kind == "llama":
        merges = _merges_by_score(tokens, metadata.get("tokenizer.ggml.scores", ()))
        unknown = tokens[metadata.get("tokenizer.ggml.unknown_token_id", 0)]
        found = Tokenizer(models.BPE(numbers, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
        begin = [normalizers.Prepend("▁")] if metadata.get("tokenizer.ggml.add_space_prefix", True) else []
        found.normalizer = normalizers.Sequence([*begin, normalizers.Replace(" ", "▁")])
        strip = [decoders.Strip(" ", 1, 0)] if begin else []
        found.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        )  # fmt: skip
    else:
        raise FormatError(f"The file's tokenizer is of the kind {kind!r:.40}; 'gpt2' and 'llama' are known here.")
    types = metadata.get("tokenizer.ggml.token_type", ())
    found.add_special_tokens([AddedToken(t, normalized=False) for t, of in zip(tokens, types, strict=False) if of == 3])
    return found


def _merges_by_score(tokens: list[str], scores: Any) -> list[tuple[str, str]]:
    """The pairs that SentencePiece's pieces can be merged from, the best result first."""
    rank = dict(zip(tokens, scores, strict=False))
    pairs = [
        (-rank[token], number, (token[:cut], token[cut:]))
        for number, token in enumerate(tokens)
        for cut in range(1, len(token))
        if token in rank and token[:cut] in rank and token[cut:] in rank
    ]
    return [pair for _, _, pair in sorted(pairs, key=lambda each: each[:2])]


def _read(path: Path, network: Network | None, skip: tuple[str, ...]) -> ModelFile:
    """A GGUF file as a network of `CONTEXT` steps, or for a `network` of another context."""
    model = read_llama(path)
    network = network or model.network(min(CONTEXT, model.sizes.context))
    found = model.weights_of(network)
    return ModelFile(network, {name: found[name] for name in network.parameters if name.split("/")[0] not in skip})


register(FileFormat("GGUF", (".gguf",), MAGIC, _read))


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
