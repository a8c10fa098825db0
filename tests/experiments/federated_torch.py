"""The oracle: the same federation in PyTorch, from the same weights, on the same mini-batches, in plain loops.

As a script it trains both on CIFAR-10, of EDGELEARN_DATA, and prints accuracies round by round:

    python tests/experiments/federated_torch.py --pictures 50000 --rounds 50 --epochs 10 --strategy fedprox
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import torch

from edgelearn.data.draws import epoch_order
from edgelearn.experiments.federated import FederatedConfig, FederatedExperiment
from edgelearn.federated import Server, ServerSettings
from edgelearn.federated.messages import LocalGrid
from edgelearn.interop.to_torch import to_torch
from edgelearn.train import Callback, Subset
from edgelearn.train.trainer import mini_batches

ORDER = 33  # the random stream of a client's order, in federated/client.py


def federation(experiment, rounds, report=lambda number, accuracy: None):
    """The weights after some rounds of FedAvg or FedProx, as `experiment` is configured. `report` gets the number of
    each round and its test accuracy."""
    config, examples, network = experiment.config, experiment.examples, experiment.model.network
    rule, (x, y) = experiment.model.optimizer, experiment.train
    weights = {name: np.float32(array) for name, array in experiment.model.weights.items()}
    for number in range(1, rounds + 1):
        sums = {name: np.zeros(array.shape) for name, array in weights.items()}
        for client, part in enumerate(examples.parts):
            order = np.random.default_rng([config.seed, ORDER, number, client]).permutation(part)
            module = to_torch(network, weights)
            received = [parameter.detach().clone() for parameter in module.parameters()]
            sgd = torch.optim.SGD(
                module.parameters(), rule.learning_rate, rule.momentum, weight_decay=rule.weight_decay
            )
            for epoch in range(config.epochs):
                for batch in mini_batches(
                    epoch_order(len(order), experiment.model.seed, epoch), experiment.task.batch_size
                ):
                    sgd.zero_grad()
                    logits = module(module.encode(x[order[batch]]))
                    torch.nn.functional.cross_entropy(logits, torch.from_numpy(np.int64(y[order[batch]]))).backward()
                    for parameter, reference in zip(module.parameters(), received, strict=True):
                        parameter.grad += rule.proximal * (parameter.detach() - reference)
                    sgd.step()
            for name, array in module.weights().items():
                sums[name] += len(part) / sum(examples.sizes) * array
        weights = {name: np.float32(array) for name, array in sums.items()}
        report(number, accuracy(to_torch(network, weights), *experiment.test))
    return weights


def accuracy(module, x, y):
    """The share of right answers."""
    with torch.no_grad():
        parts = mini_batches(np.arange(len(y)), 500)
        return sum((module(module.encode(x[p])).argmax(1).numpy() == y[p]).sum() for p in parts) / len(y)


def ours(experiment, rounds, report=lambda number, accuracy: None):
    """The weights after some rounds here."""

    class Report(Callback):
        def on_epoch_end(self, epoch, logs):
            report(epoch + 1, logs["val_accuracy"])

    config = experiment.config
    settings = ServerSettings(config.clients, rounds, seed=config.seed)
    federated = Server(
        experiment.model, experiment.model.changing, settings, config.make_strategy(), LocalGrid(experiment.clients()),
        experiment.test, experiment.compressor(config.compress),
    )  # fmt: skip
    federated.fit([Report()])
    return federated.weights


def main(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("--pictures", type=int, default=50_000)
    parser.add_argument("--test", type=int, default=10_000)
    for name, default in (("rounds", 50), ("epochs", 10), ("clients", 10), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--strategy", default="fedavg")
    parser.add_argument("--partition", default="dirichlet")
    parser.add_argument("--compress", default="float32")
    parser.add_argument("--only", choices=("edgelearn", "torch"), help="one of the two (default: both)")
    chosen = vars(parser.parse_args(arguments))
    pictures, test, alone = chosen.pop("pictures"), chosen.pop("test"), chosen.pop("only")
    experiment = FederatedExperiment.load(FederatedConfig("cifar10", **chosen))
    (x, y), (tx, ty) = experiment.train, experiment.test
    some, others = np.arange(pictures), np.arange(test)
    experiment.train, experiment.test = (Subset(x, some), y[some]), (Subset(tx, others), ty[others])
    del experiment.examples  # of all pictures
    initial, found = experiment.model.weights, {}
    for name, train in {"edgelearn": ours, "torch": federation}.items():
        if alone not in (None, name):
            continue
        experiment.model.weights = initial
        found[name] = []

        def report(number, share, name=name):
            found[name].append(share)
            print(f"{name} round {number}: {share:.2%}", flush=True)

        train(experiment, chosen["rounds"], report)
    print("best", *(f"{name} {max(shares):.2%}" for name, shares in found.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
