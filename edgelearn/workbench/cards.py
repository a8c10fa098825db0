"""The experiments as cards: what each shows, how long it takes, its notebook and its page of the manual."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
_ZEN4 = "s on two Zen 4 cores, 28 November 2026"


@dataclass(frozen=True)
class Card:
    """An experiment.

    Arguments:
    - `title`: its name.
    - `shows`: what one sees.
    - `takes`: how long the notebook runs with the embedded sample, where and when, as docs/guides/notebooks.md says.
    - `notebook`: the end of its notebook's name, after the number.
    - `guide`: its page in docs/.
    - `sample`: words of the command that trains the embedded sample; () for none.
    """

    title: str
    shows: str
    takes: str
    notebook: str
    guide: str
    sample: tuple[str, ...] = ()

    @property
    def path(self) -> Path | None:
        """The notebook's file, None where there is none: the package alone has no notebooks."""
        return next(iter(sorted(CHECKOUT.glob(f"notebooks/[0-9][0-9]_{self.notebook}.ipynb"))), None)


CARDS = (
    Card(
        "Start here", "A device, a small network, the plan of a training step, and what micro-batches, freezing and "
        "the feature cache change.", f"15 {_ZEN4}", "start_here", "get-started.md",
    ),
    Card(
        "Flowers", "Fine-tune a pretrained MobileNet on five kinds of flowers: Qualcomm's published example, or its "
        "small copy on drawings.", f"13 {_ZEN4}", "flowers", "guides/fine-tune.md", ("flowers", "--sample"),
    ),
    Card(
        "Speed", "A training step beside PyTorch and Keras, each kernel beside the limits of the device, and "
        "predictions for phones.", f"35 {_ZEN4}", "speed", "guides/speed.md",
    ),
    Card(
        "Models", "Bring a TFLite model, give it a new classifier, train it within 20 MB, take it back, run it with "
        "LiteRT.", f"17 {_ZEN4}", "models", "guides/bring-a-model.md",
    ),
    Card(
        "Depth of training", "The last layers, biases, sparse updates, adapters, all layers or from scratch: accuracy "
        "beside memory.", f"64 {_ZEN4}", "depth_of_training", "guides/depth.md",
    ),
    Card(
        "Precision", "Train with weights, activations and gradients of few bits: accuracy, data movement, and the "
        "published claims.", f"63 {_ZEN4}", "precision", "guides/precision.md", ("precision", "train"),
    ),
    Card(
        "Memory", "Plans that recompute, invert, offload or compress activations, within a budget that you choose.",
        f"50 {_ZEN4}", "memory", "guides/memory.md", ("memory", "train"),
    ),
    Card(
        "Keywords", "Teach a network words of your own from a few clips, and detect them in a recording or at the "
        "microphone.", f"15 {_ZEN4}", "keywords", "guides/keywords.md", ("keywords", "train"),
    ),
    Card(
        "Federated learning", "Many clients, one network: accuracy against bytes, what the server sees, and a real "
        "deployment.", f"97 {_ZEN4}", "federated", "guides/federated.md", ("federated", "run"),
    ),
    Card(
        "On the device", "A training as C sources: built, run beside Python, and its size on a microcontroller.",
        f"27 {_ZEN4}", "device", "guides/bundle.md",
    ),
    Card(
        "Personalisation", "A model that adapts to noise and night without labels, asks for the labels that help most, "
        "and learns each answer at once without forgetting.", f"46 {_ZEN4}", "personalisation", "guides/adapt.md",
    ),
    Card(
        "Sequences", "Activities from motion sensors, for people whom the network doesn't know, the next character, "
        "and backpropagation through time within a budget.", f"34 {_ZEN4}", "sequences", "guides/sequences.md",
        ("activity", "train"),
    ),
)  # fmt: skip
