"""Messages: what is packed comes back, damage is noticed, sizes are those of the bytes."""

import numpy as np
import pytest

from edgelearn.errors import FormatError
from edgelearn.federated import ClientMemory, Instruction, NoCompression, Partly, Reply, Size, size_of
from edgelearn.federated.compression import Int8

REPLY = Reply(3, 7, b"\x01\x02\x03", 20, {"loss": 0.5, "planned": 4096})


def test_messages_come_back():
    assert Reply.from_bytes(REPLY.to_bytes()) == REPLY
    instruction = Instruction(3, 7, bytes(100))
    assert Instruction.from_bytes(instruction.to_bytes()) == instruction
    assert size_of(instruction.to_bytes()) == Size(100, len(instruction.to_bytes()))


@pytest.mark.parametrize("data", [
    b"", b"\x05\x00\x00\x00{}", b"\xff\xff\xff\xff" + bytes(100), b"\x02\x00\x00\x00{}",
    Instruction(1, 2, b"").to_bytes(),
])  # fmt: skip
def test_damage_is_noticed(data):
    with pytest.raises(FormatError):
        Reply.from_bytes(data)
    assert size_of(data).total == len(data)


def test_float32_is_packed_without_gaps():
    arrays = [np.float32([[1, 2, 3]]), np.float32(7), np.zeros((0, 4), np.float32)]
    data = NoCompression().encode(arrays, np.random.default_rng(0), {})
    assert len(data) == 16
    back = NoCompression().decode(data, [array.shape for array in arrays])
    assert all(np.array_equal(a, b) and a.shape == b.shape for a, b in zip(arrays, back, strict=True))
    with pytest.raises(FormatError):
        NoCompression().decode(data + b"\x00", [array.shape for array in arrays])


def test_some_arrays_are_sent_as_they_are():
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in ((3, 4), (5,), (2, 2))]
    shapes = [array.shape for array in arrays]
    partly = Partly(Int8(), (False, True, False))
    data = partly.encode(arrays, rng, {})
    assert len(data) == (4 * 2 + 12 + 4) + 4 * 5
    first, second, third = partly.decode(data, shapes)
    assert np.array_equal(second, arrays[1])
    assert 0 < np.abs(first - arrays[0]).max() < 0.05 and third.shape == (2, 2)
    with pytest.raises(FormatError):
        partly.decode(data[:7], shapes)


def test_a_repeated_round_begins_with_what_it_began_with(tmp_path):
    memory = ClientMemory(tmp_path / "clients")
    assert memory.load(0, 1) == {}
    for number in (2, 5, 6):
        memory.save(0, number, {"residual": np.full(2, number)})
    assert memory.load(0, 7)["residual"].tolist() == [6, 6]
    assert memory.load(0, 6)["residual"].tolist() == [5, 5]
    assert len(list((tmp_path / "clients").iterdir())) == 2
    assert memory.load(1, 9) == {}
    for name in ("client-1-round-x", "client-1-round-\xb2", "client-1-round--3"):
        (tmp_path / "clients" / f"{name}.safetensors").touch()
    assert memory.load(1, 9) == {}
