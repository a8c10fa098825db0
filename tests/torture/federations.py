"""What a federation reads that others wrote: messages, client files, checkpoints, records of rounds, users' files."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

import numpy as np

import edgelearn as el
from edgelearn import atomic
from edgelearn.errors import FormatError, RunError
from edgelearn.experiments.federated import read_rounds, report
from edgelearn.experiments.federated.report import totals
from edgelearn.federated import (
    IID,
    ClientMemory,
    Clients,
    Examples,
    FedAdam,
    Instruction,
    LocalGrid,
    NoCompression,
    Reply,
    Server,
    ServerSettings,
)
from edgelearn.federated.compression import ErrorFeedback, Int8, TopK
from edgelearn.federated.verification import User
from edgelearn.lab.runs import RunStore
from edgelearn.lab.runs import run as runs
from edgelearn.ops import Dense

from .attacks import FileFormat
from .mutations import damage_bytes, damage_json, damage_lines, damage_safetensors

CLIENTS = 3
LOSSY = ErrorFeedback(TopK(0.5))


@cache
def federation() -> Clients:
    """Clients of a tiny network, in an open session."""
    network = el.Network("tiny", (4,))
    network.add("dense", Dense(3))
    model = el.Model(network, seed=1).compile(el.SGD(0.1))
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 4)).astype(np.float32), np.arange(12) % 3
    examples = Examples(x, y, IID(CLIENTS, 1).divide(y))
    clients = Clients(model.trainer(4, examples=examples.sizes), dict(model.weights), examples, 1, 0)
    clients.model = model  # pyright: ignore[reportAttributeAccessIssue]
    return clients


def rounds(answer: Callable[[bytes], bytes], number: int = 1) -> Server:
    """`number` rounds of the federation, with what only a lossy one has; `answer` is every client's."""
    clients = federation()
    model, examples = clients.model, clients.examples  # pyright: ignore[reportAttributeAccessIssue]
    model.weights = clients.weights

    class Work:
        def answer(self, data: bytes) -> bytes:
            return answer(data)

    return Server(
        model, model.changing, ServerSettings(CLIENTS, number), FedAdam(), LocalGrid(Work()), (examples.x, examples.y),
        down=Int8(),
    )  # fmt: skip


def honest(data: bytes) -> bytes:
    """A client's answer that has no need to train."""
    instruction = Instruction.from_bytes(data)
    payload = NoCompression().encode([np.full(shape, 0.01) for shape in federation().shapes], None, {})  # pyright: ignore
    metrics = {"loss": 0.5, "accuracy": 0.5, "seconds": 0.1, "planned": 4096, "allocated": 4096}
    return Reply(instruction.round, instruction.client, payload, 4, metrics).to_bytes()


def make_reply(folder: Path) -> Path:
    """The second client's answer in round 1."""
    (folder / "reply").write_bytes(honest(Instruction(1, 1, b"").to_bytes()))
    return folder / "reply"


def read_reply(path: Path) -> None:
    """A round in which one of three clients gives this answer, and what a run keeps of it."""
    kept = []
    federated = rounds(lambda data: path.read_bytes() if Instruction.from_bytes(data).client == 1 else honest(data))
    federated.record = lambda record: kept.append(json.loads(atomic.to_json(record.to_dict())))
    federated.fit()
    assert all(np.isfinite(array).all() for array in federated.weights.values())
    json.dumps(totals(kept))
    if left_out := kept[0]["left_out"]:
        raise FormatError(str(left_out))


