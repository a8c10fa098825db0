"""Fine-tune MobileNet V1 on flowers: Qualcomm's published example, or the same for your own pictures.

Pictures come from --images, --data or EDGELEARN_DATA, else from TensorFlow Datasets over the network, else from the
embedded sample of drawings; the first line of output names the source. Ctrl-C saves at a step boundary, --resume
continues.
"""

from __future__ import annotations

import argparse

from edgelearn.experiments.flowers import FlowersConfig

from .answer import Answer
from .parser import add_options
from .training import add_runs, train


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, FlowersConfig)
    add_runs(parser)


def run(options: argparse.Namespace) -> Answer:
    from edgelearn.experiments.flowers import FlowersExperiment

    return train(FlowersExperiment, options)
