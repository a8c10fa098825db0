"""Held against Flower, where it is installed."""

import numpy as np
import pytest

from edgelearn.federated import make_strategy

STRATEGIES = {"fedavg": "FedAvg", "fedavgm": "FedAvgM", "fedadam": "FedAdam", "fedyogi": "FedYogi"}


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies_equal_flowers(name, monkeypatch):
    module = pytest.importorskip("flwr.serverapp.strategy")
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    for field in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, field, 1)
    settings = {"server_momentum": 0.9} if name == "fedavgm" else {}
    flower, ours = getattr(module, STRATEGIES[name])(**settings), make_strategy(name, 0.0)
    rng = np.random.default_rng(1)
    start = rng.normal(size=(3, 4)).astype(np.float32)
    theirs, mine, state = start, start, ours.initial_state([start.shape])
    for number in range(1, 5):
        change = rng.normal(size=start.shape).astype(np.float32) / 10
        if name == "fedavgm":
            flower.current_arrays = ArrayRecord({"w": Array(theirs)})
        else:
            flower.current_arrays = {"w": theirs}
        metrics = MetricRecord({"num-examples": 5})
        content = RecordDict({"arrays": ArrayRecord({"w": Array(theirs + change)}), "metrics": metrics})
        instruction = Message(RecordDict(), dst_node_id=1, message_type="train")
        aggregated, _ = flower.aggregate_train(number, [Message(content, reply_to=instruction)])
        theirs = aggregated["w"].numpy().astype(np.float32)
        (step,), state = ours.step([change], state, number)
        mine = mine + step
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=1e-6)