def damage_message(data: bytes, rng: Random) -> bytes:
    """Damage the header of a message, and leave its length right; or one number of its payload."""
    end = 4 + int.from_bytes(data[:4], "little")
    header, payload = data[4:end], data[end:]
    if payload and rng.random() < 0.3:
        place = rng.randrange(len(payload) // 4)
        odd = rng.choice((np.nan, np.inf, -1e38, 1e-45))
        payload = payload[: 4 * place] + np.float32(odd).tobytes() + payload[4 * place + 4 :]
    else:
        header = damage_json(header, rng)
    return len(header).to_bytes(4, "little") + header + payload


def make_instruction(folder: Path) -> Path:
    """The weights for client 1 in round 2."""
    clients = federation()
    payload = NoCompression().encode([clients.weights[name] for name in clients.names], None, {})  # pyright: ignore
    (folder / "instruction").write_bytes(Instruction(2, 1, payload).to_bytes())
    return folder / "instruction"


def read_instruction(path: Path) -> None:
    """What a client answers."""
    _raise_problem(federation().answer(path.read_bytes()))


def make_client_file(folder: Path) -> Path:
    """What a client keeps that sends and gets compressed changes."""
    clients, memory = federation(), ClientMemory(folder)
    own = [clients.weights[name] for name in clients.names]
    state = {f"left out/{number}": 0 * array for number, array in enumerate(own)}
    state |= {f"weights/{number}": array for number, array in enumerate(own)} | {"version": np.array([1])}
    memory.save(0, 1, state)
    return folder / "client-0-round-1.safetensors"


def read_client_file(path: Path) -> None:
    """Its answer in the next round."""
    clients = federation()
    changes = [np.full(shape, 0.01, np.float32) for shape in clients.shapes]
    payload = Int8().encode(changes, np.random.default_rng(0), {})
    kept = clients.memory, clients.down, clients.compressor
    clients.memory, clients.down, clients.compressor = ClientMemory(path.parent), Int8(), LOSSY
    try:
        change = b"\x01" + (2).to_bytes(4, "little") + payload
        _raise_problem(clients.answer(Instruction(2, 0, change).to_bytes()))
    finally:
        clients.memory, clients.down, clients.compressor = kept
        for later in path.parent.glob("client-0-round-2*"):
            later.unlink()


def make_checkpoint(folder: Path) -> Path:
    """Of a federation after its first round."""
    federated = rounds(honest)
    federated.fit()
    (folder / "checkpoint").write_bytes(runs.encode_checkpoint(*federated.state()))
    return folder / "checkpoint"


def read_checkpoint(path: Path) -> None:
    """The second round."""
    federated = rounds(honest, 2)
    federated.restore(*runs.read_checkpoint(path))
    federated.fit()


def damage_checkpoint(data: bytes, rng: Random) -> bytes:
    """Damage the state or a tensor, and sign it again, as somebody does who means harm."""
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(data)
        tensors, state = runs.read_checkpoint(Path(file.name))
    if rng.random() < 0.4:
        try:
            changed = json.loads(damage_json(json.dumps(state).encode(), rng).decode("utf-8", "replace"))
        except (ValueError, RecursionError):  # no JSON any more
            return damage_bytes(data, rng)
        state = changed if isinstance(changed, dict) else {}
    else:
        name = rng.choice(sorted(tensors))
        odd = (tensors[name][..., :1], np.float64(tensors[name]), np.full_like(tensors[name], -1), np.zeros(()),
               np.int8(tensors[name]), np.zeros((0, 3), np.float32))  # fmt: skip
        if chosen := rng.choice((*range(len(odd)), None)):
            tensors[name] = np.asarray(odd[chosen])
        else:
            del tensors[name]
    try:
        return runs.encode_checkpoint(tensors, state)
    except (RunError, ValueError):
        return damage_bytes(data, rng)


def make_training(folder: Path) -> Path:
    """A checkpoint of a training after its first step."""
    model = _model()
    model.train_on_batch(np.ones((4, 4), np.float32), np.arange(4) % 3)
    (folder / "checkpoint").write_bytes(runs.encode_checkpoint(*model.state()))
    return folder / "checkpoint"


def read_training(path: Path) -> None:
    """Its next step."""
    model = _model()
    model.restore(*runs.read_checkpoint(path))
    model.train_on_batch(np.ones((4, 4), np.float32), np.arange(4) % 3)


@cache
def _model() -> el.Model:
    network = el.Network("tiny", (4,))
    network.add("dense", Dense(3))
    return el.Model(network, seed=1).compile(el.Adam(0.1))


def make_records(folder: Path) -> Path:
    """The records of a run of two rounds."""
    kept = []
    federated = rounds(honest, 2)
    federated.record = kept.append
    federated.fit()
    with RunStore(folder).create("federated", {"strategy": "fedavg", "seed": 1}) as run:
        for each in kept:
            run.append_epoch({"epoch": each.round, "val_accuracy": 0.5})
            atomic.append_line(run.folder / "rounds.jsonl", atomic.to_json(each.to_dict()))
        run.finish({"accuracy": 0.5, "correct": 1, "total": 2, "memory": {"planned": 4096}})
    return run.folder / "rounds.jsonl"


def read_records(path: Path) -> None:
    """Print, compare and draw the run, and add it up as at the end of the last round."""
    run = RunStore(path.parents[1]).open(path.parent.name)
    json.dumps(totals(read_rounds(run)))
    report.table([run])
    report.plot_bytes([run], path.with_suffix(".png"))


def make_user(folder: Path) -> Path:
    """A user's file."""
    User.enrol(np.random.default_rng(0).normal(1, size=(4, 8)).astype(np.float32)).save(folder / "user")
    return folder / "user"


def read_user(path: Path) -> None:
    """Recordings are accepted or rejected."""
    User.load(path).accepts(np.ones((2, 8), np.float32))


def _raise_problem(reply: bytes) -> None:
    if problem := Reply.from_bytes(reply).problem:
        raise FormatError(problem)


FORMATS = [
    FileFormat("federated reply", make_reply, read_reply, damage_message),
    FileFormat("federated instruction", make_instruction, read_instruction, damage_message),
    FileFormat("federated client", make_client_file, read_client_file, damage_safetensors),
    FileFormat("federated checkpoint", make_checkpoint, read_checkpoint, damage_checkpoint),
    FileFormat("training checkpoint", make_training, read_training, damage_checkpoint),
    FileFormat("federated rounds", make_records, read_records, damage_lines),
    FileFormat("verified user", make_user, read_user, damage_safetensors),
]
