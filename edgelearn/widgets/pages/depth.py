"""Every depth of training: accuracy beside memory, multiply-adds and time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgelearn.experiments.depth import DEPTHS, DepthConfig, DepthResults, compare_depths
from edgelearn.lab.runs import RunStore

from .shown import Shown, Watching


class Depths(Shown):
    """Depths compared: accuracy over memory, and a table.

    - `results`: the DepthResults.
    """

    def __init__(self, results: DepthResults) -> None:
        self.results = results
        super().__init__(results.headline, results.plot(), results)

    def curves(self) -> Shown:
        """The test accuracy over the epochs."""
        return Shown(self.headline, self.results.plot_curves())

    def scheme(self) -> Shown:
        """The layers and channels of the sparse update, and how long the planner searched."""
        found = [str(row.scheme) for row in self.results.rows if row.scheme]
        return Shown(self.headline, *found or ["No sparse update was trained."])


def depth(
    task: str = "thicket", depths: Sequence[str] = DEPTHS, seeds: Sequence[int] = (0,),
    store: RunStore | str | None = None, **settings: Any,
) -> Depths:  # fmt: skip
    """Train one network on one task at every depth; finished trainings are not repeated.

    Arguments:
    - `task`: "sample" or "thicket" (default), drawings of the package; "flowers", "cifar10", "digits" or "mnist".
    - `depths`: see `edgelearn depth` (default all).
    - `seeds`: a training of each with each (default one, 0).
    - `store`: a RunStore or its folder (default: that of the commands).
    - `settings`: others of DepthConfig, such as `epochs`.
    """
    config = DepthConfig(task, depths=tuple(depths), seeds=tuple(seeds), **settings)
    with Watching(len(config.depths)) as watching:
        return Depths(compare_depths(config, store=store, log=watching.begin, callbacks=lambda: [watching]))
