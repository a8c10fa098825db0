"""Messages between server and clients, a header of JSON and arrays as bytes, and the grids that carry them.

A message is four bytes with the length of the header (little-endian), the header, and the payload. Whatever carries it,
in one process or over a network, carries these bytes; so bytes that are counted are bytes that were sent.
"""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from os import SEEK_END
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Protocol, Self

import numpy as np

from edgelearn import records
from edgelearn.errors import EdgelearnError, FormatError, RunError

from .compression import NoCompression

_LENGTH = 4
_LARGEST_HEADER = 1 << 16


@dataclass(frozen=True)
class Size:
    """Bytes of a message.

    Arguments:
    - `payload`: bytes of the arrays.
    - `total`: bytes of all that is sent.
    """

    payload: int
    total: int


class _Message:
    """Base of the messages: dataclasses whose fields but the payload are the header."""

    payload: bytes

    def to_bytes(self) -> bytes:
        header = {k: dict(v) if isinstance(v, Mapping) else v for k, v in vars(self).items() if k != "payload"}
        text = json.dumps(header, separators=(",", ":")).encode()
        return len(text).to_bytes(_LENGTH, "little") + text + self.payload

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Raises FormatError for other bytes."""
        start = _start(data)
        try:
            return records.convert({"payload": data[start:]} | records.parse(data[_LENGTH:start], dict), cls)
        except records.RecordError as error:
            raise FormatError(f"A message has a damaged header: {error}.") from None


@dataclass(frozen=True)
class Instruction(_Message):
    """From the server: train from these weights.

    Arguments:
    - `round`: number of the round, from 1.
    - `client`: number of the client.
    - `payload`: the weights, encoded.
    """

    round: int
    client: int
    payload: bytes = field(repr=False)


@dataclass(frozen=True)
class Reply(_Message):
    """From a client: how the weights changed, or why it could not train.

    Arguments:
    - `round`, `client`: numbers of the instruction.
    - `payload`: the change of the weights, encoded.
    - `examples`: number of examples it trained with.
    - `metrics`: numbers by name, such as "loss" and "seconds".
    - `problem`: why there is no payload (default "": none).
    """

    round: int
    client: int
    payload: bytes = field(repr=False)
    examples: int
    metrics: Mapping[str, float]
    problem: str = ""

    @classmethod
    def refusal(cls, instruction: Instruction, error: EdgelearnError) -> Self:
        """Return the reply of a client that could not train."""
        return cls(instruction.round, instruction.client, b"", 0, {}, f"{type(error).__name__}: {error}")


def size_of(data: bytes) -> Size:
    """The size of a message. Bytes that are none have no payload."""
    try:
        return Size(len(data) - _start(data), len(data))
    except FormatError:
        return Size(0, len(data))


def split_own(payload: bytes, size: int) -> tuple[bytes, np.ndarray]:
    """Return (the rest of a payload, the `size` values of a client's own at its end, float32).

    Raises FormatError if it is too short.
    """
    end = max(0, len(payload) - 4 * size)
    return payload[:end], NoCompression().decode(payload[end:], [(size,)])[0]


def _start(data: bytes) -> int:
    """Where the payload begins."""
    start = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
    if len(data) < start or start > _LENGTH + _LARGEST_HEADER:
        raise FormatError(f"{len(data):,} bytes are no message: its header would have {start - _LENGTH:,}.")
    return start


class Instructions(Mapping[int, bytes]):
    """The instructions of a round by client, made where they are sent: no two need be in memory at a time.

    Arguments:
    - `number`: number of the round.
    - `payloads`: the weights for each client, encoded; clients may share them.
    - `own`: values of a client's own, which follow the weights, float32 (clients, values).
    """

    def __init__(self, number: int, payloads: Mapping[int, bytes], own: np.ndarray) -> None:
        self.number, self._payloads, self._own = number, payloads, own

    def __getitem__(self, client: int) -> bytes:
        return Instruction(self.number, client, self._payloads[client] + self._own[client].tobytes()).to_bytes()

    def __iter__(self) -> Iterator[int]:
        return iter(self._payloads)

    def __len__(self) -> int:
        return len(self._payloads)


Outcome = bytes | str  # a reply, or why there is none
_IN_MEMORY = 16 << 20  # bytes of a round's replies; more lie in a file


class Outcomes(Mapping[int, Outcome]):
    """The outcomes of a round by client. Replies beyond 16 MiB lie in a temporary file, so that memory is independent
    of the number of clients."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 (it lives as long as this object)
        self._found: dict[int, tuple[int, int] | str] = {}  # place in the file and size, or why there is no reply
        weakref.finalize(self, self._file.close)

    def __setitem__(self, client: int, outcome: Outcome) -> None:
        """Raises RunError if there is no room for a reply."""
        if isinstance(outcome, str):
            self._found[client] = outcome
            return
        try:
            start = self._file.seek(0, SEEK_END)
            self._file.write(outcome)
            self._file.flush()
        except OSError as error:
            raise RunError(
                f"A reply of {len(outcome):,} bytes can't be kept in {gettempdir()}: {error.strerror}. Make room "
                "there, or name another folder by TMPDIR, and resume the run."
            ) from error
        self._found[client] = start, len(outcome)

    def __getitem__(self, client: int) -> Outcome:
        found = self._found[client]
        if isinstance(found, str):
            return found
        self._file.seek(found[0])
        return self._file.read(found[1])

    def __iter__(self) -> Iterator[int]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


Arrived = Callable[[int, Outcome], None]


class Work(Protocol):
    """Carries out instructions: `Clients` in this process, or something that asks clients elsewhere."""

    def answer(self, data: bytes) -> bytes:
        """Return the reply to an instruction, both as bytes. Raises RunError if a file can't be written."""
        ...


class Grid(Protocol):
    """Carries messages. Local, Ray and deployed federations differ in this alone."""

    def exchange(
        self, instructions: Mapping[int, bytes], deadline: float | None, arrived: Arrived
    ) -> Mapping[int, Outcome]:
        """Send instructions and wait for the replies.

        Arguments:
        - `instructions`: by number of the client; they may be made anew each time one is read.
        - `deadline`: seconds to wait; None: as long as it takes.
        - `arrived`: called with a client's number and its outcome as soon as that is known; it may raise.

        Returns the outcome of each client: its reply, or a text that says why there is none.
        """
        ...


class LocalGrid:
    """Clients in this process, one after the other. What they get and send are the bytes that a network would carry.
    They share the server's disk: where it is full, the round ends with a RunError, and no client is left out.

    Arguments:
    - `work`: the clients.
    """

    def __init__(self, work: Work) -> None:
        self.work = work

    def exchange(self, instructions, deadline, arrived):
        outcomes = Outcomes()
        for client in sorted(instructions):
            start = time.perf_counter()
            outcome: Outcome = self.work.answer(instructions[client])
            seconds = time.perf_counter() - start
            if deadline is not None and seconds > deadline:
                outcome = f"late: {seconds:.1f} s, and the deadline is {deadline:g} s"
            outcomes[client] = outcome
            arrived(client, outcome)
        return outcomes
