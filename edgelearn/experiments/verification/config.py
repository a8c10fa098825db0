"""Configuration of a federation of users."""

from __future__ import annotations

from dataclasses import dataclass

from edgelearn.errors import DataError, PlanError
from edgelearn.experiments.config import ConfigError, setting
from edgelearn.experiments.federated import FederatedConfig
from edgelearn.federated.verification import (
    VERIFICATION_STRATEGIES,
    VerificationStrategy,
    make_verification_strategy,
)

FIXED = ("partition", "alpha", "labels_per_client", "proximal", "bad", "normalization")  # a client is a user


@dataclass(frozen=True)
class VerificationConfig(FederatedConfig):
    """A federation of users, each of whom trains with their own recordings alone; None stands for the task's value.

    Arguments: those of FederatedConfig, of which `batch_size` is the number of recordings of an update, and
    - `strategy`: what users are told apart by (default "feduv").
    - `size`: bits of a codeword, or values of an embedding (default: 127 and 128; softmax has the number of users).
    - `steps`: updates of a user in a round (default 1).
    - `vector_rate`: learning rate of embeddings (default: the strategy's, 0.1).
    - `spread_rate`: learning rate of the server's step of "fedaws" (default: the strategy's, 0.01).
    - `nearest`: other users' embeddings from which "fedaws" moves each away (default: the strategy's, 10).
    - `augment`: mask frames and bands of recordings, anew in each round (default True).
    - `largest_update`: as in FederatedConfig (default None: losses of 0 make changes of 0, beside which others are
      large).
    - `validation_frequency`: users are verified after so many rounds (default 50), and at the end.

    Raises ConfigError for an invalid value or combination.
    """

    task: str = setting("sample", "whose data", positional=True)
    strategy: str = setting("feduv", "what users are told apart by", choices=tuple(VERIFICATION_STRATEGIES))
    size: int | None = setting(None, "bits of a codeword (127, 255, 511), values of an embedding", minimum=2)
    steps: int | None = setting(1, "updates of a user in a round", minimum=1)
    vector_rate: float | None = setting(None, "learning rate of embeddings", above=0)
    spread_rate: float | None = setting(None, "learning rate of the server's step of fedaws", above=0)
    nearest: int | None = setting(None, "embeddings from which fedaws moves each away", minimum=1)
    augment: bool = setting(True, "mask frames and bands of recordings, anew in each round")
    largest_update: float | None = setting(
        None, "times the median length of earlier rounds that an update may have", above=1
    )
    validation_frequency: int = setting(50, "verify users after so many rounds", minimum=1)

    def make_strategy(self) -> VerificationStrategy:
        size = self.clients if self.strategy == "softmax" else self.size
        try:
            return make_verification_strategy(
                self.strategy, size=size, rate=self.server_rate, decay=self.server_decay,
                vector_rate=self.vector_rate, spread_rate=self.spread_rate, nearest=self.nearest,
            )  # fmt: skip
        except (PlanError, DataError) as error:
            raise ConfigError("strategy", str(error)) from None
