"""Measure speed and memory beside PyTorch, Keras and tinygrad, in one run."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(options: argparse.Namespace) -> None:
    pass
