"""Compressed weights from the server to clients: how they changed since the last message, for those who have it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgelearn.errors import FormatError

from ..compressor import Compressor, NoCompression, Shapes, at_round
from .arrays import checked

_WHOLE, _CHANGE = 0, 1
_HEADER = 5  # bytes: kind, version


class Downlink:
    """The server's side. It keeps the weights that clients can compute from its messages, which are the same for all.

    A message holds the change of these since the message before, or, for a client that doesn't have that one, all of
    them as float32. What a lossy compressor leaves out stays in the difference to the server's own weights, and is sent
    later: error feedback needs no memory besides.

    Arguments:
    - `compressor`: of changes.
    - `arrays`: weights before the first message, float32.
    """

    def __init__(self, compressor: Compressor, arrays: Sequence[np.ndarray]) -> None:
        self.compressor, self.version = compressor, 0
        self.arrays = [np.array(array, np.float32) for array in arrays]
        self.versions: dict[int, int] = {}  # by client: the last message it got
        self._change = b""

    def advance(self, weights: Sequence[np.ndarray], rng: np.random.Generator) -> None:
        """Make the messages of the next round. `weights`: the server's; `rng` draws what is random."""
        shapes = [array.shape for array in self.arrays]
        difference = [new - old for new, old in zip(weights, self.arrays, strict=True)]
        compressor = at_round(self.compressor, self.version + 1)
        self._change = compressor.encode(difference, rng, {})
        change = compressor.decode(self._change, shapes)
        self.arrays = [old + d for old, d in zip(self.arrays, change, strict=True)]
        self.version += 1

    def message(self, client: int) -> bytes:
        """Return the message of this round for a client, and count it as received."""
        has_last = self.version > 0 and self.versions.get(client) == self.version - 1
        self.versions[client] = self.version
        kind, payload = (_CHANGE, self._change) if has_last else (_WHOLE, _encode_whole(self.arrays))
        return bytes([kind]) + self.version.to_bytes(4, "little") + payload

    def forget(self, client: int) -> None:
        """Send all weights to a client next time, as after a failure."""
        self.versions.pop(client, None)

    def state(self) -> dict[str, np.ndarray]:
        """Arrays for a checkpoint, by name."""
        clients = np.array(sorted(self.versions.items()), np.int64).reshape(-1, 2)
        arrays = {_name(number): array for number, array in enumerate(self.arrays)}
        return arrays | {"version": np.array([self.version]), "clients": clients}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Return to where `state` was called. Raises KeyError or FormatError, and changes nothing, if that was another
        federation."""
        clients = state["clients"]
        if clients.shape[1:] != (2,) or clients.dtype.kind != "i":
            raise FormatError(f"The versions of clients have shape {clients.shape} and type {clients.dtype}.")
        arrays = [
            np.array(checked(state[_name(number)], array.shape, f"The weights {number} that clients have"))
            for number, array in enumerate(self.arrays)
        ]
        self.version, self.arrays = _version(state), arrays
        self.versions = {int(client): int(version) for client, version in clients}


class Copy:
    """A client's side: the weights as the messages of a `Downlink` left them.

    Arguments:
    - `compressor`: the server's.
    """

    def __init__(self, compressor: Compressor) -> None:
        self.compressor = compressor

    def receive(self, data: bytes, shapes: Shapes, state: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return the weights after a message. `state`: what the client keeps, by name; it is changed in place.

        Raises FormatError for bytes that can't be a message, and for a change of weights that the client doesn't have.
        """
        kind, version = data[:1], int.from_bytes(data[1:_HEADER], "little")
        if len(data) < _HEADER or kind not in (bytes([_WHOLE]), bytes([_CHANGE])):
            raise FormatError(f"{len(data):,} bytes are no weights from a server: leave the message out.")
        if kind == bytes([_WHOLE]):
            arrays = NoCompression().decode(data[_HEADER:], shapes)
        else:
            own = [state.get(_name(number)) for number in range(len(shapes))]
            has = _version(state) if "version" in state else None
            if has != version - 1 or any(array is None for array in own):
                raise FormatError(
                    f"A message changes version {version - 1} of the weights, but this client has {has or 'none'}. "
                    "Have the server send all of them."
                )
            change = at_round(self.compressor, version).decode(data[_HEADER:], shapes)
            arrays = [
                checked(old, d.shape, "What a client kept of the weights") + d
                for old, d in zip(own, change, strict=True)
                if old is not None
            ]
        state |= {_name(number): array for number, array in enumerate(arrays)} | {"version": np.array([version])}
        return arrays


def _encode_whole(arrays: Sequence[np.ndarray]) -> bytes:
    return NoCompression().encode(arrays, np.random.default_rng(0), {})


def _version(state: dict[str, np.ndarray]) -> int:
    """Return the number of the last message. Raises FormatError for what is none."""
    stored = state["version"]
    if stored.shape != (1,) or stored.dtype.kind != "i" or not 0 <= stored[0] < 1 << 32:
        raise FormatError(f"The version of the weights is {stored!r:.60}, not one whole number.")
    return int(stored[0])


def _name(number: int) -> str:
    return f"weights/{number}"
