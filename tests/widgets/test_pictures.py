"""Figures, pictures and tables in cells, and the line that says that a cell works."""

import base64
import io
import re
import time
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.text import Text
from PIL import Image

import edgelearn as el
from edgelearn.errors import DataError, Interrupted, PlanError, RunError
from edgelearn.lab.runs import figures
from edgelearn.train import History, WatchReconstruction
from edgelearn.widgets import (
    Waiting,
    contact_sheet,
    device_table,
    pictures,
    plot_history,
    plot_prediction,
    plot_reconstruction,
    show,
    table,
)
from edgelearn.widgets.pictures import duration, size


def test_a_shown_figure_follows_the_theme_and_is_said_in_words():
    figure = figures.plot_memory(1 << 20, 2 << 20, 3 << 20)
    shown = show(figure)
    assert len(shown.data) < 25_000 and f"alt='{figures.describe(figure)}'" in shown.data
    svg = ElementTree.fromstring(shown.svg)
    (sheet,) = svg.findall(".//{*}style")
    assert "prefers-color-scheme: dark" in sheet.text
    assert "Memory" in [text.text for text in svg.findall(".//{*}text")], "letters stay letters"
    drawn = re.findall(r"(?:fill|stroke): (#\w+|white)", shown.svg.split("</style>")[1])
    assert drawn == [], "no white plate, and no colour of one theme alone"


def test_tables():
    html = table([("a", 1), ("<b>", 2.5)], ("name", "value")).data
    assert html.count("<tr>") == 3 and "&lt;b&gt;" in html and ">2.5<" in html and "<thead>" in html
    assert "<thead>" not in table([("a", 1)]).data
    choice = el.choose_device()
    html = device_table(choice).data
    assert choice.device.name in html and f"chosen: {choice.reason}" in html
    assert html.count("<tr>") == 2 + len(choice.others)


def test_plot_history():
    history = History()
    with pytest.raises(RunError, match="no epoch"):
        plot_history(history)
    for epoch in range(3):
        history.on_epoch_end(epoch, {"loss": 1.0 - epoch / 4, "val_accuracy": epoch / 4})
    loss, accuracy = plot_history(history).axes
    assert loss.lines[0].get_xydata().tolist() == [[1, 1], [2, 0.75], [3, 0.5]]
    assert accuracy.lines[0].get_xydata().tolist() == [[1, 0], [2, 0.25], [3, 0.5]]


def test_units():
    assert [size(n) for n in (12, 2000, 7e6, 3e9)] == ["12 bytes", "2.0 kB", "7.0 MB", "3.0 GB"]
    assert [duration(s) for s in (0.4, 59.4, 185, 7805)] == ["0 s", "59 s", "3 min 05 s", "2 h 10 min"]


def test_contact_sheet():
    red, blue = (np.broadcast_to(np.array(color, np.uint8), (32, 32, 3)) for color in ((255, 0, 0), (0, 0, 255)))
    sheet = contact_sheet([red, blue, red], ["a", "b\nnot <c>", "d"], columns=2, side=64)
    svg = ElementTree.fromstring(sheet.svg)
    assert sheet.alt == "3 pictures: a, b not <c>, d" and "alt='3 pictures: a, b not &lt;c&gt;, d'" in sheet.data
    assert [text.text for text in svg.findall("{*}text")] == ["a", "b", "not <c>", "d"]
    middles = []
    for image in svg.findall("{*}image"):
        data = base64.b64decode(image.get("href").split(",")[1])
        middles.append(np.asarray(Image.open(io.BytesIO(data)))[32, 32])
    assert [(color > 240).tolist() for color in middles] == [[1, 0, 0], [0, 0, 1], [1, 0, 0]]
    for found, captions in (([], []), ([red], []), ([red], ["a", "b"])):
        with pytest.raises(DataError, match="captions"):
            contact_sheet(found, captions)


def test_plot_prediction():
    figure = plot_prediction(np.zeros((8, 8, 3), np.uint8), ("daisy", "roses"), np.array([0.25, 0.75]), "a picture")
    picture, bars = figure.axes
    assert picture.get_title() == "a picture"
    assert [label.get_text() for label in bars.get_yticklabels()] == ["roses", "daisy"]
    assert [bar.get_width() for bar in bars.patches] == [0.75, 0.25]
    assert {"75.0 %", "25.0 %"} <= {text.get_text() for text in bars.findobj(Text)}


def watched(bound: float, **errors: float) -> WatchReconstruction:
    watch = WatchReconstruction(bound)
    watch.errors += [(1, dict.fromkeys(errors, 1.0)), (2, errors)]
    return watch


def test_errors_over_depth():
    watches = {"floats": watched(1e-3, last=1e-7, first=2e-6), "exact": watched(1e-3, last=0.0, first=0.0)}
    (axes,) = plot_reconstruction(watches).axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert drawn["floats, update 2"] == [1e-7, 2e-6] and drawn["exact, update 2"] == [0.0, 0.0]
    assert [1e-3, 1e-3] in drawn.values()
    assert [text.get_text() for text in axes.get_xticklabels()] == ["last", "first"]
    assert axes.get_ylim()[0] < 0 and axes.get_ylim()[1] > 1e-3
    for nothing in (WatchReconstruction(), watched(1e-3)):
        with pytest.raises(PlanError, match="'mine'"):
            plot_reconstruction({"mine": nothing})


@pytest.fixture
def shown(monkeypatch):
    """The lines below a cell."""
    texts = []

    class Handle:
        def update(self, html):
            texts.append(html.data)

    def display(html, display_id):
        texts.append(html.data)
        return Handle()

    monkeypatch.setattr(pictures, "display", display)
    monkeypatch.setattr(pictures, "_SECONDS", 0.005)
    return texts


def test_a_cell_says_what_is_done_until_the_end(shown):
    with Waiting("Counting <bytes>") as say:
        while len(shown) < 3:
            time.sleep(0.001)
        say("plan 2 of 5")
        while "plan 2" not in shown[-1]:
            time.sleep(0.001)
    assert all(re.match("Counting &lt;bytes&gt; … [0-9]+ s", text) for text in shown[:3]) and shown[-1] == ""
    with pytest.raises(ZeroDivisionError), Waiting("Dividing") as say:
        say(1 / 0)
    assert shown[-1] == "" and not say._thread.is_alive()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Interrupted("Call fit again.")])
def test_an_interrupt_ends_the_cell_with_a_line(shown, error):
    with pytest.raises(Interrupted, match="Counting") as stopped, Waiting("Counting"):
        raise error
    assert stopped.value._render_traceback_() == [str(stopped.value)] and stopped.value.__suppress_context__
