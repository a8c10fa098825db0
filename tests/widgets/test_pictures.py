import io

import numpy as np
import pytest
from matplotlib.text import Text

from edgelearn.errors import DataError
from edgelearn.widgets import contact_sheet, plot_prediction


def opened(image):
    from PIL import Image

    assert image.format == "jpeg"
    return np.asarray(Image.open(io.BytesIO(image.data)))


def test_contact_sheet():
    red, blue = (np.broadcast_to(np.array(color, np.uint8), (32, 32, 3)) for color in ((255, 0, 0), (0, 0, 255)))
    sheet = opened(contact_sheet([red, blue, red], ["a", "b\nnot c", "d"], columns=2, side=64))
    left, right, below = sheet[40, 40], sheet[40, 112], sheet[150, 40]
    assert left[0] > 240 and right[2] > 240 and below[0] > 240
    assert sheet[40, 4].min() > 240, "the margin is white"
    assert (sheet[72:104] < 100).any(), "the captions are not"
    assert sheet.shape[1] < 160 < sheet.shape[0]


def test_contact_sheet_of_bad_input():
    picture = np.zeros((8, 8, 3), np.uint8)
    for pictures, captions in (([], []), ([picture], []), ([picture], ["a", "b"])):
        with pytest.raises(DataError, match="captions"):
            contact_sheet(pictures, captions)


def test_plot_prediction():
    figure = plot_prediction(np.zeros((8, 8, 3), np.uint8), ("daisy", "roses"), np.array([0.25, 0.75]), "a picture")
    picture, bars = figure.axes
    assert picture.get_title() == "a picture"
    assert [label.get_text() for label in bars.get_yticklabels()] == ["roses", "daisy"]
    assert [bar.get_width() for bar in bars.patches] == [0.75, 0.25]
    assert {"75.0 %", "25.0 %"} <= {text.get_text() for text in bars.findobj(Text)}
