import os
from pathlib import Path

import numpy as np
import pytest

from edgelearn.data.audio import ClipDataset
from edgelearn.errors import DataError
from edgelearn.experiments.keywords import part_of, which_set
from edgelearn.experiments.keywords.episodes import PARTS

TESTED = ("022cd682", "03401e93", "0c540988", "0cb74144", "5170b77f", "ea37ca08")  # in the canonical test set


def test_speakers_are_divided_by_their_hash():
    parts = [which_set(f"{number:08x}") for number in range(20000)]
    shares = [parts.count(part) / len(parts) for part in PARTS]
    np.testing.assert_allclose(shares, [0.8, 0.1, 0.1], atol=0.01)
    assert {which_set(speaker) for speaker in TESTED} == {"testing"}
    assert which_set("anyone", validation=100, testing=0) == "validation"


def test_the_real_test_set_is_in_the_test():
    root = os.environ.get("EDGELEARN_DATA")
    if not root or not Path(root, "speech_commands_v0.02_test").is_dir():
        pytest.skip("EDGELEARN_DATA isn't set, or has no speech_commands_v0.02_test: no real speakers to test with")
    files = Path(root, "speech_commands_v0.02_test").glob("[!_]*/*_nohash_*")
    speakers = {file.name.partition("_")[0] for file in files}
    assert len(speakers) > 100
    assert {which_set(speaker) for speaker in speakers} == {"testing"}


def test_parts_share_no_speaker():
    speakers = np.repeat([f"{number:08x}" for number in range(200)], 2)
    dataset = ClipDataset("all", "folder", "All.", ("a", "b"), [0, 1] * 200, speakers, [b""] * 400)
    parts = [part_of(dataset, part) for part in PARTS]
    assert sum(map(len, parts)) == 400 and len(parts[0]) > 280
    assert all({which_set(name) for name in clips.speakers} == {part} for part, clips in zip(PARTS, parts, strict=True))
    some = part_of(dataset, "testing", ["b"])
    assert some.class_names == ("b",) and 2 * len(some) == len(parts[2])
    with pytest.raises(DataError, match="'train'"):
        part_of(dataset, "train")
