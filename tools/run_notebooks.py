"""Run notebooks and write their outputs back, as they are committed: pictures and tables, without widgets.

    python tools/run_notebooks.py notebooks/*.ipynb

The notebooks measure times: run this on a machine that does nothing else.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 1200


def main(paths: list[str]) -> None:
    os.environ.pop("EDGELEARN_DATA", None)  # readers without data see the same
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    for path in map(Path, paths):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["EDGELEARN_RUNS"], os.environ["EDGELEARN_TUNED"] = f"{folder}/runs", f"{folder}/tuned"
            notebook = nbformat.read(path, as_version=4)
            resources = {"metadata": {"path": folder}}
            NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=resources).execute()
        notebook.metadata.pop("widgets", None)
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
            if cell.cell_type == "code":
                cell.outputs = [stripped for output in cell.outputs if (stripped := strip(output))]
        nbformat.write(notebook, path)
        print(path)


def strip(output):
    """The output without widgets, which are dead in a saved notebook (of a view its snapshot stays), and without what
    is empty; None if all is."""
    data = output.get("data")
    if data is None:
        return output
    widgets = [kind for kind in data if "widget" in kind]
    for kind in widgets:
        del data[kind]
    if widgets and "text/html" not in data:
        return None
    if not "".join(data.get("text/html", "x")).strip():
        return None  # the place where a cell said that it works
    return output


if __name__ == "__main__":
    main(sys.argv[1:])
