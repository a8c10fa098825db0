"""Parts from outside of the package, named MODULE:CLASS in options."""

import sys
from pathlib import Path

import pytest

from edgelearn.cli.keywords import find_learner
from edgelearn.compile.policies import POLICIES, find_policy
from edgelearn.errors import ExtensionError, UsageError
from edgelearn.experiments.config import ConfigError
from edgelearn.experiments.finetune import FinetuneConfig
from edgelearn.experiments.memory import MemoryConfig
from edgelearn.experiments.precision import PrecisionConfig
from edgelearn.keywords.learners import Learner, NearestMean
from edgelearn.models import ds_cnn
from edgelearn.ops import SGD, Float16, Format

PARTS = """
from dataclasses import dataclass
from edgelearn.compile import Compress, Recompute
from edgelearn.keywords.learners import NearestMean
from edgelearn.ops import SGD, Format, Float16, InHindsightMinMax

four = Format(4)
halves = Compress(Float16())
def everything(network): return {name: Recompute() for name in network.nodes}
class Slow(SGD): pass
class Patient(InHindsightMinMax): pass
class Mean(NearestMean): pass
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(Learner, "registry", dict(Learner.registry))
    monkeypatch.delitem(sys.modules, "cli_parts", raising=False)
    Path("cli_parts.py").write_text(PARTS)


def test_precision():
    config = PrecisionConfig(activations="cli_parts:four", observer="cli_parts.py:Patient")
    assert config.precision.activations == Format(4) and type(config.precision.observer).__name__ == "Patient"
    assert PrecisionConfig.from_dict(config.to_dict()) == config
    with pytest.raises(ConfigError) as caught:
        PrecisionConfig(observer="cli_parts:Slow")
    assert caught.value.name == "observer"


def test_optimizer():
    made = FinetuneConfig(optimizer="cli_parts:Slow").optimizer_at(0.5)
    assert type(made).__name__ == "Slow" and made.learning_rate == 0.5 and isinstance(made, SGD)


def test_policies():
    network = ds_cnn()
    assert MemoryConfig(activation_memory="cli_parts:everything").activation_memory == "cli_parts:everything"
    assert set(find_policy("cli_parts:everything")(network)) == set(network.nodes)
    encoded = find_policy("cli_parts:halves")(network)
    assert any(getattr(strategy, "format", None) == Float16() for strategy in encoded.values())
    assert find_policy("nested") is POLICIES["nested"]
    with pytest.raises(UsageError, match="'nested'"):
        find_policy("nestd")
    with pytest.raises(ExtensionError):
        find_policy("cli_parts:Slow")


def test_learner():
    mean = find_learner("cli_parts:Mean")
    assert type(mean).__name__ == "Mean" and mean.to_dict()["learner"] == "cli_parts:Mean"
    assert type(find_learner("nearest-mean")) is NearestMean
