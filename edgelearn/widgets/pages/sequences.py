"""Sequences: activities from motion sensors, the next character, and backpropagation through time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgelearn.experiments.activity import ActivityConfig, leave_one_out
from edgelearn.experiments.characters import CharactersConfig, CharactersExperiment
from edgelearn.experiments.through_time import through_time as measure
from edgelearn.lab.runs import RunStore, figures
from edgelearn.runtime import choose_device
from edgelearn.tables import Table
from edgelearn.widgets.pictures import Waiting

from .shown import Shown, Text, Watching, train_all


def activity(
    people: Sequence[str] = ("p02", "p03", "p04", "p05"), network: str = "cnn", store: RunStore | str | None = None,
    **settings: Any,
) -> Shown:  # fmt: skip
    """Leave people out in turn, test on each, and train on each one's first recording; finished trainings are not
    repeated.

    Arguments:
    - `people`: names (default four of the drawn twelve; () for all).
    - `network`: "mlp", "cnn" (default), "lstm" or "cnn-lstm".
    - `store`: a RunStore or its folder (default: that of the commands).
    - `settings`: others of ActivityConfig, such as `drawn=False` for the recordings of EDGELEARN_DATA.
    """
    config = ActivityConfig(network, **{"drawn": True, **settings})
    with Watching(len(people)) as watching:
        found = leave_one_out(config, people, store=store, log=watching.begin, callbacks=lambda: [watching])
    return Shown(found.headline, found.plot(), found)


def characters(
    steps: int = 600, store: RunStore | str | None = None, budget: str | None = None, **settings: Any
) -> Shown:
    """Train a small GPT on the characters of sums such as "12+7=19", and let it write.

    Arguments:
    - `steps`: updates (default 600).
    - `store`: a RunStore or its folder (default: that of the commands).
    - `budget`: of the plan, such as "0.2 MB stored" (default: none).
    - `settings`: others of CharactersConfig, such as `text`.
    """
    small = {"layers": 2, "channels": 64, "context": 32, "learning_rate": 3e-3, "tests": 200, "sample": 120}
    config = CharactersConfig(steps=steps, budget=budget, **(small | settings))
    (run,) = train_all(CharactersExperiment, {"characters": [config]}, store)["characters"]
    found = run.record["results"]
    headline = f"{found['text']}: loss {found['loss']:.2f}, {found['accuracy']:.0%} of the characters right"
    rows = [
        ("trained values", f"{found['parameters']:,}"), ("loss on the text's end", f"{found['loss']:.3f} nats"),
        ("right characters", f"{found['accuracy']:.1%}"), ("planned", f"{found['planned'] / 1e6:.2f} MB"),
        ("stored activations", f"{found['stored'] / 1e6:.2f} MB"),
    ]  # fmt: skip
    curves = figures.plot_overlay({"training": run.history()})
    return Shown(headline, curves, headline + ".", Table(("", ""), rows), Text(found["written"]))


def through_time(
    steps: Sequence[int] = (16, 64, 256), units: int = 32, rounds: int = 20, device: str | None = None
) -> Shown:  # fmt: skip
    """Draw what an update of an LSTM stores over numbers of steps, by plan and budget, and what less memory costs.

    Arguments:
    - `steps`: lengths of a sequence (default 16, 64 and 256).
    - `units`: of the LSTM (default 32).
    - `rounds`: updates of each plan that are timed (default 20).
    - `device`: part of a device's name (default: the best one).
    """
    with Waiting("Planning and timing", choose_device(device).device) as say:
        found = measure(
            steps, units, rounds=rounds, device=device, log=lambda text: say(f"Planning and timing, {text}")
        )
    return Shown(found.headline, found.plot(), found)
