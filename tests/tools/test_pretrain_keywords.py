import numpy as np
import pretrain_keywords as pretrain

from edgelearn.data.features import BC_RESNET
from edgelearn.data.synthetic_words import WORDS, made_up_words
from edgelearn.keywords import load_embedder

TINY = {"epochs": 2, "words": 3, "speakers": 4, "takes": 2}


def test_no_word_is_the_samples():
    words = made_up_words(200, 0)
    assert len(set(words)) == 200 and not set(words) & set(WORDS)
    assert words == made_up_words(200, 0) != made_up_words(200, 1)


def test_the_loss_falls_and_the_command_writes_the_same_bits(tmp_path, capsys):
    weights, history = pretrain.pretrain(**TINY, seed=3)
    assert history.history["loss"][1] < history.history["loss"][0]
    output = tmp_path / "network.safetensors"
    options = [part for name, value in TINY.items() for part in (f"--{name}", str(value))]
    pretrain.main([*options, "--seed", "3", "--output", str(output)])
    written = load_embedder(output)
    assert all(np.array_equal(written.weights[name], array) for name, array in weights.items())
    assert written.front_end == BC_RESNET and written.network.to_json() == pretrain.sample_network().to_json()
    assert "epoch    2/2" in capsys.readouterr().out and [path.name for path in tmp_path.iterdir()] == [output.name]
