import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgelearn.errors import RunError, ShapeError
from edgelearn.lab.runs import figures

ROWS = [
    {"epoch": epoch, "loss": 1 / epoch, "accuracy": 0.5, "val_loss": 2 / epoch, "val_accuracy": 0.1 * epoch}
    for epoch in range(1, 6)
]


def texts(figure):
    """Every text in the figure that is not empty."""
    from matplotlib.text import Text

    figure.canvas.draw()
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def test_plot_confusion():
    figure = figures.plot_confusion(np.array([[3, 1], [0, 0]]), ["daisy", "rose"])
    shown = texts(figure)
    assert {"daisy", "rose", "3\n75 %", "1\n25 %", "Predicted class", "True class"} <= set(shown)
    assert "Confusion matrix: 3 of 4 correct (75.0 %)" in shown
    np.testing.assert_array_equal(figure.axes[0].images[0].get_array(), [[0.75, 0.25], [0, 0]])
    figures.plot_confusion(np.zeros((40, 40), int), [str(i) for i in range(40)])
    for matrix, names in ((np.zeros((2, 3)), ["a", "b"]), (np.zeros((2, 2)), ["a"]), (np.zeros((0, 0)), [])):
        with pytest.raises(ShapeError, match="class names"):
            figures.plot_confusion(matrix, names)


def test_plot_learning_curves():
    figure = figures.plot_learning_curves(ROWS, title="a run", reference={"published": 670 / 736})
    loss, accuracy = figure.axes
    assert [line.get_label() for line in loss.lines] == ["train", "test"]
    np.testing.assert_allclose(loss.lines[1].get_xydata(), [[row["epoch"], row["val_loss"]] for row in ROWS])
    np.testing.assert_allclose(accuracy.lines[1].get_ydata(), [row["val_accuracy"] for row in ROWS])
    assert set(accuracy.lines[2].get_ydata()) == {670 / 736}
    assert {"a run", "Loss", "Accuracy", "Epoch", "published: 91.0 %"} <= set(texts(figure))


def test_learning_curves_of_what_there_is():
    rows = [{"epoch": 1, "loss": 1.0}, {"epoch": 2, "loss": None}, {"epoch": 3, "loss": 0.5, "val_accuracy": 0.5}]
    loss, accuracy = figures.plot_learning_curves(rows).axes
    assert loss.lines[0].get_xydata().tolist() == [[1, 1], [3, 0.5]]
    assert [line.get_label() for line in accuracy.lines] == ["test"]
    figures.plot_learning_curves([{"epoch": 1, "loss": float("nan")}])
    with pytest.raises(RunError, match="no epoch"):
        figures.plot_learning_curves([])


def test_plot_overlay():
    figure = figures.plot_overlay({f"run {number}": ROWS for number in range(9)} | {"empty": []})
    looks = {(line.get_color(), line.get_marker()) for line in figure.axes[0].lines}
    assert len(looks) == 9
    assert {"run 0", "run 8", "empty", "train", "test"} <= set(texts(figure))
    with pytest.raises(RunError, match="no epoch"):
        figures.plot_overlay({"empty": []})


def test_plot_memory():
    figure = figures.plot_memory(84 * 10**6, 91 * 10**6, None)
    assert {"84.0 MB", "91.0 MB", "not measured", "Size (MB)"} <= set(texts(figure))
    assert [bar.get_width() for bar in figure.axes[0].patches] == [84, 91, 0]
    assert "Size (GB)" in texts(figures.plot_memory(1, 2, 3 * 10**9))
    assert "512 bytes" in texts(figures.plot_memory(512, None, None))
    assert texts(figures.plot_memory(None, None, None)).count("not measured") == 3


def test_png(tmp_path, full_disk):
    from matplotlib.image import imread

    path = tmp_path / "figure.png"
    figure = figures.plot_memory(1, 2, 3, path)
    assert path.read_bytes() == figures.to_png(figure)
    height, width, _ = imread(path).shape
    assert 700 < width < 1200 and 250 < height < 800
    before = path.read_bytes()
    with full_disk(), pytest.raises(RunError, match=r"figure\.png"):
        figures.plot_learning_curves(ROWS, path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["figure.png"]


def test_heavy_imports_wait_and_pyplot_is_never_touched():
    program = """
import sys
import edgelearn.lab.runs
assert not {"matplotlib", "rich"} & sys.modules.keys()
from edgelearn.lab.runs import figures
figures.to_png(figures.plot_memory(1, 2, 3))
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_ten_series_differ_in_color_and_marker_and_the_style_sheet_has_the_same_colors():
    looks = [figures.look(number) for number in range(10)]
    assert len({look["color"] for look in looks}) == len({look["marker"] for look in looks}) == 10
    css = (Path(__file__).parents[3] / "edgelearn" / "widgets" / "style.css").read_text()
    colors = re.findall(r"--el-series-(\d): (#\w{6})", css)
    light = [look["color"].lower() for look in looks]
    dark = [figures._DARK.get(color, color) for color in light]
    assert [color for _, color in colors] == light + 2 * dark
