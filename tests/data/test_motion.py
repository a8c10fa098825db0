"""Windows of motion sensors: cut, paired and read as the study does; drawn people; features."""

import io
import tarfile

import numpy as np
import pytest

from edgelearn.data.motion import ACTIVITIES, FILE, cut, drawn_motion, load_motion, motion_features
from edgelearn.errors import DataError

HEADER = "x_acc,y_acc,z_acc,x_gyro,y_gyro,z_gyro,timestamp,label\n"


def recording(steps, begin, value, walks=60):
    """Lines of a recording that begins at a time, whose axes are a value and more, seated and then walking."""
    rows = [
        ",".join(map(str, [*(value + axis + step / 100 for axis in range(6)), begin + 10 * step, ACTIVITIES[
            2 * (step >= walks)
        ]]))
        for step in range(steps)
    ]  # fmt: skip
    return HEADER + "\n".join(rows) + "\n"


@pytest.fixture
def folder(tmp_path):
    files = {
        "s01/s01_01_sp.csv": recording(110, 1000, 1), "s01/s01_01_sw.csv": recording(120, 1020, 2, walks=58),
        "s02/s02_03_sp.csv": recording(100, 5000, 3), "executions_info.csv": "execution_id\n",
    }  # fmt: skip
    path = tmp_path / FILE
    path.parent.mkdir()
    with tarfile.open(path, "w:xz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"DATA/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return tmp_path


def test_recordings_are_scaled_cut_and_paired(folder):
    phone = load_motion("phone", folder)
    assert phone.windows.shape == (6, 50, 6) and phone.origin == "sp-sw-har"
    assert phone.people.tolist() == ["s01"] * 3 + ["s02"] * 3 and phone.runs.tolist() == [1] * 3 + [3] * 3
    assert phone.labels.tolist() == [0, 0, 2] * 2  # of 25 to 74, 35 steps are seated
    np.testing.assert_allclose(phone.windows[1, 0, [0, 3]], [1.25 / 78.45317840576172, 4.25 / 17.45274543762207], 1e-6)
    both = load_motion("both", folder)
    assert both.windows.shape == (3, 50, 12) and set(both.people) == {"s01"}
    np.testing.assert_allclose(both.windows[0, 0, 0], 1.02 / 78.45317840576172, rtol=1e-6)  # as the watch begins
    assert phone.first_run("s02").tolist() == [False] * 3 + [True] * 3


def test_a_file_that_cannot_be_read(folder, monkeypatch):
    monkeypatch.delenv("EDGELEARN_DATA", raising=False)
    path = folder / FILE
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match="download it again"):
        load_motion("phone", folder)
    path.unlink()
    with pytest.raises(DataError, match="leave it out"):
        load_motion("phone", folder)
    assert load_motion().origin == "drawn"
    with pytest.raises(DataError, match="phone, watch, both"):
        load_motion("ring")


def test_a_window_has_the_label_of_most_steps_of_equals_the_first():
    windows, labels = cut(np.zeros((8, 1)), np.array([3, 3, 1, 1, 1, 0, 0, 0]), 4)
    assert windows.shape == (3, 4, 1) and labels.tolist() == [3, 1, 0]


def test_features_of_a_window():
    x = np.random.default_rng(0).normal(size=(3, 50, 12)).astype(np.float32)
    found = motion_features(x)
    assert found.shape == (3, 94)
    window = x[1, :, 6:].astype(np.float64)
    expected = np.concatenate([
        window.mean(0), np.median(window, 0), window.max(0), window.min(0), window.std(0), np.ptp(window, 0),
        np.sqrt(np.mean(window**2, 0)),
        [np.degrees(np.arctan2(window[:, 1], window[:, 2])).mean(),
         np.degrees(np.arctan2(-window[:, 0], np.sqrt(window[:, 1] ** 2 + window[:, 2] ** 2))).mean()],
        np.sum((window[1:, 3:] + window[:-1, 3:]) / 2, 0),
    ])  # fmt: skip
    np.testing.assert_allclose(found[1, 47:], expected, rtol=1e-5, atol=1e-5)


def test_drawn_people_differ_and_repeat_themselves():
    few, more = drawn_motion(people=2, runs=1, seconds=2), drawn_motion(people=3, runs=2, seconds=2, devices=1)
    assert (few.windows[few.people == "p02"] == more.windows[more.first_run("p02")]).all()
    assert not np.array_equal(few.windows[few.people == "p01"], few.windows[few.people == "p02"])
    assert sorted(set(few.labels.tolist())) == [0, 1, 2, 3, 4] and np.abs(few.windows).max() <= 1
    assert drawn_motion(people=1, runs=1, seconds=2, devices=2).windows.shape[2] == 12
    with pytest.raises(DataError, match="1 person"):
        drawn_motion(people=0)
