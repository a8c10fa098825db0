"""What launches say that they touch."""

from math import prod

import numpy as np

from edgelearn.launch import Buffer, InOut, Role
from edgelearn.ops import Dense, Emitter, Tensor, Traits, pack, unpack


def tensor(*shape: int, nbytes: int = 0) -> Tensor:
    return Tensor(Buffer("x", nbytes or 4 * prod(shape), Role.TEMPORARY), shape)


def test_of_a_larger_buffer_only_the_tensor():
    small = tensor(2, 3, 5, 32, nbytes=1 << 20)
    assert {access.nbytes for access in (small.read, small.write, small.update)} == {4 * 2 * 3 * 5 * 32}
    assert small.read_rows(7).nbytes == 4 * 7 * 32
    assert InOut(small.buffer).nbytes == 1 << 20


def test_chunks_of_rows_read_everything_once():
    e = Emitter(Traits(compute_units=1))
    x, dy, gradient = tensor(5000, 1024), tensor(5000, 512), tensor(1024, 512)
    Dense(512).emit_backward_weights(e, x, dy, gradient, None, False)
    assert len(e.launches) > 1
    assert sum(launch.flops for launch in e.launches) == 2 * 5000 * 1024 * 512
    read = [launch.accesses[0].nbytes + launch.accesses[1].nbytes for launch in e.launches]
    assert sum(read) == x.buffer.nbytes + dy.buffer.nbytes
    moved = [gradient.buffer.nbytes * (1 if launch is e.launches[0] else 2) for launch in e.launches]
    assert [launch.nbytes for launch in e.launches] == list(np.add(read, moved))


def test_what_is_unpacked_is_its_own():
    """One row, as several."""
    for shape in ((1, 19), (3, 19), (16,)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        packed = pack(x)
        found = unpack(packed, shape)
        assert np.array_equal(found, x) and not np.shares_memory(found, packed)
