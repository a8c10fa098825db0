"""Measure what the workbench costs: `python tools/time_workbench.py [live] [lab] [runs] [plans] [trace]`.

- `live`: a training step with its view over one without, in a kernel whose messages nobody reads.
- `lab`: the same in JupyterLab, with Chromium as the browser, which draws on the same cores.
- `runs`: the table of 1,000 runs opens and filters, and ten runs of 10,000 epochs are compared, in Chromium.
- `plans`: the pages of the plans of MobileNet V2, ResNet-50 and a network of 2,000 tensors: their bytes, how they open,
  a click on a layer.
- `trace`: bytes of the trace of 100 steps.

All but `live` and `trace` need Chromium and Playwright. Run this on a machine that does nothing else.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import nbformat
import psutil

import edgelearn as el
from edgelearn.compile import Plan, Request, make_plan
from edgelearn.display import megabytes
from edgelearn.experiments.flowers import FlowersConfig, FlowersExperiment
from edgelearn.lab.runs import RunStore
from edgelearn.models import mobilenet_v2, resnet50
from edgelearn.models.parts import classify
from edgelearn.ops import BatchNormalization, Conv2D, ReLU
from edgelearn.runtime import choose_device
from edgelearn.train import Callback
from edgelearn.train.state import Logs
from edgelearn.widgets import TrainingView
from edgelearn.widgets.worker import WorkerState

ROOT = Path(__file__).resolve().parents[1]
BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
SECONDS = 280  # until something must have happened
PAIRS, WINDOW = 50, 1.9  # windows with the view and without it, and seconds of each
TIMES = 5  # that a page is opened


# -- a training with its view and without ----------------------------------------------------------------------------


class Windows(Callback):
    """Mean seconds of a step, and those of the process's threads, in windows with the view and without it, in turn, of
    one training: what else slows the machine slows both. Without the view the training has the callbacks of one that a
    command starts.

    Arguments:
    - `view`: of the training. Its worker is told of no step, and it isn't told of the worker, while it is off.
    - `tool`: number of the process that started the browser and the server.
    """

    def __init__(self, view: TrainingView, tool: int) -> None:
        self.view, self.worker, self.means = view, view.training, list[tuple[float, float]]()
        children = [each for each in psutil.Process(tool).children(recursive=True) if each.pid != os.getpid()]
        self.others = {
            "browser": [each for each in children if "chrom" in each.name()],
            "server": [each for each in children if "python" in each.name()],
        }
        self.shares = list[dict[str, float]]()  # a core's share that each took, by window
        self.moments = {name: getattr(self.worker, name) for name in ("on_train_batch_end", "on_epoch_end")}
        self.drawing = 0.0  # processor seconds of the view
        self._update = view.update
        view.update = self._timed  # type: ignore[method-assign]

    def _timed(self, at_once: bool = False) -> None:
        begun, trains = time.thread_time(), bool(self.means) and self.worker.state is WorkerState.RUNNING
        self._update(at_once)
        self.drawing += trains * (time.thread_time() - begun)

    def on_train_begin(self, logs: Logs) -> None:
        self._begin()

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        self._steps += 1
        seconds = time.perf_counter() - self._begun
        if seconds < WINDOW:
            return
        self.means.append((seconds / self._steps, (time.process_time() - self._used) / self._steps))
        self.shares.append({name: (now - self._taken[name]) / seconds for name, now in self._processor().items()})
        if len(self.means) == 2 * (PAIRS + 1):
            self.model.stop_training = True
        self._begin()

    def _begin(self) -> None:
        on = self._is_on(len(self.means)) or self.model.stop_training
        self.worker.watcher = self.view if on else None
        for name, moment in self.moments.items():
            setattr(self.worker, name, moment if on else lambda *_: None)
        self._taken = self._processor()
        self._steps, self._begun, self._used = 0, time.perf_counter(), time.process_time()

    @staticmethod
    def _is_on(window: int) -> bool:
        """True for windows with the view: the second of a pair, then the first of the next, so that what grows during
        the training slows both alike."""
        return window % 4 in (1, 2)

    def _processor(self) -> dict[str, float]:
        """Processor seconds of the browser and of the server since they started."""
        return {name: sum(sum(each.cpu_times()[:2]) for each in found) for name, found in self.others.items()}

    def result(self) -> dict[str, Any]:
        """Milliseconds of a step and of its processor time, without the view, with it, and the ratio with its
        quartiles; the view's share of a core in the kernel; the browser's and the server's without it and with it."""
        found: dict[str, Any] = {"share": self.drawing / (WINDOW * (PAIRS + 1))}
        windows = range(2, len(self.means))  # a pair warms up
        off, on = ([each for each in windows if self._is_on(each) is shown] for shown in (False, True))
        found["others"] = {
            name: [fmean(self.shares[each][name] for each in side) for side in (off, on)] for name in self.others
        }
        for place, name in enumerate(("passed", "used")):
            without, along = ([self.means[each][place] for each in side] for side in (off, on))
            ratios = [b / a for a, b in zip(without, along, strict=True)]
            low, middle, high = quantiles(ratios, n=4)
            found[name] = [1e3 * median(without), 1e3 * median(along), middle, low, high]
        return found


