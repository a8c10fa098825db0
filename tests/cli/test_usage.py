"""The help of every command, and what is wrong usage: refused before any work, with what is wrong and what is right."""

import pytest

import edgelearn as el
from edgelearn.cli import COMMANDS, full_parser, main
from edgelearn.cli.parser import leaves
from edgelearn.ops import Dense, Flatten
from tests.networks import chain

WORDS = ["", *COMMANDS, *(name for name, _ in leaves(full_parser()) if " " in name)]
SMALL = "mobilenet_v2_cifar --alpha 0.25"


def help_of(words, columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit) as stop:
        main([*words.split(), "--help"])
    assert stop.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("words", WORDS)
def test_help_fits_80_columns_and_breaks_no_word(words, monkeypatch, capsys):
    narrow, wide = (help_of(words, columns, monkeypatch, capsys) for columns in (80, 1000))
    assert [line for line in narrow.splitlines() if len(line) > 80] == []
    assert sorted(narrow.split()) == sorted(wide.split())


WRONG = [
    ("runz", "'runz'. Did you mean 'runs'?"),
    ("memory pln", "'pln'. Did you mean 'plan'?"),
    ("flowers --epohcs 3", "unrecognized arguments: --epohcs 3. Did you mean '--epochs'?"),
    ("federated run --roundz=3", "Did you mean '--rounds'"),
    ("flowers trian", "edgelearn flowers --help lists its options"),
    ("bloom", "Choose devices, doctor"),
    ("profile --trace no/x", "there is no folder"),
    ("bench --save no/x", "there is no folder"),
    ("bench --chart .", "is a folder: name a file"),
    ("bench train --network lenet", "lenet"),
    ("bench train --device abacus", "abacus"),
    ("bench train --rounds 0", "0 is too small"),
    ("plan mobilenet_v2 --html no/plan.html", "there is no folder"),
    ("memory plan lenet", "'lenet'"),
    ("memory compare resnet19", "'resnet18'"),
    ("memory plan revnet", "Choose alexnet"),
    (f"memory plan {SMALL} --budget much", "'much'"),
    (f"memory plan {SMALL} --device abacus", "'abacus'"),
    ("memory plan gone.onnx", "gone.onnx"),
    ("memory plan --batch-size 0", "0 is too small"),
    ("memory plan --allow halve", "no strategy 'halve'"),
    ("memory measure --rounds -1", "-1 is too small"),
    ("memory compare --plans", "--plans"),
    ("memory train --activation-memory gone_parts:policy", "gone_parts:policy"),
    ("precision train --activations fp32 --integers", "--integers: "),
    ("precision train --observer curent", "no observer 'curent'"),
    ("precision time alexnut", "'alexnut'"),
    ("precision cost LeNet", "'LeNet'"),
    ("precision time --batch-size -1", "-1 is too small"),
    ("precision time --device abacus", "'abacus'"),
    ("precision report --seeds -1", "-1 is too small"),
    ("finetune x.onnx --optimizer sdg", "no optimizer 'sdg'"),
    ("keywords listen a.wav --words w --threshold nan", "nan is not finite"),
    ("keywords listen a.wav --words w --refractory -1", "-1.0 is too small: the minimum is 0"),
    ("keywords listen a.wav --words w --false-accepts 2", "2.0 is too large: the maximum is 1"),
    ("keywords listen a.wav --words w --hop 0", "0.0 is too small: the minimum is 0.001"),
    ("keywords listen a.wav --words w --learner neighbours", "no learner 'neighbours'"),
    ("keywords listen --words w", "--microphone"),
    ("keywords compose nowhere/long.wav", "nowhere"),
    ("keywords compose long.txt", "doesn't end in .wav"),
    ("keywords compose long.flac", "doesn't end in .wav"),
    ("keywords compose long.wav --count -1", "-1 is too small: the minimum is 1"),
    ("keywords compose long.wav --level 45", "45.0 is too large: the maximum is 0"),
    ("keywords evaluate --seed -1", "-1 is too small: the minimum is 0"),
    ("keywords evaluate --learner nearest-men", "no learner 'nearest-men'"),
    ("keywords train --distance foo", "invalid choice: 'foo'"),
]


