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
    remedy="Set EDGELEARN_DATA to a folder that has tensorflow_datasets/tf_flowers, give your own pictures (--images "
    "DIR; in Python images=DIR), or use the embedded sample (--sample; sample=True).",
)


def load_flowers(
    images: str | os.PathLike | None = None,
    data: str | os.PathLike | None = None,
    download: bool = True,
    embedded: bool = False,
) -> ImageDataset:
    """Load pictures of flowers. The result's `description` names the source. Without arguments it is TensorFlow
    Datasets' own folder; if a download is necessary and there is no network, the embedded sample.

    Arguments:
    - `images`: a folder with a subfolder of pictures for each class.
    - `data`: a folder with prepared tf_flowers (default: the environment variable EDGELEARN_DATA).
    - `download`: download tf_flowers if they are missing (default True).
    - `embedded`: use the embedded sample of drawings (default False).

    Raises DataError if a named source has no usable pictures, two sources are given, or the photographs are missing
    and `download` is False.
    """
    asked = {"embedded": embedded, "images": images, "data": data}
    chosen = [name for name, value in asked.items() if value]
    if len(chosen) > 1:
        raise DataError(f"Only one source of pictures can be used, got {' and '.join(chosen)}. Give one of them.")
    if embedded:
        return _sample("as requested")
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
