"""Fine-tune the model in a file on your own pictures or clips: a new head, and the layers that --train names.

The folder has a subfolder for each class. Preprocessing comes from the model's metadata; where there is none, --pixels
or --front-end says it. Ctrl-C saves at a step boundary, --resume continues.
"""

from __future__ import annotations

import argparse

from edgelearn.experiments.finetune import FinetuneConfig

from .answer import Answer
from .parser import add_options
from .training import add_runs, train


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, FinetuneConfig)
    add_runs(parser)


def run(options: argparse.Namespace) -> Answer:
    from edgelearn.experiments.finetune import FinetuneExperiment

    return train(FinetuneExperiment, options)
