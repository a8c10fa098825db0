"""Clients of a federation in C: their rounds are those of clients in Python, their bytes those on the socket."""

import ctypes
import socket
import subprocess
from ctypes import c_char_p, c_float, c_int, c_size_t, c_uint32, c_void_p

import numpy as np
import pytest

import edgelearn as el
from edgelearn.bundles import compile_client, write_client
from edgelearn.cli import main
from edgelearn.federated import (
    Clients,
    Examples,
    FedAvg,
    Gateway,
    Instruction,
    LocalGrid,
    Reply,
    Server,
    ServerSettings,
)
from edgelearn.federated.messages import size_of
from edgelearn.lab.runs import RunStore
from edgelearn.ops import BatchNormalization, Conv2D, Dense, GlobalAveragePooling2D, ReLU

from .built import SANITIZED, Built, compiled, needs_compiler

RATE, SIZE, EPOCHS, ROUNDS = 0.05, 6, 3, 3
ARGUMENT, DAMAGED, OTHER = 1, 4, 5

pytestmark = needs_compiler


def network():
    network = el.Network("small", (5, 5, 3))
    network.add("conv", Conv2D(18, 3, padding="same", use_bias=False))
    network.add("norm", BatchNormalization())
    network.add("relu", ReLU())
    network.add("pool", GlobalAveragePooling2D())
    network.add("dense", Dense(4))
    return network


@pytest.fixture(scope="module")
def model():
    return el.Model(network(), seed=1).compile(el.SGD(RATE, momentum=0.9), batchnorm="batch")


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(5)
    return rng.normal(size=(3 * SIZE, 5, 5, 3)).astype(np.float32), rng.integers(0, 4, 3 * SIZE).astype(np.int32)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("client")
    el.bundle(model, folder, batch_size=SIZE, last_batches=(3,), target="c")
    write_client(folder)
    return folder


@pytest.fixture(scope="module")
def program(folder):
    return compile_client(folder, ("-Werror", *SANITIZED))


def start(program, port, number, x, y, epochs=EPOCHS):
    examples = program.with_name(f"examples-{number}")
    examples.write_bytes(x.tobytes() + y.tobytes())
    weights = program.parents[1] / "model.weights"
    command = [program, "127.0.0.1", port, number, weights, examples, RATE, epochs]
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def federate(model, data, grid, record):
    server = el.Model(model.network, model.weights, model.device, 1).compile(el.SGD(RATE, momentum=0.9))
    settings = ServerSettings(3, ROUNDS)
    Server(server, model.changing, settings, FedAvg(), grid, data, record=record).fit()
    return server.weights


def test_rounds_of_three_programs_are_those_of_python(model, data, program):
    x, y = data
    parts = np.arange(3 * SIZE).reshape(3, SIZE)
    ours, theirs = [], []
    with model.trainer(SIZE, SIZE) as trainer:
        clients = Clients(trainer, model.weights, Examples(x, y, parts), EPOCHS, seed=0)
        expected = federate(model, data, LocalGrid(clients), theirs.append)
    with Gateway(3, patience=60) as gateway:
        programs = [start(program, gateway.port, number, x[part], y[part]) for number, part in enumerate(parts)]
        assert gateway.wait() == 3
        greetings = gateway.received
        found = federate(model, data, gateway, ours.append)
    said = [each.communicate(timeout=60) for each in programs]
    assert [each.returncode for each in programs] == [0, 0, 0], said
    for name, weights in expected.items():
        np.testing.assert_allclose(found[name], weights, rtol=1e-5, atol=1e-5 * np.abs(weights).max())
    assert any(np.abs(expected[name] - model.weights[name]).max() > 1e-3 for name in model.changing)
    for own, other in zip(ours, theirs, strict=True):
        assert not own.left_out and [c["examples"] for c in own.clients] == [SIZE] * 3
        losses = [[client["loss"] for client in each.clients] for each in (own, other)]
        np.testing.assert_allclose(*losses, rtol=1e-5)
        assert own.down == other.down and own.up["payload"] == other.up["payload"]
    messages, ways = 3 * ROUNDS, {"down": gateway.sent, "up": gateway.received - greetings}
    for way, counted in ways.items():
        assert counted == sum(getattr(each, way)["total"] for each in ours) + 8 * messages
    told = [list(map(int, (line[0], line[3]))) for line in (text.splitlines()[-1].split() for text, _ in said)]
    assert [sum(each) for each in zip(*told, strict=True)] == [gateway.sent, gateway.received]


