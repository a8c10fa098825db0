import io

import pytest

import edgelearn as el
from edgelearn.errors import RunError
from edgelearn.lab.runs import figures
from edgelearn.train import History
from edgelearn.widgets import device_table, plot_history, show, table
from edgelearn.widgets.pictures import duration, size


def test_show_is_a_small_png():
    from PIL import Image

    figure = figures.plot_memory(1 << 20, 2 << 20, 3 << 20)
    shown = show(figure).data
    assert len(shown) < len(figures.to_png(figure)) / 2
    with Image.open(io.BytesIO(shown)) as small, Image.open(io.BytesIO(figures.to_png(figure))) as large:
        assert (small.format, small.size) == ("PNG", large.size)


def test_table():
    html = table([("a", 1), ("<b>", 2.5)], ("name", "value")).data
    assert html.count("<tr>") == 3 and "&lt;b&gt;" in html and ">2.5<" in html and "<thead>" in html
    assert "<thead>" not in table([("a", 1)]).data


def test_devices():
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
