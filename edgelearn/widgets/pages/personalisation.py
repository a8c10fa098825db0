"""Models that adapt and learn while they run: streams without labels, a model that asks, replay."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from html import escape
from typing import Any

import ipywidgets
import numpy as np

from edgelearn.display import plural
from edgelearn.errors import PlanError
from edgelearn.experiments.adaptation import AdaptationConfig, compare_adaptation
from edgelearn.experiments.personalisation import (
    BATCH_SIZE,
    UPDATES,
    PersonalConfig,
    accuracy_of,
    compare_learning,
    last_layer,
    load_world,
    one_at_a_time,
)
from edgelearn.lab.runs import figures
from edgelearn.train.asking import ask
from edgelearn.widgets.pictures import WRAP, Chart, View, Waiting, contact_sheet

from .shown import Shown

_SIZE = 192  # pixels of the picture that is asked about
_SHEET = 25  # pictures


def adapt(
    task: str = "thicket", kinds: Sequence[str] = ("noise", "low_contrast", "night"), examples: int = 400,
    **settings: Any,
) -> Shown:  # fmt: skip
    """Adapt a network to corrupted pictures without labels, by each method. Shuffled streams are told to be `mixed`.

    Arguments:
    - `task`: "thicket" (default), drawings of the package, or "cifar10".
    - `kinds`: of corruptions; see edgelearn.data.corruptions.
    - `examples`: pictures of a stream (default 400).
    - `settings`: others of AdaptationConfig, such as `seeds`.
    """
    small = {"batch_size": 50, "micro_batch": 25, "orders": ("shuffled",)}
    config = AdaptationConfig(task, kinds=tuple(kinds), examples=examples, **(small | settings))
    with Waiting("Training") as say:
        found = compare_adaptation(config, log=lambda text: say(text.capitalize()))
    return Shown(found.headline, found.plot(), found)


class Asking:
    """A last layer that asks for labels of pictures, and learns each answer at once, beside the earlier ones.

    - `question`: index of the picture that it asks about.
    - `curve`: accuracy on the test pictures after each answer, the first before any.
    - `learner`: the Replay.

    Arguments: of `asking`.
    """

    def __init__(self, task: str = "thicket", strategy: str = "typical", at_once: int = 5, **settings: Any) -> None:
        with Waiting("Extracting features") as say:
            self.world = load_world(PersonalConfig(task, **settings), say)
        self.strategy, self.at_once = strategy, at_once
        self.learner = one_at_a_time(last_layer(self.world)).replay("1 MB", batch_size=BATCH_SIZE, updates=UPDATES)
        self.curve, self._asked, self._open = [self._accuracy()], list[int](), list[int]()
        self._next()

    def _accuracy(self) -> float:
        return accuracy_of(self.learner.predict(self.world.test_x), self.world.test_y)

    def _next(self) -> None:
        if not self._open:
            answers = self.learner.predict(self.world.x)
            found = ask(self.strategy, self.world.x, answers, self._asked, self.at_once)
            self._open = np.random.default_rng(len(self._asked)).permutation(found).tolist()
        self.question = int(self._open[0])

    def answer(self, label: int | None = None) -> None:
        """Learn the label of the picture asked about (default: the true one), and ask about another."""
        label = int(self.world.y[self.question]) if label is None else label
        self.learner.learn(self.world.x[self.question : self.question + 1], [label])
        self._asked.append(self._open.pop(0))
        self.curve.append(self._accuracy())
        self._next()

    def undo(self) -> None:
        """Take back the last answer, up to ten. Raises PlanError without one."""
        self.learner.undo()
        self.curve.pop()
        self._open.insert(0, self._asked.pop())
        self.question = int(self._open[0])

    def answered(self, count: int = 25) -> Shown:
        """Give the true answers to the next questions: the accuracy over labels, and the pictures asked about."""
        with Waiting("Answering"):
            for _ in range(count):
                self.answer()
        world, names = self.world, self.world.names
        shown = self._asked[-_SHEET:]
        pictures = [world.pictures.image(int(world.indices[i]), 96) for i in shown]
        sheet = contact_sheet(pictures, [names[world.y[i]] for i in shown])
        return Shown(self.headline, self._plot(), sheet)

    @property
    def headline(self) -> str:
        pictures = plural(len(self.world.test_y), "test picture")
        return f"{plural(len(self._asked), 'label')}: {self.curve[-1]:.1%} of {pictures} right"

    def _plot(self) -> Any:
        figure = figures.canvas(figures.WIDTH, 3)
        axes = figure.subplots()
        axes.plot(range(len(self.curve)), [100 * value for value in self.curve], marker="o", color=figures.BLUE)
        figures.style(axes, self.headline, "Labels", "Test accuracy (%)")
        return figure

    def view(self) -> AskingView:
        """The picture asked about, with a button for each class, and one that takes the last answer back."""
        return AskingView(self)


class AskingView(View):
    """Buttons that answer what a model asks; the accuracy moves as one clicks. `asking`: the Asking."""

    def __init__(self, asking: Asking) -> None:
        self.asking, self._picture = asking, ipywidgets.HTML()
        self.answers, self._chart, self._said = list[ipywidgets.Button](), Chart(), ipywidgets.HTML()
        for label, name in enumerate(asking.world.names):
            button = ipywidgets.Button(description=name, tooltip=f"It is of the class {name}")
            button.on_click(partial(self._answer, label))
            self.answers.append(button)
        self.undo = ipywidgets.Button(description="Undo", icon="undo", tooltip="Take the last answer back")
        self.undo.on_click(self._undo)
        buttons = ipywidgets.HBox([*self.answers, self.undo], layout=WRAP)
        super().__init__([self._picture, buttons, self._said, self._chart])
        self._show()

    def _answer(self, label: int, _: Any) -> None:
        self.asking.answer(label)
        self._show()

    def _undo(self, _: Any) -> None:
        try:
            self.asking.undo()
        except PlanError as error:
            self._said.value = escape(str(error))
            return
        self._show()

    def _show(self) -> None:
        world = self.asking.world
        picture = world.pictures.image(int(world.indices[self.asking.question]), _SIZE)
        self._picture.value = str(contact_sheet([picture], ["Which class is it?"]).data)
        self._said.value = escape(self.asking.headline)
        self._chart.draw(self.asking._plot())


def asking(task: str = "thicket", strategy: str = "typical", **settings: Any) -> Asking:
    """A model that asks for labels.

    Arguments:
    - `task`: "thicket" (default), drawings of the package, "flowers" or "cifar10".
    - `strategy`: "typical" (default), "margin", "badge" or "random".
    - `settings`: `at_once`, and others of PersonalConfig, such as `features`.
    """
    return Asking(task, strategy, **settings)


def replay(task: str = "thicket", seeds: Sequence[int] = (0, 1, 2), **settings: Any) -> Shown:
    """Learn examples one at a time beside all at once, then a new class, with replay and without.

    Arguments:
    - `task`: as of `asking`.
    - `seeds`: of draws (default three).
    - `settings`: others of PersonalConfig, such as `memory`.
    """
    with Waiting("Learning") as say:
        found = compare_learning(task=task, seeds=tuple(seeds), log=say, **settings)
    return Shown(found.headline, found.plot(), found)
