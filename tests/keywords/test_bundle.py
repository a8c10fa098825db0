"""Keywords that leave as files: the scores are those of the spotter that was saved."""

import json

import numpy as np
import pytest

from edgelearn.data.audio import load_clips
from edgelearn.data.synthetic_words import embedded_words
from edgelearn.errors import DataError, FormatError, RunError
from edgelearn.keywords import Vocabulary, load_bundle, save_bundle
from edgelearn.keywords.files import sample_embedder
from edgelearn.keywords.learners import NearClips, NearestMean, Spotter


@pytest.fixture(scope="module")
def enrolled():
    """A vocabulary of three words, its spotter, and features of other clips."""
    pytest.importorskip("tflite"), pytest.importorskip("onnx")
    embedder, clips = sample_embedder(), embedded_words(3, speakers=1, takes=4)
    features = embedder.features(load_clips(clips))
    vocabulary = Vocabulary.empty(embedder)
    for word in clips.class_names:
        vocabulary = vocabulary.add(word, features[clips.words == word][:3])
    return vocabulary, vocabulary.enrol(embedder), features


@pytest.mark.parametrize(
    ("suffix", "options", "most"),
    [("tflite", {}, 1e-5), ("onnx", {}, 1e-5), ("tflite", {"float16": True}, 1e-3),
     ("tflite", {"full_integer": True}, 0.02)],
)  # fmt: skip
def test_a_bundle_has_the_same_scores(suffix, options, most, enrolled, tmp_path):
    vocabulary, spotter, features = enrolled
    examples = vocabulary.features if "full_integer" in options else None
    written = save_bundle(tmp_path / "b", spotter, vocabulary.words, 0.8, suffix, examples, **options)
    bundle = load_bundle(tmp_path / "b")
    assert bundle.words == vocabulary.words and bundle.threshold == 0.8
    assert written.path == tmp_path / "b" / f"network.{suffix}"
    for name in ("scores", "known_score"):
        assert np.abs(getattr(bundle.spotter, name)(features) - getattr(spotter, name)(features)).max() < most
    with pytest.raises(RunError, match="there already"):
        save_bundle(tmp_path / "b", spotter, vocabulary.words)


def test_the_scores_can_be_computed_without_edgelearn(enrolled, tmp_path):
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    vocabulary, spotter, features = enrolled
    save_bundle(tmp_path / "b", spotter, vocabulary.words)
    record = json.loads((tmp_path / "b" / "bundle.json").read_text())
    run = interpreter.Interpreter(str(tmp_path / "b" / record["network"])).get_signature_runner()
    assert record["axes"] == ["frames", "bands"] and tuple(record["input"]) == (*features.shape[1:], 1)
    (x,) = run(input=features[..., None]).values()
    prototypes = np.array(record["classifier"]["prototypes"])
    unit = [a / np.linalg.norm(a, axis=1, keepdims=True) for a in (x, prototypes)]
    assert record["classifier"]["distance"] == "cosine"
    assert np.abs(unit[0] @ unit[1].T - spotter.scores(features)).max() < 1e-5


def test_what_a_bundle_cannot_hold(enrolled, tmp_path):
    vocabulary, spotter, _ = enrolled
    near = Spotter(spotter.embedder, NearClips(None, None, None, None, 1, 1, 1))
    for given, words in ((near, vocabulary.words), (spotter, ("one",))):
        with pytest.raises(DataError):
            save_bundle(tmp_path / "b", given, words)
    with pytest.raises(FormatError, match="ranges"):
        save_bundle(tmp_path / "b", spotter, vocabulary.words, int8=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("entry", "value"), [("version", 2), ("network", "../network.tflite"), ("words", ["one"]),
                         ("front_end", {"bands": 7}), ("classifier", {"kind": "Prototypes"}),
                         ("classifier", {"kind": "eval"}), ("seconds", 3.0)],
)  # fmt: skip
def test_a_damaged_bundle_is_refused(entry, value, enrolled, tmp_path):
    vocabulary, _, _ = enrolled
    save_bundle(tmp_path / "b", NearestMean().enrol(sample_embedder(), vocabulary.features, vocabulary.labels),
                vocabulary.words)  # fmt: skip
    path = tmp_path / "b" / "bundle.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {entry: value}))
    with pytest.raises(FormatError, match=r"bundle\.json"):
        load_bundle(tmp_path / "b")
    with pytest.raises(FormatError, match=r"bundle\.json"):
        load_bundle(tmp_path / "none")
