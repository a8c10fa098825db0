"""Run notebooks and write their outputs back, as they are committed: pictures and tables, without widgets.

    python tools/run_notebooks.py notebooks/*.ipynb
    python tools/run_notebooks.py --times kernels notebooks/*.ipynb

The notebooks measure times: run this on a machine that does nothing else. `--times FOLDER` writes no outputs: it prints
the seconds that each notebook takes, with caches in FOLDER. The first time that is empty; the second time it has all
compiled kernels.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 1200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--times", type=Path, metavar="FOLDER", help="only print seconds; FOLDER has the caches")
    options = parser.parse_args()
    os.environ.pop("EDGELEARN_DATA", None)  # readers without data see the same
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    for path in options.notebooks:
        if options.times:
            for name in "POCL_CACHE_DIR", "EDGELEARN_PROGRAMS":
                os.environ.pop(name, None)
            os.environ["XDG_CACHE_HOME"] = str((options.times / path.stem).resolve())
        begun = time.perf_counter()
        notebook = run(path)
        print(f"{path}: {time.perf_counter() - begun:.0f} s", flush=True)
        if not options.times:
            nbformat.write(notebook, path)


def run(path: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs to commit."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EDGELEARN_RUNS"], os.environ["EDGELEARN_TUNED"] = f"{folder}/runs", f"{folder}/tuned"
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=resources).execute()
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [stripped for output in cell.outputs if (stripped := strip(output))]
    return notebook


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
    main()
