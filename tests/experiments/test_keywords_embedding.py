"""Training embeddings: what is heard, episodes, and a small training from data to results."""

from dataclasses import replace

import numpy as np
import pytest
import soundfile

from edgelearn.data.audio import UNKNOWN, ClipDataset
from edgelearn.data.synthetic_words import embedded_words
from edgelearn.errors import DataError, FormatError, RunError
from edgelearn.experiments.experiment import silent
from edgelearn.experiments.keywords import embedding, hold_out
from edgelearn.experiments.keywords.personalisation import personalise_arabic
from edgelearn.interop import safetensors
from edgelearn.lab.runs import Interval, RunStore

SMALL = {"task": "sample", "width": 0.125, "size": 16, "shift": 0.0, "noise": 0.0, "epochs": 1, "episodes": 4}


@pytest.fixture
def recordings() -> embedding.Recordings:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 9).astype(np.int32)
    clips = rng.integers(-30000, 30000, (54, 40)).astype(np.int16)
    return embedding.Recordings(clips, labels, np.zeros(54, np.int32))


@pytest.mark.parametrize("unknown", [False, True])
def test_episodes_are_as_the_loss_wants_them(recordings, unknown):
    order = embedding.EpisodeOrder(recordings, 4, 2, 3, unknown, 5, 7)
    found = order(3).reshape(5, order.size)
    assert np.array_equal(order(3), order(3)) and not np.array_equal(order(3), order(4))
    for episode in found:
        words = recordings.labels[episode[:8]].reshape(4, 2)
        assert (words == words[:, :1]).all() and len(set(words[:, 0])) == 4
        queries = episode[8:20]
        assert np.array_equal(recordings.labels[queries], words[order.labels[8:20], 0])
        assert len(set(episode[:20])) == 20
        assert not set(recordings.labels[episode[20:]]) & set(words[:, 0])
        assert (order.labels[20:] == 4).all() and len(episode[20:]) == 12 * unknown


def test_too_few_words_for_episodes(recordings):
    with pytest.raises(DataError, match=r"6 words.* and others"):
        embedding.EpisodeOrder(recordings, 6, 2, 3, True, 1, 0)


def test_reversed_clips_are_words_of_their_own(recordings):
    both = recordings.with_reversed()
    assert both.words == 12 and len(both) == 108
    assert np.array_equal(both.clips[54], recordings.clips[0, ::-1]) and both.labels[54] == 6


@pytest.mark.parametrize("varied", [False, True])
def test_what_is_heard_depends_on_the_epoch(recordings, varied):
    louder = (lambda clips, indices, epoch: clips * (1 + epoch),) if varied else ()
    order = embedding.EpisodeOrder(recordings, 4, 2, 3, False, 2, 0)
    source = embedding.ClipSource(recordings, lambda clips: clips[:, :, None], (40, 1), louder, None, order)
    assert len(source) == 40
    for epoch in (0, 1):
        heard = source.at_epoch(epoch)[np.array([3, 21])]
        expected = recordings.clips[order(epoch)[[3, 21]]] / 32767 * (1 + epoch * varied)
        assert np.allclose(heard.ravel(), expected.ravel(), atol=1e-6)


def test_what_is_louder_than_can_be_is_cut():
    loud = np.array([1.1, -1.1, 0.5, -1.0], np.float32)
    dataset = ClipDataset("loud", "folder", "Loud.", ("yes",), [0], ["a"], [loud])
    assert embedding.Recordings.load((dataset,), 16_000, 4 / 16_000).clips.tolist() == [[32767, -32767, 16383, -32767]]


def test_words_in_unknown_get_their_names(tmp_path):
    names = [("yes", "a_nohash_0.wav"), (UNKNOWN, "tree_b_nohash_0.wav"), ("_silence_", "1.wav")]
    items = [tmp_path / word / file for word, file in names]
    dataset = ClipDataset("few", "folder", "Few.", ("_silence_", UNKNOWN, "yes"), [2, 1, 0], ["a", "b", ""], items)
    assert embedding.by_word(dataset).words.tolist() == ["yes", "tree"]


