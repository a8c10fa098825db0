"""The clips that commands of `edgelearn keywords` are given, and what can't be used of them."""

from __future__ import annotations

from collections.abc import Callable

from edgelearn.data.audio.clips import ClipDataset
from edgelearn.data.subfolders import skipped_lines


def find_clips(folder: str | None, otherwise: Callable[[], ClipDataset], what: str = "Clips") -> ClipDataset:
    """Those in `folder`, or where None is named what `otherwise` makes. Says where they come from, and names each file
    that is left out."""
    from edgelearn.data.audio.folder import load_folder

    clips = load_folder(folder) if folder else otherwise()
    print(f"{what}: {clips.description}", *skipped_lines(clips.skipped), sep="\n")
    return clips