def test_what_goes_wrong_is_left_out_or_a_code(model, data, program):
    x, y = data
    weights = b"".join(np.float32(model.weights[name]).tobytes() for name in sorted(model.changing))
    with Gateway(2, patience=1) as gateway:
        assert (
            "did not connect within 1 s"
            in Reply.from_bytes(gateway.answer(Instruction(1, 1, weights).to_bytes())).problem
        )
        one = start(program, gateway.port, 1, x[:7], y[:7])  # 7 are 6 and 1: the bundle has 6 and 3
        while gateway.wait(0.05) < 1:
            assert one.poll() is None
        for payload, problem in ((weights, "no mini-batch of so many"), (weights[4:], "bytes of weights arrived")):
            reply = Reply.from_bytes(gateway.answer(Instruction(1, 1, payload).to_bytes()))
            assert problem in reply.problem and (reply.round, reply.client, reply.examples) == (1, 1, 0)
        slow = start(program, gateway.port, 0, x, y, 10**8)
        gateway.wait()
        outcomes = gateway.exchange({0: Instruction(2, 0, weights).to_bytes()}, 0.2, lambda *_: None)
        assert "late: no reply within 0.2 s" in Reply.from_bytes(outcomes[0]).problem
        slow.kill()
        slow.communicate()
    assert one.wait(60) == 0
    one.communicate()
    for message in ((1 << 40).to_bytes(8, "little"), (9).to_bytes(8, "little") + b'\x05\0\0\0{"a":'):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            lost = start(program, listener.getsockname()[1], 0, x, y)
            connection, _ = listener.accept()
            with connection:
                connection.sendall(message)
                assert lost.wait(60) == DAMAGED and "cut off or changed" in lost.communicate()[1]


def test_a_federation_by_the_command(model, data, program, tmp_path, capsys):
    x, y = data
    model.save(tmp_path / "small.safetensors")
    np.savez(tmp_path / "own.npz", x=x, y=y)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    parts = np.arange(2 * SIZE).reshape(2, SIZE)
    programs = [start(program, port, number, x[part], y[part]) for number, part in enumerate(parts)]
    words = ["federated", "gateway", "own", "--data", tmp_path / "own.npz", "--model", tmp_path / "small.safetensors"]
    words += ["--clients", 2, "--rounds", 2, "--port", port, "--runs", tmp_path / "runs"]
    assert main(list(map(str, words))) == 0
    assert [each.wait(60) for each in programs] == [0, 0]
    assert f"Waiting for 2 clients at 127.0.0.1 port {port}" in capsys.readouterr().out
    (run,) = RunStore(tmp_path / "runs").list()
    assert (run.status, run.results["epochs"]) == ("finished", 2)
    for each in programs:
        each.communicate()


class Client(ctypes.Structure):
    """edgelearn_client."""

    _fields_ = [
        ("number", c_uint32), ("inputs", c_void_p), ("targets", c_char_p), ("target_bytes", c_size_t),
        ("examples", c_size_t), ("epochs", c_int), ("rate", c_float), ("seconds", c_void_p),
    ]  # fmt: skip


class Linked:
    """The functions of client.h in this process."""

    def __init__(self, folder, x, y, number):
        library = compiled(folder, f"-I{folder}", more=(folder / "client" / "client.c",))
        self.built = Built(folder, library=library)
        self.built.check(self.built.open())
        self.kept = np.ascontiguousarray(x), y.tobytes()
        self.lib = self.built.lib
        self.lib.edgelearn_client_room.restype = c_size_t
        client = Client(number, self.kept[0].ctypes.data, self.kept[1], 4, len(x), 2, RATE, None)
        assert self.lib.edgelearn_client_open(ctypes.byref(client)) == 0
        self.room = self.lib.edgelearn_client_room()
        self.reply, self.size = ctypes.create_string_buffer(self.room), c_size_t()

    def answer(self, message):
        code = self.lib.edgelearn_answer(
            message, c_size_t(len(message)), self.reply, c_size_t(self.room), ctypes.byref(self.size)
        )
        return code, self.reply.raw[: self.size.value]

    def close(self):
        self.lib.edgelearn_client_close()
        self.built.close()