def trained(config, clips, root):
    """A run, its results, and its training."""
    training = replace(
        embedding.KeywordsExperiment, function=lambda config: embedding.load_keywords(config, clips)
    ).load(config)
    with training.create_run(RunStore(root)) as run:
        return run, training.run(run, log=silent), training


def test_whitened_embeddings_of_a_word_vary_alike_in_all_directions():
    rng = np.random.default_rng(0)
    labels, shape = rng.integers(0, 5, 2000), rng.normal(size=(6, 6))
    x = 10 * rng.normal(size=(5, 6))[labels] + rng.normal(size=(2000, 6)) @ shape

    def spread(share: float) -> np.ndarray:
        y = x @ embedding.whitening(x, 3 * labels, share)
        return np.linalg.eigvalsh(sum(np.cov(y[labels == word].T) * (labels == word).mean() for word in range(5)))

    assert np.allclose(spread(0), 1, atol=0.01) and np.ptp(spread(0.5)) < np.ptp(spread(1)) / 2


def test_from_data_to_results(tmp_path):
    """Trained a little, then given dummies: words and speakers that are tested weren't trained on."""
    split = hold_out(embedded_words(8, 4, 10), 3, 2)
    clips = embedding.TaskData((split.train,), split.test)
    run, results, first = trained(embedding.KeywordsConfig(**SMALL, whitening=0.5), clips, tmp_path)
    assert len(results["reports"]) == 8
    config, weights = embedding.read_run(run.folder)
    whitened, plain = (embedding.make_embedder(config, w) for w in (weights, first.model.weights))
    features = plain.features(split.train.clip(0)[None])
    expected = plain.embed(features) @ weights["whitening/kernel"]
    assert np.allclose(whitened.embed(features), expected, atol=1e-4 * np.abs(expected).max())
    assert {report["speakers"] for report in results["reports"]} == {"same", "other"}
    data = run.record["data"]
    assert not set(data["words"]) & set(data["test_words"])
    start = run.folder / "weights.safetensors"

    config = embedding.KeywordsConfig(
        **SMALL, method="dummy-prototypes", frozen=True, start=str(start), num_classes=6, shots=2, queries=2
    )
    before = dict(embedding.load_keywords(config, clips).model.weights)
    other, results, second = trained(config, clips, tmp_path)
    assert [report["learner"] for report in results["reports"]].count("dummy-prototypes") == 4
    changed = {name for name, array in second.model.weights.items() if not np.array_equal(array, before[name])}
    assert changed == {f"{layer}/{role}" for layer in ("dummies_dense", "dummies") for role in ("kernel", "bias")}
    kept = safetensors.read_weights(other.folder / "weights.safetensors")
    embedder = embedding.make_embedder(config, kept)
    assert embedder.dummies(np.zeros((2, 16), np.float32)).shape == (2, 3, 16)


def test_an_embedding_begins_with_all_of_the_weights_or_not_at_all(tmp_path):
    split = hold_out(embedded_words(3, 3, 2), 1, 1)
    data = embedding.TaskData((split.train,), split.test)
    first = embedding.load_keywords(embedding.KeywordsConfig(**SMALL, seed=1), data)
    whole, part = tmp_path / "whole.safetensors", tmp_path / "part.safetensors"
    whole.write_bytes(safetensors.to_bytes(first.model.weights))
    second = embedding.load_keywords(embedding.KeywordsConfig(**SMALL, start=str(whole)), data)
    same = {name for name, array in first.model.weights.items() if np.array_equal(array, second.model.weights[name])}
    assert set(second.model.weights) - same == {"classifier/kernel"}
    part.write_bytes(safetensors.to_bytes({"conv/kernel": first.model.weights["conv/kernel"]}))
    with pytest.raises(FormatError, match=r"part\.safetensors has no 'conv_bn/gamma'"):
        embedding.load_keywords(embedding.KeywordsConfig(**SMALL, start=str(part)), data)


