"""Every command, through `main` and as a process."""

import json
import re
import shutil
import subprocess
import sys

import pytest
from PIL import Image

from edgelearn import __version__, tuned
from edgelearn.cli import COMMANDS, main
from edgelearn.experiments.flowers import SAMPLE_WEIGHTS
from edgelearn.lab.runs import RunStore
from edgelearn.runtime import list_devices

needs_sample = pytest.mark.skipif(not SAMPLE_WEIGHTS.exists(), reason="the package's small network isn't there")


@pytest.fixture(autouse=True)
def _nothing_given(monkeypatch, tmp_path):
    monkeypatch.delenv("EDGELEARN_DATA", raising=False)
    monkeypatch.setenv("EDGELEARN_RUNS", str(tmp_path / "no runs"))


@pytest.fixture(scope="module")
def trained(pictures, tmp_path_factory):
    """(folder of two finished runs, what the process of the second one wrote)."""
    runs = tmp_path_factory.mktemp("runs")
    command = [
        "flowers",
        "--images",
        pictures,
        "--weights",
        "sample",
        "--epochs",
        2,
        "--micro-batch",
        4,
        "--runs",
        runs,
    ]
    assert main([*map(str, command), "--learning-rate", "0.05"]) == 0
    done = edgelearn(*command, "--learning-rate", 0.01)
    assert done.returncode == 0, done.stderr
    return runs, done


def process_of(*arguments):
    return [sys.executable, "-c", "import sys; from edgelearn.cli import main; sys.exit(main())", *map(str, arguments)]


def edgelearn(*arguments):
    return subprocess.run(process_of(*arguments), capture_output=True, text=True, timeout=100)


# -- the command -----------------------------------------------------------------------------------------------------


def test_usage(capsys):
    for arguments in (["memory"], ["--help"], ["bloom"], *([name, "--help"] for name in COMMANDS)):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == (0 if "--help" in arguments else 2)
    output = capsys.readouterr()
    assert all(name in output.out for name in COMMANDS)
    assert "invalid choice: 'bloom'" in output.err
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.strip() == __version__


def test_edgelearn_alone_says_what_to_do_first(capsys):
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    commands = [line.split("  ")[1].strip().split() for line in lines if line.startswith("  edgelearn")]
    assert commands[0] == ["edgelearn", "doctor"] and all(words[1] in COMMANDS for words in commands)


def test_a_keyboard_interrupt_is_no_traceback(monkeypatch, capsys):
    def interrupted(options):
        raise KeyboardInterrupt

    monkeypatch.setattr("edgelearn.cli.runs._list", interrupted)
    assert main(["runs"]) == 130
    assert capsys.readouterr().err == "edgelearn: interrupted\n"


# -- devices and doctor ----------------------------------------------------------------------------------------------


def test_devices(said):
    output = said("devices", "--extensions")
    devices = list_devices()
    assert all(device.id in output for device in devices)
    assert output.startswith("* ") and output.count("self-test passed") == len(devices)
    assert all(str(tuned.find(device)) in output for device in devices)
    assert "cl_khr_" in output


def test_devices_as_json(said):
    records = json.loads(said("devices", "--json"))
    assert {record["name"] for record in records} == {device.name for device in list_devices()}
    assert all(record["self_test"]["passed"] and record["self_test"]["flops"] > 1e8 for record in records)


def test_doctor(capsys, monkeypatch, tmp_path, said):
    output = said("doctor")
    assert output.splitlines()[-1] == "Everything is in order."
    assert "self-test passed" in output and "[ok] numpy" in output and str(tmp_path / "no runs") in output
    monkeypatch.setenv("EDGELEARN_DATA", str(tmp_path / "gone"))
    assert main(["doctor", "--device", "abacus"]) == 1
    output = capsys.readouterr().out
    assert "[!!] OpenCL\n     -> No OpenCL device is called 'abacus'" in output
    assert "set it to a folder that exists" in output and output.splitlines()[-1] == "2 problems."


