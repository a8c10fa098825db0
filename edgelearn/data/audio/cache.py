"""Features of a data set, cached on disk."""

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np

from edgelearn import caches
from edgelearn.data.threads import each

from .clips import ClipDataset, Item, load_clips
from .features import BC_RESNET, FrontEnd

VARIABLE = "EDGELEARN_FEATURES"
_FORMAT = 1  # increment when decoding or features change, to invalidate the cache
_TOGETHER = 512  # clips in memory at once


def load_features(
    dataset: ClipDataset,
    front_end: FrontEnd = BC_RESNET,
    seconds: float = 1.0,
    folder: str | os.PathLike | None = None,
) -> np.ndarray:
    """Features of all clips, padded or cut to the same length: float32 of shape (n, frames, bands).

    They are cached under a hash of the clips' content and the settings; damaged files are detected by their checksum.

    Arguments:
    - `front_end`: computes the features (default BC_RESNET).
    - `seconds`: length of a clip (default 1).
    - `folder`: of the cache (default `cache_folder()`).

    Raises DataError for a clip that cannot be read.
    """
    kept = cache_folder() if folder is None else Path(folder)
    if kept is None:
        return compute_features(dataset, front_end, seconds)
    path = kept / f"{_key(dataset, front_end, seconds)}.safetensors"
    shape = (len(dataset), *front_end.shape(round(front_end.rate * seconds)))
    features = _load(path, shape)
    if features is None:
        features = compute_features(dataset, front_end, seconds)
        _save(path, features)
    return features


def compute_features(dataset: ClipDataset, front_end: FrontEnd = BC_RESNET, seconds: float = 1.0) -> np.ndarray:
    """Like `load_features`, without a cache."""
    out = np.empty((len(dataset), *front_end.shape(round(front_end.rate * seconds))), np.float32)
    for start in range(0, len(dataset), _TOGETHER):
        some = np.arange(start, min(start + _TOGETHER, len(dataset)))
        out[some] = front_end(load_clips(dataset, some, front_end.rate, seconds))
    return out


def cache_folder() -> Path | None:
    """Folder of cached features: EDGELEARN_FEATURES, else in the user's cache. It may be deleted at any time. An empty
    EDGELEARN_FEATURES disables the cache."""
    return caches.folder("features", VARIABLE)


def _key(dataset: ClipDataset, front_end: FrontEnd, seconds: float) -> str:
    digest = hashlib.sha256(f"{_FORMAT} {front_end!r} {seconds!r}".encode())
    for content in each(lambda item: _digest(item, front_end.rate), dataset.items):
        digest.update(content)
    return digest.hexdigest()


def _digest(item: Item, rate: int) -> bytes:
    if isinstance(item, Path):
        with suppress(OSError):  # decoding will report it
            item = item.read_bytes()
    elif callable(item):
        item = item(rate)
    kind = str(getattr(item, "dtype", "encoded")).encode()
    content = item if isinstance(item, bytes) else np.ascontiguousarray(item).tobytes()
    return hashlib.sha256(kind + content).digest()


def _load(path: Path, shape: tuple[int, ...]) -> np.ndarray | None:
    """Read features, or None if the file is missing or damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            features, checksum = file.get_tensor("features"), (file.metadata() or {}).get("sha256")
    except (OSError, SafetensorError, KeyError, ValueError):
        return None
    return features if features.shape == shape and checksum == _checksum(features) else None


def _save(path: Path, features: np.ndarray) -> None:
    """Write features atomically; errors such as a full disk are logged."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
    except OSError as error:
        caches.not_saved(path, error)
        return
    os.close(handle)
    try:
        save_file({"features": features}, temporary, {"sha256": _checksum(features)})
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        Path(temporary).unlink(missing_ok=True)
        caches.not_saved(path, error)


def _checksum(features: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(features).data).hexdigest()
