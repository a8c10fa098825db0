"""Arguments of fit that Keras has, too."""

import sys

import numpy as np
import pytest

from edgelearn.errors import PlanError
from edgelearn.ops import SGD, MeanSquaredError, SoftmaxCrossEntropy
from edgelearn.train import Model, ProgressBar, callbacks

from .toys import Log, examples, same, toy_network


def trained(*arguments, **keywords):
    model = Model(toy_network(), seed=3).compile(SGD(0.1))
    history = model.fit(*arguments, **keywords)
    return model.weights, history.history


@pytest.mark.parametrize("as_list", (False, True))
def test_validation_split_takes_the_last_examples(as_list):
    x, y = examples(10)

    class Source:
        shape = x.shape

        def __len__(self):
            return len(x)

        def __getitem__(self, indices):
            return x[indices]

    weights, history = trained(Source() if as_list else x, y, 4, 2, validation_split=0.3)
    expected, other = trained(x[:7], y[:7], 4, 2, validation_data=(x[7:], y[7:]))
    assert same(weights, expected) and history["val_loss"] == other["val_loss"]


@pytest.mark.parametrize("split", (-0.1, 1.0, "0.1", 0.95))
def test_splits_that_cannot_be(split):
    with pytest.raises(PlanError, match="validation_split"):
        trained(*examples(2), validation_split=split)


def test_one_kind_of_validation_data():
    x, y = examples(4)
    with pytest.raises(PlanError, match="validation_split"):
        trained(x, y, validation_split=0.5, validation_data=(x, y))


@pytest.mark.parametrize(
    ("verbose", "terminal", "bars"),
    [("auto", True, [True]), ("auto", False, []), (0, True, []), (1, False, [True]), (2, False, [False])],
)
def test_a_bar_where_a_person_looks_on(monkeypatch, verbose, terminal, bars):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    found = [callback for callback in callbacks.with_progress([], verbose) if isinstance(callback, ProgressBar)]
    assert [bar.bar for bar in found] == bars
    own = ProgressBar(every=3)
    assert callbacks.with_progress([own], verbose) == [own]


def test_lines_alone(capsys):
    trained(*examples(8), 4, 2, verbose=2)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["epoch", "1/2"], ["epoch", "2/2"]]


def test_silent(capsys):
    trained(*examples(8), 4, 2, verbose=0)
    assert capsys.readouterr() == ("", "")


def test_an_unknown_verbose():
    with pytest.raises(PlanError, match="verbose"):
        trained(*examples(8), verbose="yes")


@pytest.mark.usefixtures("own_kernels")
def test_a_notebook_shows_one_output_that_changes(monkeypatch):
    shown = []

    class Handle:
        def update(self, html):
            shown.append(html.data)

    def display(html, display_id):
        shown.append(html.data)
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    monkeypatch.setattr(callbacks, "in_notebook", lambda: True)
    trained(*examples(8), 4, 3, verbose=1)
    assert any("compiling kernels" in html for html in shown)
    assert shown[-1].count("epoch") == 3 and "<progress" not in shown[-1]


def test_a_single_callback():
    log = Log()
    trained(*examples(8), 4, callbacks=log)
    assert log.names()[-1] == "on_train_end"


def test_history_is_keras_s():
    model = Model(toy_network()).compile(SGD(0.1))
    history = model.fit(*examples(8), 4, 2)
    assert history.epoch == [0, 1] and np.isfinite(history.history["loss"]).all()


@pytest.mark.parametrize("name", ("sgd", "adam", "AdamW", "rmsprop", "lion", "lamb"))
def test_optimizers_by_their_names(name):
    model = Model(toy_network()).compile(name, "sparse_categorical_crossentropy", metrics=["accuracy"])
    assert type(model.optimizer).__name__.lower() == name.lower()
    assert type(model.loss) is SoftmaxCrossEntropy


def test_losses_by_their_names():
    assert type(Model(toy_network()).compile("adam", "mse").loss) is MeanSquaredError
    assert type(Model(toy_network()).compile("adam", {"softmax": "huber"}).loss).__name__ == "Losses"
