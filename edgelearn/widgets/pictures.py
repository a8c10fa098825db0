"""Pictures with captions or predictions."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from IPython.display import Image

from edgelearn.errors import DataError
from edgelearn.lab.runs import figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GAP, _FONT = 8, 12  # pixels
_JPEG_QUALITY = 85


def contact_sheet(pictures: Sequence[np.ndarray], captions: Sequence[str], columns: int = 8, side: int = 96) -> Image:
    """Draw pictures in rows, as a JPEG.

    Arguments:
    - `pictures`: square, uint8 (n, n, 3).
    - `captions`: one for each, of one or more lines.
    - `columns`: pictures in a row; `side`: pixels of each.

    Raises DataError without pictures, or if the captions aren't as many.
    """
    from PIL import Image as Pictures
    from PIL import ImageDraw, ImageFont

    if not len(pictures) or len(pictures) != len(captions):
        raise DataError(f"A contact sheet needs as many captions as pictures, got {len(captions)} and {len(pictures)}.")
    line = _FONT + 4
    step_x, step_y = side + _GAP, side + _GAP + line * max(caption.count("\n") + 1 for caption in captions)
    columns = min(columns, len(pictures))
    rows = -(-len(pictures) // columns)
    sheet = Pictures.new("RGB", (_GAP + columns * step_x, _GAP + rows * step_y), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(_FONT)
    for index, (picture, caption) in enumerate(zip(pictures, captions, strict=True)):
        x, y = _GAP + index % columns * step_x, _GAP + index // columns * step_y
        filter_ = Pictures.Resampling.NEAREST if len(picture) < side else Pictures.Resampling.BILINEAR
        sheet.paste(Pictures.fromarray(picture).resize((side, side), filter_), (x, y))
        for number, text in enumerate(caption.split("\n")):
            pen.text((x, y + side + 2 + number * line), text, fill="black", font=font)
    buffer = io.BytesIO()
    sheet.save(buffer, "JPEG", quality=_JPEG_QUALITY)
    return Image(buffer.getvalue(), format="jpeg")


def plot_prediction(
    picture: np.ndarray, class_names: Sequence[str], probabilities: np.ndarray, title: str = ""
) -> Figure:
    """Draw a picture, uint8 (side, side, 3), and the probabilities of the classes, float (classes,)."""
    figure = figures.canvas(8, 3)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.6))
    left.imshow(picture)
    left.set_axis_off()
    left.set_title(title, fontsize=11)
    order = np.argsort(-probabilities)
    colors = [figures.BLUE if place == 0 else "#9ecae1" for place in range(len(order))]
    bars = right.barh(range(len(order)), probabilities[order], color=colors, height=0.65)
    right.bar_label(bars, [f"{100 * probabilities[i]:.1f} %" for i in order], padding=5, fontsize=10)
    right.set_yticks(range(len(order)), [class_names[i] for i in order])
    right.invert_yaxis()
    right.set_xlim(0, 1.2)
    right.set_xticks([])
    right.spines[:].set_visible(False)
    right.tick_params(length=0, labelsize=11)
    return figure
