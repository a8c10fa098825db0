"""The notebooks run from top to bottom, and are committed with outputs that any reader can see."""

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
PICTURES = {  # at least
    "00_start_here": 6, "01_flowers": 6, "02_speed": 3, "03_models": 2, "04_depth_of_training": 3, "05_precision": 4,
    "06_memory": 4, "07_keywords": 3, "08_federated": 3, "09_device": 3,
    "10_personalisation": 5, "11_sequences": 5,
}  # fmt: skip
NOTEBOOKS = [ROOT / "notebooks" / f"{name}.ipynb" for name in PICTURES]
FEW_DRAWINGS = """
import edgelearn as el
from edgelearn.data import flowers

flowers.thicket_flowers.__defaults__ = 60, 0  # of a class, and the seed
"""
SMALLER = {  # what a notebook's own text is replaced with, so that its test is quick; every cell still runs
    "00_start_here": [("epochs=10", "epochs=3")],
    "02_speed": [  # tests/lab/bench/test_peers.py compares with Keras, whose process takes 5 s to start
        ("roofline()", 'roofline("ds_cnn", rounds=2)'),
        ('["train:1"], rounds=5', '["ds_cnn/train:1"], ("edgelearn", "torch"), rounds=2'), ("rounds=5", "rounds=2"),
        ("formats(rounds=3)", 'formats("ds_cnn", rounds=2)'), ("phones()", 'phones("ds_cnn")'),
    ],
    "04_depth_of_training": [  # tests/experiments/test_depth.py trains at every depth
        ("depth(scratch_epochs=4, ", '''depth("sample", epochs=1, scratch_epochs=1, examples=40,
    depths=("inference", "last", "sparse", "scratch"), '''),
        ('depth(depths=("last", "sparse"), ', 'depth("sample", epochs=1, examples=40, depths=("sparse",), '),
        ('depths=("inference", "last", "all"))', 'depths=("inference", "last"), epochs=1, pretrain_epochs=1)'),
    ],
    "05_precision": [
        ('bits=("fp32", 8, 5, 4)', 'bits=("fp32", 4), task="sample", epochs=1'),
        ("counters()", "counters(networks=False)"), ("trace(8)", "trace(8, epochs=1)"),
        ("trace(3, ", "trace(3, epochs=1, "),
    ],
    "06_memory": [
        ('policies=("keep_all", "checkpoints")', 'policies=("keep_all", "checkpoints"), task="sample", epochs=1'),
        ("depth=110", "depth=38"), ('plan("keep_all")', 'plan("keep_all", "resnet8")'),
        ('plan("invertible")', 'plan("invertible", "mobilenet_v2_cifar")'), ("budget()", 'budget("resnet8", rounds=2)'),
        ("(64, 16, 4)", '(1, 0.5), "resnet8"'), ('"8 MB stored")', '"0.5 MB stored"), "resnet8", rounds=2'),
    ],
    "07_keywords": [("episodes()", "episodes(9, (1,))"), ("count=5, seconds=10", "count=3, seconds=4")],
    "09_device": [("serial_depths()", 'serial_depths("lenet5", None, 1)')],
    "10_personalisation": [
        ("import edgelearn as el", FEW_DRAWINGS),
        ("adapt()", 'adapt(kinds=("noise",), examples=40, batch_size=20, micro_batch=10, epochs=1)'),
        ('methods=("tent",), ', 'methods=("tent",), examples=40, batch_size=20, micro_batch=10, epochs=1, '),
        ("answered(25)", "answered(3)"), ("replay()", "replay(seeds=(0,), per_class=2)"),
    ],
    "11_sequences": [
        ("activity()", 'activity(("p02", "p03"), epochs=1)'), ('("p02", "p04", "p05")', '("p02", "p04")'),
        ("epochs=4", "epochs=1"), ("characters(", "characters(20, "),
        ("through_time()", "through_time((8, 16), rounds=2)"),
    ],
    # tests/experiments/test_federated_engines.py compares the bits of a deployment
    "08_federated": [
        ("rounds=5, epochs=1, alpha=2.0", 'task="sample", rounds=1, clients=4'), ("rounds=200", "rounds=2"),
        ("overheard()", "overheard(4)"), ("deployment()", 'deployment("local")'),
    ],
}  # fmt: skip
CLAIMS = {  # cells whose claims no other test checks, and how many there are
    "05_precision": ("el.lab.counters(networks=False)", 3), "06_memory": ("el.lab.memory_claims()", 13),
}  # fmt: skip
WRITTEN = {"09_device": ["board", "words"]}  # folders that a notebook asks for, beside it
SILENCE = 6.0  # processor seconds without a sign of life: 3 seconds of two cores
TOLERANCE = 0.03  # of numbers in committed outputs
NUMBER = r"(?<![\w.])\d+(?:\.\d+)?(?:e[-+]\d+)?"
SECONDS = 180  # on a slow machine that compiles every kernel; the notebooks promise one or two
CELL_BYTES, NOTEBOOK_BYTES = 250_000, 600_000
WIDGETS = ("application/vnd.jupyter.widget-view+json", "application/vnd.jupyter.widget-state+json")
OWN_PATHS = re.compile(r"/(home|root|tmp|work|Users|opt|usr|var)/|site-packages|[A-Z]:\\")

