"""The table of formats that edgelearn reads, for `damaged_files`: how to make a good file, and how to read one.

To attack another format, add an entry to FORMATS:

>>> FileFormat("ONNX", make_onnx, edgelearn.load)

`make(folder)` writes a good file into an empty folder and returns its path. `read(path)` reads the good file, and of a
damaged one returns something or raises an EdgelearnError.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import edgelearn
from edgelearn import atomic, tuned
from edgelearn.compile.precision import Precision
from edgelearn.data import audio as sounds
from edgelearn.data import pictures
from edgelearn.data.features import LogMel
from edgelearn.device import DeviceKind
from edgelearn.graph import Network
from edgelearn.interop import ModelFile, keras_h5, safetensors, state_dict
from edgelearn.interop.formats import read_model, write_model
from edgelearn.keywords import load_embedder
from edgelearn.keywords.files import SAMPLE
from edgelearn.keywords.vocabulary import Vocabulary
from edgelearn.lab.bench.report import BenchReport, Variant, as_text
from edgelearn.lab.measure import Block
from edgelearn.lab.profile import DeviceRecord, EdgeDevice, projection
from edgelearn.lab.runs import RunStore, compare, export, list_table
from edgelearn.lab.runs.run import encode_checkpoint, read_checkpoint
from edgelearn.ops import BatchNormalization, Conv2D, Dense, GlobalAveragePooling2D
from edgelearn.ops.formats import Format
from edgelearn.tuned import TuningResults
from tests.networks import chain

from . import federations, graphdef, keras_models, saved_models, tfrecords
from .attacks import FileFormat, Read
from .keras_models import damage_archive
from .messages import damage_protobuf, make_onnx
from .mutations import (
    damage_json,
    damage_lines,
    damage_png,
    damage_safetensors,
)


def network() -> Network:
    """A small network with a convolution, BatchNorm and a classifier."""
    return chain(
        "small", (8, 8, 3), conv=Conv2D(8, 3), norm=BatchNormalization(), pool=GlobalAveragePooling2D(), dense=Dense(2)
    )


def _model(folder: Path) -> Path:
    net = network()
    optimizer = {f"momentum/{name}": np.zeros(p.weight.shape, np.float32) for name, p in net.parameters.items()}
    file = ModelFile(net, net.initialize(), optimizer, position={"epoch": 2, "updates": 6, "seed": 1},
                     class_names=("a", "b"), metadata={"note": "x"})  # fmt: skip
    safetensors.write_model_file(folder / "model.safetensors", file)
    return folder / "model.safetensors"


def _weights(folder: Path) -> Path:
    path = folder / "weights.safetensors"
    path.write_bytes(safetensors.to_bytes(network().initialize()))
    return path


def _keras(folder: Path) -> Path:
    import h5py

    net, path = network(), folder / "weights.h5"
    weights = net.initialize()
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = np.array(list(net.nodes), np.bytes_)
        for layer in net.nodes:
            names = [f"{name}:0" for name in weights if name.startswith(f"{layer}/")]
            inside = file.create_group(layer)
            inside.attrs["weight_names"] = np.array(names, "S") if names else np.array([], "S1")
            for name in names:
                inside.create_dataset(name, data=weights[name.removesuffix(":0")], compression="gzip")
    return path


def _exported(suffix: str) -> Callable[[Path], Path]:
    """The small network in the format of another framework."""

    def make(folder: Path) -> Path:
        net = network()
        write_model(folder / f"model{suffix}", ModelFile(net, net.initialize()))
        return folder / f"model{suffix}"

    return make


def _graphdef(folder: Path) -> Path:
    (folder / "model.pb").write_bytes(graphdef.small())
    return folder / "model.pb"


def _npz(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    arrays = {f"BCBlocks.{i}.weight": rng.standard_normal((8, 8, 3, 1), np.float32) for i in range(4)}
    np.savez_compressed(folder / "weights.npz", **arrays)  # pyright: ignore[reportArgumentType]
    return folder / "weights.npz"


def _picture(kind: str, **options: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        from PIL import Image

        y, x = np.mgrid[0:64, 0:96]
        pixels = np.stack([x * 2.5, y * 3.5, 128 + 60 * np.sin(x / 20 + y / 30)], 2).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"picture.{kind.lower()}", kind, **options)
        return folder / f"picture.{kind.lower()}"

    return make


def _sound(kind: str, subtype: str | None = None) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        import soundfile

        samples = 0.5 * np.sin(2 * np.pi * 440 * np.arange(4000) / 16000)
        soundfile.write(folder / f"sound.{kind.lower()}", samples, 16000, format=kind, subtype=subtype)
        return folder / f"sound.{kind.lower()}"

    return make


def _runs(name: str) -> Callable[[Path], Path]:
    """A store of two finished runs; the file `name` of one of them."""

    def make(folder: Path) -> Path:
        runs = RunStore(folder / "runs")
        for seed in (1, 2):
            run = runs.create("flowers", {"seed": seed, "nested": {"rate": 0.1}}, device={"name": "d"}, seconds=2.5)
            for epoch in (1, 2):
                run.append_epoch({"epoch": epoch, "loss": 1.5, "val_loss": 1.2, "val_accuracy": 0.5, "seconds": 1.0})
            run.save_checkpoint({"weights/a": np.ones((3, 4), np.float32)}, {"epoch": 2, "updates": 8})
            run.finish({"correct": 5, "total": 10, "accuracy": 0.5, "loss": 1.2, "epochs": 2, "seconds": 2.5,
                        "interval": [0.2, 0.8], "memory": {"planned": 1, "allocated": 2, "process": 3}})  # fmt: skip
        return run.folder / name

    return make


def _read_runs(path: Path) -> None:
    """List, compare and export: one damaged run must not keep the other from being shown."""
    runs = RunStore(path.parents[1])
    listed = runs.list()
    assert len(listed) == 2, listed
    (other,) = (summary for summary in listed if summary.id != path.parent.name)
    assert other.status == "finished", other
    list_table(listed)
    run = runs.open(path.parent.name)
    json.dumps(export(run))
    compare([runs.open(other.id), run]).to_text()


def _vocabulary(folder: Path) -> Path:
    front_end = LogMel(window=400, hop=800, fft=512, bands=12)
    features = np.random.default_rng(0).normal(size=(3, *front_end.shape(16_000))).astype(np.float32)
    from edgelearn.data import features as front_ends

    words = Vocabulary(front_ends.to_json(front_end), 1.0, ("yes", "no"), features, np.array([0, 1, 1], np.int32))
    words.save(folder / "words.safetensors")
    return folder / "words.safetensors"


def _read_vocabulary(path: Path) -> None:
    str(Vocabulary.load(path))


def _embedder(folder: Path) -> Path:
    path = folder / "network.safetensors"
    path.write_bytes(SAMPLE.read_bytes())
    return path


def _copied(source: Path) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "record.json").write_bytes(source.read_bytes())
        return folder / "record.json"

    return make


def _read_profile(path: Path) -> None:
    record = DeviceRecord.load(path)
    assert record.name
    projection.efficiencies(projection.like("cpu", [record, *projection.shipped()]))
    projection.leave_one_out([record, projection.shipped()[0]])


def _bench(folder: Path) -> Path:
    blocks = [Block(0.01, 3, 0.01, 1, False)] * 3
    memory = {"memory_after_imports": 1 << 20, "memory_start": 2 << 20, "memory_peak": 3 << 20}
    variants = [Variant("train:4", name, "v", "", 1.5, 2.5, [7.0], blocks=blocks, **memory) for name in ("a", "b")]
    machine = {"processor": "p", "cores": 2, "device": {"platform": "p", "name": "n", "driver": "1"}}
    report = BenchReport("2026-01-01", machine, {"foreign_limit": 0.08}, {"b": "9"}, {}, variants, "a", "command")
    report.write(folder / "report.json")
    return folder / "report.json"


def _read_bench(path: Path) -> None:
    report = BenchReport.read(path)
    as_text(report)
    json.dumps(report.to_dict())


def _tuned(folder: Path) -> Path:
    kind = DeviceKind("Portable Computing Language", "cpu", "x86_64", 16, 2)
    workload = {"before": 0.2, "after": 0.1}
    results = TuningResults(kind, {"date": "2026-01-01", "workloads": {"w": workload}}, {"pointwise 49x64": {"m": 4}})
    return tuned.save(results, folder)


def _launch_times(folder: Path) -> Path:
    table = tuned.MeasuredTimes("2026-01-01", 1e-6, 1e-5, {"a": 1e-3, "b": 2e-3})
    path = folder / "times.json"
    path.write_text(json.dumps({"format": tuned.TIMES_FORMAT} | vars(table)))
    return path


def _precision(folder: Path) -> Path:
    precision = Precision(activations=Format(8), gradients=Format(4), exceptions={"dense": None}, traced=True)
    (folder / "precision.json").write_text(precision.to_json())
    return folder / "precision.json"


def _text(read: Callable[[str], Any]) -> Read:
    """A reader of text that is handed over in a file."""
    return lambda path: read(path.read_bytes().decode("utf-8", "replace"))


def _network(folder: Path) -> Path:
    (folder / "network.json").write_text(network().to_json())
    return folder / "network.json"


def _checkpoint(folder: Path) -> Path:
    path = folder / "checkpoint.safetensors"
    atomic.write_bytes(path, encode_checkpoint({"weights/a": np.ones((3, 4), np.float32)}, {"epoch": 2, "updates": 8}))
    return path


FORMATS: list[FileFormat] = [
    FileFormat("model", _model, read_model, damage_safetensors),
    FileFormat("weights (safetensors)", _weights, lambda path: read_model(path, network()), damage_safetensors),
    FileFormat("weights (Keras HDF5)", _keras, lambda path: keras_h5.read_weights(path, network())),
    FileFormat("TFLite", _exported(".tflite"), read_model, needs=("tflite", "flatbuffers")),
    FileFormat("weights (Keras 3)", _exported(".weights.h5"), lambda path: keras_h5.read_weights(path, network())),
    FileFormat("Keras model (HDF5)", keras_models.sequential, read_model, keras_models.damage_attributes),
    FileFormat("Keras functional model (HDF5)", keras_models.functional, read_model, keras_models.damage_attributes),
    FileFormat("Keras archive", _exported(".keras"), read_model, damage_archive, needs=("keras", "tensorflow")),
    FileFormat("Keras functional archive", keras_models.archive, read_model, damage_archive),
    FileFormat("TensorFlow GraphDef", _graphdef, read_model, damage_protobuf),
    FileFormat("TFRecord", tfrecords.make, tfrecords.read, tfrecords.damage,
               needs=("tensorflow", "tensorflow_datasets", "importlib_resources")),
    *(FileFormat(f"SavedModel ({what})", saved_models.maker(what), saved_models.read,
                 damage_protobuf if what == "graph" else None, needs=("tensorflow",))
      for what in saved_models.FILES),
    FileFormat("weights (npz)", _npz, state_dict.read_arrays, damage_archive),
    FileFormat("ONNX", make_onnx, read_model, damage_protobuf, needs=("onnx",)),
    FileFormat("checkpoint", _checkpoint, read_checkpoint, damage_safetensors),
    FileFormat("network", _network, _text(Network.from_json), damage_json),
    FileFormat("precision", _precision, _text(Precision.from_json), damage_json),
    FileFormat("embedder", _embedder, load_embedder, damage_safetensors),
    FileFormat("vocabulary", _vocabulary, _read_vocabulary, damage_safetensors, needs=("soundfile", "soxr")),
    FileFormat("run record", _runs("run.json"), _read_runs, damage_json),
    FileFormat("run history", _runs("history.jsonl"), _read_runs, damage_lines),
    FileFormat("profile record", _copied(sorted(projection.MEASURED.glob("*.json"))[0]), _read_profile, damage_json),
    FileFormat("described device", _copied(sorted(projection.DESCRIBED.glob("*.json"))[0]),
               lambda path: EdgeDevice.load(path).peaks("fp32"), damage_json),
    FileFormat("bench report", _bench, _read_bench, damage_json),
    FileFormat("tuned results", _tuned, tuned.load, damage_json),
    FileFormat("launch times", _launch_times, tuned.read_times, damage_json),
    *federations.FORMATS,
    FileFormat("JPEG", _picture("JPEG"), lambda path: pictures.decode(path, 32, path.name)),
    FileFormat("PNG", _picture("PNG"), lambda path: pictures.decode(path, 32, path.name), damage_png),
    *(FileFormat(name, _sound(*kind), lambda path: sounds.decode(path, path.name), needs=("soundfile", "soxr"))
      for name, kind in {"WAV": ("WAV",), "FLAC": ("FLAC",), "OGG Vorbis": ("OGG", "VORBIS"),
                         "OGG Opus": ("OGG", "OPUS")}.items()),
]  # fmt: skip

assert edgelearn  # importers register their formats