@pytest.mark.parametrize(
    ("part", "network", "layers"),
    [
        ("last-block", "ds-cnn-s", ("block4_",)),
        ("last-block", "ds-resnet", ("block6_", "embedding")),
        ("last-block", "bcresnet", ("stage4_block4_", "tail")),
        ("batchnorm", "ds-cnn-s", ("conv_bn", "block")),
    ],
)
def test_a_part_of_the_embedding_learns(tmp_path, part, network, layers):
    settings = SMALL | {"network": network, "width": 1.0 if network == "bcresnet" else 0.25}
    words = embedded_words(3, 3, 2)
    data = embedding.TaskData((words.only(words.class_names[:2]),), words.only(words.class_names[2:]))
    start = tmp_path / "start.safetensors"
    start.write_bytes(safetensors.to_bytes(embedding.make_network(embedding.KeywordsConfig(**settings)).initialize(1)))
    experiment = embedding.load_keywords(embedding.KeywordsConfig(**settings, part=part, start=str(start)), data)
    before = dict(experiment.model.weights)
    experiment.fit([])
    changed = {name for name, array in experiment.model.weights.items() if not np.array_equal(array, before[name])}
    learning = {name for name in changed if not name.startswith("classifier/")}
    assert changed - learning and learning and all(name.startswith(layers) for name in learning)
    assert not any("moving" in name for name in learning)
    if part == "batchnorm":
        assert all(name.endswith(("/gamma", "/beta")) for name in learning)


def record(folder, clips):
    """As files, so many of each word by each speaker."""
    for number, (word, speaker) in enumerate(zip(clips.words.tolist(), clips.speakers.tolist(), strict=True)):
        (folder / word).mkdir(parents=True, exist_ok=True)
        soundfile.write(folder / word / f"{speaker}_nohash_{number}.wav", clips.clip(number), 16_000)


def test_a_folder_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.delenv("EDGELEARN_DATA", raising=False)
    record(tmp_path / "mine", embedded_words(5, 3, 6))
    (tmp_path / "mine" / "sola" / "broken.wav").write_bytes(b"RIFF")
    config = embedding.KeywordsConfig(**SMALL | {"task": str(tmp_path / "mine")})
    with pytest.raises(DataError, match="--no-english"):
        embedding.load_task(config)
    experiment = embedding.KeywordsExperiment.load(replace(config, english=False))
    (train,), test = experiment.task.train, experiment.task.test
    assert len(train.class_names) == 2 and len(test.class_names) == 3
    assert not set(train.words) & set(test.words) and not set(train.speakers) & set(test.speakers)
    said = experiment.sources
    assert sum("broken.wav" in line for line in said) == 1
    assert [line for line in said if line.startswith("  not tested with 5 clips by the same")]
    assert {report.episodes.speakers for report in embedding.evaluate_embedding(experiment)} == {"same", "other"}
    with pytest.raises(RunError, match="nowhere"):
        embedding.load_task(replace(config, task=str(tmp_path / "nowhere")))


def test_a_test_that_fails_leaves_the_network(tmp_path, monkeypatch):
    split = hold_out(embedded_words(4, 3, 2), 2, 1)
    monkeypatch.setattr(embedding, "evaluate_embedding", lambda training, **_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trained(embedding.KeywordsConfig(**SMALL), embedding.TaskData((split.train,), split.test), tmp_path)
    (folder,) = tmp_path.iterdir()
    assert embedding.make_embedder(*embedding.read_run(folder)).size == 16


def test_personalisation_starts_from_a_classifier():
    with pytest.raises(DataError, match="'classify'"):
        personalise_arabic(embedding.KeywordsConfig("arabic"), {"dummies/kernel": np.zeros(1)}, [5])
    with pytest.raises(DataError, match="'sample'"):
        personalise_arabic(embedding.KeywordsConfig("sample"), {"classifier/kernel": np.zeros(1)}, [5])


def test_the_largest_temperature_that_is_hardly_worse():
    found = [Interval(mean, 0.002, 400) for mean in (0.95, 0.97, 0.9695, 0.9685, 0.96)]
    assert embedding.one_standard_error(found) == 2  # a standard error is 0.001
    assert embedding.one_standard_error(found[:1]) == 0
