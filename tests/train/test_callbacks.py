import re
import time
from types import SimpleNamespace

import numpy as np
import pytest

from edgelearn.errors import NonFiniteError, PlanError
from edgelearn.ops import SGD
from edgelearn.train import EarlyStopping, History, Model, ProgressBar, TimeLimit
from edgelearn.train.callbacks import Notebook

from .toys import Log, examples, frozen_stem, toy_network


def epochs_until_stop(values, monitor="val_loss", **options):
    """How many epochs with these values it lets run."""
    stopping = EarlyStopping(monitor, **options)
    stopping.model = SimpleNamespace(stop_training=False)
    stopping.on_train_begin({})
    for epoch, value in enumerate(values):
        stopping.on_epoch_end(epoch, {monitor: value})
        if stopping.model.stop_training:
            return epoch + 1
    return None


# Counted with Keras 3: keras.callbacks.EarlyStopping(monitor, min_delta, patience)
@pytest.mark.parametrize(
    ("values", "options", "epochs"),
    [
        ([3, 2, 1, 2, 2, 2], {}, 4),
        ([3, 2, 1, 2, 2, 2], {"patience": 1}, 4),
        ([3, 2, 1, 2, 2, 2], {"patience": 2}, 5),
        ([3, 2, 1, 2, 2, 2], {"patience": 4}, None),
        ([3, 2, 2, 1, 1, 1], {"patience": 2}, 6),
        ([3, 2.9, 2.8, 2.7, 2.6], {"patience": 2, "min_delta": 0.15}, None),
        ([3, 2.9, 2.8, 2.7, 2.6], {"patience": 1, "min_delta": 0.15}, 2),
        ([1, float("nan"), float("nan")], {"patience": 2}, 3),
        ([0.1, 0.5, 0.4], {"monitor": "val_accuracy"}, 3),
        ([0.1, 0.5, 0.6], {"monitor": "val_accuracy"}, None),
    ],
)
def test_early_stopping_counts_as_keras(values, options, epochs):
    assert epochs_until_stop(values, **options) == epochs


def test_early_stopping_in_fit():
    x, y = examples(10)
    stopping = EarlyStopping("loss")
    model = Model(toy_network()).compile(SGD(0.0))  # nothing gets better
    assert model.fit(x, y, 10, 20, callbacks=[stopping], shuffle=False).epoch == [0, 1]
    assert model.fit(x, y, 10, 20, callbacks=[stopping], shuffle=False).epoch == [2, 3]  # it counts anew


def test_early_stopping_says_what_it_lacks():
    model = Model(toy_network()).compile(SGD(0.1))
    with pytest.raises(PlanError, match=r"'val_loss'.*loss, accuracy, seconds"):
        model.fit(*examples(10), callbacks=[EarlyStopping()])


def test_time_limit():
    class Slow(Log):
        def on_train_batch_end(self, batch, logs):
            super().on_train_batch_end(batch, logs)
            time.sleep(0.05)

    slow = Slow()
    Model(toy_network()).compile(SGD(0.1)).fit(*examples(10), 2, 1)  # compiles kernels
    model = Model(toy_network()).compile(SGD(0.1))
    model.fit(*examples(10), 2, 100, callbacks=[slow, TimeLimit(0.2)])
    assert 2 <= model.position.updates <= 5


def test_history_goes_on():
    history = History()
    history.on_epoch_end(0, {"loss": 2.0})
    history.on_epoch_end(1, {"loss": 1.0, "val_loss": 3.0})
    assert history.epoch == [0, 1] and history.history == {"loss": [2.0, 1.0], "val_loss": [3.0]}


def test_progress_bar_prints_a_row_an_epoch(capsys):
    model = Model(frozen_stem()).compile(SGD(0.1))
    x, y = examples(10)
    bar = ProgressBar(every=2)
    model.fit(x, y, 4, 5, validation_data=(x, y), callbacks=[bar], cache="fp32")
    output = capsys.readouterr().out
    rows = [line for line in output.splitlines() if line.startswith("epoch")]
    assert [row.split()[1] for row in rows] == ["2/5", "4/5", "5/5"]
    assert "val_accuracy 0." in rows[0] and rows[0].endswith(" s")
    assert "15/15" in output


def test_progress_bar_ends_with_an_error():
    bar = ProgressBar()
    x, y = examples(10)
    x[3] = np.nan
    with pytest.raises(NonFiniteError):
        Model(toy_network()).fit(x, y, callbacks=[bar])
    ProgressBar().on_train_end({})
    assert bar._display is None


def test_the_first_step_says_nothing_of_the_time_left_in_a_notebook(monkeypatch):
    monkeypatch.setattr("IPython.display.display", lambda html, display_id: SimpleNamespace(update=lambda html: None))
    bar = Notebook()
    bar.show("training", "", 0, 10_000)
    time.sleep(0.3)  # it compiles
    bar.show("training", "", 1, 10_000)
    assert "left" not in bar._bar
    time.sleep(0.001)
    bar.show("training", "", 2, 10_000)
    assert 5 <= int(re.search(r"(\d+) s left", bar._bar)[1]) < 2900, "of a step after the first"


def test_the_last_step_of_a_phase_is_shown_at_once_in_a_notebook(monkeypatch):
    shown = []
    handle = SimpleNamespace(update=lambda html: shown.append(html.data))
    monkeypatch.setattr("IPython.display.display", lambda html, display_id: handle)
    bar = Notebook()
    for done in range(17):
        bar.show("compiling kernels", "", done, 16)
    assert "16 of 16" in shown[-1], "the first step of training may take long"
