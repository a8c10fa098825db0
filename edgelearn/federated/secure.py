"""Secure aggregation: the server learns the sum of the clients' changes alone, also if some of them drop out (Bonawitz
et al. 2017, "Practical secure aggregation for privacy-preserving machine learning").

A round has four exchanges, for honest clients and a server that follows the protocol but is curious:

1. keys: each client makes two X25519 key pairs, and publishes their public halves.
2. shares: each client deals Shamir shares of a secret key and of a seed to the others, encrypted for each (AES-GCM).
3. train: each client sends its change in fixed point, plus a mask from its seed, plus or minus a mask for each other
   client, from the key that the two agree on. Those that drop out from here on leave masks that don't cancel.
4. unmask: clients hand out shares of the seeds of those that answered, and of the keys of those that didn't, never both
   of one. Any `threshold` of them suffice to compute the masks that are left in the sum.

Sums of whole numbers have the same bits whatever the masks were, so keys come from the system's randomness. Identities
aren't signed: a server that invents clients, or several in league with it, is not withstood.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import floor
from typing import Any

import numpy as np

from edgelearn.display import plural
from edgelearn.errors import EdgelearnError, FormatError, PlanError, RunError

from .client import ClientMemory
from .messages import Arrived, Grid, Instruction, Outcome, Outcomes, Reply, Work
from .privacy import Masks
from .strategy import Arrays

_PRIME = 2**521 - 1  # of Shamir's field, above every secret of 32 bytes
_MARK = b"\xff\xff\xff\xff"  # before a message of a stage: no header of an instruction is so long
_BYTES = 32  # of keys and seeds
_STATE = "secure"  # name of what a client keeps between the exchanges of a round


def require_cryptography() -> None:
    """Raises RunError if the package that makes keys and encrypts isn't installed."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise RunError("Secure aggregation needs cryptography: pip install 'edgelearn[privacy]'.") from None


def deal(secret: bytes, holders: Sequence[int], threshold: int) -> dict[int, int]:
    """Return Shamir shares of a secret, of which any `threshold` tell it and fewer tell nothing (Shamir 1979, "How to
    share a secret").

    Arguments:
    - `secret`: at most 64 bytes.
    - `holders`: numbers of the clients that get a share, from 0.
    - `threshold`: number of shares that suffice, at least 1.
    """
    polynomial = [int.from_bytes(secret, "big"), *(secrets.randbelow(_PRIME) for _ in range(threshold - 1))]
    return {
        holder: sum(c * pow(holder + 1, k, _PRIME) for k, c in enumerate(polynomial)) % _PRIME for holder in holders
    }


def recover(shares: Mapping[int, int], size: int = _BYTES) -> bytes:
    """Return the secret of `size` bytes of which these are enough shares, by holder.

    Raises FormatError if they are shares of no such secret.
    """
    total = 0
    for holder, share in shares.items():
        above = below = 1
        for other in shares:
            if other != holder:
                above, below = above * (other + 1) % _PRIME, below * (other - holder) % _PRIME
        total += share * above * pow(below, -1, _PRIME)
    total %= _PRIME
    if total >= 256**size:
        raise FormatError("The shares of a secret don't fit each other.")
    return total.to_bytes(size, "big")


def _public(private: bytes) -> bytes:
    """The public half of an X25519 key."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def _agreed(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """The key of 32 bytes that two clients agree on."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    common = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(SHA256(), _BYTES, None, purpose).derive(common)


def _mask(key: bytes, count: int) -> np.ndarray:
    """So many uint32 from a key, by AES in counter mode."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import CTR

    stream = Cipher(AES(key), CTR(bytes(16))).encryptor().update(bytes(4 * count))
    return np.frombuffer(stream, "<u4").astype(np.uint32)


def _pairwise(private: bytes, own: int, publics: Mapping[int, bytes], count: int) -> np.ndarray:
    """The sum of a client's masks with others, which cancel in the sum of all."""
    total = np.zeros(count, np.uint32)
    for other, public in publics.items():
        bits = _mask(_agreed(private, public, b"mask"), count)
        total = total + bits if own < other else total - bits
    return total


