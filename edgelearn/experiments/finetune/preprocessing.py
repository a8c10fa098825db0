"""How a model's examples are made: from its metadata, else from what the user says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from edgelearn.data.audio import features
from edgelearn.data.audio.features import BC_RESNET, DS_CNN_ARM, DS_CNN_MLPERF, FrontEnd
from edgelearn.errors import DataError, FormatError, PlanError
from edgelearn.experiments.trained import Pictures
from edgelearn.graph import Network

# (mean, deviation) of x / 255, under the names of Keras's `preprocess_input` modes where there is one.
PIXELS = {
    "tf": ((0.5,) * 3, (0.5,) * 3),
    "unit": ((0.0,) * 3, (1.0,) * 3),
    "raw": ((0.0,) * 3, (1 / 255,) * 3),
    "torch": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
FRONT_ENDS = {"bc_resnet": BC_RESNET, "ds_cnn": DS_CNN_MLPERF, "ds_cnn_arm": DS_CNN_ARM}


def pictures_of(network: Network, known: Mapping[str, Any], pixels: str | None) -> Pictures:
    """How pictures become examples of `network`.

    Arguments:
    - `known`: the model's preprocessing: {"size", "mean", "deviation"} of pixels / 255, or, as TFLite's metadata has
      it, {"mean", "std"} of pixels; or empty.
    - `pixels`: a name in PIXELS, if `known` is empty.

    Raises PlanError if neither says it, both do, or the network takes no square RGB images; FormatError for metadata of
    another kind.
    """
    shape = network.input_shape
    if len(shape) != 3 or shape[0] != shape[1] or shape[2] != 3:
        raise PlanError(f"'{network.name}' takes {shape}, but pictures are square and have 3 channels.")
    if "mean" not in known:
        if pixels is None:
            names = ", ".join(PIXELS)
            raise PlanError(
                f"The model doesn't say what pixels become before they enter it. Say it with --pixels ({names}); look "
                f"it up where the model comes from, for a wrong one costs accuracy."
            )
        return Pictures(shape[0], *PIXELS[pixels])
    if pixels is not None:
        raise PlanError("The model's metadata says what pixels become: leave --pixels out.")
    try:
        if "std" in known:
            return Pictures(shape[0], _three(known["mean"], 255), _three(known["std"], 255))
        return Pictures(shape[0], _three(known["mean"]), _three(known["deviation"]))
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"The model's preprocessing can't be understood ({error!r}): {dict(known)!s:.200}.") from None


def _three(values: Any, scale: float = 1.0) -> tuple[float, float, float]:
    """A number for each channel, from three or from one."""
    numbers = [float(value) / scale for value in (values if isinstance(values, list | tuple) else [values])]
    red, green, blue = numbers * 3 if len(numbers) == 1 else numbers
    return red, green, blue


def front_end_of(network: Network, known: Mapping[str, Any], name: str | None) -> tuple[FrontEnd, float]:
    """(features, seconds) of clips for `network`. Arguments and errors as `pictures_of`, with {"front_end", "seconds"}
    and a name in FRONT_ENDS."""
    if "front_end" in known:
        if name is not None:
            raise PlanError("The model's metadata says which features it takes: leave --front-end out.")
        try:
            front_end, seconds = features.from_json(known["front_end"]), float(known.get("seconds", 1.0))
        except (TypeError, ValueError, DataError) as error:
            raise FormatError(f"The model's preprocessing can't be understood ({error!r:.200}).") from None
    elif name is None:
        raise PlanError(
            f"The model doesn't say which features it takes. Say it with --front-end ({', '.join(FRONT_ENDS)})."
        )
    else:
        front_end, seconds = FRONT_ENDS[name], 1.0
    frames, bands = front_end.shape(round(front_end.rate * seconds))
    if sorted(n for n in network.input_shape if n > 1) != sorted((frames, bands)):
        raise PlanError(
            f"'{network.name}' takes {network.input_shape}, but the features are {frames} frames of {bands} values. "
            f"Choose other features."
        )
    return front_end, seconds


def picture_settings(pictures: Pictures) -> dict[str, Any]:
    """JSON values of a model's preprocessing."""
    return asdict(pictures)


def clip_settings(front_end: FrontEnd, seconds: float) -> dict[str, Any]:
    """JSON values of a model's preprocessing."""
    return {"front_end": features.to_json(front_end), "seconds": seconds}
