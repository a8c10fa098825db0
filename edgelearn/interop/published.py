"""Files of weights that others publish for networks of edgelearn.models, and how each is told from another file.

Nothing is downloaded here: an address stands in the message of a file that is missing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgelearn.errors import DataError
from edgelearn.extensions import check_name

TORCHVISION = "https://download.pytorch.org/models/"
KERAS = "https://storage.googleapis.com/tensorflow/keras-applications/"


@dataclass(frozen=True)
class PublishedWeights:
    """A file of weights of ImageNet's 1,000 classes.

    Arguments:
    - `network`: name of the network in edgelearn.models.
    - `url`: address of the file.
    - `checksum`: "sha256:DIGITS" or "md5:DIGITS", in hexadecimal, as the publisher states it; of torchvision's files
      the first digits, which their names have. None where none is stated: any file is then accepted that fits.
    - `settings`: arguments of the network's function, such as its width (default none).
    """

    network: str
    url: str
    checksum: str | None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def file_name(self) -> str:
        return self.url.rpartition("/")[-1]

    @property
    def folders(self) -> list[Path]:
        """Folders in which the file is looked for: EDGELEARN_DATA's, and where PyTorch and Keras keep theirs."""
        home, data = Path.home(), os.environ.get("EDGELEARN_DATA")
        found = [Path(data).expanduser() / "weights"] if data else []
        found.append(Path(os.environ.get("TORCH_HOME") or home / ".cache" / "torch") / "hub" / "checkpoints")
        return [*found, Path(os.environ.get("KERAS_HOME") or home / ".keras") / "models"]

    def find(self, path: str | Path | None = None) -> Path:
        """The file, once its checksum is compared. `path`: of the file (default: it is looked for in `folders`).

        Raises DataError, which says where to get it, if it is missing or another file.
        """
        places = [Path(path)] if path else [folder / self.file_name for folder in self.folders]
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            raise DataError(
                f"{' and '.join(map(str, places))} {'is' if len(places) == 1 else 'are'} not there. Get {self.url} and "
                f"give its path, or put it into a folder 'weights' in EDGELEARN_DATA."
            )
        if self.checksum:
            algorithm, _, digits = self.checksum.partition(":")
            with found.open("rb") as file:
                actual = hashlib.file_digest(file, algorithm).hexdigest()
            if not actual.startswith(digits):
                raise DataError(
                    f"{found} is not the published file: its {algorithm} is {actual[: len(digits)]}, that of "
                    f"{self.url} {digits}. Get it again; el.load reads other files."
                )
        return found


# torchvision 0.29: names end in the first digits of the SHA-256. Keras 3: MD5, where keras.applications compares one.
PUBLISHED: dict[str, PublishedWeights] = {
    "alexnet_one_column": PublishedWeights(
        "alexnet_one_column", f"{TORCHVISION}alexnet-owt-7be5be79.pth", "sha256:7be5be79"
    ),
    "squeezenet": PublishedWeights("squeezenet", f"{TORCHVISION}squeezenet1_1-b8a52dc0.pth", "sha256:b8a52dc0"),
    "resnet18": PublishedWeights("resnet18", f"{TORCHVISION}resnet18-f37072fd.pth", "sha256:f37072fd"),
    "resnet34": PublishedWeights("resnet34", f"{TORCHVISION}resnet34-b627a593.pth", "sha256:b627a593"),
    "resnet50": PublishedWeights("resnet50", f"{TORCHVISION}resnet50-0676ba61.pth", "sha256:0676ba61"),
    "shufflenet_v2": PublishedWeights(
        "shufflenet_v2", f"{TORCHVISION}shufflenetv2_x1-5666bf0f80.pth", "sha256:5666bf0f80"
    ),
    "mobilenet_v1": PublishedWeights("mobilenet_v1", f"{KERAS}mobilenet/mobilenet_1_0_224_tf.h5", None),
    "mobilenet_v1_025": PublishedWeights(  # the digits are those of a copy of the file
        "mobilenet_v1", f"{KERAS}mobilenet/mobilenet_2_5_224_tf.h5",
        "sha256:eab6eaac7b8f7c2f13007ff9240ed516d6406b395004d43fe13c8cba549c422c", {"alpha": 0.25},
    ),
    "mobilenet_v2": PublishedWeights(
        "mobilenet_v2", f"{KERAS}mobilenet_v2/mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224.h5", None
    ),
    "mobilenet_v3_small": PublishedWeights(
        "mobilenet_v3_small", f"{KERAS}mobilenet_v3/weights_mobilenet_v3_small_224_1.0_float.h5",
        "md5:8768d4c2e7dee89b9d02b2d03d65d862",
    ),
    "mobilenet_v3_large": PublishedWeights(
        "mobilenet_v3_large", f"{KERAS}mobilenet_v3/weights_mobilenet_v3_large_224_1.0_float.h5",
        "md5:59e551e166be033d707958cf9e29a6a7",
    ),
    "vgg16": PublishedWeights(
        "vgg16", f"{KERAS}vgg16/vgg16_weights_tf_dim_ordering_tf_kernels.h5", "md5:64373286793e3c8b2b4e3219cbf3544b"
    ),
}  # fmt: skip


def find_published(name: str) -> PublishedWeights:
    """The published weights of that name. Raises UsageError for another name."""
    check_name(name, PUBLISHED, "published weights")
    return PUBLISHED[name]