def measure(path: str, show: Callable[[object], object], tool: int) -> None:
    """Train flowers of the embedded sample in a cell, with a view that `show` displays, and write the result for the
    process `tool`."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EDGELEARN_LOCKS"] = folder  # or it would wait, unseen, for other trainings on the machine
        training = FlowersExperiment.load(FlowersConfig(sample=True, epochs=10**6))
        view = TrainingView(training, RunStore(folder))
        windows = Windows(view, tool)
        training.callbacks = lambda run: [windows]
        show(view)
        view.training.start()
        view.training.wait()
        if view.training.error is not None:
            raise view.training.error
        Path(path).write_text(json.dumps(windows.result()))


def notebook(result: Path) -> nbformat.NotebookNode:
    code = (
        f"import sys\nsys.path.insert(0, {str(ROOT / 'tools')!r})\nfrom time_workbench import measure\n"
        f"measure({str(result)!r}, display, {os.getpid()})"
    )
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)], metadata={"kernelspec": kernel})


def say(title: str, found: dict[str, Any]) -> None:
    print(f"{title}, {PAIRS} pairs; the view takes {found['share']:.1%} of a core in the kernel")
    for name, text in ("passed", "step"), ("used", "processor time of a step"):
        without, along, ratio, low, high = found[name]
        print(
            f"  {text}: {without:.2f} ms without the view, {along:.2f} ms with it, "
            f"ratio {ratio:.3f} (quartiles {low:.3f} to {high:.3f})"
        )
    for name, (without, along) in found["others"].items():
        print(f"  {name}: {without:.1%} of a core without the view, {along:.1%} with it")


def live() -> None:
    from nbclient import NotebookClient

    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        NotebookClient(notebook(result), timeout=SECONDS, kernel_name="python3").execute()
        say("no browser", json.loads(result.read_text()))


REDRAWS = """() => { window.redraws = 0; new MutationObserver(() => {
    for (const plot of document.querySelectorAll('.el-plot:not([counted])')) {
      plot.setAttribute('counted', ''); plot.addEventListener('el-drawn', () => window.redraws++);
    } }).observe(document.body, { childList: true, subtree: true }); }"""


def lab() -> None:
    with tempfile.TemporaryDirectory() as name, browser() as chromium:
        folder = Path(name)
        result = folder / "result.json"
        nbformat.write(notebook(result), folder / "live.ipynb")
        with server(folder, "jupyterlab", "--LabApp.expose_app_in_browser=True") as address:
            tab = opened(chromium, f"{address}/lab/tree/live.ipynb")
            tab.wait_for_selector(".jp-Notebook .jp-Cell")
            tab.wait_for_function(
                "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.connectionStatus "
                "=== 'connected'"
            )
            tab.evaluate(REDRAWS)
            tab.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-cells'); }")
            until = time.monotonic() + SECONDS
            while not result.exists():
                assert time.monotonic() < until, tab.locator(".jp-OutputArea").first.inner_text()
                tab.wait_for_timeout(500)
            redraws = tab.evaluate("window.redraws") / (WINDOW * (PAIRS + 1))
        say("JupyterLab and Chromium on the same cores", json.loads(result.read_text()))
        print(f"{redraws:.2f} redraws a second")


# -- pages -------------------------------------------------------------------------------------------------------------


def runs() -> None:
    with tempfile.TemporaryDirectory() as name, browser() as chromium:
        folder = Path(name)
        store = RunStore(folder / "runs")
        store.root.mkdir()
        for number in range(1000):
            write_run(store, number, epochs=10_000 if number < 10 else 3)
        with server(folder, "jupyter_server") as address:
            opening = [open_table(chromium, address)[1:] for _ in range(TIMES + 1)]
            tab = open_table(chromium, address)[0]
            filtering = [tab.evaluate(FILTER, f"learning_rate<0.{number}1") for number in range(TIMES)]
            comparing = []
            for _ in range(TIMES):
                tab.get_by_role("searchbox", name="Search runs").fill("batch_size<10")
                tab.get_by_role("status").filter(has_text="10 of 1,000 runs").wait_for()
                tab.get_by_role("checkbox", name="Tick every run shown").check()
                comparing.append(seconds(lambda: compare(tab)))
                tab.go_back()
                tab.locator("table.el-runs tbody tr").first.wait_for()
    for when, (rows, complete) in {
        "first": opening[0],
        "later": (median(a) for a in zip(*opening[1:], strict=True)),
    }.items():
        print(f"1,000 runs, {when}: the table opens in {rows:.2f} s, and has all of them after {complete:.2f} s")
    print(f"1,000 runs: a filter takes {median(filtering):.3f} s")
    print(f"ten runs of 10,000 epochs are compared in {median(comparing):.2f} s")


FILTER = """async (text) => {
  const search = document.querySelector('[type=search]'), start = performance.now();
  search.value = text;
  search.dispatchEvent(new Event('input'));
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return (performance.now() - start) / 1000;
}"""


def write_run(store: RunStore, number: int, epochs: int) -> None:
    """A finished run as a training leaves it."""
    with store.create("flowers", {"learning_rate": 1 / (1 + number), "epochs": epochs, "batch_size": number}) as run:
        rows = ({"epoch": e, "loss": 1 / e, "val_loss": 2 / e, "val_accuracy": 0.9} for e in range(1, epochs + 1))
        (run.folder / "history.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        run.finish({"accuracy": 0.9, "loss": 1 / epochs})


def open_table(chromium: Any, address: str) -> tuple[Any, float, float]:
    """The page, and seconds until it shows the newest runs, and until it has all of them."""
    begun = time.perf_counter()
    tab = opened(chromium, f"{address}/edgelearn/runs")
    tab.locator("table.el-runs tbody tr").first.wait_for()
    rows = time.perf_counter() - begun
    tab.get_by_role("status").filter(has_text="1,000 of 1,000 runs").wait_for()
    return tab, rows, time.perf_counter() - begun


def compare(tab: Any) -> None:
    tab.get_by_role("button", name="Compare").click()
    tab.locator("canvas").nth(1).wait_for()
    painted(tab)


def plans() -> None:
    with tempfile.TemporaryDirectory() as folder, browser() as chromium:
        for network in mobilenet_v2(), resnet50(), deep():
            path = Path(folder) / f"{network.name}.html"
            plan = plan_of(network)
            plan.show().save(path)
            opening = [seconds(lambda path=path: open_plan(chromium, path)) for _ in range(TIMES)]
            tab = open_plan(chromium, path)
            tab.get_by_role("button", name="Unfold blocks").click()
            clicks = [tab.evaluate(CLICK, f"#layers tbody tr:nth-child({20 * n + 1}) button") for n in range(1, TIMES)]
            moments = [tab.evaluate(MOVE, 20 * n) for n in range(1, TIMES)]
            tensors = tab.evaluate("plans[0].tensors.length")
            print(
                f"{network.name}: {path.stat().st_size:,} bytes, {tensors:,} temporaries of "
                f"{len(plan.step_launches):,} launches, opens in {median(opening):.2f} s; a click on a layer takes "
                f"{1e3 * median(clicks):.0f} ms, another moment {1e3 * median(moments):.0f} ms"
            )


PAINTED = "await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));"
CLICK = f"""async (place) => {{
  const button = document.querySelector(place), start = performance.now();
  button.click();
  {PAINTED}
  return (performance.now() - start) / 1000;
}}"""
MOVE = f"""async (at) => {{
  const slider = document.querySelector('input[type=range]'), start = performance.now();
  slider.value = at;
  slider.dispatchEvent(new Event('input'));
  {PAINTED}
  return (performance.now() - start) / 1000;
}}"""


def deep(units: int = 170) -> el.Network:
    """A network whose training step has 2,000 temporaries."""
    network = el.Network("deep", (8, 8, 16))
    for number in range(units):
        network.add(f"unit{number}_conv", Conv2D(16, 3, padding="same", use_bias=False))
        network.add(f"unit{number}_bn", BatchNormalization())
        network.add(f"unit{number}_relu", ReLU())
    classify(network, 10, softmax=True)
    return network


def plan_of(network: el.Network, batch_size: int = 1) -> Plan:
    return make_plan(Request(network, batch_size, batch_size, el.SGD(0.1), "batch"), choose_device().device)


def open_plan(chromium: Any, path: Path) -> Any:
    tab = opened(chromium, path.as_uri())
    tab.locator("#layers tbody tr").first.wait_for()
    painted(tab)
    return tab


def painted(tab: Any) -> None:
    """Wait until what the page shows now is on the screen."""
    tab.evaluate(f"async () => {{ {PAINTED} }}")


def trace() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        command = ["edgelearn", "profile", "train:1", "--rounds", "100", "--trace", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        events = json.loads(path.read_text())["traceEvents"]
        steps = sum(event["name"].startswith("step ") for event in events)
        print(f"trace of {steps} steps of MobileNet V1: {len(events):,} events, {megabytes(path.stat().st_size)}")


# -- servers and browsers ----------------------------------------------------------------------------------------------


@contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def opened(chromium: Any, address: str) -> Any:
    """A new tab with a page; the one before is closed."""
    for context in chromium.contexts:
        context.close()
    tab = chromium.new_page(viewport={"width": 1280, "height": 800})
    tab.set_default_timeout(1e3 * SECONDS)
    tab.goto(address)
    return tab


def seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


@contextmanager
def server(folder: Path, module: str, *options: str) -> Iterator[str]:
    """A Jupyter server with the workbench, whose files, runs and settings lie in `folder`; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "EDGELEARN_RUNS": str(folder / "runs"), "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"), "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
    }  # fmt: skip
    command = [
        sys.executable, "-m", module, "--no-browser", "--allow-root", f"--ServerApp.port={port}",
        "--ServerApp.ip=127.0.0.1", "--IdentityProvider.token=", f"--ServerApp.root_dir={folder}",
        "--ServerApp.jpserver_extensions={'edgelearn.workbench': True}", *options,
    ]  # fmt: skip
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env=os.environ | own, cwd=folder, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        while True:
            try:
                urlopen(f"{address}/api", timeout=5).close()
                break
            except (URLError, ConnectionError):
                assert process.poll() is None, (folder / "server.log").read_text()
                time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait(SECONDS)


ALL = {"live": live, "lab": lab, "runs": runs, "plans": plans, "trace": trace}

if __name__ == "__main__":
    for wanted in sys.argv[1:] or ALL:
        ALL[wanted]()
