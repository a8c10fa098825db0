"""BERT encoders in Hugging Face's files: outputs as a float64 forward pass of the file's own tensors has them."""

import json
from zipfile import ZipFile

import numpy as np
import pytest
from scipy.special import erf, softmax

import edgelearn as el
from edgelearn.errors import FormatError, ShapeError
from edgelearn.interop.bert import CONFIG, TOKENIZER, WEIGHTS, read_bert, write_bert
from edgelearn.interop.safetensors import to_bytes
from edgelearn.models.language import BertSizes, bert

SETTINGS = {
    "model_type": "bert", "vocab_size": 50, "num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 24,
    "intermediate_size": 40, "max_position_embeddings": 16, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
}  # fmt: skip


def tensors(rng):
    def norm(name):
        return {f"{name}.weight": rng.normal(1, 0.1, 24), f"{name}.bias": rng.normal(0, 0.1, 24)}

    def dense(name, inputs, outputs):
        return {
            f"{name}.weight": rng.normal(0, 0.3, (outputs, inputs)), f"{name}.bias": rng.normal(0, 0.1, outputs)
        }  # fmt: skip

    found = {
        f"embeddings.{name}_embeddings.weight": rng.normal(size=(rows, 24))
        for name, rows in (("word", 50), ("position", 16), ("token_type", 2))
    } | norm("embeddings.LayerNorm")
    for number in range(2):
        block = f"encoder.layer.{number}"
        for part in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            found |= dense(f"{block}.{part}", 24, 24)
        found |= dense(f"{block}.intermediate.dense", 24, 40) | dense(f"{block}.output.dense", 40, 24)
        found |= norm(f"{block}.attention.output.LayerNorm") | norm(f"{block}.output.LayerNorm")
    return {f"bert.{name}": array.astype(np.float32) for name, array in found.items()}


def forward(weights, tokens):
    """The mean of the outputs of one sentence, without what fills it up, in float64."""
    w = {name.removeprefix("bert."): array.astype(np.float64) for name, array in weights.items()}

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-12)
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    def dense(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    x = w["embeddings.word_embeddings.weight"][tokens] + w["embeddings.token_type_embeddings.weight"][0]
    x = norm(x + w["embeddings.position_embeddings.weight"][: len(tokens)], "embeddings.LayerNorm")
    for number in range(2):
        block = f"encoder.layer.{number}"
        q, k, v = (
            dense(x, f"{block}.attention.self.{part}").reshape(len(x), 3, 8).swapaxes(0, 1)
            for part in ("query", "key", "value")
        )
        mixed = softmax(q @ k.swapaxes(1, 2) / np.sqrt(8), -1) @ v
        mixed = dense(mixed.swapaxes(0, 1).reshape(len(x), 24), f"{block}.attention.output.dense")
        x = norm(x + mixed, f"{block}.attention.output.LayerNorm")
        wide = dense(x, f"{block}.intermediate.dense")
        wide = wide * 0.5 * (1 + erf(wide / np.sqrt(2)))
        x = norm(x + dense(wide, f"{block}.output.dense"), f"{block}.output.LayerNorm")
    return x.mean(0)


@pytest.fixture
def folder(tmp_path):
    weights = tensors(np.random.default_rng(0))
    (tmp_path / CONFIG).write_text(json.dumps(SETTINGS))
    (tmp_path / WEIGHTS).write_bytes(to_bytes(weights))
    (tmp_path / TOKENIZER).write_text("{}")
    return tmp_path


def test_outputs_are_those_of_the_file(folder):
    encoder = read_bert(folder)
    network = bert(encoder.sizes, 9)
    model = el.Model(network, encoder.weights_of(network))
    sentences = [[3, 49, 7, 1], [5], list(range(1, 10))]
    tokens = np.array([each + [0] * (9 - len(each)) for each in sentences], np.float32)
    expected = [forward(tensors(np.random.default_rng(0)), np.array(each)) for each in sentences]
    np.testing.assert_allclose(model.predict(tokens), expected, atol=2e-5)


def test_an_archive_is_a_folder(folder):
    with ZipFile(folder / "model.zip", "w") as archive:
        for name in (CONFIG, WEIGHTS, TOKENIZER):
            archive.write(folder / name, name)
    found, expected = read_bert(folder / "model.zip"), read_bert(folder)
    assert found.sizes == expected.sizes == BertSizes(50, 2, 3, 24, 40, 16)
    assert all((found.weights[name] == array).all() for name, array in expected.weights.items())


def test_what_is_written_is_what_was_read(folder):
    encoder = read_bert(folder)
    write_bert(folder / "written", encoder)
    again = read_bert(folder / "written")
    assert (again.sizes, again.tokenizer) == (encoder.sizes, encoder.tokenizer)
    assert again.weights.keys() == encoder.weights.keys()
    assert all((again.weights[name] == array).all() for name, array in encoder.weights.items())


def test_last_blocks_alone_are_trained(folder):
    sizes = read_bert(folder).sizes
    some = bert(sizes, 9, classes=4, trained=1)
    assert {name.split("/")[0].split("_")[0] for name in some.trainable} == {"block2", "logits"}
    assert not any(node.name.startswith(("embedded_drop", "block1_mixed_drop")) for node in some.nodes.values())
    assert {name.split("/")[0] for name in bert(sizes, 9, classes=4, trained=0).trainable} == {"logits"}
    whole = bert(sizes, 9, classes=4)
    assert set(whole.trainable) == set(whole.parameters)


def test_files_that_cannot_be_used_are_explained(folder):
    def refused(match, **settings):
        (folder / CONFIG).write_text(json.dumps(SETTINGS | settings))
        with pytest.raises(FormatError, match=match):
            read_bert(folder)

    refused("hidden_act = 'relu'", hidden_act="relu")
    refused("model_type = 'roberta'", model_type="roberta")
    refused("don't fit each other", num_attention_heads=7)
    refused("encoder.layer.2", num_hidden_layers=3)
    refused("shape \\(50, 30\\)", hidden_size=30)
    (folder / CONFIG).write_text("[]")
    with pytest.raises(FormatError, match="doesn't describe a BERT"):
        read_bert(folder)
    (folder / CONFIG).write_text(json.dumps(SETTINGS))
    (folder / WEIGHTS).write_bytes(b"damaged")
    with pytest.raises(FormatError, match="safetensors is not a safetensors file"):
        read_bert(folder)
    (folder / WEIGHTS).unlink()
    with pytest.raises(FormatError, match="Hugging Face"):
        read_bert(folder)
    with pytest.raises(FormatError, match="Hugging Face"):
        read_bert(folder / CONFIG)
    with pytest.raises(ShapeError, match="positions for 1 to 16 steps, not 17"):
        bert(BertSizes(50, 2, 3, 24, 40, 16), 17)