@pytest.fixture(scope="module")
def linked(folder, data):
    x, y = data
    linked = Linked(folder, x[:15], y[:15], 2)
    yield linked
    linked.close()


def splitmix64(stream):
    mask = (1 << 64) - 1
    while True:
        stream = (stream + 0x9E3779B97F4A7C15) & mask
        x = ((stream ^ stream >> 30) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ x >> 27) * 0x94D049BB133111EB) & mask
        yield x ^ x >> 31


def orders(number, client, examples, epochs):
    """The documented order of examples in each epoch of a round."""
    for epoch in range(epochs):
        order, numbers = list(range(examples)), splitmix64(number << 40 ^ client << 16 ^ epoch)
        for at in range(examples - 1, 0, -1):
            other = next(numbers) % (at + 1)
            order[at], order[other] = order[other], order[at]
        yield np.array(order)


def test_mini_batches_are_trained_in_the_documented_order(model, data, linked):
    x, y = data
    names = sorted(model.changing)
    before = {name: model.weights[name] for name in names}
    message = Instruction(7, 2, b"".join(before[name].tobytes() for name in names)).to_bytes()
    with model.trainer(SIZE, SIZE, examples=[15]) as trainer:
        for number in (7, 7, 8):  # a round that is repeated has the same bits
            code, data_ = linked.answer(message if number == 7 else message.replace(b'"round":7', b'"round":8'))
            reply = Reply.from_bytes(data_)
            trainer.load(model.weights)
            for order in orders(number, 2, 15, 2):
                logs = [trainer.step(x[part], y[part]) for part in (order[:6], order[6:12], order[12:])]
            assert code == 0 and reply.examples == 15 and reply.round == number
            loss = sum(size * each["loss"] for size, each in zip((6, 6, 3), logs, strict=True)) / 15
            assert reply.metrics["loss"] == pytest.approx(loss, rel=1e-5)
            changes = np.frombuffer(reply.payload, np.float32)
            expected = np.concatenate([(trainer.weights[name] - before[name]).ravel() for name in names])
            np.testing.assert_allclose(changes, expected, atol=1e-5 * np.abs(expected).max())


def test_damaged_messages_give_codes(model, linked):
    names = sorted(model.changing)
    good = Instruction(1, 2, b"".join(model.weights[name].tobytes() for name in names)).to_bytes()
    end = len(good) - size_of(good).payload
    rng = np.random.default_rng(3)
    codes = set()
    for number in range(600):
        bad = bytearray(good)
        if number % 3:
            for _ in range(rng.integers(1, 4)):
                bad[rng.integers(end)] = rng.integers(256)
        else:
            del bad[rng.integers(end + 8) :]
        code, reply = linked.answer(bytes(bad))
        codes.add(code)
        if code and reply:
            assert Reply.from_bytes(reply).problem
        elif code == DAMAGED:
            assert not reply
    assert {DAMAGED, OTHER} <= codes <= {0, ARGUMENT, DAMAGED, OTHER}
    for text in (
        b"",
        b"{",
        b'{"round":1,"client":2,}',
        b'{"round":01,"client":2}',
        b'{"round":1}',
        b'{"round":1,"round":2}',
        b'{"round":-1,"client":2}',
        b'{"round":1,"client":2}x',
        b'{"round":9999999999,"client":2}',
    ):
        assert linked.answer(len(text).to_bytes(4, "little") + text + good[end:]) == (DAMAGED, b""), text
    text = b' { "client" : 2 ,\n"round":3} '
    assert linked.answer(len(text).to_bytes(4, "little") + text + good[end:])[0] == 0
    code, reply = linked.answer(good.replace(b'"client":2', b'"client":3'))
    assert code == ARGUMENT and Reply.from_bytes(reply).problem == "this is client 2"
    nan = good[:end] + np.float32(np.nan).tobytes() + good[end + 4 :]
    assert "NaN" in Reply.from_bytes(linked.answer(nan)[1]).problem
