"""Configuration of a federation."""

from __future__ import annotations

from dataclasses import dataclass

from edgelearn.errors import PlanError
from edgelearn.experiments.config import ConfigError, TrainingConfig, setting
from edgelearn.federated import STRATEGIES, Compressor, Strategy, make_strategy
from edgelearn.federated.compression import make_compressor
from edgelearn.federated.privacy import Privacy

PARTITIONS = ("iid", "dirichlet", "labels", "group")
ENGINES = ("local", "ray", "deployed")


@dataclass(frozen=True)
class FederatedConfig(TrainingConfig):
    """A federation on a task; None stands for the task's value.

    Arguments: those of TrainingConfig, of which `epochs` are those of a client in a round, and
    - `strategy`: what the server does with the clients' updates (default "fedavg").
    - `rounds`, `clients`: their numbers.
    - `fraction`: share of the clients that train in a round (default 1).
    - `batch_size`: examples of a client's update.
    - `steps`: updates of a client in a round, each with examples drawn anew, in place of epochs (default None).
    - `learning_rate`: of the clients.
    - `partition`: who has which examples: "iid", "dirichlet", "labels" or "group", such as a speaker.
    - `alpha`: of "dirichlet" (default 0.5). `labels_per_client`: of "labels" (default 1).
    - `proximal`: μ of "fedprox" (default 0.01).
    - `server_rate`: learning rate of "fedavgm", "fedadam" and "fedyogi" (default: the strategy's).
    - `server_decay`: factor of the server's steps from one round to the next (default 1). 0.995 leaves 8 % after 500.
    - `bad`: largest share of bad clients that "fedtrimmedavg", "krum" and "multikrum" withstand (default 0.3).
    - `average`: decay of the exponential mean of the rounds' weights that is tested and kept; clients get the weights
      themselves (default 0: none). 0.99 is about the mean of 100 rounds.
    - `normalization`: "batch" (default; its moving statistics are averaged like weights) or "group".
    - `compress`: how updates are sent: "float32" (default), "int8", "topk:0.01", "topk:0.01+int8",
      "topk:0.15+sign", "topk:0.01+int8+warmup:5" or "topk:0.01+int8+warmup:5+ahead".
    - `compress_down`: how weights are sent to clients that have those of the message before (default "float32").
    - `budget`: memory of a client, such as "2 MB" (default: as much as it takes).
    - `deadline`: seconds after which a round goes on without the clients that are missing (default: it waits).
    - `largest_update`: an update longer than so many times the median of earlier rounds is left out (default 10).
    - `validation_frequency`: test after so many rounds (default 1), and at the end.
    - `masked`: hide each client's change from the server by masks that cancel in the sum: a demonstration of secure
      aggregation (default False).
    - `clip`, `noise`: differential privacy: largest length of a client's change, and multiplier of the noise (default:
      none); `delta`: of (ε, δ) (default 1e-5).
    - `engine`: where clients run: "local" (default) in this process, "ray" in Flower's simulation, "deployed" on
      `nodes` SuperNodes (default 2) of Flower, with `tls` and nodes that `authenticate` on request.
    - `listen`: this machine's address, where SuperNodes of other machines call, which `authenticate`; none is started
      here (default: this machine alone). `port`: of the SuperLink (default: a free one).

    Raises ConfigError for an invalid value or combination.
    """

    strategy: str = setting("fedavg", "what the server does with updates", choices=tuple(STRATEGIES))
    rounds: int | None = setting(None, "rounds (default: the task's)", minimum=1)
    clients: int | None = setting(None, "clients (default: the task's)", minimum=1)
    fraction: float = setting(1.0, "share of the clients that train in a round", above=0, maximum=1)
    epochs: int | None = setting(None, "epochs of a client in a round (default: the task's)", minimum=1)
    batch_size: int | None = setting(None, "examples of a client's update (default: the task's)", minimum=1)
    steps: int | None = setting(None, "updates of a client in a round, in place of epochs", minimum=1)
    learning_rate: float | None = setting(None, "of the clients (default: the task's)", above=0)
    partition: str | None = setting(None, "who has which examples (default: the task's)", choices=PARTITIONS)
    alpha: float = setting(0.5, "of the partition dirichlet: small is uneven", above=0)
    labels_per_client: int = setting(1, "of the partition labels", minimum=1)
    proximal: float = setting(0.01, "μ of fedprox", minimum=0)
    server_rate: float | None = setting(None, "learning rate of fedavgm, fedadam, fedyogi", above=0)
    server_decay: float = setting(1.0, "factor of the server's steps from round to round", above=0, maximum=1)
    bad: float | None = setting(
        None, "largest share of bad clients, of fedtrimmedavg, krum, multikrum (default: 0.3)", minimum=0, maximum=0.49
    )
    average: float = setting(
        0.0,
        "decay of the mean of the rounds' weights that is tested and kept, such as 0.99 (0: none)",
        minimum=0,
        maximum=0.99999,
    )
    normalization: str = setting("batch", "BatchNormalization or GroupNormalization", choices=("batch", "group"))
    compress: str = setting(
        "float32",
        "how updates are sent: float32, int8, topk:0.01, topk:0.01+int8 or topk:0.15+sign",
        check=make_compressor,
    )
    compress_down: str = setting(
        "float32",
        "how weights are sent: float32, int8, topk:0.01, topk:0.01+int8 or topk:0.15+sign",
        check=make_compressor,
    )
    budget: str | None = setting(None, "memory of a client, such as 2MB", metavar="SIZE")
    deadline: float | None = setting(None, "seconds to wait for the clients of a round", above=0)
    largest_update: float | None = setting(
        10.0, "times the median length of earlier rounds that an update may have", above=1
    )
    validation_frequency: int = setting(1, "test after so many rounds", minimum=1)
    masked: bool = setting(False, "hide each client's change from the server: a demonstration")
    clip: float | None = setting(None, "differential privacy: largest length of a client's change", above=0)
    noise: float | None = setting(None, "differential privacy: multiplier of the noise", above=0)
    delta: float = setting(1e-5, "of the (ε, δ) of differential privacy", above=0, maximum=0.5)
    engine: str = setting("local", "where clients run", choices=ENGINES)
    nodes: int = setting(2, "SuperNodes of the engine deployed, which share the clients", minimum=1)
    tls: bool = setting(False, "encrypt what the engine deployed sends")
    authenticate: bool = setting(False, "let only nodes with registered keys take part; needs --tls")
    listen: str | None = setting(
        None, "this machine's address, for SuperNodes on other machines; needs --authenticate", metavar="ADDRESS"
    )
    port: int | None = setting(None, "of the SuperLink (default: a free one)", minimum=1, maximum=65535)

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            strategy = self.make_strategy()
        except PlanError as error:
            raise ConfigError("bad" if self.server_rate is None else "server_rate", str(error)) from None
        if (self.clip is None) != (self.noise is None):
            raise ConfigError("clip" if self.clip is None else "noise", "clip and noise belong together: give both.")
        if self.masked and (self.clip is not None or self.compress != "float32"):
            raise ConfigError("masked", "masks hide changes as they are: leave clip, noise and compress out.")
        if strategy.combines and (self.masked or self.clip is not None):
            raise ConfigError("strategy", f"{self.strategy} must see each client's change: leave masked and clip out.")
        if self.masked and strategy.own_size:
            raise ConfigError("masked", f"{self.strategy} sends clients' own vectors: choose another strategy.")
        if self.authenticate and not self.tls:
            raise ConfigError("authenticate", "nodes authenticate over TLS only: give tls too.")
        if self.listen and not self.authenticate:
            raise ConfigError(
                "listen", "nodes of other machines need encryption and keys: give tls and authenticate too."
            )

    def make_strategy(self) -> Strategy:
        """The strategy with its settings."""
        return make_strategy(self.strategy, self.proximal, self.server_rate, self.server_decay, self.bad)

    def make_compressor(self) -> Compressor:
        """The compressor of the clients' updates."""
        return make_compressor(self.compress)

    def make_down(self) -> Compressor | None:
        """The compressor of the server's weights, if there is one."""
        return None if self.compress_down == "float32" else make_compressor(self.compress_down)

    def make_privacy(self) -> Privacy | None:
        """Differential privacy, if there is any."""
        if self.clip is None or self.noise is None:
            return None
        return Privacy(self.clip, self.noise, self.delta, self.seed)
