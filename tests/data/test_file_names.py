"""Names of files that aren't UTF-8: they are read, shown escaped, and stored."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edgelearn.data.pictures import load_folder, load_images
from edgelearn.lab.runs import RunStore, compare, export
from edgelearn.lab.runs.figures import plot_confusion, to_png

ROOT = Path(__file__).parents[2]


@pytest.fixture
def root(tmp_path):
    """A folder whose name is no UTF-8."""
    audio = os.path.join(os.fsencode(tmp_path), b"r\xff")
    try:
        os.mkdir(audio)
    except OSError:
        pytest.skip("this file system has UTF-8 names alone")
    return Path(os.fsdecode(audio))


def make(root, words, kind, write):
    for word in words:
        audio = root / os.fsdecode(word)
        audio.mkdir()
        for number in range(2):
            with open(audio / os.fsdecode(b"\xe9_nohash_%d.%s" % (number, kind)), "wb") as file:
                write(file)
    (root / os.fsdecode(words[0]) / os.fsdecode(b"broken\xfe." + kind)).write_bytes(b"x")


def test_pictures(root):
    make(root, (b"red\xfe", b"blue"), b"png", lambda file: Image.new("RGB", (40, 40), "red").save(file, "PNG"))
    found = load_folder(root)
    assert found.class_names == ("blue", "red\\xfe") and len(found) == 4
    assert len(found.skipped) == 1 and "broken" in found.skipped[0][0]
    assert load_images(found, range(4), 8).shape == (4, 8, 8, 3)
    to_png(plot_confusion(np.eye(2, dtype=int), found.class_names))


def test_sounds(root):
    soundfile = pytest.importorskip("soundfile")
    from edgelearn.data import audio
    from edgelearn.data.audio import load_clips

    make(root, (b"yes\xfe", b"no"), b"wav", lambda file: soundfile.write(file, np.ones(4000) / 2, 16000, format="WAV"))
    found = audio.load_folder(root)
    assert found.class_names == ("no", "yes\\xfe") and set(found.speakers.tolist()) == {"\\xe9"}
    assert load_clips(found).shape == (4, 16000)
    assert sum(map(len, audio.file_blocks(found.items[0]))) == 4000


def test_runs(root):
    store = RunStore(root / "runs")
    with store.create("test", {"images": str(root), "seed": 1}) as run:
        run.append_epoch({"epoch": 1, "loss": 0.5})
        run.save_checkpoint({"weights/a": np.ones(3, np.float32)}, {"epoch": 1})
        run.finish({"correct": 1, "total": 2})
    again = store.open(run.id)
    assert again.config["images"] == str(root)
    assert again.load_checkpoint()[1] == {"epoch": 1}
    json.dumps(export(again))
    compare([again, again])


@pytest.mark.parametrize(
    "settings", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"LC_ALL": "C.UTF-8"}]
)
def test_any_terminal_can_show_them(root, settings):
    RunStore(root / "runs").create("test", {"seed": 1}).close()
    command = [sys.executable, "-m", "edgelearn.cli", "runs", "--runs", os.fsencode(root / "runs")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | settings
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
