import numpy as np
import pytest

from edgelearn.errors import DataError
from edgelearn.federated.verification import BCHCode, code_of, largest_correlation, random_codeword, signs

MESSAGE = 0x123456789ABCDEF0
# Codewords of the messages 1 and MESSAGE by galois 0.4.11; that of 1 is the generator polynomial.
CHECKED: dict[int, tuple[str, str]] = {
    127: ("a1ab815bc7ec8025", "91a2b3c4d5e6f78632dbda5dde8ecc2"),
    255: (
        "140a722a1a468d36d87a25364e685922a1e56fd1a478c1d",
        "123456789abcdef0cccde439f90d1f53d54e161c42349646ed757a6b682f50",
    ),
    511: (
        "1bd14f93f5736aff6a9f8aa73a02856842b2ea071ad9bdc0d11de9842fbdc0459c1024bfb0e5dfbd44b01d21df55a5c18035aa69e3680621",
        "123456789abcdef01281ede050f4efb409e411688315a0133e2d7f1dbb22fdcdfefed597cacef8e708940fe3eba42e17615edbde83b9cdb7b5b057f89516952",
    ),
}


def number(bits: np.ndarray) -> int:
    return int("".join(map(str, bits)), 2)


@pytest.mark.parametrize("length", CHECKED)
def test_codewords_checked_with_galois(length):
    code = code_of(length)
    assert [number(code.encode(message)) for message in (1, MESSAGE)] == [int(word, 16) for word in CHECKED[length]]
    assert code.encode((1 << code.dimension) - 1).all()


@pytest.mark.parametrize("length", CHECKED)
def test_codewords_of_galois(length):
    galois = pytest.importorskip("galois")
    code, rng = code_of(length), np.random.default_rng(length)
    theirs = galois.BCH(length, code.dimension)
    assert theirs.d == code.distance and int(theirs.generator_poly) == code.generator
    for bits in rng.integers(0, 2, (20, code.dimension)):
        assert np.array_equal(code.encode(number(bits)), np.array(theirs.encode(galois.GF2(bits))))


@pytest.mark.parametrize("length, largest", [(127, 0.670), (255, 0.538), (511, 0.316)])
def test_users_are_far_apart(length, largest):
    code, rng = code_of(length), np.random.default_rng(0)
    users = np.stack([code.codeword(n, int(rng.integers(1 << code.secret_bits))) for n in range(200)])
    assert set(np.unique(users)) == {-1, 1} and users.dtype == np.float32
    assert largest_correlation(users) <= code.correlation < largest
    assert code.secret_bits >= 32


def test_a_codeword_is_of_number_and_secret():
    code = code_of(127)
    word = code.codeword(0xDEADBEEF, 0x12345678)
    assert number((word[:64] > 0).astype(int)) == 0xDEADBEEF12345678


@pytest.mark.parametrize("user", [(1 << 32, 0), (0, 1 << 32), (-1, 0), (0, -1)])
def test_too_many_bits(user):
    with pytest.raises(DataError):
        code_of(127).codeword(*user)


def test_secrets_differ():
    code = code_of(255)
    assert len({code.draw_secret() for _ in range(20)}) == 20


@pytest.mark.parametrize("design", [(127, 64, 23), (128, 64, 21), (255, 72, 59)])
def test_no_such_code(design):
    with pytest.raises(DataError):
        BCHCode(*design)
    with pytest.raises(DataError):
        code_of(63)


def test_random_codewords():
    again = [random_codeword(511, np.random.default_rng(3)) for _ in range(2)]
    assert np.array_equal(*again) and set(again[0]) == {-1, 1}
    assert random_codeword(511).shape == (511,) and not np.array_equal(random_codeword(511), random_codeword(511))
    assert signs(np.array([0, 1])).tolist() == [-1, 1]
