"""Check the installation: packages, kernels, device, folders; with a remedy for each problem."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
from pathlib import Path

from platformdirs import user_cache_path

from edgelearn import caches
from edgelearn.data import features
from edgelearn.errors import EdgelearnError
from edgelearn.lab.runs import RunStore
from edgelearn.runtime import choose_device, kernels, self_test
from edgelearn.runtime.driver import POCL_CACHE, pocl_folder
from edgelearn.tuned import find
from edgelearn.tuned import store as tuned

from .answer import Answer

NEEDED = (
    "numpy", "scipy", "pyopencl", "pillow", "h5py", "safetensors", "matplotlib", "platformdirs", "rich", "filelock",
    "psutil",
)  # fmt: skip
OPTIONAL = {  # packages by pip's name of the extra
    "edgelearn[tensorflow]": ("tensorflow", "tensorflow-datasets", "importlib-resources"),
    "edgelearn[audio]": ("soundfile", "soxr"),
    "edgelearn[tensorboard]": ("tensorboardx",),
    "edgelearn[completion]": ("shtab",),
    "edgelearn[federated]": ("flwr",),
    "edgelearn[formats]": ("onnx", "flatbuffers", "tflite"),
    "edgelearn[notebooks]": ("jupyterlab", "ipywidgets", "ipykernel", "anywidget", "fast-sugiyama"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", help="check this device instead of the best one")


def run(options: argparse.Namespace) -> Answer:
    problems, checks = 0, []

    def report(good: bool, text: str, remedy: str = "") -> None:
        nonlocal problems
        problems += not good
        checks.append({"state": "ok" if good else "problem", "text": text, "remedy": "" if good else remedy})
        print(f"[{'ok' if good else '!!'}] {text}" + (f"\n     -> {remedy}" if remedy and not good else ""))

    def note(good: bool, text: str) -> None:
        checks.append({"state": "ok" if good else "optional", "text": text, "remedy": ""})
        print(f"[{'ok' if good else '--'}] {text}")

    report(sys.version_info >= (3, 11), f"Python {platform.python_version()}", "install Python 3.11 or later")
    for package in NEEDED:
        version = _version(package)
        report(bool(version), f"{package} {version or 'is missing'}", f"pip install {package}")
    for package, extra in ((package, extra) for extra, packages in OPTIONAL.items() for package in packages):
        version = _version(package)
        state = version or f"is not installed (optional: pip install {extra!r})"
        note(bool(version), f"{package} {state}")
    for what, (folder, variable) in _caches().items():  # before the device, which may not start without them
        if folder is None:
            note(False, f"{what}: off, {variable} is empty")
            continue
        why = caches.problem(folder)
        remedy = f"name a folder on a disk with room in {variable}; until then a temporary one serves"
        report(not why, f"{what}: {folder}" + (f": {why}" if why else ""), remedy)
    try:
        report(True, f"{len(list(kernels.kernels_folder().glob('*.cl')))} kernel files in {kernels.kernels_folder()}")
        choice = choose_device(options.device)
        report(True, f"device {choice.device.id}: {choice.reason}")
        for text in (*choice.device.notes, choice.device.int8_speed):
            print(f"     note: {text}")
        found = find(choice.device)
        note(bool(found.files), str(found))
        test = self_test(choice.device)
        report(test.passed, f"self-test {'passed' if test.passed else 'failed: ' + test.problem}",
               "choose another device with --device (see `edgelearn devices`), or update the driver")  # fmt: skip
    except EdgelearnError as error:
        report(False, "OpenCL", str(error))
    folder = os.environ.get("EDGELEARN_DATA")
    if folder:
        report(Path(folder).is_dir(), f"EDGELEARN_DATA={folder}", "set it to a folder that exists, or unset it")
    else:
        note(False, "EDGELEARN_DATA is not set: data is downloaded, or the embedded sample is used")
    store = RunStore().root
    nearest = next(p for p in (store, *store.parents) if p.exists())
    report(os.access(nearest, os.W_OK), f"runs are kept in {store}", "set EDGELEARN_RUNS to a writable folder")
    print("Everything is in order." if not problems else f"{problems} problem{'s' * (problems > 1)}.")
    return Answer({"problems": problems, "checks": checks}, int(problems > 0))


def _caches() -> dict[str, tuple[Path | None, str]]:
    """(folder, environment variable that names another) of everything that is kept between runs."""
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
