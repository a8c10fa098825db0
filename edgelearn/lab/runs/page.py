"""Runs as pages: a run, and runs side by side, as JSON that page.js draws in a browser, in a notebook, where a thread
answers the page's requests, or from one file of HTML that needs no network; and their other exports.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn import atomic
from edgelearn.errors import EdgelearnError, RunError
from edgelearn.tables import Table

from . import figures
from .compare import Comparison, export, finite
from .notes import read_progress
from .results import INTERVAL, flat_settings, headline, mapping, named_result, outcome, setting_text
from .run import CHANGES, CHECKPOINT, HISTORY, LOCK, PREVIOUS, RECORD, Run
from .summary import RunSummary

HERE = Path(__file__).parent
STYLES = (HERE.parents[1] / "widgets" / "style.css", HERE / "page.css")
SCRIPT = HERE / "page.js"
GONE = "Run this cell again to sort, search and change it."  # below what a saved notebook shows
KINDS = {  # of exports: what they are, and their type
    "html": ("one page", "text/html"), "csv": ("table", "text/csv"), "tex": ("table", "text/x-tex"),
    "json": ("records", "application/json"), "svg": ("curves", "image/svg+xml"), "pdf": ("curves", "application/pdf"),
}  # fmt: skip
POINTS = 1000  # of a curve; of a longer one, the lowest and the highest of every stretch
_PICTURES = {".png": "image/png", ".svg": "image/svg+xml", ".jpg": "image/jpeg"}
_ALT = {"confusion": "Confusion matrix", "curves": "Learning curves", "memory": "Memory: planned, allocated, process"}
_TEXTS = (".log", ".txt", ".md", ".csv")
_LARGEST_PICTURE, _LARGEST_TEXT = 2_000_000, 200_000  # bytes
_OWN = {RECORD, HISTORY, LOCK, CHECKPOINT, PREVIOUS, CHANGES}
_THREADS = 2  # that answer a page in a notebook

Answer = Callable[[Mapping[str, Any]], dict[str, Any]]


def row(summary: RunSummary) -> dict[str, Any]:
    """A row of the table of runs."""
    found = outcome(summary.results, summary.last)
    numbers = {name: value for name, value in found.items() if isinstance(value, int | float)}
    return finite({
        "id": summary.id, "name": summary.name, "tags": summary.tags, "note": summary.note, "kind": summary.kind,
        "status": summary.status, "started": summary.started, "updated": summary.updated, "epochs": summary.epochs,
        "result": headline(summary.results, summary.last), "accuracy": numbers.get("accuracy"),
        "loss": numbers.get("loss"), "seconds": numbers.get("seconds"), "device": summary.device.get("name", ""),
        "memory": summary.memory, "bytes": summary.bytes, "problem": summary.problem, "progress": summary.progress,
        "settings": {key: setting_text(value) for key, value in flat_settings(summary.config)},
    })  # fmt: skip


def run_page(run: Run) -> dict[str, Any]:
    """Everything that a run's page shows. Raises FormatError if the run is damaged."""
    status, rows = run.status, run.history()
    record, notes = run.record, run.notes
    found = outcome(record.get("results") or {}, rows[-1] if rows else {})
    changes = run.folder / CHANGES
    return finite({
        **notes, "id": run.id, "status": status, "kind": record["kind"], "facts": _facts(run),
        "result": headline(record.get("results") or {}, rows[-1] if rows else {}),
        "config": record["config"], "settings": _texts(record["config"]),
        "results": [named_result(*each) for each in found.items() if each[1] is not None and each[0] != INTERVAL],
        "plan": _texts(mapping(record.get("plan"))), "claims": _claims(record),
        "again": mapping(record.get("again")) or None,
        "curves": curves(rows), "pictures": _pictures(run), "logs": _logs(run), "files": _files(run),
        "changes": changes.read_text("utf-8", "replace") if changes.exists() else "",
        "error": record.get("error"), "progress": read_progress(run.folder) if status == "running" else None,
        "command": f"edgelearn runs resume {run.id}", "store": str(run.folder.parent),
    })  # fmt: skip


