"""Commands on this machine: its devices and installation, and how fast they are."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

from edgelearn.display import plural
from edgelearn.errors import EdgelearnError, ExtensionError
from edgelearn.lab.energy import LOOP, find_meter

from . import answer
from .answer import Answer, log, width
from .parser import COMPUTE, DEVICE, FIELDS, NETWORK, argument, command, leaves, network, png, setting, writable

GIB = 1 << 30
NETWORK_OF_WORKLOADS = network("mobilenet_v1", NETWORK)


@command("devices", many={
    "name, platform, vendor, driver, version": "as OpenCL says", "kind": "cpu, gpu or accelerator",
    "memory": "bytes", "compute_units": "number",
    "notes": "faults of the driver that are worked around", "extensions": "of OpenCL", "units": "matrix units",
    "tuned": "files of tuned choices", "self_test": "passed, problem, seconds, bandwidth (bytes/s), flops (FLOP/s)",
})  # fmt: skip
def devices(extensions: bool = setting(False, "list the extensions of each device")) -> list:
    """List the OpenCL devices, each with a one-second self-test, best first."""
    from edgelearn.runtime import list_devices, self_test
    from edgelearn.runtime.devices import rank
    from edgelearn.tuned import find

    found = []
    for device in rank(list_devices()):
        test = self_test(device)
        speed = f"{test.bandwidth / 1e9:.0f} GB/s, {test.flops / 1e9:.0f} GFLOP/s"
        memory = f"{device.memory / GIB:.1f} GiB memory (largest buffer {device.largest_buffer / GIB:.1f} GiB)"
        lines = [
            f"{device.kind.upper()}, {device.version}, driver {device.driver}",
            f"{memory}, {plural(device.compute_units, 'compute unit')}, {plural(len(device.extensions), 'extension')}",
            f"self-test passed in {test.seconds:.1f} s: {speed}" * test.passed or f"SELF-TEST FAILED: {test.problem}",
            f"units for small numbers: {', '.join(device.units) or 'none'}",
            device.int8_speed, find(device), *(f"note: {note}" for note in device.notes),
            *([" ".join(device.extensions)] if extensions else []),
        ]  # fmt: skip
        print(f"{' ' if found else '*'} {device.id}", *lines, sep="\n    ")
        found.append(device.facts() | {
            "extensions": device.extensions, "units": device.units, "tuned": find(device).files, "self_test": test
        })  # fmt: skip
    print("* would be chosen; choose another with --device NAME (any part of its name)")
    return found


NEEDED = (
    "numpy", "scipy", "pyopencl", "pillow", "h5py", "safetensors", "matplotlib", "platformdirs", "rich", "filelock",
    "psutil",
)  # fmt: skip
OPTIONAL = {  # packages by pip's name of the extra
    "edgelearn[tensorflow]": ("tensorflow", "tensorflow-datasets", "importlib-resources"),
    "edgelearn[audio]": ("soundfile", "soxr"),
    "edgelearn[tensorboard]": ("tensorboardx",),
    "edgelearn[language]": ("tokenizers",),
    "edgelearn[completion]": ("shtab",),
    "edgelearn[federated]": ("flwr",),
    "edgelearn[privacy]": ("cryptography", "dp-accounting"),
    "edgelearn[energy]": ("nvidia-ml-py",),
    "edgelearn[sweeps]": ("optuna",),
    "edgelearn[corruptions]": ("imagecorruptions",),
    "edgelearn[digits]": ("scikit-learn",),
    "edgelearn[formats]": ("onnx", "flatbuffers", "tflite"),
    "edgelearn[notebooks]": ("jupyterlab", "ipywidgets", "ipykernel", "anywidget", "fast-sugiyama", "plotly"),
}


@command("doctor", one={"problems": "number", "checks": "each with state (ok, optional, problem), text and remedy"})
def doctor(
    name: str | None = setting(None, "check this device instead of the best one", spelled="--device", metavar="DEVICE"),
) -> Answer:
    """Check the installation: packages, kernels, device, folders; with a remedy for each problem."""
    from edgelearn import caches
    from edgelearn.lab.runs import RunStore
    from edgelearn.runtime import choose_device, self_test
    from edgelearn.runtime.kernels import kernels_folder
    from edgelearn.tuned import find

    checks: list[dict[str, str]] = []

    def report(good: bool, text: str, remedy: str | None = "") -> None:
        """`remedy`: None for what is optional."""
        bad, mark = ("optional", "--") if remedy is None else ("problem", "!!")
        state, mark, remedy = ("ok", "ok", "") if good else (bad, mark, remedy or "")
        checks.append({"state": state, "text": text, "remedy": remedy})
        print(f"[{mark}] {text}" + (f"\n     -> {remedy}" if remedy else ""))

    report(sys.version_info >= (3, 11), f"Python {platform.python_version()}", "install Python 3.11 or later")
    for package in NEEDED:
        version = _version(package)
        report(bool(version), f"{package} {version or 'is missing'}", f"pip install {package}")
    for package, extra in ((package, extra) for extra, packages in OPTIONAL.items() for package in packages):
        version = _version(package)
        report(bool(version), f"{package} {version or f'is not installed (optional: pip install {extra!r})'}", None)
    for what, (folder, variable) in _caches().items():  # before the device, which may not start without them
        if folder is None:
            report(False, f"{what}: off, {variable} is empty", None)
            continue
        why = caches.problem(folder)
        remedy = f"name a folder on a disk with room in {variable}; until then a temporary one serves"
        report(not why, f"{what}: {folder}" + (f": {why}" if why else ""), remedy)
    try:
        report(True, f"{len(list(kernels_folder().glob('*.cl')))} kernel files in {kernels_folder()}")
        choice = choose_device(name)
        report(True, f"device {choice.device.id}: {choice.reason}")
        for text in (*choice.device.notes, choice.device.int8_speed):
            print(f"     note: {text}")
        meter = find_meter(choice.device)
        report(meter.measures, f"energy: {meter}", None)
        found, test = find(choice.device), self_test(choice.device)
        report(bool(found.files), str(found), None)
        report(test.passed, f"self-test {'passed' if test.passed else 'failed: ' + test.problem}",
               "choose another device with --device (see `edgelearn devices`), or update the driver")  # fmt: skip
    except EdgelearnError as error:
        report(False, "OpenCL", str(error))
    if data := os.environ.get("EDGELEARN_DATA"):
        report(Path(data).is_dir(), f"EDGELEARN_DATA={data}", "set it to a folder that exists, or unset it")
    else:
        report(False, "EDGELEARN_DATA is not set: data is downloaded, or the embedded sample is used", None)
    store = RunStore().root
    nearest = next(p for p in (store, *store.parents) if p.exists())
    report(os.access(nearest, os.W_OK), f"runs are kept in {store}", "set EDGELEARN_RUNS to a writable folder")
    problems = sum(each["state"] == "problem" for each in checks)
    print("Everything is in order." if not problems else f"{plural(problems, 'problem')}.")
    return Answer({"problems": problems, "checks": checks}, int(problems > 0))


def _caches() -> dict[str, tuple[Path | None, str]]:
    """(folder, environment variable that names another) of everything that is kept between runs."""
    from platformdirs import user_cache_path

    from edgelearn import caches, tuned
    from edgelearn.data import features
    from edgelearn.runtime import kernels
    from edgelearn.runtime.driver import POCL_CACHE, pocl_folder

    own = os.environ.get("MPLCONFIGDIR")
    return {
        "PoCL's kernels": (pocl_folder(), POCL_CACHE),
        "compiled programs": (caches.chosen("programs", kernels.VARIABLE), kernels.VARIABLE),
        "features of sounds": (caches.chosen("features", features.VARIABLE), features.VARIABLE),
        "tuning results": (tuned.chosen(), tuned.VARIABLE),
        "fonts of figures": (Path(own) if own else user_cache_path("matplotlib", appauthor=False), "MPLCONFIGDIR"),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


@command("bench", one={
    "started, command, subject": "when, and what was measured", "machine, config, versions": "facts",
    "not_installed": "missing packages by contender", "noise": "blocks, noisy, repeated",
    "energy": "source of the counter, or why nothing was measured, and idle_watts: power without work",
    "layers": "by workload, with --layers: layer, serial and device (seconds)",
    "variants": "workload, contender, compute (type), blocks of seconds, median, memory in bytes, energy (joules of a "
                "step, watts, or null), comparison with the fastest peer of the type, or of all types where no peer "
                "has it",
})  # fmt: skip
def bench(
    workload: tuple[str, ...] = argument(
        ("forward:1", "train:1", "cached:163"),
        "forward, train, train_bn, accumulate or cached, with a batch size as in forward:16; a single op as in "
        "train/conv_pw_1:16; patterns as in 'forward/*'",
    ),
    network: str = NETWORK_OF_WORKLOADS,
    contenders: tuple[str, ...] | None = setting(
        None, "edgelearn, torch, keras, tinygrad (default: all installed); litert, onnxruntime; serial, the same step "
        "as plain C", metavar="NAME",
    ),
    only: tuple[str, ...] = setting(("*",), 'variants such as "torch compile*"', metavar="PATTERN"),
    device: str | None = DEVICE,
    compute: tuple[str, ...] = COMPUTE,
    cores: int | None = setting(None, "processor cores for everyone (default: all)", minimum=1),
    rounds: int = setting(9, "blocks of steps of each contender", minimum=1),
    layers: bool = setting(False, "each layer of a training step, too: the serial C beside the device"),
    energy: float = setting(
        LOOP, "seconds of steps whose energy is counted, where the device has a counter", above=0, metavar="SECONDS"
    ),
    seed: int = setting(0, minimum=0),
    source: str | None = setting(
        None, "show a report that --json or --save wrote, and measure nothing", spelled="--from", metavar="FILE"
    ),
    chart: Path | None = png("draw everyone's time over edgelearn's"),
    markdown: bool = setting(False, "print a table in Markdown, a row a workload"),
) -> dict:  # fmt: skip
    """Compare speed and memory with PyTorch, Keras and tinygrad.

    Contenders take turns, each in a process of its own, with the same weights and inputs. Those that are not installed
    are listed as such: pip install torch==2.13.0 'edgelearn[tensorflow]' tinygrad. On a GPU, those that use OpenCL take
    part, and PyTorch where it computes with CUDA.
    """
    from edgelearn.lab.bench.report import BenchReport, as_markdown, as_text, save_chart
    from edgelearn.lab.bench.run import BenchConfig, run
    from edgelearn.lab.bench.workloads import Workload

    if source:
        report = BenchReport.read(source)
    else:
        workloads = [each for text in workload for each in Workload.expand(text, seed, network)]
        config = BenchConfig(rounds=rounds, energy_seconds=energy)
        report = run(workloads, contenders, only, cores, device, config, log, compute=compute, layers=layers)
        report.command = answer.command_line
    print(as_markdown(report) if markdown else as_text(report, width()), end="")
    if chart:
        save_chart(report, chart)
    return report.to_dict()


@command("profile", one={
    "device": "facts", "date": "of the measurement",
    "energy": "source of the counter, or why nothing was measured, and idle_watts: power without work",
    "peaks": "FLOP/s, bytes/s, seconds a launch, operations/s of units by type",
    "steps": "name, wall (seconds), energy (joules of a step, watts, or null), kinds: launches, FLOPs, bytes, seconds, "
             "bound and compute type of each kind of launch",
})  # fmt: skip
def profile(
    workload: tuple[str, ...] = argument(("train:1",), "kind and batch size, as in forward:16"),
    network: str = NETWORK_OF_WORKLOADS,
    device: str | None = DEVICE,
    compute: tuple[str, ...] = COMPUTE,
    rounds: int = setting(20, "steps to measure", minimum=1),
    layers: bool = setting(False, "a row for each layer, not for each kind of launch"),
    trace: Path | None = setting(
        None, "write the steps there as a trace for chrome://tracing or ui.perfetto.dev", check=writable, metavar="FILE"
    ),
    plot: Path | None = setting(None, "draw the roofline there, as PNG", check=writable, metavar="FILE"),
    project: tuple[str, ...] | None = setting(
        None, "predict for these devices (default: all described)", const=(), metavar="NAME|FILE"
    ),
) -> Any:  # fmt: skip
    """Show where the time of a step goes, and the least it could take; or predict it for another device.

    A workload is one of those of `edgelearn bench`, such as forward:16 or resnet18/forward:16. --project predicts
    without measuring, for devices that are described in edgelearn/lab/profile/devices, or in a JSON file of the same
    form.
    """
    from edgelearn.lab.bench.engine import make_request
    from edgelearn.lab.bench.workloads import Workload

    workloads = [Workload.parse(text, network=network, compute=kind) for text in workload for kind in compute]
    requests = {each.title: make_request(each, each.micro_batch) for each in workloads}
    if (trace or plot) and len(requests) > 1:
        raise EdgelearnError("--trace and --plot show one step: name a single workload.")
    if project is not None:
        return _project(requests, project)
    from edgelearn import atomic
    from edgelearn.compile import make_plan
    from edgelearn.lab import profile as lab
    from edgelearn.lab.runs import figures
    from edgelearn.runtime import Context, choose_device

    chosen = choose_device(device).device
    peaks, rooflines = lab.measure_peaks(Context(chosen)), []
    for name, request in requests.items():
        rooflines.append(lab.profile(make_plan(request, chosen), chosen, rounds, name, peaks))
        print(lab.roofline_table(rooflines[-1], width(), layers))
    if trace:
        atomic.write_bytes(trace, atomic.to_json(lab.trace(rooflines[0])).encode())
    if plot:
        figures.saved(lab.plot(rooflines[0]), plot)
    return lab.DeviceRecord.of(rooflines).to_dict()


FIELDS["profile --project"] = "list", {
    "name": "of the step",
    "estimates": "device, kind, precision, launches, bound and expected (seconds), basis, nbytes, fits, joules (a "
                 "projection), and error: median relative error of predictions for its kind, and the number of devices "
                 "that rests on",
    "errors": "relative errors by measured device and step", "assumptions": "in words",
    "sources": "of each device's figures",
}  # fmt: skip


def _project(requests: dict, names: Any) -> list:
    from edgelearn.lab.profile import EdgeDevice, edge_devices, project, projection_table

    devices = [EdgeDevice.load(name) for name in names or edge_devices()]
    projections = [project(request, devices, name) for name, request in requests.items()]
    for projection in projections:
        print(projection_table(projection, width()))
    print(projections[-1].sources)
    return [projection.to_dict() for projection in projections]


MINUTES, MINUTES_GPU = 6, 3


@command("tune", one={
    "device": "name", "file": "of the choices", "workloads": "by name: before and after (seconds), decisions, changed",
})  # fmt: skip
def tune(
    workload: tuple[str, ...] = argument(
        (),
        "one of `edgelearn bench` but no single op, as train:16 or resnet18/train:16; cached:163/15 for micro-batches "
        "of 15; or flowers-sample (default: what fits the kind of device)",
    ),
    device: str | None = DEVICE,
    compute: tuple[str, ...] = COMPUTE,
    minutes: float | None = setting(
        None, f"spend about so long at most (default: {MINUTES}, on a GPU {MINUTES_GPU})", minimum=0.01
    ),
    again: bool = setting(False, "measure settled choices again"),
    folder: Path | None = setting(None, "store the results here (default: the user's folder, where plans find them)"),
) -> dict:  # fmt: skip
    """Find the fastest variants and tile sizes of the kernels on a device, and store them for all plans made on it.

    Runs whole training and prediction steps, for some minutes. Ctrl-C saves the results so far; the same command
    continues where it stopped.
    """
    from rich.progress import Progress, TimeElapsedColumn

    from edgelearn.lab.tuning import Tuner, TuningWork, defaults
    from edgelearn.runtime import choose_device
    from edgelearn.tuned import find

    chosen = choose_device(device).device
    works = [TuningWork.parse(text, kind) for kind in compute for text in workload or defaults(chosen.is_gpu, kind)]
    print(f"{chosen.id}: {find(chosen)}")
    tuner, limit = Tuner(chosen, folder), minutes or (MINUTES_GPU if chosen.is_gpu else MINUTES)
    try:
        with Progress(TimeElapsedColumn(), *Progress.get_default_columns()) as bar:
            task = bar.add_task("starting", total=1.0)
            report = tuner.tune(
                list({work.name: work for work in works}.values()), limit, again,
                lambda part, name: bar.update(task, completed=part, description=name),
            )  # fmt: skip
            bar.update(task, completed=1.0)
    except KeyboardInterrupt:
        log(f"Results are saved in {tuner.path}; the same command continues.")
        raise
    print(report)
    steps = {name: report.results.workloads[name] for name in report.names}
    return {"device": chosen.id, "file": report.path, "workloads": steps}


_FILE = {"bash": "_shtab_compgen_files", "zsh": "_files"}
_FILES = {  # what completes a value, by its name in the help
    "FILE": _FILE, "PNG": _FILE, "MODEL": _FILE, "OUT": _FILE, "CLIP": _FILE, "NETWORK": _FILE, "NAME|FILE": _FILE,
    "DIR": {"bash": "_shtab_compgen_dirs", "zsh": "_files -/"},
}  # fmt: skip


@command("completion")
def completion(shell: str = argument(choices=("bash", "zsh"))) -> None:
    """Print a script that completes commands, options, choices and files in bash or zsh.

    In bash: source <(edgelearn completion bash), or that line in ~/.bashrc. In zsh: edgelearn completion zsh >
    _edgelearn, in a folder of $fpath. The package shtab writes the script: pip install 'edgelearn[completion]'.
    """
    from . import full_parser

    try:
        import shtab
    except ImportError:
        raise ExtensionError("Completion needs the package shtab: pip install 'edgelearn[completion]'.") from None
    every = full_parser()
    for _, leaf in leaves(every):
        for action in leaf._actions:
            if action.metavar in _FILES:
                action.complete = _FILES[action.metavar]  # pyright: ignore[reportAttributeAccessIssue]
    print(shtab.complete(every, shell))
