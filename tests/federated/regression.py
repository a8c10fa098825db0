"""A federation that is quick to train: softmax regression, of which a client's update sees all of its examples."""

from contextlib import contextmanager

import edgelearn as el
from edgelearn import federated as fl
from edgelearn.ops import Dense


@contextmanager
def regression(x, y, clients, rate):
    """(model, clients) with examples `x` (n, features) of classes `y`, divided evenly."""
    network = el.Network("regression", x.shape[1:])
    network.add("dense", Dense(int(y.max()) + 1))
    model = el.Model(network, seed=3).compile(el.SGD(rate))
    examples = fl.Examples(x, y, fl.IID(clients, seed=1).divide(y))
    trainer = model.trainer(8, examples=examples.sizes)
    yield model, fl.Clients(trainer, dict(model.weights), examples, epochs=1, seed=0)
    trainer.close()
