"""`--json` of every command that ends in a second or two: standard output has it alone, with the documented entries."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from edgelearn.cli import full_parser
from edgelearn.cli.parser import FIELDS, leaves
from edgelearn.keywords import Vocabulary
from edgelearn.keywords.files import sample_embedder
from edgelearn.runtime import list_devices

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "json.md"
NETS = """
import edgelearn as el
from edgelearn.ops import Conv2D, Dense, GlobalAveragePooling2D

def tiny():
    network = el.Network("tiny", (8, 8, 3))
    for name, op in {"conv": Conv2D(4, 3), "pool": GlobalAveragePooling2D(), "dense": Dense(3)}.items():
        network.add(name, op)
    return network
"""
CASES = {
    "devices": "devices",
    "doctor": "doctor",
    "characters": "characters --layers 1 --channels 8 --context 8 --batch-size 2 --steps 10 --tests 2 --sample 2",
    "inspect": "inspect tiny.safetensors",
    "convert": "convert tiny.safetensors tiny.onnx",
    "precision time": "precision time json_nets:tiny --rounds 1 --steps 1 --variants fp32 in-hindsight",
    "precision cost": "precision cost json_nets:tiny ResNet-18",
    "precision tasks": "precision tasks",
    "plan": "plan json_nets:tiny --rounds 1 --html plan.html",
    "memory plan": "memory plan json_nets:tiny --layers",
    "memory compare": "memory compare json_nets:tiny --plans keep_all --rounds 1",
    "memory measure": "memory measure json_nets:tiny --rounds 1 --busy",
    "memory through-time": "memory through-time --steps 6 --units 4 --examples 2 --rounds 1",
    "keywords words": "keywords words mine.npz",
    "keywords bundle": "keywords bundle mine.npz bundle --network sample",
    "federated tasks": "federated tasks",
    "bench": "bench json_nets:tiny/train:2 --contenders edgelearn --only edgelearn --rounds 1",
    "profile --project": "profile json_nets:tiny/train:2 --project adreno-540",
}
SLOW = {  # tests/conftest.py checks the entries where they are tested, with runs, clips or trainings at hand
    "flowers", "finetune", "memory train", "precision train", "keywords train", "federated run", "runs", "runs RUN",
    "compare", "predict", "sweep", "precision sweep", "precision report", "precision trace", "precision check",
    "memory check", "keywords check", "keywords enrol", "keywords listen", "keywords compose", "keywords evaluate",
    "keywords personal", "federated rounds", "profile", "tune", "federated deploy",
    "depth --serial", "memory fit", "federated verify train", "federated check", "federated compare",
    "federated gateway", "federated personal", "federated attack", "precision exports", "cifar10", "depth",
    "federated verify enrol", "federated verify test", "bundle", "keywords false-accepts",
    "activity train", "activity people", "write", "language train", "language write", "language merge", "intents train",
    "intents ask",
    "adapt", "personal ask", "personal learn",
    "keywords enrol-speaker", "keywords speakers", "keywords people", "keywords voices",
}  # fmt: skip


@pytest.fixture
def here(command, tmp_path, monkeypatch):
    """A folder with a network as code and as a file, and a file of words for a command that reads one."""
    import edgelearn as el

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("RUNS", "TUNED"):
        monkeypatch.setenv(f"EDGELEARN_{name}", str(tmp_path / name.lower()))
    Path("json_nets.py").write_text(NETS)
    from edgelearn.interop import find_network

    el.Model(find_network("json_nets:tiny").network, device=list_devices()[0]).save("tiny.safetensors")
    if "mine.npz" in CASES[command]:
        Vocabulary.empty(sample_embedder()).add("yes", np.zeros((1, 101, 40), np.float32)).save("mine.npz")
    return tmp_path


def entries(command):
    return [name for names in FIELDS[command][1] for name in names.split(", ")]


@pytest.mark.parametrize("command", CASES)
def test_json(command, here, said):
    output = said(*CASES[command].split(), "--json", "--save", "saved.json")
    found = json.loads(output, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert json.loads(Path("saved.json").read_text()) == found
    assert isinstance(found, list if FIELDS[command][0] == "list" else dict)
    for record in found if isinstance(found, list) else [found]:
        assert set(record) == set(entries(command))


@pytest.mark.parametrize("command", CASES)
def test_tables_fit_a_terminal_of_80_columns(command, here, said, monkeypatch):
    """Lines with gaps are rows of tables; sentences may be longer."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = said(*CASES[command].split()).splitlines()
    rows = [line for line in lines if re.search(r"\S {2,}\S+( \S+)* {2,}\S", line)]
    assert [line for line in rows if len(line) > 80] == []


def test_every_command_is_documented():
    words = {name for name, _ in leaves(full_parser())}
    forms = {"depth --serial", "profile --project", "runs RUN"}
    assert words == set(FIELDS) - forms | {"completion"} and set(FIELDS) == set(CASES) | SLOW


def test_the_manual_has_the_entries():
    """Write the page anew: python -m tests.cli.test_json."""
    assert PAGE.read_text().endswith(to_markdown())


def to_markdown():
    """The tables of the page."""
    full_parser()
    parts = []
    for command, (kind, entries) in sorted(FIELDS.items()):
        rows = ["| entry | meaning |", "|---|---|"]
        for names, meaning in entries.items():
            rows.append(f"| {', '.join(f'`{name}`' for name in names.split(', '))} | {meaning} |")
        what = "A list of objects" if kind == "list" else "An object"
        parts.append(f"## {command}\n\n{what}:\n\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    text = PAGE.read_text()
    PAGE.write_text(text[: text.index("## ")] + to_markdown())
