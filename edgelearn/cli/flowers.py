"""Fine-tune MobileNet V1 on flowers: Qualcomm's published example, or the same for your own pictures.

Pictures come from --images, --data or EDGELEARN_DATA, else from TensorFlow Datasets over the network, else they are
drawn (the embedded sample); the first line of output says which. Ctrl-C saves at a step boundary; --resume goes on.
"""

from __future__ import annotations

import argparse

from edgelearn.experiments.flowers import FlowersConfig
from edgelearn.experiments.flowers.config import OPTIMIZERS

from .numbers import budget
from .training import add_runs, train


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--images", metavar="DIR", help="your own pictures: a subfolder for each class, JPEG or PNG, any size")
    add("--data", metavar="DIR", help="a folder with prepared tf_flowers and weights (default: EDGELEARN_DATA)")
    add("--sample", action="store_true", help="the embedded sample: drawn flowers and a small network")
    add("--weights", metavar="FILE", help="MobileNet V1 1.0/224 in Keras's HDF5 layout; 'sample' for the small network")
    add("--no-download", dest="download", action="store_false", help="never use the network")
    add("--trainable", nargs="+", metavar="PATTERN", default=["conv_pw_13", "dense"], help="parameters to train")
    add("--epochs", type=int, help="100, or 20 with the embedded sample")
    add("--batch-size", type=int, help="examples an update: 163, or 50 with the embedded sample")
    add("--micro-batch", type=int, help="examples at a time on the device; gradients are summed over a mini-batch")
    add("--optimizer", choices=OPTIMIZERS, default="momentum")
    add("--learning-rate", type=float, help="0.003, or 0.01 with the embedded sample")
    add("--label-smoothing", type=float, default=0.0)
    add("--cache", choices=("fp32", "fp16", "none"), default="fp32", help="features of the frozen part, kept in memory")
    add("--cache-folder", metavar="DIR", help="keep them in a temporary file there instead")
    add("--budget", type=budget, metavar="SIZE", help="plan within 64MB, '20MB peak' or '8MB stored', or refuse")
    add("--seed", type=int, default=0)
    add("--device", metavar="NAME", help="part of a device's name (see `edgelearn devices`)")
    add_runs(parser)


def run(options: argparse.Namespace) -> int:
    from edgelearn.experiments.flowers import FlowersExperiment

    names = FlowersConfig.__dataclass_fields__
    chosen = {name: value for name, value in vars(options).items() if name in names}
    chosen |= {"cache": None if options.cache == "none" else options.cache, "trainable": tuple(options.trainable)}
    return train(FlowersExperiment, FlowersConfig(**chosen), options)
