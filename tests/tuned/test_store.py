"""Results of tuning as files, and which of them fit a device."""

import json
import threading
from dataclasses import replace

import pytest
from platformdirs import user_data_path

from edgelearn import tuned
from edgelearn.device import DeviceKind
from edgelearn.errors import FormatError
from edgelearn.runtime import list_devices
from edgelearn.tuned import TuningResults

KIND = DeviceKind("Portable Computing Language", "cpu", "x86_64", 16, 2)
NAME = "pointwise_forward 49x64x64"


@pytest.fixture
def places(tmp_path, monkeypatch):
    """(the user's folder, the shipped one), both empty."""
    mine, theirs = tmp_path / "mine", tmp_path / "shipped"
    monkeypatch.setenv("EDGELEARN_TUNED", str(mine))
    monkeypatch.setattr(tuned, "shipped", lambda: theirs)
    return mine, theirs


def results(kind: DeviceKind = KIND, **choices) -> TuningResults:
    return TuningResults(kind, {"workloads": {}}, choices)


@pytest.mark.parametrize(
    ("other", "distance"),
    [
        (KIND, 1),
        (replace(KIND, compute_units=6), 3),
        (replace(KIND, compute_units=8), 4),
        (replace(KIND, compute_units=9), None),
        (replace(KIND, vector_width=8), None),
        (replace(KIND, family="aarch64"), None),
        (replace(KIND, platform="Intel(R) OpenCL"), None),
        (replace(KIND, kind="gpu"), None),
    ],
)
def test_distance(other, distance):
    assert KIND.distance(other) == other.distance(KIND) == distance


@pytest.mark.parametrize("device", list_devices(), ids=lambda device: device.id)
def test_kind_of_a_device(device):
    kind = DeviceKind.of(device)
    assert kind.distance(DeviceKind.of(device)) == 1
    assert (kind.kind, kind.compute_units) == (device.kind, device.compute_units)
    assert kind.slug.replace("-", "").isalnum() and kind.slug.endswith(str(kind.compute_units))


def test_kind_of_an_nvidia_gpu():
    hopper, same = (
        replace(list_devices()[0], name=name, kind="gpu", architecture="compute capability 9.0")
        for name in ("H100", "H200")
    )
    assert DeviceKind.of(hopper).distance(DeviceKind.of(same)) == 1


def test_what_is_saved_is_loaded(tmp_path):
    given = TuningResults(KIND, {"date": "2026-11-21", "workloads": {"train:1": {"before": 2.0, "after": 1.0}}},
                    {"b 1x2": {"rows": 4, "local": 0}, "a 3": {"tile": 7}})  # fmt: skip
    path = tuned.save(given, tmp_path / "new" / "folder")
    assert path.name == "portable-computing-language-x86-64-simd16-2.json"
    assert tuned.load(path) == given
    assert [p.name for p in path.parent.iterdir()] == [path.name], "no temporary file stays"


class TestFind:
    def test_nothing_known(self, places):
        found = tuned.find(list_devices()[0])
        assert found.choices == {} and found.files == ()
        assert str(found) == tuned.NOT_TUNED and "`edgelearn tune`" in str(found)

    def test_the_closest_kind(self, places):
        kind = DeviceKind.of(list_devices()[0])
        for times in (3, 1, 2):
            tuned.save(results(replace(kind, compute_units=kind.compute_units * times), a={"tile": times}), places[1])
        tuned.save(results(replace(kind, family="other"), a={"tile": 99}), places[1])
        found = tuned.find(list_devices()[0])
        assert found.choices == {"a": {"tile": 1}} and len(found.files) == 1
        assert str(found) == f"tuned: 1 choice from {found.files[0]}"

    def test_the_users_file_wins(self, places):
        kind = DeviceKind.of(list_devices()[0])
        shipped = tuned.save(results(kind, a={"tile": 1}, b={"tile": 2}), places[1])
        mine = tuned.save(results(kind, b={"tile": 3}, c={"tile": 4}), places[0])
        found = tuned.find(list_devices()[0])
        assert found.choices == {"a": {"tile": 1}, "b": {"tile": 3}, "c": {"tile": 4}}
        assert found.files == (mine, shipped)

    def test_a_damaged_file_is_named(self, places):
        places[0].mkdir()
        (places[0] / "broken.json").write_text("{")
        with pytest.raises(FormatError, match=r"broken\.json.*`edgelearn tune`"):
            tuned.find(list_devices()[0])


def test_where_a_users_results_are(monkeypatch, tmp_path):
    monkeypatch.setenv("EDGELEARN_TUNED", str(tmp_path / "a"))
    assert tuned.user_folder() == tmp_path / "a"
    monkeypatch.delenv("EDGELEARN_TUNED")
    assert tuned.user_folder() == user_data_path("edgelearn", appauthor=False) / "tuned"


def damaged(**changes):
    record = {"format": 1, "kind": KIND.to_dict(), "measured": {}, "choices": {NAME: {"rows": 14}}} | changes
    return json.dumps({key: value for key, value in record.items() if value is not None})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Expecting value"),
        ("[]", "an object"),
        (damaged(format=2), "format"),
        (damaged(kind=None), "kind"),
        (damaged(kind={"platform": "PoCL"}), "compute_units, family, kind, vector_width"),
        (damaged(kind=KIND.to_dict() | {"vector_width": "16"}), "vector_width: '16'"),
        (damaged(kind=KIND.to_dict() | {"compute_units": 0}), "16 and 0"),
        (damaged(measured=None), "measured"),
        (damaged(measured={"workloads": []}), "measured.workloads"),
        (damaged(choices=None), "choices"),
        (damaged(choices={NAME: 14}), NAME),
        (damaged(choices={NAME: {"rows": 1.5}}), NAME),
        (damaged(choices={NAME: {"rows": True}}), NAME),
        (" " * (tuned.LARGEST + 1), f"{tuned.LARGEST:,} bytes"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, text, problem):
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=problem) as caught:
        tuned.load(path)
    assert str(path) in str(caught.value)


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "results.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match="codec"):
        tuned.load(tmp_path / "results.json")


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FormatError, match="EDGELEARN_TUNED"):
        tuned.save(results(), tmp_path / "file")


def test_threads_that_save_at_once(tmp_path):
    """Each writes whole files; they had one temporary file together."""
    path, texts, failures = tmp_path / "new" / "times.json", [str(n) * 100_000 for n in range(8)], []

    def save(text):
        try:
            for _ in range(20):
                tuned.write(path, text, "launch times")
                assert path.read_text() in texts
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=save, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert list(path.parent.iterdir()) == [path]
