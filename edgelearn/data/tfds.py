"""Read TensorFlow Datasets in a child process, so that TensorFlow is never imported into this one."""

import json
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, cast
from urllib.request import Request, urlopen

import numpy as np

from edgelearn.child import Child
from edgelearn.errors import DataError, DownloadError

from . import tfds_reader
from .pictures import ImageDataset

CONNECT_LIMIT_S = 8
DOWNLOAD_LIMIT_S = 3600
_NEEDED = ("tensorflow", "tensorflow_datasets", "importlib_resources")


@dataclass(frozen=True)
class Collection:
    """A labelled data set of TensorFlow Datasets.

    Arguments:
    - `name`, `version`: as in TensorFlow Datasets.
    - `url`: address of the download.
    - `noun`: word for the examples in descriptions.
    - `remedy`: advice in errors if the data are missing.
    - `feature`: name of the examples' feature; "image" is read encoded, other features as numbers.
    """

    name: str
    version: str
    url: str
    noun: str
    remedy: str
    feature: str = "image"


@dataclass(frozen=True)
class ReadExamples:
    """Examples that were read.

    Arguments:
    - `values`: bytes of each example: an encoded picture, or little-endian numbers.
    - `labels`: int32 of shape (n,).
    - `class_names`: names of the labels.
    """

    values: list[bytes]
    labels: np.ndarray
    class_names: tuple[str, ...]


@dataclass(frozen=True)
class Found(ReadExamples):
    """Examples with their origin, "EDGELEARN_DATA" or "tfds", and a description of it (see ImageDataset)."""

    origin: str
    description: str


def load(
    collection: Collection, data: str | os.PathLike | None = None, download: bool = False, split: str = "train"
) -> ImageDataset:
    """Load one split of a collection of pictures. Arguments and errors as in `fetch`."""
    found = fetch(collection, data, download, split)
    return ImageDataset(collection.name, found.origin, found.description, found.class_names, found.labels, found.values)


def data_folder(data: str | os.PathLike | None = None) -> str | os.PathLike | None:
    """Folder of the data sets: `data`, else the environment variable EDGELEARN_DATA, else None."""
    return data or os.environ.get("EDGELEARN_DATA")


def fetch(
    collection: Collection, data: str | os.PathLike | None = None, download: bool = False, split: str = "train"
) -> Found:
    """Load one split of a collection.

    Arguments:
    - `data`: folder with the prepared data (default: the environment variable EDGELEARN_DATA, else TensorFlow Datasets'
      own folder).
    - `download`: download missing data to TensorFlow Datasets' own folder (default False).
    - `split`: "train", "test" or "validation" (default "train").

    Raises the errors of `fetch_from`.
    """
    named = data_folder(data)
    if named:
        return replace(fetch_from(named, collection, split=split), origin="EDGELEARN_DATA")
    return fetch_from(None, collection, download, split)


def fetch_from(
    data_dir: str | os.PathLike | None, collection: Collection, download: bool = False, split: str = "train"
) -> Found:
    """Load the examples of one split in stored order.

    Arguments:
    - `data_dir`: a folder with tensorflow_datasets/NAME or NAME in it; None: TensorFlow Datasets' own folder.
    - `download`: download and prepare missing data (default False).

    Raises DownloadError (a DataError) within about ten seconds if the server can't be reached, and DataError if the
    data are missing or damaged, or a package is missing.
    """
    name, version = collection.name, collection.version
    folder = find_prepared(name, version, data_dir)
    if folder:
        examples = read_prepared(folder, split, collection.feature)
    elif download:
        check_connection(collection.url, collection.remedy)
        examples = read_downloaded(f"{name}:{version}", data_dir, split, collection.feature)
        folder = find_prepared(name, version, data_dir)
    else:
        where = " or ".join(map(str, roots(data_dir)))
        raise DataError(f"No prepared {name}/{version} found in {where}. {collection.remedy}")
    description = f"{len(examples.values):,} {collection.noun} of {name} {version} from {folder}."
    return Found(**vars(examples), origin="tfds", description=description)


