"""Held against Flower, where it is installed."""

from types import SimpleNamespace

import numpy as np
import pytest

from edgelearn.errors import RunError
from edgelearn.federated import Instruction, Reply, make_strategy
from edgelearn.federated.flower import FIELD, RECORD, FlowerGrid, client_app

STRATEGIES = {"fedavg": "FedAvg", "fedavgm": "FedAvgM", "fedadam": "FedAdam", "fedyogi": "FedYogi"}


@pytest.fixture(autouse=True)
def _a_task_of_flower(monkeypatch):
    """Messages can only be made inside of one."""
    identity = pytest.importorskip("flwr.supercore.task_identity").TaskIdentity
    for field in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(identity, field, 1)


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies_equal_flowers(name):
    module = pytest.importorskip("flwr.serverapp.strategy")
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

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


@pytest.mark.parametrize(
    ("name", "flowers", "settings"),
    [
        ("fedmedian", "FedMedian", {}), ("fedtrimmedavg", "FedTrimmedAvg", {"beta": 0.3}),
        ("krum", "Krum", {"num_malicious_nodes": 3}),
        ("multikrum", "MultiKrum", {"num_malicious_nodes": 3, "num_nodes_to_select": 7}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("clients", (10, 9))
def test_combinations_equal_flowers(name, flowers, settings, clients):
    """Three of ten clients may be bad; two of nine, not three."""
    module = pytest.importorskip("flwr.serverapp.strategy")
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

    if clients == 9:
        smaller = {"num_malicious_nodes": 2, "num_nodes_to_select": 7, "beta": 2 / 9}
        settings = {key: smaller[key] for key in settings}
    rng = np.random.default_rng(1)
    changes = [[rng.normal(size=(3, 4)).astype(np.float32), rng.normal(size=5).astype(np.float32)]
               for _ in range(clients)]  # fmt: skip
    replies = []
    for number, change in enumerate(changes):
        arrays = ArrayRecord({str(place): Array(array) for place, array in enumerate(change)})
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 5})})
        replies.append(Message(content, reply_to=Message(RecordDict(), dst_node_id=number, message_type="train")))
    theirs, _ = getattr(module, flowers)(**settings).aggregate_train(1, replies)
    ours = make_strategy(name, 0.0).combined(changes, [5] * clients, 1.0)
    for place, array in enumerate(ours):
        assert array.dtype == np.float32
        np.testing.assert_allclose(array, theirs[str(place)].numpy(), rtol=2e-5, atol=1e-6)


class Lossy:
    """Flower's grid, of one node whose process dies `times` times for each message."""

    def __init__(self, times, code):
        self.times, self.code, self.pushed = times, code, []

    def get_node_ids(self):
        return [7]

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            self.pushed.append(message)
            numbers.append(str(len(self.pushed)))
        return numbers

    def pull_messages(self, numbers):
        return [self._reply(number) for number in numbers]

    def send_and_receive(self, messages, timeout):
        return [reply("0", b"0", None)]

    def _reply(self, number):
        data = self.pushed[int(number) - 1].content["message"]["bytes"]
        sent = sum(each.content["message"]["bytes"] == data for each in self.pushed)
        lost = SimpleNamespace(code=self.code, reason="gone") if sent <= self.times else None
        return reply(number, data, lost)


def reply(number, data, error):
    metadata = SimpleNamespace(reply_to_message_id=number, src_node_id=7)
    content = {"message": {"bytes": data}}
    return SimpleNamespace(metadata=metadata, has_error=lambda: error is not None, error=error, content=content)


@pytest.mark.parametrize(
    "times, code, sent, answered", [(0, 8, 1, True), (2, 8, 3, True), (3, 8, 3, False), (1, 2, 1, False)]
)
def test_a_message_whose_process_died_is_sent_again(times, code, sent, answered, monkeypatch):
    """But not one whose client raised an error."""
    grid, arrived = Lossy(times, code), []
    monkeypatch.setattr("edgelearn.federated.flower._POLL_SECONDS", 0.001)
    outcomes = FlowerGrid(grid, 1).exchange({3: b"work"}, None, lambda client, outcome: arrived.append(client))
    assert len(grid.pushed) == sent and arrived == [3]
    assert outcomes[3] == b"work" if answered else "gone" in outcomes[3]


def test_a_node_with_a_full_disk_says_so():
    """The others go on without it."""
    app = pytest.importorskip("flwr.app")

    class Full:
        def answer(self, data):
            raise RunError("there is no room")

    instruction = Instruction(2, 1, b"")
    content = app.RecordDict({RECORD: app.ConfigRecord({FIELD: instruction.to_bytes()})})
    message = app.Message(content, dst_node_id=1, message_type="train")
    answer = client_app(lambda context: Full())(message, None)
    reply = Reply.from_bytes(answer.content[RECORD][FIELD])
    assert (reply.round, reply.client) == (2, 1) and "no room" in reply.problem
