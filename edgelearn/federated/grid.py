"""Grids: how the server's instructions reach the clients and their replies come back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

Outcome = bytes | str  # a reply, or why there is none
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
        - `instructions`: by number of the client.
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
        outcomes: dict[int, Outcome] = {}
        for client, data in sorted(instructions.items()):
            start = time.perf_counter()
            outcome: Outcome = self.work.answer(data)
            seconds = time.perf_counter() - start
            if deadline is not None and seconds > deadline:
                outcome = late(seconds, deadline)
            outcomes[client] = outcome
            arrived(client, outcome)
        return outcomes


def late(seconds: float, deadline: float) -> str:
    """The outcome of a client that took too long."""
    return f"late: {seconds:.1f} s, and the deadline is {deadline:g} s"
