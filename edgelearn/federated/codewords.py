"""Codewords of users: far from each other by the design of a BCH code (Bose and Ray-Chaudhuri 1960), or random.

A code of length n = 2^m - 1 with designed distance d has the generator polynomial of least degree that has the roots α,
α², …, α^(d-1), where α generates the field of 2^m elements. Polynomials over two elements are ints: bit i is the
coefficient of x^i.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from edgelearn.errors import DataError

NUMBER_BITS = 32  # of a user's number, which the server hands out once
_DESIGNS = {127: (64, 21), 255: (71, 59), 511: (67, 175)}  # dimension and distance by length
_FIELDS = {7: 0b10001001, 8: 0b100011101, 9: 0b1000010001}  # primitive polynomials by m, those of galois and MATLAB


@dataclass(frozen=True)
class BCHCode:
    """A binary, systematic BCH code.

    Arguments:
    - `length`: bits of a codeword: 127, 255 or 511.
    - `dimension`: bits of a message.
    - `distance`: designed distance; two codewords differ in at least so many bits.

    Raises DataError if there is no such code.
    """

    length: int
    dimension: int
    distance: int

    def __post_init__(self) -> None:
        if self.length + 1 not in [1 << m for m in _FIELDS]:
            raise DataError(f"Codewords have {', '.join(str((1 << m) - 1) for m in _FIELDS)} bits, not {self.length}.")
        if self.generator.bit_length() - 1 != self.length - self.dimension:
            raise DataError(
                f"A BCH code of length {self.length} and distance {self.distance} has messages of "
                f"{self.length - self.generator.bit_length() + 1} bits, not {self.dimension}."
            )

    @property
    def secret_bits(self) -> int:
        """Bits of a message that the user draws."""
        return self.dimension - NUMBER_BITS

    @property
    def correlation(self) -> float:
        """The largest of v·w / n for two codewords v and w of -1 and 1."""
        return 1 - 2 * self.distance / self.length

    @cached_property
    def generator(self) -> int:
        """The generator polynomial: the product of the minimal polynomials of its roots."""
        m = self.length.bit_length()
        powers = _powers(m)
        product, seen = 1, set()
        for exponent in range(1, self.distance):
            conjugates = {exponent * 2**i % self.length for i in range(m)}
            if min(conjugates) not in seen:
                seen.add(min(conjugates))
                product = _multiply(product, _minimal_polynomial(conjugates, powers))
        return product

    def encode(self, message: int) -> np.ndarray:
        """Return the codeword of a message: uint8 (length,) of 0 and 1, the message's bits first, then the parity.

        Raises DataError for a message that has more than `dimension` bits.
        """
        if not 0 <= message < 1 << self.dimension:
            raise DataError(f"A message of this code has {self.dimension} bits, not {message.bit_length()}.")
        parity_bits = self.length - self.dimension
        remainder = message << parity_bits
        for shift in range(self.dimension - 1, -1, -1):
            if remainder >> (shift + parity_bits) & 1:
                remainder ^= self.generator << shift
        word = message << parity_bits | remainder
        return np.array([word >> i & 1 for i in range(self.length - 1, -1, -1)], np.uint8)

    def draw_secret(self) -> int:
        """Draw the bits that only the user knows, from the system's source of randomness."""
        return secrets.randbits(self.secret_bits)

    def codeword(self, number: int, secret: int) -> np.ndarray:
        """Return a user's codeword, float32 (length,) of -1 and 1.

        Arguments:
        - `number`: the user's, from the server: 32 bits, no two users have the same.
        - `secret`: `secret_bits` bits that the user drew with `draw_secret`.

        Raises DataError for a number or a secret of more bits.
        """
        for name, value, bits in (("number", number, NUMBER_BITS), ("secret", secret, self.secret_bits)):
            if not 0 <= value < 1 << bits:
                raise DataError(f"A user's {name} has {bits} bits, not {value.bit_length()}, and isn't negative.")
        return signs(self.encode(number << self.secret_bits | secret))


def user_number(user: int, seed: int = 0) -> int:
    """Return the number that the server gives its user `user` (0 to 2^32 - 1): 32 bits, different for each.

    Numbers that count up from 0 would share most bits, and users' codewords would have much in common. `seed` shifts
    them all (default 0).
    """
    mixed = int(user) * 0x9E3779B1 + int(seed) * 0x85EBCA6B + 0x27D4EB2F  # an odd factor: no two are the same
    return mixed & 0xFFFFFFFF


@cache
def code_of(length: int) -> BCHCode:
    """Return the code that FedUV uses at this length. Raises DataError if there is none."""
    if length not in _DESIGNS:
        raise DataError(f"Codewords have {', '.join(map(str, _DESIGNS))} bits, not {length}.")
    return BCHCode(length, *_DESIGNS[length])


def random_codeword(length: int, rng: np.random.Generator | None = None) -> np.ndarray:
    """Return random signs, float32 (length,). `rng`: default None, the system's source of randomness; a generator with
    a seed is for simulations."""
    if rng is not None:
        return signs(rng.integers(0, 2, length))
    return signs(np.unpackbits(np.frombuffer(secrets.token_bytes(-(-length // 8)), np.uint8))[:length])


def signs(bits: np.ndarray) -> np.ndarray:
    """Return -1 for 0 and 1 for 1, float32."""
    return (2 * np.asarray(bits, np.int8) - 1).astype(np.float32)


def largest_correlation(codewords: np.ndarray) -> float:
    """Return the largest v·w / n of two different rows of codewords (users, n) of -1 and 1."""
    products = codewords @ codewords.T / codewords.shape[1]
    return float((products - 2 * np.eye(len(codewords))).max())


def _powers(m: int) -> list[int]:
    """α^0, α^1, … as polynomials in α."""
    powers = [1]
    while len(powers) < (1 << m) - 1:
        following = powers[-1] << 1
        powers.append(following ^ _FIELDS[m] if following >> m else following)
    return powers


def _minimal_polynomial(conjugates: set[int], powers: list[int]) -> int:
    """Product of (x - α^i) for all i of `conjugates`, whose coefficients are 0 and 1."""
    logarithm = {element: exponent for exponent, element in enumerate(powers)}
    coefficients = [1]  # elements of the field, lowest first
    for root in conjugates:
        scaled = [powers[(logarithm[c] + root) % len(powers)] if c else 0 for c in coefficients]
        coefficients = [a ^ b for a, b in zip([*scaled, 0], [0, *coefficients], strict=True)]
    return sum(c << place for place, c in enumerate(coefficients))


def _multiply(a: int, b: int) -> int:
    """The product of two polynomials over two elements."""
    product = 0
    while b:
        product ^= a if b & 1 else 0
        a, b = a << 1, b >> 1
    return product
