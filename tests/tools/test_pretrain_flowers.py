import numpy as np
import pretrain_flowers as pretrain
import pytest

from edgelearn.data.flowers import KINDS
from edgelearn.interop import safetensors
from edgelearn.models import mobilenet_v1

TINY = {"epochs": 2, "pictures": 4, "size": 32}


@pytest.fixture(scope="module")
def trained():
    return pretrain.pretrain(**TINY, seed=3)


def test_the_loss_falls_and_the_statistics_follow(trained):
    weights, history = trained
    assert history.history["loss"][1] < history.history["loss"][0]
    assert set(history.history) >= {"val_loss", "val_accuracy"}
    body = {name for name in mobilenet_v1((32, 32, 3), 0.25, 5).parameters if not name.startswith("dense/")}
    assert set(weights) == body
    assert all(np.isfinite(array).all() for array in weights.values())
    assert (weights["conv_pw_13_bn/moving_variance"] != 1).all()


def test_the_same_seed_by_command_writes_the_same_bits(trained, tmp_path, capsys):
    output = tmp_path / "body.safetensors"
    pretrain.main(["--epochs", "2", "--pictures", "4", "--size", "32", "--seed", "3", "--output", str(output)])
    written = safetensors.read_weights(output)
    assert set(written) == set(trained[0])
    assert all((written[name] == array).all() for name, array in trained[0].items())
    assert "drawing" in (shown := capsys.readouterr().out) and "epoch    2/2" in shown
    assert b'"command":"python tools/pretrain_flowers.py --epochs 2' in output.read_bytes()[:20_000]
    assert [path.name for path in tmp_path.iterdir()] == [output.name]


def test_augmentation_moves_turns_and_recolors_but_keeps_the_size():
    picture = np.random.default_rng(0).integers(0, 256, (1, 40, 40, 3), np.uint8)
    source = pretrain.Augmented(np.repeat(picture, 64, 0), seed=1)
    seen = source[np.arange(64)]
    assert seen.shape == source.shape and seen.min() >= -1 and seen.max() <= 1
    assert len({example.tobytes() for example in seen}) > 60
    assert (seen == pretrain.Augmented(np.repeat(picture, 64, 0), seed=1)[np.arange(64)]).all()
    assert source[np.arange(64)].tobytes() != seen.tobytes()


def test_no_picture_is_of_the_samples_kinds():
    names = {name.lower().rstrip("s") for name in pretrain.pretraining_pictures(1).class_names}
    assert not names & {kind.lower().rstrip("s") for kind in KINDS}
