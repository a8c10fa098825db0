"""The wheel's contents, the two lists of dependencies, and the commands that the documents promise."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from edgelearn.cli import machine

ROOT = Path(__file__).parents[1]
SHIPPED = (".py", ".cl", ".h", ".md", ".js", ".css", ".html", ".json", ".safetensors")
DATA_FILES = (".h5", ".npz", ".npy", ".pb", ".tflite", ".jpg", ".jpeg", ".flac", ".ogg", ".ipynb")
WHEEL_LIMIT = 5_000_000  # bytes: code and a few small drawings, no data set, no weights

# What conda-forge calls differently, or splits in two.
IN_CONDA = {
    "pyopencl[pocl]": {"pyopencl", "pocl"},
    "soundfile": {"pysoundfile"},
    "soxr": {"soxr-python"},
    "flatbuffers": {"python-flatbuffers"},
}
IN_PYPI = {
    "ai-edge-litert",
    "axe-playwright-python",
    "dp-accounting",
    "fast-sugiyama",
    "imagecorruptions",
    "tflite",
}  # that conda-forge doesn't have
ONLY_IN_CONDA = {"python", "pip"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("edgelearn-*.whl")
    return path


def files_below(folder: str) -> set[str]:
    """What a folder of the checkout has to ship, relative to the checkout."""
    paths = (ROOT / folder).rglob("*")
    return {p.relative_to(ROOT).as_posix() for p in paths if p.suffix in SHIPPED and p.is_file()}


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_wheel_holds_every_file_of_the_package(wheel):
    package, kernels = files_below("edgelearn"), files_below("kernels")
    assert any(name.endswith(".cl") for name in kernels)
    expected = package | {f"edgelearn/{name}" for name in kernels}
    assert expected <= set(zipfile.ZipFile(wheel).namelist())


def test_wheel_holds_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    roots = {PurePosixPath(name).parts[0] for name in names}
    assert roots == {"edgelearn", "edgelearn_command.py", f"edgelearn-{project()['version']}.dist-info"}
    assert not [name for name in names if name.lower().endswith(DATA_FILES) or ".tfrecord" in name]
    assert wheel.stat().st_size < WHEEL_LIMIT


def test_wheel_runs_without_the_checkout(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import edgelearn, pathlib\n"
        "package = pathlib.Path(edgelearn.__file__).parent\n"
        "print(edgelearn.__version__, package, *(p.stem for p in (package / 'kernels').glob('*.cl')))"
    )
    run = [sys.executable, "-I", "-c", code, tmp_path]
    done = subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, text=True)
    version, package, *kernels = done.stdout.split()
    assert version == project()["version"]
    assert Path(package) == tmp_path / "edgelearn"
    assert set(kernels) == {p.stem for p in (ROOT / "kernels").glob("*.cl")}


def test_conda_environment_lists_what_pyproject_lists():
    wanted = set(ONLY_IN_CONDA)
    for requirements in (project()["dependencies"], *project()["optional-dependencies"].values()):
        for requirement in map(Requirement, requirements):
            extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
            name = canonicalize_name(requirement.name) + extras
            if requirement.name == "edgelearn" or name in IN_PYPI:
                continue
            wanted |= IN_CONDA.get(name, {name})

    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *packages, by_pip = environment["dependencies"]
    assert {canonicalize_name(re.match(r"[\w.-]+", entry)[0]) for entry in packages} == wanted
    assert by_pip == {"pip": [*sorted(IN_PYPI), "-e ."]}
    assert environment["channels"] == ["conda-forge"]
    assert f"python{project()['requires-python']}" in packages


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_documents_name_targets_that_the_makefile_has(document):
    phony = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = set(re.findall(r"(?:^\s*|`)make ([a-z]\w*)", (ROOT / document).read_text(), re.MULTILINE))
    assert "test" in named
    assert named <= set(phony[1].split())


def test_the_doctor_looks_for_every_dependency():
    def names(requirements):
        return {canonicalize_name(Requirement(line).name) for line in requirements}

    extras = {f"edgelearn[{extra}]": names(lines) for extra, lines in project()["optional-dependencies"].items()}
    assert set(machine.NEEDED) == names(project()["dependencies"])
    assert {name: set(packages) for name, packages in machine.OPTIONAL.items()} == {
        name: packages for name, packages in extras.items() if name not in ("edgelearn[test]", "edgelearn[docs]")
    }
