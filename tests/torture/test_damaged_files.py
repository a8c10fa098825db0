"""A short part of the torture suite: a few damaged files of every format, and faults that are planted and found."""

import json
import mmap
import os
import time
from contextlib import suppress

import pytest

from edgelearn.errors import EdgelearnError, FormatError
from edgelearn.interop.formats import read_model

from . import damaged_files, keras_models
from .attacks import FileFormat
from .damaged_files import MOST, attack, damaged, missing
from .formats import FORMATS

ATTACKS, SEED = 25, 20261122
# They import TensorFlow; tests/data/test_tfds.py and tests/interop/test_imported_files.py read damaged ones, too
LONG = ("TFRecord", "SavedModel (graph)", "SavedModel (index)", "SavedModel (values)")
pytestmark = pytest.mark.skipif(
    not os.path.exists("/proc/self/clear_refs"), reason="memory is measured by Linux's /proc"
)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras with NumPy 2
@pytest.mark.filterwarnings("ignore:.*NaN or infinite values")
@pytest.mark.parametrize("file_format", [each for each in FORMATS if each.name not in LONG], ids=lambda each: each.name)
def test_damaged_files_are_read_or_refused(file_format, tmp_path):
    if packages := missing(file_format):
        pytest.skip(f"{', '.join(packages)} isn't installed")
    outcomes = list(attack(file_format, tmp_path, SEED, 0, ATTACKS))
    assert [each for each in outcomes if each["result"] not in ("read", "refused")] == []
    assert max(each["bytes"] for each in outcomes) < MOST
    assert any(each["result"] == "refused" for each in outcomes)


@pytest.mark.parametrize("value", [3, "text", [1, 2], None, {"x": 1}], ids=repr)
def test_settings_and_classes_of_other_types_are_refused(value, tmp_path):
    """Also where Keras 3 writes a layer's name beside its settings, and reading went on without them."""
    good = keras_models.structure()
    for place in range(len(good["config"]["layers"])):
        for part in ("class_name", "config"):
            config = json.loads(json.dumps(good))
            config["config"]["layers"][place][part] = value
            keras_models.write_hdf5(tmp_path / "model.h5", config, "3.6.0", keras_models.FUNCTIONAL)
            with suppress(EdgelearnError):
                read_model(tmp_path / "model.h5")


def test_an_attack_can_be_repeated(tmp_path):
    good = FORMATS[0].make(tmp_path).read_bytes()
    files = [damaged(FORMATS[0], good, SEED, number) for number in range(10)]
    assert files == [damaged(FORMATS[0], good, SEED, number) for number in range(10)]
    assert len(set(files)) == 10 and files != [damaged(FORMATS[0], good, SEED + 1, number) for number in range(10)]


def planted(fault):
    """A format whose reader has a fault where the file begins with another byte."""

    def make(folder):
        (folder / "file").write_bytes(b"good" * 64)
        return folder / "file"

    def read(path):
        if path.read_bytes() != b"good" * 64:
            fault()

    return FileFormat("planted", make, read)


def refuse():
    raise FormatError("refused")


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (refuse, None),
        (lambda: {}["key"], "KeyError"),
        (lambda: mmap.mmap(-1, 60 << 20, mmap.MAP_PRIVATE | mmap.MAP_POPULATE), "of memory"),
        (lambda: time.sleep(0.5), "took"),
    ],
    ids=["refused", "raised", "memory", "slow"],
)
def test_planted_faults_are_found(fault, found, tmp_path, monkeypatch):
    monkeypatch.setattr(damaged_files, "LONGEST", 0.4)
    monkeypatch.setattr(damaged_files, "MOST", 50 << 20)
    outcome = damaged_files.Damaged("planted")
    for report in attack(planted(fault), tmp_path, SEED, 0, 2):
        damaged_files.count(outcome, report)
    assert outcome.attacks == 2
    assert len(outcome.failures) == (2 if found else 0)
    assert all(found in failure for failure in outcome.failures)


def test_a_crash_and_a_hang_end_one_process_and_not_the_attack(tmp_path, monkeypatch):
    """The process of `FORMATS[0]` is replaced by one that hangs at attack 1 and dies at attack 3."""
    script = tmp_path / "attacked.py"
    script.write_text(
        "import json, os, sys, time\n"
        "for number in range(int(sys.argv[3]), int(sys.argv[4])):\n"
        "    if number == 1: time.sleep(60)\n"
        "    if number == 3: os.abort()\n"
        "    print(json.dumps({'number': number, 'result': 'read', 'seconds': 0, 'bytes': 0}), flush=True)\n"
    )
    monkeypatch.setattr(damaged_files, "COMMAND", (str(script),))
    monkeypatch.setattr(damaged_files, "LONGEST", 0.3)
    outcome = damaged_files.run(FORMATS[0], SEED, 5)
    assert (outcome.attacks, outcome.read) == (5, 3)
    assert [failure.partition(":")[0] for failure in outcome.failures] == ["attack 1", "attack 3"]
