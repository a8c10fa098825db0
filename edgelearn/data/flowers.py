"""Load flower pictures. A source that the user names is never replaced by another one."""

import os
from dataclasses import replace

from edgelearn.errors import DataError, DownloadError

from .dataset import ImageDataset
from .drawn_flowers import embedded_flowers
from .folder import load_folder
from .tfds import Collection, load

TF_FLOWERS = Collection(
    name="tf_flowers",
    version="3.0.1",
    url="http://download.tensorflow.org/example_images/flower_photos.tgz",
    noun="photographs",
    remedy="Set EDGELEARN_DATA to a folder that has tensorflow_datasets/tf_flowers, give your own pictures with "
    "--images DIR, or use the embedded sample with --sample.",
)


def load_flowers(
    images: str | os.PathLike | None = None,
    data: str | os.PathLike | None = None,
    download: bool = True,
    embedded: bool = False,
) -> ImageDataset:
    """The pictures to learn flowers from. The first that applies:

    1. embedded=True: the embedded sample, drawings made by the program itself;
    2. images: a folder with a subfolder of pictures for each class;
    3. data, or else the environment variable EDGELEARN_DATA: a folder with prepared tf_flowers in it;
    4. TensorFlow Datasets' own folder, into which it downloads tf_flowers if `download` is true;
    5. when that download can't be made for lack of a network, the embedded sample.

    `description` of the result says in one line what was used, and why if it is the sample.

    Raises DataError when a source that was named holds no usable pictures, when two sources are asked for
    at once, or when the photographs aren't there and `download` is false.
    """
    asked = {"embedded": embedded, "images": images, "data": data}
    chosen = [name for name, value in asked.items() if value]
    if len(chosen) > 1:
        raise DataError(f"Only one source of pictures can be used, got {' and '.join(chosen)}. Give one of them.")
    if embedded:
        return _sample("as asked for")
    if images:
        return load_folder(images)
    try:
        return load(TF_FLOWERS, data, download)
    except DownloadError as error:
        reason = str(error).split(". ")[0]
        return _sample(f"because the flower photographs cannot be downloaded: {reason}")


def _sample(why: str) -> ImageDataset:
    sample = embedded_flowers()
    return replace(sample, description=f"{sample.description.rstrip('.')}, {why}.")
