import numpy as np
import pytest

import edgelearn as el
from edgelearn.data.synthetic_words import embedded_words
from edgelearn.experiments import verification
from edgelearn.lab.runs import RunStore
from edgelearn.ops import Dense, GlobalAveragePooling2D
from edgelearn.train import Callback
from edgelearn.train.sources import at_epoch


def test_true_positive_rate():
    impostors = np.arange(100) / 100  # ten of them are at or above 0.9
    assert verification.true_positive_rate(np.array([0.5, 0.9, 0.95, 0.99]), impostors) == 0.75
    assert verification.true_positive_rate(np.array([0.5, 0.9]), impostors, 0.6) == 1.0


def test_report():
    scores, owners = np.array([[0.9, 0.1], [0.8, 0.3], [0.2, 0.1], [0.4, 0.7]]), np.array([0, 0, 1, 1])
    found = verification.report(scores, owners, np.array([[0.95, 0.0]]))
    assert found.accuracy == 0.75 and found.seen == 0.75
    assert found.unseen == 0.0  # the threshold must be above 0.95
    rates = found.curves["seen"]
    assert rates[0][0] == 0 and rates[0][-1] == rates[1][-1] == 1 and (np.diff(rates[0]) >= 0).all()
    assert np.isnan(verification.report(scores, owners, np.empty((0, 2))).unseen)


def test_nobody_is_in_two_parts():
    task = verification.VerificationExperiment.load(verification.VerificationConfig(seed=3, augment=False)).task
    (x, owners), (tested, tested_owners) = task.train, task.test
    assert np.bincount(owners).tolist() == [36] * 9 and np.bincount(tested_owners + 1).tolist() == [36, *[12] * 9]
    rows = np.concatenate([x, tested]).reshape(len(x) + len(tested), -1)
    assert len(np.unique(rows, axis=0)) == len(rows)


def plain(input_shape, outputs):
    """A network that compiles quickly."""
    network = el.Network("plain", input_shape)
    for name, op in {"pool": GlobalAveragePooling2D(), "verification": Dense(outputs, use_bias=False)}.items():
        network.add(name, op)
    return network


class Stop(Callback):
    """Stops behind a round."""

    def on_epoch_end(self, epoch, logs):
        self.model.stop_training = True


def test_stopped_and_resumed_gives_the_same_bits(tmp_path, monkeypatch):
    voices = embedded_words(2, 4, 5)
    monkeypatch.setattr(verification, "embedded_words", lambda *sizes: voices)
    monkeypatch.setattr(verification, "speaker_network", plain)
    config = verification.VerificationConfig(
        strategy="fedaws", rounds=3, clients=3, batch_size=2, size=16, fraction=0.6, compress="int8"
    )
    checkpoints = []
    for name, callbacks in {"whole": [], "stopped": [Stop()]}.items():
        store = RunStore(tmp_path / name)
        verification.VerificationExperiment.start(config, store, callbacks, log=lambda line: None)
        if callbacks:
            verification.VerificationExperiment.resume("verification", store, [], log=lambda line: None)
        run = store.open("verification")
        checkpoints.append({name: array.tobytes() for name, array in run.load_checkpoint()[0].items()})
        results = run.record["results"]
        assert run.status == "finished" and results["total"] == 6 and {"seen", "unseen", "bytes"} <= set(results)
        assert (run.folder / verification.VOICES).is_file()
    assert checkpoints[0] == checkpoints[1] and "own" in checkpoints[0]


@pytest.mark.parametrize("outputs", (127, 10))
def test_the_network_of_pictures(outputs):
    assert verification.picture_network(outputs).output.shape == (outputs,)


def test_masks_differ_from_round_to_round():
    x = verification.VerificationExperiment.load(verification.VerificationConfig()).task.train[0]
    plain = verification.VerificationExperiment.load(verification.VerificationConfig(augment=False)).task.train[0]
    some = np.arange(20)
    seen = [at_epoch(x, epoch)[some] for epoch in (0, 1, 0)]
    assert np.array_equal(seen[0], seen[2]) and not np.array_equal(seen[0], seen[1])
    assert 0.3 < np.mean(seen[0] == plain[some]) < 0.95