# A kernel, and each process that it starts, runs this before anything else: it refuses any name or address that isn't
# this machine's, and lets layers share kernels, so that fewer are compiled.
SITE = """
import socket

from tests import few_tiles

few_tiles.use()

def _refuse(*arguments, **keywords):
    raise OSError("the notebooks' tests have no network")

_connect = socket.socket.connect
def _connect_here(self, address):
    if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1", "localhost"):
        _refuse()
    return _connect(self, address)

socket.socket.connect = _connect_here
socket.getaddrinfo = socket.create_connection = _refuse
"""


class Listening(NotebookClient):
    """Runs a notebook. `silence`: the most processor seconds that the kernel spent between two signs of life of a cell,
    by the cell's first line. Other processes on the machine make no difference to them."""

    def execute(self, *arguments, **options):
        self.silence, self._at = {}, (-1, 0.0)
        return super().execute(*arguments, **options)

    def process_message(self, msg, cell, cell_index):
        manager: Any = self.km
        line, used = cell.source.partition("\n")[0], cpu_seconds(manager.provisioner.pid)
        if self._at[0] == cell_index:
            self.silence[line] = max(self.silence.get(line, 0.0), used - self._at[1])
        self._at = cell_index, used
        return super().process_message(msg, cell, cell_index)


def cpu_seconds(pid):
    """Of a process, without those that it started; 0 where there is no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@each
def test_runs_from_top_to_bottom(path, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGELEARN_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("EDGELEARN_TUNED", str(tmp_path / "tuned"))
    paths = [str(tmp_path / "site"), str(ROOT), os.environ.get("PYTHONPATH")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.delenv("EDGELEARN_DATA", raising=False)
    for folder in "site", "work":
        (tmp_path / folder).mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SITE)
    notebook = smaller(nbformat.read(path, as_version=4), SMALLER.get(path.stem, []))
    resources = {"metadata": {"path": str(tmp_path / "work")}}
    start = time.monotonic()
    client = Listening(notebook, timeout=SECONDS, kernel_name="python3", resources=resources)
    client.execute()
    assert time.monotonic() - start < SECONDS
    assert [cell for cell, seconds in client.silence.items() if seconds > SILENCE] == []
    assert_committed_outputs(path, notebook)
    errors = [o for o in outputs(notebook) if o.output_type == "error" or o.get("name") == "stderr"]
    assert not errors
    assert not headers_without_text(notebook)
    assert sorted(os.listdir(tmp_path / "work")) == WRITTEN.get(path.stem, [])
    if path.stem == "01_flowers":
        records = [json.loads(file.read_text()) for file in (tmp_path / "runs").glob("*/run.json")]
        assert [record["status"] for record in records] == ["finished"] * 2
        assert all(record["results"]["accuracy"] > 2 * 0.2 for record in records), "twice as good as guessing"
    if path.stem in CLAIMS:
        source, count = CLAIMS[path.stem]
        (verdicts,) = [text_of(cell)[0] for cell in notebook.cells if cell.source == source]
        assert verdicts.count("passed") == count, " ".join(verdicts)


@each
def test_committed_outputs(path):
    assert path.stat().st_size < NOTEBOOK_BYTES
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert "widgets" not in notebook.metadata
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "run all cells, then save"
    pictures = 0
    for output in outputs(notebook):
        assert output.output_type != "error"
        data = output.get("data", {})
        assert not set(WIDGETS) & set(data), "strip widgets: they are dead in a saved notebook"
        assert len(json.dumps(output)) < CELL_BYTES
        pictures += bool({"image/png", "image/jpeg"} & set(data)) or "<img alt='" in data.get("text/html", "")
        for text in (output.get("text", ""), data.get("text/plain", ""), data.get("text/html", "")):
            assert not OWN_PATHS.search(text), text
    assert pictures >= PICTURES[path.stem]
    assert not headers_without_text(notebook)
    assert any("text/html" in output.get("data", {}) for output in outputs(notebook))


@each
def test_reads_like_a_page(path):
    notebook = nbformat.read(path, as_version=4)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    lines = [line for source in code for line in source.splitlines()]
    assert sum("import" in line.split() for line in lines) <= 2 and "import edgelearn as el" in lines
    assert not [line for line in lines if re.match(r"\s*(for|while|def|class|with|lambda|try|if)\b", line)]
    sizes = [len(source.splitlines()) for source in code]
    assert np.median(sizes) <= 6 and max(sizes) <= 15
    first = notebook.cells[0].source
    assert "(/edgelearn)" in first and "[Manual](../docs/" in first and "[Next: " in first
    pictures = [part for text in map(str, outputs(notebook)) for part in re.findall(r"<img [^>]{0,2000}", text)]
    assert all("alt=" in part for part in pictures)


def test_sample_is_the_preset():
    (preset,) = re.findall(r"^PRESET = (.*)$", "\n".join(c.source for c in nbformat.read(NOTEBOOKS[1], 4).cells), re.M)
    assert preset.startswith('"sample"')


def assert_committed_outputs(path, notebook):
    """Cells with the tag "same" print what is committed: the same words, and numbers within TOLERANCE."""
    committed = {cell.id: cell for cell in nbformat.read(path, as_version=4).cells}
    for cell in notebook.cells:
        if "same" in cell.metadata.get("tags", []):
            words, numbers = text_of(cell)
            known_words, known_numbers = text_of(committed[cell.id])
            assert words == known_words, cell.source
            assert numbers == pytest.approx(known_numbers, rel=TOLERANCE, abs=TOLERANCE), cell.source


def text_of(cell):
    """(words, numbers) of what a cell printed, but for the predicted memory of the process: it depends on the number of
    kernels, which the device decides, and few_tiles."""
    parts = [o.get("text") or o.get("data", {}).get("text/html") or o.get("data", {}).get("text/plain", "")
             for o in cell.outputs]  # fmt: skip
    text = re.sub(r".*process, predicted.*", "", re.sub(r"<[^>]*>", " ", " ".join(parts))).replace(",", "")
    return re.sub(NUMBER, "#", text).split(), [float(number) for number in re.findall(NUMBER, text)]


def smaller(notebook, replacements):
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for old, new in replacements:
        assert any(old in cell.source for cell in code), old
        for cell in code:
            cell.source = cell.source.replace(old, new)
    return notebook


def outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def headers_without_text(notebook):
    """Headers of tables that show nothing, which a screen reader announces nevertheless."""
    html = "".join(output.get("data", {}).get("text/html", "") for output in outputs(notebook))
    return re.findall(r"<th\b[^>]*>\s*</th>", html)
