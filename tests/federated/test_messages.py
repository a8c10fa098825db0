"""Messages: what is packed comes back, damage is noticed, sizes are those of the bytes."""

from types import SimpleNamespace

import numpy as np
import pytest

from edgelearn.errors import FormatError, RunError
from edgelearn.federated import ClientMemory, Instruction, NoCompression, Partly, Reply, Size, make_strategy, size_of
from edgelearn.federated.compression import Int8
from edgelearn.federated.flower import FIELD, RECORD, FlowerGrid, client_app

REPLY = Reply(3, 7, b"\x01\x02\x03", 20, {"loss": 0.5, "planned": 4096})


def test_messages_come_back():
    assert Reply.from_bytes(REPLY.to_bytes()) == REPLY
    instruction = Instruction(3, 7, bytes(100))
    assert Instruction.from_bytes(instruction.to_bytes()) == instruction
    assert size_of(instruction.to_bytes()) == Size(100, len(instruction.to_bytes()))


@pytest.mark.parametrize("data", [
    b"", b"\x05\x00\x00\x00{}", b"\xff\xff\xff\xff" + bytes(100), b"\x02\x00\x00\x00{}",
    Instruction(1, 2, b"").to_bytes(),
])  # fmt: skip
def test_damage_is_noticed(data):
    with pytest.raises(FormatError):
        Reply.from_bytes(data)
    assert size_of(data).total == len(data)


def test_float32_is_packed_without_gaps():
    arrays = [np.float32([[1, 2, 3]]), np.float32(7), np.zeros((0, 4), np.float32)]
    data = NoCompression().encode(arrays, np.random.default_rng(0), {})
    assert len(data) == 16
    back = NoCompression().decode(data, [array.shape for array in arrays])
    assert all(np.array_equal(a, b) and a.shape == b.shape for a, b in zip(arrays, back, strict=True))
    with pytest.raises(FormatError):
        NoCompression().decode(data + b"\x00", [array.shape for array in arrays])


def test_some_arrays_are_sent_as_they_are():
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in ((3, 4), (5,), (2, 2))]
    shapes = [array.shape for array in arrays]
    partly = Partly(Int8(), (False, True, False))
    data = partly.encode(arrays, rng, {})
    assert len(data) == (4 * 2 + 12 + 4) + 4 * 5
    first, second, third = partly.decode(data, shapes)
    assert np.array_equal(second, arrays[1])
    assert 0 < np.abs(first - arrays[0]).max() < 0.05 and third.shape == (2, 2)
    with pytest.raises(FormatError):
        partly.decode(data[:7], shapes)


def test_a_repeated_round_begins_with_what_it_began_with(tmp_path):
    memory = ClientMemory(tmp_path / "clients")
    assert memory.load(0, 1) == {}
    for number in (2, 5, 6):
        memory.save(0, number, {"residual": np.full(2, number)})
    assert memory.load(0, 7)["residual"].tolist() == [6, 6]
    assert memory.load(0, 6)["residual"].tolist() == [5, 5]
    assert len(list((tmp_path / "clients").iterdir())) == 2
    assert memory.load(1, 9) == {}
    for name in ("client-1-round-x", "client-1-round-\xb2", "client-1-round--3"):
        (tmp_path / "clients" / f"{name}.safetensors").touch()
    assert memory.load(1, 9) == {}


FLOWERS = {"fedavg": "FedAvg", "fedavgm": "FedAvgM", "fedadam": "FedAdam", "fedyogi": "FedYogi"}


@pytest.fixture(autouse=True)
def _a_task_of_flower(monkeypatch):
    """Messages can only be made inside of one."""
    identity = pytest.importorskip("flwr.supercore.task_identity").TaskIdentity
    for field in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(identity, field, 1)


@pytest.mark.parametrize("name", FLOWERS)
def test_strategies_equal_flowers(name):
    module = pytest.importorskip("flwr.serverapp.strategy")
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

    settings = {"server_momentum": 0.9} if name == "fedavgm" else {}
    flower, ours = getattr(module, FLOWERS[name])(**settings), make_strategy(name, 0.0)
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
