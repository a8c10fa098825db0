"""edgelearn federated verify, through `main`, with synthesised voices."""

import json

import pytest
import soundfile

from edgelearn.data.synthetic_words import embedded_words


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A network of one round, and recordings of two voices."""
    from edgelearn.cli import main

    folder = tmp_path_factory.mktemp("verify")
    clips = embedded_words(2, 2, 3)  # six of each voice
    for number, speaker in enumerate(clips.speakers):
        soundfile.write(folder / f"{speaker}_{number}.wav", clips.clip(number), 16_000)
    command = ["federated", "verify", "train", "--rounds", "2", "--batch-size", "2", "--masked"]
    assert main([*command, "--runs", str(folder / "runs")]) == 0
    return folder


def test_enrol_and_test(folder, status_of, capsys):
    own, others = (sorted(map(str, folder.glob(f"synthesised0{voice}_*.wav"))) for voice in (0, 1))
    files = ("--user", folder / "me", "--network", "verification", "--runs", folder / "runs")
    assert status_of("federated", "verify", "enrol", *own[:4], *files, "--accept", 1) == 0
    assert "4 recordings" in capsys.readouterr().out
    assert status_of("federated", "verify", "test", *own[:4], *others, *files, "--json") == 0
    results = [record["accepted"] for record in json.loads(capsys.readouterr().out)]
    assert len(results) == 10 and all(results[:4])


def test_what_cannot_be(folder, status_of, capsys):
    own = sorted(map(str, folder.glob("synthesised00_*.wav")))
    (network,) = folder.glob("runs/*/voices")
    assert status_of("federated", "verify", "enrol", own[0], "--user", folder / "you", "--network", network) == 1
    assert status_of("federated", "verify", "test", own[0], "--user", own[0], "--network", network) == 1
    assert status_of("federated", "verify", "test", own[0], "--user", folder / "no", "--network", own[1]) == 1
    train = ("federated", "verify", "train", "--rounds", 1, "--runs", folder / "runs")
    for bad in (("--size", 100), ("--vector-rate", 0.1), ("--strategy", "fedaws", "--masked"), ("--clients", 10)):
        assert status_of(*train, *bad) != 0
    capsys.readouterr()