@pytest.mark.parametrize(("line", "problem"), WRONG, ids=[line for line, _ in WRONG])
def test_wrong_usage(line, problem, tmp_path, monkeypatch, capsys, status_of):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w").touch()
    assert status_of(*line.split()) == 2 and problem in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["w"]


CIFAR = "memory plan mobilenet_v2_cifar --alpha 0.25 --batch-size 2"
FLOWERS = "flowers --images {pictures} --weights sample"
REFUSED = [  # (line, problem, status)
    ("memory plan lenet5 --batch-size 2 --budget 1KB", "0.001 MB", 1), ("memory train moon", "'moon'", 2),
    ("memory plan bcresnet --alpha 2", "'bcresnet'", 2), ("memory train --resume", "no interrupted memory run", 1),
    ("memory compare mobilenet_v2_cifar --plans fast", "'fast'", 2), (f"{CIFAR} --pages .", "add --allow paged", 1),
    ("precision train moon", "'moon'", 2), ("precision train --resume --seed 3", "--seed", 1),
    ("precision train cifar10-resnet18 --no-download", "EDGELEARN_DATA", 1),
    ("precision report --only nothing", "'nothing'", 2), ("precision time ds_cnn --alpha 0.5", "'ds_cnn'", 2),
    ("precision time mobilenet_v1 --alpha 0", "0.5", 2), ("precision time --variants fast", "'fast'", 2),
    ("precision trace", "edgelearn precision train TASK --trace", 1), ("bench nothing/*", "'nothing/*'", 2),
    ("bench train/pool --network resnet18", "train/pool", 2), ("bench train --contenders torhc", "'torch'", 2),
    ("bench --from /nowhere/bench.json", "/nowhere/bench.json", 1),
    ("convert small.safetensors small.safetensors", "small.safetensors", 1),
    ("convert small.safetensors out.xyz", "out.xyz", 1), ("convert small.safetensors out.tflite --int8", "ranges", 1),
    ("convert none.safetensors out.onnx", "none.safetensors", 1),
    ("convert small.safetensors out.onnx --inputs a", "small.safetensors", 1),
    ("profile --project adreno-1", "'adreno-1'", 2),
    ("profile forward:1 train:1 --plot x.png", "--trace and --plot", 1), ("profile swim", "swim", 2),
    ("profile cached:2 --rounds 0", "0 is too small", 2), (f"{FLOWERS} --device abacus", "'abacus'", 2),
    (f"{FLOWERS} --epochs 0", "--epochs: 0 ", 2),
    (f"{FLOWERS} --seed -1", "--seed: -1 ", 2), (f"{FLOWERS} --budget apples", "--budget: .*'apples'", 2),
    (f"{FLOWERS} --budget 8KB", "0.008 MB", 1), (f"{FLOWERS} --trainable roots", "'roots'", 1),
    ("flowers --images nowhere", "nowhere", 1), ("flowers --images {pictures} --weights none.h5", "none.h5", 1),
    ("flowers --images {pictures} --weights {pictures}/red/broken.jpg", r"broken\.jpg", 1),
    ("flowers --images {pictures} --sample", "embedded and images", 1), ("flowers --resume", "flowers run", 1),
    ("flowers --images {pictures} --no-download", "download", 1),
]  # fmt: skip


@pytest.mark.parametrize(("line", "problem", "status"), REFUSED, ids=[line for line, *_ in REFUSED])
def test_what_cannot_be_done(line, problem, status, tmp_path, monkeypatch, refused, pictures):
    """Without data or earlier runs, beside a small model; nothing is written."""
    for name in ("EDGELEARN_DATA", "KERAS_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EDGELEARN_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("HOME", str(tmp_path))
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    network = chain("small", (4, 4, 2), flat=Flatten(), dense=Dense(2))
    el.Model(network).save("small.safetensors")
    refused(problem, *line.format(pictures=pictures).split(), status=status)
    assert [path.name for path in here.iterdir()] == ["small.safetensors"] and not (tmp_path / "runs").exists()
