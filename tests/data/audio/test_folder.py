import os

import numpy as np
import pytest

from edgelearn.data.audio import load_folder, load_noises, speaker_of
from edgelearn.errors import DataError


def test_words_are_the_sorted_subfolders(folder):
    (folder / "_background_noise_").mkdir()
    (folder / "LICENSE").write_text("")
    (folder / "yes" / ".hidden.wav").write_text("")
    dataset = load_folder(folder, speaker="me")
    assert dataset.class_names == ("no", "yes") and dataset.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert dataset.speakers.tolist() == ["0c540988", "ann_b", "me"] * 2
    assert load_folder(folder).speakers.tolist()[2] == ""
    assert dataset.origin == "folder" and str(folder) in dataset.description and dataset.skipped == []
    assert all(dataset.clip(i).shape == (16000,) for i in range(6))


def test_who_speaks():
    assert speaker_of("0c540988_nohash_12.wav", "yes") == "0c540988"
    assert speaker_of("visual_ea37ca08_nohash_0.wav", "_unknown_") == "ea37ca08"
    assert speaker_of("1037.wav", "_silence_") == ""


def test_unusable_files_are_named_skipped_and_counted(folder):
    whole = (folder / "no" / "ann_b_nohash_0.wav").read_bytes()
    (folder / "no" / "cut.wav").write_bytes(whole[:20000])
    (folder / "no" / "empty.wav").write_bytes(b"")
    (folder / "yes" / "notes.txt").write_text("about")
    (folder / "yes" / "link.wav").symlink_to(folder / "nothing.wav")
    dataset = load_folder(folder)
    assert len(dataset) == 6
    assert [os.path.basename(path) for path, _ in dataset.skipped] == ["cut.wav", "empty.wav", "link.wav", "notes.txt"]
    assert all(path in reason for path, reason in dataset.skipped)
    assert "truncated" in dataset.skipped[0][1] and "4 file(s) skipped" in dataset.description


def test_folders_that_cannot_be_used(tmp_path, folder):
    with pytest.raises(DataError, match="gone"):
        load_folder(tmp_path / "gone")
    (folder / "maybe").mkdir()
    (folder / "maybe" / "a.wav").write_bytes(b"")
    with pytest.raises(DataError, match=r"'maybe'.*1 file\(s\).*a\.wav"):
        load_folder(folder)
    noise = tmp_path / "noise"
    (noise / "_background_noise_").mkdir(parents=True)
    with pytest.raises(DataError, match="_background_noise_"):
        load_folder(noise)
    with pytest.raises(DataError, match="_background_noise_"):
        load_noises(noise)


def test_noises(tmp_path, encode, tone):
    noise = tmp_path / "_background_noise_"
    noise.mkdir()
    (noise / "README.md").write_text("about")
    (noise / "hum.wav").write_bytes(encode(tone(50, 3, 44100), 44100))
    for path in (tmp_path, noise):
        (samples,) = load_noises(path)
        assert abs(len(samples) - 48000) <= 1 and samples.dtype == np.float32
    (noise / "bad.wav").write_bytes(b"")
    with pytest.raises(DataError, match=r"bad\.wav"):
        load_noises(noise)