def test_tune(capsys, refused, monkeypatch, tmp_path, said):
    """Plans use the figures that the command finds, and `devices` says so."""
    monkeypatch.setenv("EDGELEARN_TUNED", str(tmp_path / "mine"))
    monkeypatch.setattr(tuned, "shipped", lambda: tmp_path / "none")
    device = list_devices()[0]
    assert "[--] not tuned for this kind of device" in said("doctor", "--device", device.id)
    command = ["tune", "flowers-sample", "--device", device.id, "--minutes", "0.05"]
    assert main(command) == 0
    (path,) = (tmp_path / "mine").iterdir()
    output = capsys.readouterr().out
    assert "100%" in output and "flowers-sample" in output.splitlines()[-2] and str(path) in output
    assert json.loads(path.read_text())["measured"]["device"]["name"] == device.name
    assert tuned.find(device).files == (path,)
    assert f"choices from {path}" in said("doctor", "--device", device.id)

    assert main(command) == 0, "done before: nothing is run again"
    refused("cooking", "tune", "cooking")
    path.write_text("[]")
    refused(re.escape(str(path)), *command)


def test_no_opencl(monkeypatch, capsys, refused):
    import pyopencl

    monkeypatch.setattr(pyopencl, "get_platforms", list)
    for command in ("devices", "flowers"):
        refused(
            r"no device[^`]*pip install 'pyopencl\[pocl\]'", command, *(["--sample"] if command == "flowers" else [])
        )
    assert main(["doctor"]) == 1
    assert "pip install 'pyopencl[pocl]'" in capsys.readouterr().out


# -- flowers ---------------------------------------------------------------------------------------------------------


@needs_sample
def test_flowers(trained, pictures):
    runs, done = trained
    lines = done.stdout.splitlines()
    assert lines[0] == f"10 pictures in 2 classes from the folder {pictures}; 1 file skipped."
    assert lines[1].startswith(f"  skipped {pictures / 'red' / 'broken.jpg'}: ") and lines[2] == "  1 file skipped"
    assert "Trainable parameters: 66,050" in done.stdout and "most device memory of the whole job" in done.stdout
    epochs = [line for line in lines if line.startswith("epoch")]
    assert [line.split()[1] for line in epochs] == ["1/2", "2/2"]
    newest = RunStore(runs).list()[0]
    assert newest.status == "finished" and lines[-1].endswith(str(newest.folder))
    assert any(line.startswith(f"Test accuracy: {newest.results['correct']}/2 = ") for line in lines)
    assert not done.stderr


@pytest.fixture(autouse=True)
def _empty_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KERAS_HOME", raising=False)


@needs_sample
@pytest.mark.parametrize("last", ["10 pictures in 2 classes", "epoch    2/100"])
def test_output_into_a_pipe_that_closes(pictures, tmp_path, last):
    """As `edgelearn flowers | head -1`: lines come when they are written, and no traceback after them."""
    command = process_of("flowers", "--images", pictures, "--weights", "sample", "--runs", tmp_path)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert any(line.startswith(last) for line in process.stdout)
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) in (0, 1)
    assert all(run.status == "interrupted" for run in RunStore(tmp_path).list())


# -- runs and compare ------------------------------------------------------------------------------------------------


def test_no_runs(tmp_path, refused, said):
    assert said("runs") == f"No runs in {tmp_path / 'no runs'} yet.\n"
    refused("no runs.*'x'", "runs", "x")
    refused("no runs.*'x'", "compare", "x")
    refused("edgelearn flowers", "predict", "x.jpg")


