"""State that a client keeps from one of its rounds to the next, in files of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgelearn import atomic
from edgelearn.interop import safetensors

_SUFFIX = ".safetensors"


class ClientMemory:
    """Files of clients. A client has those of its last two rounds, so that a round that is repeated after a kill begins
    with what it began with before.

    Arguments:
    - `folder`: of the files; it is made when it is needed.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def load(self, client: int, number: int) -> dict[str, np.ndarray]:
        """Return the state that the client kept in its last round before round `number`; empty before its first.

        Raises FormatError for a damaged file.
        """
        earlier = [each for each in self._rounds(client) if each < number]
        return dict(safetensors.read_weights(self._path(client, max(earlier)))) if earlier else {}

    def save(self, client: int, number: int, arrays: dict[str, np.ndarray]) -> None:
        """Keep `arrays` of round `number`. Raises RunError if they can't be written."""
        data, path = safetensors.to_bytes(arrays, {}), self._path(client, number)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise atomic.explain(error, path, len(data)) from error
        atomic.write_bytes(path, data)
        for old in [each for each in self._rounds(client) if each < number][:-1]:
            self._path(client, old).unlink(missing_ok=True)

    def _rounds(self, client: int) -> list[int]:
        """The rounds of which there are files, ascending."""
        prefix = f"client-{client}-round-"
        names = [path.name for path in self.folder.glob(f"{prefix}*{_SUFFIX}")]
        numbers = [name.removeprefix(prefix).removesuffix(_SUFFIX) for name in names]
        return sorted(int(number) for number in numbers if number.isascii() and number.isdigit())  # no stray files

    def _path(self, client: int, number: int) -> Path:
        return self.folder / f"client-{client}-round-{number}{_SUFFIX}"
