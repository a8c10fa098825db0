"""Settings of experiments: what can't be is refused by name, and a record gives them back."""

import json
import math

import pytest
from federated_tiny import KIND

from edgelearn.errors import RunError
from edgelearn.experiments.config import ConfigError
from edgelearn.experiments.federated import TASKS, FederatedConfig, FederatedExperiment
from edgelearn.experiments.finetune import FinetuneConfig
from edgelearn.experiments.flowers import FlowersConfig
from edgelearn.experiments.keywords.embedding import KeywordsConfig
from edgelearn.experiments.memory import MemoryConfig, MemoryExperiment
from edgelearn.experiments.precision import PrecisionConfig, PrecisionExperiment

NAN, INFINITE = math.nan, math.inf
WRONG = {  # settings of each configuration; the last one is named
    FlowersConfig: [
        {"epochs": 0}, {"batch_size": -1}, {"micro_batch": 0}, {"learning_rate": 0.0}, {"learning_rate": NAN},
        {"learning_rate": INFINITE}, {"seed": -1}, {"seed": 1 << 64}, {"label_smoothing": 1.5}, {"optimizer": "lion"},
        {"cache": "fp8"}, {"budget": "8 apples"},
    ],
    PrecisionConfig: [
        {"epochs": 0}, {"seed": -1}, {"trace": -1}, {"observer": "oracle"}, {"weights": "1"}, {"gradients": "half"},
        {"gradients": 4}, {"activations": "fp32", "integers": True}, {"momentum": 1.5},
        {"observer": "current", "momentum": 0.5}, {"compute": "fp8"},
    ],
    KeywordsConfig: [
        {"method": "guess"}, {"network": "vgg"}, {"shift": 0.9}, {"scale": 0.0}, {"frozen": True},
        {"part": "last-block"}, {"part": "head"}, {"epochs": 0}, {"episodes": 1}, {"distance": "foo"},
        {"learning_rate": NAN}, {"weight_decay": INFINITE},
    ],
    MemoryConfig: [{"activation_memory": "magic"}, {"epochs": 0}],
    FinetuneConfig: [{"precision": "int3"}],
}  # fmt: skip
CASES = [(config, settings) for config, rows in WRONG.items() for settings in rows]


@pytest.mark.parametrize(
    ("config", "settings"), CASES, ids=lambda value: getattr(value, "__name__", None) or str(value)
)
def test_settings_that_cannot_be(config, settings):
    name = list(settings)[-1]
    with pytest.raises(RunError, match=name) as caught:
        config(**settings)
    assert len(settings) > 1 or settings == {"frozen": True} or str(settings[name]) in str(caught.value)
    assert not isinstance(caught.value, ConfigError) or caught.value.name == name


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"server_rate": 0.1}, "server_rate"), ({"fraction": 0.0}, "fraction"), ({"clip": 1.0}, "noise"),
        ({"noise": 1.0}, "clip"), ({"task": "unknown"}, "unknown"), ({"engine": "deployed", "nodes": 10**9}, "nodes"),
        ({"engine": "deployed", "listen": "192.168.1.10"}, "listen"),
        ({"engine": "gateway", "compress": "int8"}, "engine"), ({"engine": "gateway", "strategy": "fedprox"}, "engine"),
        ({"engine": "deployed", "listen": "192.168.1.10", "tls": True}, "listen"),
    ],
)  # fmt: skip
def test_federations_that_cannot_be(settings, problem, monkeypatch):
    monkeypatch.setitem(TASKS, "tiny", KIND)
    with pytest.raises(RunError, match=problem):
        FederatedExperiment.resolve(FederatedConfig(**{"task": "tiny"} | settings))


@pytest.mark.parametrize(
    ("experiment", "config"), [(MemoryExperiment, MemoryConfig), (PrecisionExperiment, PrecisionConfig)]
)
def test_an_unknown_task(experiment, config):
    with pytest.raises(RunError, match=r"'moon'.*sample"):
        experiment.resolve(config("moon"))


@pytest.mark.parametrize(
    "config",
    [
        FlowersConfig(images="here", trainable=("dense",), cache=None, seed=1 << 40).resolve(sample=False),
        PrecisionExperiment.resolve(PrecisionConfig("sample-all", gradients="4", observer="dsgc", seed=1 << 40)),
    ],
    ids=lambda config: type(config).__name__,
)
def test_a_record_gives_the_configuration_back(config):
    assert type(config).from_dict(json.loads(json.dumps(config.to_dict()))) == config
    with pytest.raises(RunError, match="'moon'"):
        type(config).from_dict(config.to_dict() | {"moon": 1})
