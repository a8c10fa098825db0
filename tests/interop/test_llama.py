"""Llama models of files, against a forward pass in float64 that is written from the papers alone."""

import os
from pathlib import Path

import numpy as np
import pytest

import edgelearn as el
from edgelearn.errors import DataError, FormatError, PlanError
from edgelearn.graph.rewrites import Branches
from edgelearn.interop.gguf import read_gguf, write_gguf
from edgelearn.interop.llama import Llama, read_llama, write_llama
from edgelearn.models.language import LlamaSizes, llama
from edgelearn.ops import block_formats
from edgelearn.train.generation import generate

SIZES = LlamaSizes(40, 2, 64, 96, 4, 2, base=1000.0, context=64)
STORIES = Path(os.environ.get("EDGELEARN_DATA", "/nowhere")) / "sequences/stories260K.bin"
needs_stories = pytest.mark.skipif(not STORIES.is_file(), reason="needs EDGELEARN_DATA's sequences/stories260K.bin")


def forward(model: Llama, tokens: np.ndarray) -> np.ndarray:
    """Logits (steps, vocabulary) of one sequence in float64."""
    s, w = model.sizes, {name: np.float64(array) for name, array in model.weights.items() if array.dtype != np.uint8}
    w |= {
        f"{name}/kernel": np.float64(block_formats.decode(model.weights[f"{name}/rows"], kind)).T
        for name, kind in model.formats.items()
    }  # fmt: skip
    table = w["embedding/kernel"].T if "embedding" in model.formats else w["embedding/embeddings"]
    size, steps = s.channels // s.heads, len(tokens)

    def norm(x, gamma):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + s.epsilon) * gamma

    def rotated(x):
        angles = np.arange(steps)[:, None, None] * s.base ** (-np.arange(0, size, 2) / size)
        pairs = x.reshape(steps, -1, size // 2, 2)
        turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angles)
        return np.stack([turned.real, turned.imag], -1).reshape(steps, -1, size)

    x = table[tokens]
    for number in range(1, s.layers + 1):
        p = f"block{number}_"
        y = norm(x, w[f"{p}norm1/gamma"])
        q, k = (rotated(y @ w[f"{p}{part}/kernel"]) for part in ("query", "key"))
        v = (y @ w[f"{p}value/kernel"]).reshape(steps, s.key_heads, size)
        k, v = (np.repeat(a, s.heads // s.key_heads, 1) for a in (k, v))
        scores = np.where(np.tri(steps), np.einsum("qhc,khc->hqk", q, k) / size**0.5, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hqk,khc->qhc", weights / weights.sum(-1, keepdims=True), v).reshape(steps, -1)
        x = x + mixed @ w[f"{p}mixed/kernel"]
        y = norm(x, w[f"{p}norm2/gamma"])
        gate = y @ w[f"{p}gate/kernel"]
        x = x + (gate / (1 + np.exp(-gate)) * (y @ w[f"{p}up/kernel"])) @ w[f"{p}down/kernel"]
    x = norm(x, w["norm/gamma"])
    return x @ (table.T if s.tied else w["logits/kernel"])


def drawn(kind: str = "", sizes: LlamaSizes = SIZES) -> Llama:
    """A Llama with weights of kind `kind`, as far as they have a multiple of 32 columns."""
    network = llama(sizes, 1)
    weights = network.initialize(1)
    formats = (
        {} if not kind else dict.fromkeys((p.layer for p in network.parameters.values() if p.role != "gamma"), kind)
    )
    for name in formats:
        role = "embeddings" if name == "embedding" else "kernel"
        matrix = weights.pop(f"{name}/{role}")
        weights[f"{name}/rows"] = block_formats.encode(matrix if role == "embeddings" else matrix.T, kind)
    return Llama(sizes, weights, formats)


def logits(model: Llama, tokens: np.ndarray) -> np.ndarray:
    network = model.network(len(tokens))
    return el.Model(network, model.weights_of(network)).predict_on_batch(np.float32(tokens)[None])[0]


def step_by_step(model: Llama, tokens: np.ndarray) -> np.ndarray:
    network = model.network(len(tokens) + 3, cached=True)
    writer = el.Model(network, model.weights_of(network))
    steps = enumerate(tokens.tolist())
    found = [writer.predict_on_batch({"tokens": np.float32([[t]]), "position": np.float32([[n]])}) for n, t in steps]
    return np.concatenate(found)[:, 0]


@needs_stories
def test_stories260k_in_and_out(tmp_path):
    model, tokens = read_llama(STORIES), np.r_[1, np.random.default_rng(0).integers(3, 512, 40)]
    expected = forward(model, tokens)
    np.testing.assert_allclose(logits(model, tokens), expected, atol=2e-4)
    np.testing.assert_allclose(step_by_step(model, tokens), expected, atol=2e-4)
    write_llama(tmp_path / "again.bin", model)
    again, original = (np.fromfile(path, np.float32) for path in (tmp_path / "again.bin", STORIES))
    np.testing.assert_allclose(again[7:], original[7:], atol=1e-5)  # cosines and sines are rounded otherwise
    network = model.network(64, cached=True)
    writer = el.Model(network, model.weights_of(network))
    text = list(generate(writer, [1], 30, temperature=0))
    seen = [1]
    for token in text:
        assert token == forward(model, np.array(seen))[-1].argmax()
        seen.append(token)


@pytest.mark.parametrize(("kind", "tied"), (("Q4_1", True), ("Q8_0", False)))
def test_gguf_in_and_out(tmp_path, kind, tied):
    model = drawn(kind, LlamaSizes(40, 2, 64, 96, 4, 2, base=1000.0, tied=tied, context=64))
    path, tokens = tmp_path / "small.gguf", np.random.default_rng(0).integers(0, 40, 21)
    write_llama(path, model)
    found = read_llama(path)
    assert found.sizes == model.sizes and found.formats == model.formats
    for name, array in model.weights.items():
        np.testing.assert_array_equal(found.weights[name], array)
    expected = forward(model, tokens)
    np.testing.assert_allclose(logits(found, tokens), expected, atol=1e-5)
    np.testing.assert_allclose(step_by_step(found, tokens), expected, atol=1e-5)
    np.testing.assert_allclose(el.load(path).predict(np.float32(np.r_[tokens, [0] * 43])[None])[0, :21], expected,
                               atol=1e-5)  # fmt: skip
    gguf = pytest.importorskip("gguf", reason="compared with the package gguf where it is installed")
    reader = gguf.GGUFReader(path)
    assert {t.name: t.tensor_type.name for t in reader.tensors} == {
        name: t.kind for name, t in read_gguf(path).tensors.items()
    }  # fmt: skip
    for tensor in reader.tensors:
        np.testing.assert_array_equal(tensor.data, read_gguf(path).tensors[tensor.name].array)


def test_adapters_have_float64_gradients():
    model, rng = drawn("Q4_1"), np.random.default_rng(0)
    network = model.network(9)
    layers = ("block1_query", "block1_down", "block2_gate")
    branches = Branches({}, dict.fromkeys(layers, 3))
    weights = branches.weights(network, model.weights_of(network))
    for name in weights:
        if name.endswith("_up/kernel"):
            weights[name] = rng.standard_normal(weights[name].shape).astype(np.float32) * 0.1
    adapted = branches.network(network)
    assert {name.split("/")[0].rpartition("_")[2] for name in adapted.trainable} == {"up", "down"}
    tokens, targets = rng.integers(0, 40, (2, 9))
    gradients = el.Model(adapted, weights).gradients(np.float32(tokens)[None], targets[None].astype(np.int32))

    kept = {name: kind for name, kind in model.formats.items() if name not in layers}

    def loss(change):
        w = {name: np.float64(array) for name, array in (weights | change).items() if array.dtype != np.uint8}
        for name in layers:
            base = np.float64(block_formats.decode(model.weights[f"{name}/rows"], "Q4_1")).T
            w[f"{name}/kernel"] = base + w[f"{name}_down/kernel"] @ w[f"{name}_up/kernel"]
        y = forward(Llama(model.sizes, {**model.weights, **w}, kept), tokens)
        return np.mean(np.log(np.exp(y).sum(-1)) - y[np.arange(9), targets])

    for name, gradient in gradients.items():
        direction = rng.standard_normal(gradient.shape)
        sides = [loss({name: weights[name] + sign * 1e-4 * direction}) for sign in (1, -1)]
        slope = (sides[0] - sides[1]) / 2e-4
        assert np.sum(gradient * direction) == pytest.approx(slope, rel=1e-4, abs=1e-6), name
    merged = model.merged({name: weights[name] for name in gradients})
    assert [merged.formats[name] for name in (*layers, "block1_key")] == ["Q8_0"] * 3 + ["Q4_1"]
    apart = el.Model(adapted, weights).predict_on_batch(np.float32(tokens)[None])[0]
    np.testing.assert_allclose(logits(merged, tokens), apart, atol=0.02 * np.abs(apart).max())


def test_tokenizers():
    pytest.importorskip("tokenizers")
    letters = {chr(n): n - 32 for n in range(33, 127)}
    tokens = ["<s>", *letters, "Ġ", "th", "the", "Ġthe"]
    types = [3] + [1] * (len(tokens) - 1)
    words = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": tokens,
             "tokenizer.ggml.merges": ["t h", "th e", "Ġ the"], "tokenizer.ggml.token_type": types}  # fmt: skip
    found = Llama(SIZES, {}, {}, words).tokenizer()
    ids = found.encode("the the 12<s>").ids
    assert [tokens[n] for n in ids] == ["the", "Ġthe", "Ġ", "1", "2", "<s>"]
    assert found.decode(ids[:-1]) == "the the 12"
    pieces = ["<unk>", "▁", "a", "b", "ab", "▁ab"]
    scores = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": pieces,
              "tokenizer.ggml.scores": [0.0, -9, -10, -11, -2, -1]}  # fmt: skip
    found = Llama(SIZES, {}, {}, scores).tokenizer()
    assert [pieces[n] for n in found.encode("ab ba").ids] == ["▁ab", "▁", "b", "a"]
    assert found.decode(found.encode("ab ba").ids) == "ab ba"
    for metadata in ({}, {**words, "tokenizer.ggml.pre": "other"}, {**words, "tokenizer.ggml.model": "other"}):
        with pytest.raises(FormatError, match="tokenizer"):
            Llama(SIZES, {}, {}, metadata).tokenizer()


def test_refusals(tmp_path):
    path = tmp_path / "small.gguf"
    write_llama(path, drawn("Q4_0"))
    whole = path.read_bytes()
    for content, reason in (
        (whole[:-300], "damaged"),
        (whole[:90], "damaged"),
        (b"GGUF", "damaged"),
        (b"x" * 50, "no "),
    ):
        (tmp_path / "bad.gguf").write_bytes(content)
        with pytest.raises(FormatError, match=reason):
            read_llama(tmp_path / "bad.gguf")
    file = read_gguf(path)
    write_gguf(path, type(file)({**file.metadata, "general.architecture": "qwen2"}, file.tensors))
    with pytest.raises(FormatError, match="qwen2"):
        read_llama(path)
    model = drawn()
    with pytest.raises(PlanError, match="single steps"):
        next(generate(el.Model(model.network(4), model.weights), [1], 3))
    network = model.network(4, cached=True)
    writer = el.Model(network, model.weights_of(network))
    with pytest.raises(DataError, match="1 to 4"):
        next(generate(writer, [1] * 5, 3))
    assert len(list(generate(writer, [1, 2], 30))) == 3  # until the context is full
