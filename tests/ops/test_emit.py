"""Tensors, jobs of many layers, sums of channels, and initial weights."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from scipy import stats

from edgelearn.errors import ShapeError
from edgelearn.graph import Network
from edgelearn.launch import Buffer, In, InOut, Out, Role
from edgelearn.ops import Conv2D, Dense, DepthwiseConv2D, Emitter, Tensor, Traits, emit, finish, pack, unpack
from edgelearn.ops.emit import Job, job_batches, job_rows
from edgelearn.ops.initializers import CUT_DEVIATION

from .harness import AS_GPUS_TOO, SIZES, close


def tensor(*shape: int, nbytes: int = 0) -> Tensor:
    return Tensor(Buffer("x", nbytes or 4 * prod(shape), Role.TEMPORARY), shape)


def test_of_a_larger_buffer_only_the_tensor():
    small = tensor(2, 3, 5, 32, nbytes=1 << 20)
    assert {access.nbytes for access in (small.read, small.write, small.update)} == {4 * 2 * 3 * 5 * 32}
    assert small.read_rows(7).nbytes == 4 * 7 * 32
    assert InOut(small.buffer).nbytes == 1 << 20


def test_chunks_of_rows_read_everything_once():
    e = Emitter(Traits(compute_units=1), unfused=frozenset({"checks"}))  # else flags are written, too
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


A, B, C, D = (Buffer(name, 64, Role.PREPARED) for name in "abcd")
OTHER = Buffer("other", 64, Role.GRADIENT)


def job(*accesses, kernel="k", items=1, **more):
    return Job("file.cl", kernel, items, accesses, **more)


@pytest.mark.parametrize(
    ("jobs", "batches"),
    [
        ([job(In(A), Out(B)), job(In(A), Out(C))], [[0, 1]]),  # independent
        # A reader waits for its writer, and what is beyond does not.
        ([job(Out(A)), job(In(A), Out(B), kernel="read"), job(Out(C))], [[0, 2], [1]]),
        # A writer waits for an earlier reader, though its kernel is one that comes first.
        ([job(Out(C)), job(In(A), Out(B), kernel="read"), job(Out(A))], [[0], [1], [2]]),
        ([job(InOut(A)), job(InOut(B)), job(InOut(A))], [[0, 1], [2]]),  # updates of one buffer stay in order
        # Other memory, settings or kernels need another launch.
        ([job(Out(A)), job(Out(OTHER)), job(Out(B), settings=(0.5,)), job(Out(C), kernel="other"), job(Out(D))],
         [[0, 4], [1], [2], [3]]),
    ],
)  # fmt: skip
def test_jobs_that_share_launches(jobs, batches):
    assert job_batches(jobs) == [[jobs[place] for place in batch] for batch in batches]


def test_rows_begin_with_the_first_item():
    batch = [job(In(A), Out(B), items=3, numbers=(7,)), job(In(A), Out(C), items=2, numbers=(8,))]
    assert job_rows(batch) == ((0, A, B, 7), (3, A, C, 8))


def test_every_order_of_random_jobs_is_kept():
    rng = np.random.default_rng(0)
    buffers = [Buffer(str(i), 64, Role.PREPARED) for i in range(5)]
    for _ in range(200):
        jobs = [
            job(
                *(kind(buffers[i]) for kind, i in zip((In, Out), rng.permutation(5), strict=False)),
                kernel=str(k % 2),
                layer=str(k),
            )
            for k, (a, b, *_) in enumerate(rng.permuted([range(5)] * 8, axis=1))
        ]
        order = [found for batch in job_batches(jobs) for found in batch]
        for i, early in enumerate(jobs):
            for late in jobs[i + 1 :]:
                if early.writes & late.touches or early.touches & late.writes:
                    assert order.index(early) < order.index(late)


@AS_GPUS_TOO
@pytest.mark.parametrize(
    "shape", [*((37, channels) for channels in SIZES), *((1, rows, 2, 3) for rows in (1, 63, 64, 65, 128, 129, 2500))]
)
def test_channel_sums(bench, rng, shape):
    x, total = rng.standard_normal(shape) + 1, bench.empty(shape[-1:])
    for add in (False, True):
        finish.emit_sum(bench, emit.emit_channel_sums(bench, bench.put(x), total, add))
        bench.run()
        close(bench.get(total), (1 + add) * x.sum(tuple(range(x.ndim - 1))))


CASES = {  # op, input shape, what makes one output
    "convolution": (Conv2D(64, 3), (8, 8, 32), 9 * 32),
    "grouped": (Conv2D(64, 3, groups=4), (8, 8, 32), 9 * 8),
    "depthwise": (DepthwiseConv2D(5), (8, 8, 800), 25),
    "dense": (Dense(100), (200,), 200),
}


def kernel(op, shape, seed=0):
    net = Network("one", shape)
    net.add("layer", op)
    return net.initialize(seed)["layer/kernel"]


@pytest.mark.parametrize("case", CASES)
def test_he_normal_is_a_normal_distribution_cut_at_two_deviations(case):
    op, shape, fan_in = CASES[case]
    op = replace(op, kernel_initializer="he_normal")
    drawn = kernel(op, shape)
    deviation = np.sqrt(2 / fan_in)
    assert drawn.dtype == np.float32
    assert stats.kstest(drawn.ravel() * CUT_DEVIATION / deviation, stats.truncnorm(-2, 2).cdf).pvalue > 1e-3
    assert drawn.std() == pytest.approx(deviation, rel=0.03)
    assert (drawn == kernel(op, shape)).all() and (drawn != kernel(op, shape, 1)).mean() > 0.99


def test_the_deviation_of_the_cut_distribution():
    assert abs(CUT_DEVIATION - stats.truncnorm(-2, 2).std()) < 1e-12


def test_glorot_uniform_is_the_default():
    drawn, limit = kernel(Dense(100), (200,)), np.sqrt(6 / 300)
    assert stats.kstest(drawn.ravel(), stats.uniform(-limit, 2 * limit).cdf).pvalue > 1e-3


def test_an_unknown_initializer():
    with pytest.raises(ShapeError, match=r"glorot_uniform.*magic"):
        kernel(Dense(2, kernel_initializer="magic"), (3,))
