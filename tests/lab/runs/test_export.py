import json
import math

from edgelearn.lab.runs import export, write_export


def test_export(store, tmp_path):
    with store.create("a", {"seed": 1, "clip": math.inf}) as run:
        run.append_epoch({"epoch": 1, "loss": math.nan})
        run.append_epoch({"epoch": 2, "loss": 0.5})
    document = export(run)
    assert document["run"]["id"] == run.id
    assert document["run"]["status"] == "interrupted"
    assert document["run"]["config"] == {"seed": 1, "clip": None}
    assert document["history"] == [{"epoch": 1, "loss": None}, {"epoch": 2, "loss": 0.5}]
    write_export(run, tmp_path / "run.json")
    text = (tmp_path / "run.json").read_text()
    assert json.loads(text) == document
    assert str(store.root) not in text
    assert "NaN" not in text
