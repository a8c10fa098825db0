import numpy as np

from edgelearn.launch import Buffer, In, InOut, Out, Role
from edgelearn.ops.emit import Job, job_batches, job_rows

A, B, C, D = (Buffer(name, 64, Role.PREPARED) for name in "abcd")
OTHER = Buffer("other", 64, Role.GRADIENT)


def job(*accesses, kernel="k", items=1, **more):
    return Job("file.cl", kernel, items, accesses, **more)


def test_independent_jobs_share_a_launch():
    first, second = job(In(A), Out(B)), job(In(A), Out(C))
    assert job_batches([first, second]) == [[first, second]]


def test_a_reader_waits_for_its_writer_and_what_is_beyond_does_not():
    write, read, free = job(Out(A)), job(In(A), Out(B), kernel="read"), job(Out(C))
    assert job_batches([write, read, free]) == [[write, free], [read]]


def test_a_writer_waits_for_an_earlier_reader():
    """Though its kernel is one that comes first."""
    early, read, write = job(Out(C)), job(In(A), Out(B), kernel="read"), job(Out(A))
    assert job_batches([early, read, write]) == [[early], [read], [write]]


def test_updates_of_one_buffer_stay_in_order():
    jobs = [job(InOut(A)), job(InOut(B)), job(InOut(A))]
    assert job_batches(jobs) == [[jobs[0], jobs[1]], [jobs[2]]]


def test_other_memory_settings_or_kernels_need_another_launch():
    jobs = [job(Out(A)), job(Out(OTHER)), job(Out(B), settings=(0.5,)), job(Out(C), kernel="other"), job(Out(D))]
    assert [len(batch) for batch in job_batches(jobs)] == [2, 1, 1, 1]


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