def _sealed(key: bytes, data: bytes, opens: bool = False) -> bytes:
    """Encrypt data by AES-GCM, or open what was encrypted. Each key encrypts one message."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return (AESGCM(key).decrypt if opens else AESGCM(key).encrypt)(bytes(12), data, None)
    except InvalidTag:
        raise FormatError("An encrypted share is damaged.") from None


def _stage(name: str, fields: Mapping[str, Any], data: bytes = b"") -> bytes:
    """A message of a stage, to a client or from it."""
    text = json.dumps({"stage": name, **fields}, separators=(",", ":")).encode()
    return _MARK + len(text).to_bytes(4, "little") + text + data


def _read(message: bytes) -> tuple[dict[str, Any], bytes]:
    """The fields of a message of a stage, and the data after them. Raises FormatError for other bytes."""
    end = 8 + int.from_bytes(message[4:8], "little")
    try:
        fields = json.loads(message[8:end])
    except ValueError:
        fields = None
    if message[:4] != _MARK or len(message) < end or not isinstance(fields, dict):
        raise FormatError("A message of secure aggregation is damaged.")
    return fields, message[end:]


@dataclass(frozen=True)
class FixedPoint(Masks):
    """Both sides of secure aggregation: changes as whole numbers, in place of the masks of a demonstration. Arguments:
    those of Masks."""

    def hide(self, arrays, client, number):
        return self.whole(arrays, len(self.drawn(number))).astype("<u4").tobytes()


class SecureWork:
    """The clients' side: carries out the four exchanges around the training of `work`, which replies in fixed point.

    Arguments:
    - `work`: the clients, with `masks=FixedPoint(…)`.
    - `memory`: keeps a client's keys and shares between the exchanges of a round.
    """

    def __init__(self, work: Work, memory: ClientMemory) -> None:
        require_cryptography()
        self.work, self.memory = work, memory

    def answer(self, data: bytes) -> bytes:
        fields, rest = _read(data)
        stages = {"keys": self._keys, "shares": self._shares, "train": self._train, "unmask": self._unmask}
        try:
            return stages[fields["stage"]](fields, rest)
        except (EdgelearnError, KeyError, ValueError, TypeError) as error:
            if fields.get("stage") == "train":
                return Reply.refusal(Instruction.from_bytes(rest), RunError(str(error))).to_bytes()
            return _stage("problem", {"problem": f"{type(error).__name__}: {error}"})

    def _keys(self, fields: dict, rest: bytes) -> bytes:
        state = {name: secrets.token_bytes(_BYTES).hex() for name in ("mask", "channel", "seed")}
        self._keep(fields, state)
        return _stage("keys", {name: _public(bytes.fromhex(state[name])).hex() for name in ("mask", "channel")})

    def _shares(self, fields: dict, rest: bytes) -> bytes:
        state, own = self._kept(fields), fields["client"]
        clients = {int(client): keys for client, keys in fields["keys"].items()}
        if not len(clients) // 2 < fields["threshold"] <= len(clients):
            raise FormatError(f"a threshold of {fields['threshold']} of {plural(len(clients), 'client')} hides nothing")
        dealt = [deal(bytes.fromhex(state[name]), list(clients), fields["threshold"]) for name in ("mask", "seed")]
        for_others = {}
        for other, keys in clients.items():
            key = _agreed(bytes.fromhex(state["channel"]), bytes.fromhex(keys["channel"]), b"%d to %d" % (own, other))
            for_others[other] = _sealed(key, json.dumps([shares[other] for shares in dealt]).encode()).hex()
        self._keep(fields, state | {"keys": fields["keys"]})
        return _stage("shares", {"shares": for_others})

    def _train(self, fields: dict, rest: bytes) -> bytes:
        state, own = self._kept(fields), fields["client"]
        reply = Reply.from_bytes(self.work.answer(rest))
        if reply.problem:
            return reply.to_bytes()
        publics = {int(c): bytes.fromhex(state["keys"][c]["mask"]) for c in fields["shares"] if int(c) != own}
        values = np.frombuffer(reply.payload, "<u4").astype(np.uint32)
        values = values + _mask(bytes.fromhex(state["seed"]), len(values))
        values = values + _pairwise(bytes.fromhex(state["mask"]), own, publics, len(values))
        self._keep(fields, state | {"shares": fields["shares"]})
        return Reply(reply.round, own, values.astype("<u4").tobytes(), reply.examples, reply.metrics).to_bytes()

    def _unmask(self, fields: dict, rest: bytes) -> bytes:
        state, own, found = self._kept(fields), fields["client"], {}
        answered, missing = set(fields["answered"]), set(fields["missing"])
        if answered & missing or own not in answered or len(answered) < fields["threshold"] or "told" in state:
            raise FormatError("the server asks for more than the sum")
        self._keep(fields, state | {"told": True})
        for other in answered | missing:
            theirs = bytes.fromhex(state["keys"][str(other)]["channel"])
            key = _agreed(bytes.fromhex(state["channel"]), theirs, b"%d to %d" % (other, own))
            shares = json.loads(_sealed(key, bytes.fromhex(state["shares"][str(other)]), opens=True))
            found[other] = str(shares[1 if other in answered else 0])
        return _stage("unmask", {"shares": found})

    def _keep(self, fields: dict, state: dict) -> None:
        data = np.frombuffer(json.dumps(state).encode(), np.uint8)
        self.memory.folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # for nobody else's eyes
        self.memory.save(fields["client"], fields["round"], {_STATE: data})

    def _kept(self, fields: dict) -> dict:
        """State that the client kept in an earlier exchange of this round."""
        kept = self.memory.load(fields["client"], fields["round"] + 1)
        return json.loads(kept[_STATE].tobytes())


@dataclass(frozen=True)
class SecureGrid(FixedPoint):
    """The server's side: a grid that carries out the four exchanges, and the mean of what clients sent, which is known
    once masks are taken out of the sum.

    Arguments: those of FixedPoint, and
    - `grid`: reaches the clients, which are `SecureWork`.
    - `share`: of a round's clients that must answer (default 2/3, and more than half).

    `overhead` has the bytes down and up of the last round besides instructions and replies. Raises PlanError for
    another share.
    """

    grid: Grid = field(kw_only=True)
    share: float = field(default=2 / 3, kw_only=True)
    overhead: list[int] = field(default_factory=lambda: [0, 0], init=False)
    _left: dict[int, tuple[np.ndarray, int]] = field(default_factory=dict, init=False)  # by round: masks, clients

    def __post_init__(self) -> None:
        require_cryptography()
        if not 0.5 <= self.share <= 1:
            raise PlanError(f"The share of clients that must answer lies between 0.5 and 1, unlike {self.share}.")

    def exchange(
        self, instructions: Mapping[int, bytes], deadline: float | None, arrived: Arrived
    ) -> Mapping[int, Outcome]:  # fmt: skip
        overhead, outcomes = [0, 0], Outcomes()
        number = Instruction.from_bytes(instructions[min(instructions)]).round
        threshold = max(floor(self.share * len(instructions) + 1e-9), len(instructions) // 2 + 1)

        def ask(stage: str, fields: Mapping[int, dict]) -> dict[int, dict]:
            """The answers of a stage, by client; why there is none becomes the client's outcome."""
            common = {"round": number, "threshold": threshold}
            sent = {c: _stage(stage, common | {"client": c} | more) for c, more in fields.items()}
            answers = {}
            for client, answer in self.grid.exchange(sent, deadline, lambda client, outcome: None).items():
                overhead[0] += len(sent[client])
                overhead[1] += len(answer) if isinstance(answer, bytes) else 0
                try:
                    found = {"problem": answer} if isinstance(answer, str) else _read(answer)[0]
                except FormatError as error:
                    found = {"problem": str(error)}
                if "problem" not in found:
                    answers[client] = found
                elif client not in outcomes:
                    outcomes[client] = str(found["problem"])
                    arrived(client, outcomes[client])
            if len(answers) < threshold:
                raise RunError(
                    f"Round {number}: {len(answers)} of {len(instructions)} clients answered, and secure aggregation "
                    f"needs {threshold}. Resume the run when more are there. "
                    + "; ".join(f"client {c}: {o}" for c, o in list(outcomes.items())[:3] if isinstance(o, str))
                )
            return answers

        keys = ask("keys", {client: {} for client in sorted(instructions)})
        keys = {client: {name: found[name] for name in ("mask", "channel")} for client, found in keys.items()}
        dealt = ask("shares", {client: {"keys": keys} for client in keys})
        sent = {}
        for client in dealt:
            shares = {str(other): found["shares"][str(client)] for other, found in dealt.items()}
            fields = {"round": number, "client": client, "shares": shares}
            sent[client] = _stage("train", fields, instructions[client])
            overhead[0] += len(sent[client]) - len(instructions[client])
        answered = []
        for client, outcome in self.grid.exchange(sent, deadline, arrived).items():
            outcomes[client] = outcome
            if isinstance(outcome, bytes) and _is_whole(outcome):
                answered.append(client)
        missing = sorted(set(dealt) - set(answered))
        told = ask("unmask", {client: {"answered": sorted(answered), "missing": missing} for client in answered})
        shares = {c: {h: int(found["shares"][str(c)]) for h, found in told.items()} for c in (*answered, *missing)}
        size = len(Reply.from_bytes(_bytes(outcomes[answered[0]])).payload) // 4
        left = np.zeros(size, np.uint32)
        for client in answered:
            left = left + _mask(recover(shares[client]), size)
        for client in missing:  # the others' masks with it, which its own would have cancelled
            publics = {other: bytes.fromhex(keys[other]["mask"]) for other in answered}
            left = left - _pairwise(recover(shares[client]), client, publics, size)
        self._left.clear()
        self._left[number] = left, len(answered)
        self.overhead[:] = overhead
        return outcomes

    def mean(self, changes: Sequence[Arrays], drawn: int, number: int) -> Arrays:
        """Return the mean change of the clients that answered, float32. Raises RunError if one of them was left out."""
        left, answered = self._left[number]
        if len(changes) != answered:
            raise RunError(f"Round {number}: {len(changes)} of {answered} masked changes can't be unmasked.")
        shapes = [array.shape for array in changes[0]]
        return self.unmasked(changes, self.decode(left.astype("<u4").tobytes(), shapes), answered)


def _bytes(outcome: Outcome) -> bytes:
    assert isinstance(outcome, bytes)
    return outcome


def _is_whole(outcome: bytes) -> bool:
    """True for a reply with a change."""
    try:
        return not Reply.from_bytes(outcome).problem
    except FormatError:
        return False