def test_runs_are_deleted_pruned_and_trained_again(tmp_path, capsys, said, refused):
    store = RunStore(tmp_path)
    config = {"seed": 0, "epochs": 1}
    for status in ("finished", "failed", "interrupted"):
        with store.create("compare", config) as run:
            if status == "finished":
                run.finish({})
            elif status == "failed":
                run.fail(ValueError("no"))
    finished, failed, interrupted = sorted(
        store.list(), key=lambda each: "finished failed interrupted".find(each.status)
    )
    here = ["--runs", str(tmp_path)]
    shown = said("runs", *here)
    assert "MB" in shown and "3 runs in" in shown and max(map(len, shown.splitlines()[:-1])) <= 80
    assert finished.bytes == sum(path.stat().st_size for path in finished.folder.iterdir()) > 0
    assert main(["runs", "prune", "--days", "1", "--yes", *here]) == 0 and len(store.list()) == 3
    assert main(["runs", "prune", *here]) == 0 and len(store.list()) == 3
    assert "edgelearn runs prune --yes" in capsys.readouterr().out
    assert main(["runs", "prune", "--yes", *here]) == 0
    assert [each.id for each in store.list()] == [finished.id]
    refused("which no command trains", "runs", "rerun", finished.id, *here)
    for words in (["delete"], ["rerun"], ["prune", "x"], [finished.id, failed.id]):
        assert main(["runs", *words, *here]) == 2
    assert main(["runs", "delete", interrupted.id, *here]) == 1
    with store.create("compare", config) as running:
        refused("is running", "runs", "delete", running.id, *here)
        running.finish({})
    assert main(["runs", "delete", finished.id[:-1], running.id, "--json", *here]) == 0
    assert [each["id"] for each in json.loads(capsys.readouterr().out)] == [finished.id, running.id]
    assert not list(tmp_path.iterdir())


@needs_sample
def test_a_run_is_trained_again_from_its_record(trained, tmp_path, said, refused):
    runs, _ = trained
    shutil.copytree(runs, tmp_path / "runs")
    store = RunStore(tmp_path / "runs")
    before = store.list()[-1]
    (again,) = json.loads(said("runs", "rerun", before.id, "--json", "--runs", str(store.root)))
    assert len(store.list()) == 3 and store.open(again["id"]).config == store.open(before.id).config
    assert again["results"]["accuracy"] == before.results["accuracy"]
    words = ["seed=1", "epochs=1", "trainable=dense"]
    (other,) = json.loads(said("runs", "rerun", before.id, *words, "--json", "--runs", str(store.root)))
    run = store.open(other["id"])
    assert (run.config["seed"], run.config["epochs"], run.config["trainable"]) == (1, 1, ["dense"])
    changed = {name: now for name, _, now in run.record["again"]["changed"]}
    assert run.record["again"]["of"] == before.id and changed.keys() <= {"seed", "epochs", "trainable"}
    refused("no such setting", "runs", "rerun", before.id, "rate=1", "--runs", store.root)
    refused("one value", "runs", "rerun", before.id, "epochs=1,2", "--runs", store.root)
    refused("is finished", "runs", "resume", before.id, "--runs", store.root)


def test_runs_are_described_and_restored(tmp_path, said, refused):
    store = RunStore(tmp_path)
    with store.create("flowers", {"epochs": 1}) as run:
        run.finish({"accuracy": 0.5})
    here = ["--runs", str(tmp_path)]
    (found,) = json.loads(said("runs", run.id, "--name", "base", "--tags", "a", "b", "--note", "n", "--json", *here))
    assert (found["name"], found["tags"], found["note"]) == ("base", ["a", "b"], "n")
    (found,) = json.loads(said("runs", run.id, "--tags", "--json", *here))
    assert (found["name"], found["tags"]) == ("base", [])
    assert main(["runs", "--name", "x", *here]) == 2
    store.discard(run.id)
    assert "is restored" in said("runs", "restore", run.id[:-1], *here) and store.list().ids == [run.id]
    for suffix, start in ((".html", "<!doctype"), (".csv", "run,"), (".tex", "\\begin"), (".json", "[")):
        said("compare", run.id, run.id, "--export", str(tmp_path / f"out{suffix}"), *here)
        assert (tmp_path / f"out{suffix}").read_text().startswith(start)


