"""A limit on the memory in which all threads together decode pictures and sounds."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition

from edgelearn.errors import DataError
from edgelearn.units import megabytes

LIMIT = 640_000_000  # bytes: one picture of 80 million pixels


class DecodingLimit:
    """Lets threads decode as long as what they decode takes less than `limit` bytes together; others wait.

    Arguments:
    - `limit`: bytes.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self._held, self._changed = limit, 0, Condition()

    @contextmanager
    def hold(self, nbytes: int, name: str) -> Iterator[None]:
        """Hold `nbytes` for the block, waiting until there is room.

        Raises DataError, calling the file `name`, if that is more than all threads together may hold.
        """
        if nbytes > self.limit:
            raise DataError(
                f"{name} takes {megabytes(nbytes)} to decode, more than the {megabytes(self.limit)} that all threads "
                f"may take together. Scale it down, cut it into pieces, or remove it."
            )
        with self._changed:
            self._changed.wait_for(lambda: self._held + nbytes <= self.limit)
            self._held += nbytes
        try:
            yield
        finally:
            with self._changed:
                self._held -= nbytes
                self._changed.notify_all()


decoding = DecodingLimit(LIMIT)
