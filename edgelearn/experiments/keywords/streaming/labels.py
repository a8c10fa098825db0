"""Labels of spoken words in the format of Audacity: a line each of start, end and word, separated by tabs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgelearn import atomic
from edgelearn.errors import DataError

from .evaluation import Occurrence


def write_labels(path: str | Path, timeline: Sequence[Occurrence]) -> None:
    """Write the spoken words to a text file. Raises RunError if it can't be written."""
    lines = [f"{spoken.start:.6f}\t{spoken.end:.6f}\t{spoken.word}\n" for spoken in timeline]
    atomic.write_bytes(path, "".join(lines).encode())


def read_labels(path: str | Path) -> list[Occurrence]:
    """Read the spoken words from a text file. Raises DataError for one that can't be read, or has other lines."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"The labels {path} can't be read: {error}. Give a text file.") from error
    timeline = []
    for number, line in enumerate(lines, start=1):
        try:
            start, end, word = line.split("\t")
            timeline.append(Occurrence(word, float(start), float(end)))
        except ValueError:
            raise DataError(
                f"Line {number} of {path} is not a start, an end (in seconds) and a word, with tabs between: {line!r}. "
                f"Write labels as Audacity does."
            ) from None
    return timeline