def find_prepared(name: str, version: str, data_dir: str | os.PathLike | None = None) -> Path | None:
    """Folder of a prepared data set, or None. `data_dir` as in fetch_from."""
    for root in roots(data_dir):
        folder = root / name / version
        if (folder / "dataset_info.json").is_file():
            return folder
    return None


def read_prepared(folder: Path, split: str = "train", feature: str = "image", label: str = "label") -> ReadExamples:
    """Read one split of a prepared data set, offline. Raises DataError if it is damaged."""
    return _read({"prepared": str(folder)}, split, feature, label, f"The prepared data in {folder}", None)


def read_downloaded(
    name: str,
    data_dir: str | os.PathLike | None = None,
    split: str = "train",
    feature: str = "image",
    label: str = "label",
) -> ReadExamples:
    """Read one split of "name:version"; TensorFlow Datasets downloads and prepares it if necessary."""
    request = {"download": name, "data_dir": None if data_dir is None else os.fspath(data_dir)}
    return _read(request, split, feature, label, f"The download of {name}", DOWNLOAD_LIMIT_S)


def check_connection(url: str, remedy: str, limit_s: float = CONNECT_LIMIT_S):
    """Raise DownloadError, ending in `remedy`, unless `url` answers within `limit_s` seconds."""
    outcome: list[Exception | None] = []

    def ask():
        try:
            urlopen(Request(url, method="HEAD"), timeout=limit_s).close()
            outcome.append(None)
        except (OSError, ValueError) as error:
            outcome.append(error)

    # On a thread, because DNS look-ups ignore the time limit.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(limit_s)
    problem = outcome[0] if outcome else f"no answer in {limit_s:g} seconds"
    if problem is not None:
        raise DownloadError(f"{url} cannot be reached ({problem}). {remedy}")


def roots(data_dir: str | os.PathLike | None) -> list[Path]:
    """The folders in which a collection's own folder is looked for."""
    if data_dir is None:
        return [Path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()]
    root = Path(data_dir).expanduser()
    return [root / "tensorflow_datasets", root]


def _read(request: dict, split: str, feature: str, label: str, subject: str, limit_s: float | None) -> ReadExamples:
    missing = [package for package in _NEEDED if find_spec(package) is None]
    if missing:
        raise DataError(
            f"{subject} cannot be read without {' and '.join(missing)}: pip install 'edgelearn[tensorflow]'"
        )
    request |= {"split": split, "feature": feature, "label": label}
    head, labels, values = {"class_names": [], "count": 0}, [], []
    with _reader(request, subject, limit_s) as stream:
        head |= json.loads(stream.readline())
        for number, value in records(stream):
            labels.append(number)
            values.append(value)
    if not values or len(values) != head["count"]:
        raise DataError(
            f"{subject} should have {head['count']} examples in split {split!r}, but {len(values)} were read. "
            "Copy or download the data again."
        )
    return ReadExamples(values, np.array(labels, np.int32), tuple(head["class_names"]))


def records(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the label and the content of each record that tfds_reader wrote after its first line."""
    while record := stream.read(tfds_reader.RECORD_HEAD.size):
        number, length = tfds_reader.RECORD_HEAD.unpack(record)
        yield number, stream.read(length)


@contextmanager
def _reader(request: dict, subject: str, limit_s: float | None) -> Iterator[BinaryIO]:
    """Start the reader and yield its stdout. Raises DataError with the last line of its log if it fails."""
    # Run as a file: as a module it would import the engine. -P keeps the modules next to it off the path.
    command = ["-P", tfds_reader.__file__, json.dumps(request)]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}  # reading files needs no GPU memory
    with Child(*command, environment=quiet) as child, child.limited(clock=limit_s):
        # A reader that dies leaves a truncated record; its exit code is the error to report.
        with suppress(ValueError, struct.error):
            yield cast(BinaryIO, child.answers)
        child.process.wait()  # it may look for the damaged file, as long as the limit allows
        if failure := child.failure():
            if child.process.returncode < 0 and not child.reason:  # its log has no word of that
                failure += " while TensorFlow read it; a damaged file can cause that"
            raise DataError(f"{subject} could not be read: {failure}. Copy or download the data again.")