def _facts(run: Run) -> list[tuple[str, str]]:
    record = run.record
    device, environment, results, data, weights = (
        mapping(record.get(name)) for name in ("device", "environment", "results", "data", "weights")
    )
    writer = run.writer
    facts = {
        "started": _moment(record.get("started")), "finished": _moment(record.get("finished")),
        "device": device.get("name"), "driver": " ".join(filter(None, (device.get("platform"), device.get("driver")))),
        "data": data.get("description"), "weights": weights.get("description"),
        "seed": record.get("seed"), **environment, "folder": str(run.folder),
        "resumed": ", ".join(_moment(each.get("time")) for each in record.get("resumed") or []),
        "written by": f"process {writer.get('pid')} on {writer.get('host')}" if writer else None,
    }  # fmt: skip
    if record.get("seconds") and not results.get("seconds"):
        facts["trained for"] = f"{record['seconds']:.1f} s"
    return [(name, str(value)) for name, value in facts.items() if value not in (None, "")]


def _moment(text: Any) -> str:
    return f"{str(text)[:19].replace('T', ' ')} UTC" if text else ""


def _texts(entries: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(key, setting_text(value)) for key, value in flat_settings(entries)]


def _claims(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The claims that were held against the run, as its record has them."""
    found = record.get("claims") or []
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _pictures(run: Run) -> list[dict[str, str]]:
    found = []
    for path in sorted(run.folder.iterdir()):
        if path.suffix in _PICTURES and path.stat().st_size <= _LARGEST_PICTURE:
            data = base64.b64encode(path.read_bytes()).decode()
            alt = _ALT.get(path.stem, path.stem.replace("_", " ").capitalize())
            found.append({"name": path.name, "alt": alt, "source": f"data:{_PICTURES[path.suffix]};base64,{data}"})
    return found


def _logs(run: Run) -> list[dict[str, str]]:
    found = []
    for path in sorted(run.folder.iterdir()):
        if path.suffix in _TEXTS and path.is_file():
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - _LARGEST_TEXT))
                found.append({"name": path.name, "text": file.read(_LARGEST_TEXT).decode("utf-8", "replace")})
    return found


def _files(run: Run) -> list[tuple[str, int]]:
    """The names of files and their bytes."""
    shown = (*_PICTURES, *_TEXTS)
    files = sorted(path for path in run.folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return [
        (path.relative_to(run.folder).as_posix(), path.stat().st_size) for path in files
        if path.name in _OWN or path.suffix not in shown
    ]  # fmt: skip


def curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[list[float]]]:
    """The curve of each figure of a history, as epochs and values, of POINTS points at most."""
    found = {}
    epochs = np.array([line["epoch"] for line in rows], float)
    for name in dict.fromkeys(key for each in (rows[:1], rows[-1:]) for line in each for key in line):
        values = [line.get(name) for line in rows]
        if name != "epoch" and all(isinstance(value, int | float | None) for value in (values[0], values[-1])):
            y = np.array([value if isinstance(value, int | float) else np.nan for value in values], float)
            x, y = epochs[known := np.isfinite(y)], y[known]
            if len(y):
                places = extremes(y)
                found[name] = [x[places].tolist(), [float(f"{value:.6g}") for value in y[places]]]
    return found


def extremes(y: np.ndarray, most: int = POINTS) -> np.ndarray:
    """The places of all values, or, of more than `most`, of the lowest and the highest of each stretch, in order."""
    if len(y) <= most:
        return np.arange(len(y))
    stretch = -(-len(y) // (most // 2 - 1))
    parts = np.pad(y, (0, -len(y) % stretch), "edge").reshape(-1, stretch)
    starts = stretch * np.arange(len(parts))
    places = np.concatenate([[0], starts + parts.argmin(1), starts + parts.argmax(1), [len(y) - 1]])
    return np.unique(np.minimum(places, len(y) - 1))


def comparison_page(comparison: Comparison) -> dict[str, Any]:
    """Everything that the page of a comparison shows, differences first."""
    tables = comparison.tables()
    return finite({
        "ids": comparison.ids, "labels": comparison.labels,
        "tables": [{"title": each.title, "header": each.header, "rows": each.rows} for each in tables],
        "same": [(key, setting_text(value)) for key, value in comparison.configs[0].items()
                 if key not in comparison.differences],
        "curves": [curves(history) for history in comparison.histories],
    })  # fmt: skip


# -- files -------------------------------------------------------------------------------------------------------------


def html(view: Mapping[str, Any], title: str) -> str:
    """One file of HTML that shows a view without a network: {"run": …} or {"compare": …}."""
    styles = "\n".join(path.read_text("utf-8") for path in STYLES)
    return document(
        title, f"<style>{styles}</style>", f"<script type='module'>{SCRIPT.read_text('utf-8')}</script>", view
    )


def document(title: str, head: str, script: str, data: Mapping[str, Any]) -> str:
    """A page that page.js draws from `data`."""
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f"<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        f"<meta name='viewport' content='width=device-width, initial-scale=1'>\n<title>{escape(title)}</title>\n"
        f"{head}\n</head>\n<body class='el-body'>\n<div id='edgelearn' class='el-page'></div>\n"
        f"<script id='edgelearn-data' type='application/json'>{text}</script>\n{script}\n</body>\n</html>\n"
    )


def exported(runs: Sequence[Run], comparison: Comparison, kind: str) -> tuple[str, bytes]:
    """A run, or several side by side, as a file: its name, and its bytes.

    Arguments:
    - `runs`, `comparison`: the runs, and the same compared.
    - `kind`: one of KINDS: "html", "csv", "tex", "json", or the learning curves as "svg" or "pdf".

    Raises RunError for another kind, or if there are no curves yet.
    """
    if kind not in KINDS:
        raise RunError(f"Runs are exported as {', '.join(KINDS)}, not as {kind!r:.40}.")
    one = runs[0] if len(runs) == 1 else None
    stem = one.id if one else f"comparison-{len(runs)}-runs"
    if kind == "html":
        view = {"run": run_page(one)} if one else {"compare": comparison_page(comparison)}
        text = html(view, stem)
    elif kind == "json":
        documents = [export(run) for run in runs]
        text = atomic.to_json(documents[0] if one else documents, indent=2) + "\n"
    elif kind == "csv":
        text = (_history(one) if one else comparison.rows()).to_csv()
    elif kind == "tex":
        text = "\n".join(table.to_latex() for table in comparison.tables() if table.rows)
    else:
        buffer = io.BytesIO()
        figure = figures.plot_learning_curves(one.history()) if one else comparison.plot()
        figure.savefig(buffer, format=kind)
        return f"{stem}.{kind}", buffer.getvalue()
    return f"{stem}.{kind}", text.encode()


def _history(run: Run) -> Table:
    rows = run.history()
    names = list(dict.fromkeys(key for each in rows for key in each))
    return Table(names, [[each.get(name, "") for name in names] for each in rows])


# -- in a notebook -----------------------------------------------------------------------------------------------------


def bundle(
    answer: Answer, view: Mapping[str, Any], html: str, text: str, *, scripts: tuple[Path, ...] = (), jobs: bool = False
) -> dict[str, Any]:
    """Return the MIME bundle of an object in a notebook: a page that works, and for saved notebooks its state.

    Arguments:
    - `answer`: answers requests of the page.
    - `view`: shown first, such as {"runs": True}.
    - `html`, `text`: the state without controls.
    - `scripts`: further files of JavaScript.
    - `jobs`: True where trainings can be started.
    """
    plain = {"text/plain": text, "text/html": html}
    try:
        page = _class(scripts)(answer, view, jobs)
    except ImportError:  # anywidget is an optional package
        return plain
    found = page._repr_mimebundle_()
    shown = found[0] if isinstance(found, tuple) else found
    return (shown or {}) | plain | {"text/html": f"{html}<p>{GONE}</p>"}


@cache
def _class(scripts: tuple[Path, ...]) -> Any:
    import anywidget
    import traitlets

    class Page(anywidget.AnyWidget):
        """A page whose requests `answer` answers."""

        _esm = "\n".join(path.read_text("utf-8") for path in (SCRIPT, *scripts))
        _css = "\n".join(path.read_text("utf-8") for path in STYLES)
        view = traitlets.Dict().tag(sync=True)
        jobs = traitlets.Bool().tag(sync=True)

        def __init__(self, answer: Answer, view: Mapping[str, Any], jobs: bool) -> None:
            super().__init__(view=dict(view), jobs=jobs)
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="edgelearn-page")
            self.on_msg(lambda _widget, message, _buffers: self._threads.submit(self._reply, answer, message))

        def _reply(self, answer: Answer, message: Any) -> None:
            reply: dict[str, Any] = {"number": message.get("number")}
            try:
                reply["answer"] = answer(message["request"])
            except EdgelearnError as error:
                reply["error"] = str(error)
            except Exception as error:  # the page would wait forever
                reply["error"] = f"{type(error).__name__}: {error}"
            self.send(reply)

    return Page