@needs_sample
def test_runs(trained, tmp_path, refused, said):
    runs, _ = trained
    newest, oldest = RunStore(runs).list()
    table = said("runs", "--runs", str(runs))
    assert table.index(newest.id) < table.index(oldest.id)
    shown = json.loads(said("runs", newest.id[:-1], "--runs", str(runs)))
    assert newest.id in json.dumps(shown)
    assert main(["runs", newest.id, "--export", str(tmp_path / "run.json"), "--runs", str(runs)]) == 0
    assert json.loads((tmp_path / "run.json").read_text()).keys() == shown.keys()
    refused("export", "runs", "--export", tmp_path / "all.json", "--runs", runs)
    refused("2 runs.*'flowers'", "runs", "flowers", "--runs", runs)
    refused("x.json", "runs", newest.id, "--export", tmp_path / "no" / "x.json", "--runs", runs)


@needs_sample
def test_compare(trained, tmp_path, said):
    runs, _ = trained
    newest, oldest = RunStore(runs).list()
    plot = tmp_path / "curves.png"
    output = said("compare", oldest.id, newest.id, "--plot", str(plot), "--runs", str(runs))
    assert "learning_rate" in output and "0.05" in output and "0.01" in output and "micro_batch" not in output
    with Image.open(plot) as picture:
        assert picture.format == "PNG"


# -- predict ---------------------------------------------------------------------------------------------------------


@needs_sample
def test_predict(trained, pictures, capsys, refused):
    runs, _ = trained
    good, broken, gone = pictures / "red" / "0.png", pictures / "red" / "broken.jpg", pictures / "gone.png"
    assert main(["predict", str(good), "--runs", str(runs)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"{re.escape(str(good))}: (red|blue) [\d.]+%, (red|blue) [\d.]+%", line)
    shares = [float(share) for share in re.findall(r"([\d.]+)%", line.split(": ")[1])]
    assert sum(shares) == pytest.approx(100, abs=0.2) and shares == sorted(shares, reverse=True)
    assert main(["predict", str(broken), str(good), str(gone), str(pictures), "--runs", str(runs)]) == 1
    output = capsys.readouterr()
    lines = output.out.splitlines()
    assert len(lines) == 4 and lines[1] == line
    assert "neither a JPEG nor a PNG" in lines[0] and "gone.png" in lines[2] and not output.err
    oldest = RunStore(runs).list()[-1].id
    assert main(["predict", str(good), "--run", oldest, "--runs", str(runs)]) == 0
    refused("'flowers-1'", "predict", good, "--run", "flowers-1", "--runs", runs)
    refused("'abacus'", "predict", good, "--device", "abacus", "--runs", runs)


# -- profile ---------------------------------------------------------------------------------------------------------


def test_profile(tmp_path, said):
    files = {name: tmp_path / f"step.{name}" for name in ("save", "trace", "plot")}
    options = [text for name, path in files.items() for text in (f"--{name}", str(path))]
    device = list_devices()[0].id
    output = said("profile", "cached:2", "--rounds", "1", "--device", device, *options)
    assert output.startswith(f"cached:2 on {device}") and "pointwise_backward_weights" in output
    (step,) = json.loads(files["save"].read_text())["steps"]
    spans = [event for event in json.loads(files["trace"].read_text())["traceEvents"] if event["ph"] == "X"]
    median = [event for event in spans if event["pid"] == 1 and event["tid"] == 1]
    assert sum(point["launches"] for point in step["kinds"]) == len(median)
    with Image.open(files["plot"]) as picture:
        assert picture.size[0] > 500


def test_profile_predicts_without_a_device(monkeypatch, said):
    monkeypatch.setattr("edgelearn.runtime.devices.list_devices", lambda: pytest.fail("asked for devices"))
    output = said("profile", "forward:1", "cached:2", "--project", "adreno-540", "videocore-vii")
    assert output.count("Adreno 540") == 5 and output.count("±45%") == 10 and "cached:2, predicted" in output
    assert "assumption" in output and "Mali" not in output
