"""Gateway: programs that reach the server over sockets, as clients of a federation like any others.

On a socket every message follows its size, eight bytes, the low byte first. A client begins with a reply to round 0
without payload, which says which one it is; a message of no bytes ends the federation. Sockets are not encrypted:
the gateway listens on this machine alone unless it is told otherwise, and devices reach it through ssh or adb.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from typing import Self

from edgelearn.errors import FormatError, RunError

from .messages import Arrived, Instruction, Outcome, Outcomes, Reply

_SIZE = 8  # bytes of a message's size on a socket
_HELLO_BYTES, _HELLO_SECONDS = 1 << 12, 10.0  # of a client's first message, at most
_MORE = 1 << 16  # bytes that a reply may have besides as many as the instruction
PATIENCE = 600.0  # seconds to wait for a client, and for its reply


class Gateway:
    """Clients of a federation that connect over sockets; a context manager.

    It carries the messages of a server (see `Grid`), and answers single instructions (see `Work`). What a client that
    is missing, or lost, can't do is the problem of its reply, and the round goes on without it.

    Arguments:
    - `clients`: number of clients; they are called 0, 1 and so on.
    - `address`: to listen on (default: this machine alone).
    - `port`: default 0, a free one.
    - `patience`: seconds to wait for a client to connect, and for its reply (default 600).

    - `sent`, `received`: bytes of messages on the sockets, their sizes included.

    Raises RunError if it can't listen there.
    """

    def __init__(self, clients: int, address: str = "127.0.0.1", port: int = 0, patience: float = PATIENCE) -> None:
        self.clients, self.patience = clients, patience
        self.sent = self.received = 0
        self._sockets: dict[int, socket.socket] = {}
        self._changed, self._open = threading.Condition(), True
        try:
            self._listener = socket.create_server((address, port))
        except OSError as error:
            raise RunError(f"Can't listen on {address} port {port}: {error.strerror}. Choose another port.") from None
        self.address, self.port = self._listener.getsockname()[:2]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Tell all clients that the federation is over, and stop listening."""
        with self._changed:
            self._open = False
            connections, self._sockets = list(self._sockets.values()), {}
        for connection in connections:
            with suppress(OSError):
                connection.sendall(bytes(_SIZE))
            connection.close()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def wait(self, seconds: float | None = None) -> int:
        """Wait until all clients are there, at most `seconds` (default: the patience); returns how many are."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._sockets) == self.clients, seconds or self.patience)
            return len(self._sockets)

    def answer(self, data: bytes) -> bytes:
        """Return a client's reply to an instruction, both as bytes."""
        return self._ask(data, self.patience)

    def exchange(
        self, instructions: Mapping[int, bytes], deadline: float | None, arrived: Arrived
    ) -> Mapping[int, Outcome]:
        """Send instructions to all clients at once; see `Grid`."""
        outcomes = Outcomes()
        with ThreadPoolExecutor(max(1, len(instructions))) as pool:
            asked = {
                pool.submit(self._ask, instructions[client], deadline or self.patience): client
                for client in sorted(instructions)
            }
            for done in as_completed(asked):
                outcomes[asked[done]] = outcome = done.result()
                arrived(asked[done], outcome)
        return outcomes

    def _ask(self, data: bytes, seconds: float) -> bytes:
        instruction, end = Instruction.from_bytes(data), time.monotonic() + seconds
        client = instruction.client
        try:
            connection = self._connection(client, seconds)
            try:
                self._send(connection, data)
                while True:
                    reply = self._receive(connection, len(data) + _MORE, end)
                    if Reply.from_bytes(reply).round == instruction.round:
                        return reply
            except TimeoutError:
                raise RunError(f"late: no reply within {seconds:g} s") from None
            except (OSError, FormatError) as error:
                raise RunError(f"its connection ended: {error}") from None
        except RunError as error:
            self._drop(client)
            return Reply.refusal(instruction, error).to_bytes()

    def _connection(self, client: int, seconds: float) -> socket.socket:
        with self._changed:
            if not self._changed.wait_for(lambda: client in self._sockets or not self._open, seconds) or not self._open:
                raise RunError(f"client {client} did not connect within {seconds:g} s")
            return self._sockets[client]

    def _drop(self, client: int) -> None:
        """Close a connection, in whatever state it is: the client opens another one."""
        with self._changed:
            if connection := self._sockets.pop(client, None):
                connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        """Take a new connection in, in place of an earlier one of the same client."""
        try:
            reply = Reply.from_bytes(self._receive(connection, _HELLO_BYTES, time.monotonic() + _HELLO_SECONDS))
            if reply.round or not 0 <= reply.client < self.clients:
                raise FormatError(f"there is no client {reply.client}")
        except (OSError, FormatError):
            connection.close()
            return
        with self._changed:
            if not self._open:
                connection.close()
                return
            if earlier := self._sockets.pop(reply.client, None):
                earlier.close()
            self._sockets[reply.client] = connection
            self._changed.notify_all()

    def _send(self, connection: socket.socket, data: bytes) -> None:
        connection.settimeout(self.patience)
        connection.sendall(len(data).to_bytes(_SIZE, "little") + data)
        with self._changed:
            self.sent += _SIZE + len(data)

    def _receive(self, connection: socket.socket, most: int, end: float) -> bytes:
        """The next message. Raises TimeoutError after `end`, FormatError if it is larger than `most`, and OSError."""
        size = int.from_bytes(self._bytes(connection, _SIZE, end), "little")
        if size > most:
            raise FormatError(f"a message of {size:,} bytes, which may have {most:,}")
        return self._bytes(connection, size, end)

    def _bytes(self, connection: socket.socket, size: int, end: float) -> bytes:
        found = bytearray()
        while len(found) < size:
            connection.settimeout(max(0.001, end - time.monotonic()))
            piece = connection.recv(min(size - len(found), 1 << 20))
            if not piece:
                raise ConnectionResetError("it was closed")
            found += piece
        with self._changed:
            self.received += size
        return bytes(found)
