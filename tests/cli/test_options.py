"""Options are generated from configuration classes."""

import argparse
from dataclasses import dataclass, fields, make_dataclass

import pytest

from edgelearn.cli import main
from edgelearn.cli.parser import add_options, option, read_config
from edgelearn.experiments.config import Config, ConfigError, setting, settings
from edgelearn.experiments.flowers import FlowersConfig
from edgelearn.experiments.keywords.embedding import KeywordsConfig
from edgelearn.experiments.memory import MemoryConfig
from edgelearn.experiments.precision import PrecisionConfig

COMMANDS = {"flowers": FlowersConfig, "precision train": PrecisionConfig, "memory train": MemoryConfig,
            "keywords train": KeywordsConfig}  # fmt: skip


@dataclass(frozen=True)
class Everything(Config):
    name: str = setting("x", "a name", positional=True)
    flag: bool = setting(False, "a flag")
    on: bool = setting(True, "another flag")
    count: int | None = setting(None, "a number above 0, 100 % of them", minimum=1)
    rate: float = setting(0.5, "a share", minimum=0, maximum=1)
    width: float = setting(1.0, "a width", above=0)
    color: str | None = setting("red", "a color", choices=("red", "blue"))
    layers: tuple[str, ...] = setting(("a", "b"), "layers")
    sizes: tuple[int, ...] = setting((1, 2), "sizes", minimum=1)


def parse(config, *words):
    parser = argparse.ArgumentParser()
    add_options(parser, config)
    return read_config(config, parser.parse_args([str(word) for word in words]))


def test_defaults_and_values():
    assert parse(Everything) == Everything()
    words = "y --flag --no-on --count 3 --rate 1 --width 0.1 --color none --layers c --sizes 4 5"
    config = parse(Everything, *words.split())
    assert config == Everything("y", True, False, 3, 1.0, 0.1, None, ("c",), (4, 5))
    assert Everything.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("name", "value"),
    [("count", 0), ("rate", 1.5), ("rate", -0.1), ("rate", "nan"), ("width", 0), ("width", "inf"), ("sizes", 0)],
)
def test_an_error_names_the_option(name, value, capsys):
    with pytest.raises(SystemExit):
        parse(Everything, f"--{name}", value)
    assert f"--{name}: {value}" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--color", "green"), ("--count", "x"), ("--rate", "x"), ("--sizes", "x")])
def test_what_the_parser_refuses(words):
    with pytest.raises(SystemExit) as caught:
        parse(Everything, *words)
    assert caught.value.code == 2


@pytest.mark.parametrize("values", [{"color": "green"}, {"count": True}, {"count": 1.5}, {"rate": "x"}, {"name": None}])
def test_values_of_another_type(values):
    with pytest.raises(ConfigError) as caught:
        Everything(**values)
    assert caught.value.name == next(iter(values))


@pytest.mark.parametrize(("command", "config"), COMMANDS.items())
def test_every_field_is_an_option(command, config, capsys):
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    shown = capsys.readouterr().out
    for each in fields(config):
        assert option(settings(config)[each.name]) in shown and settings(config)[each.name].help, each.name
    assert parse(config) == config()


def test_a_new_field_is_a_new_option():
    base = PrecisionConfig
    extended = make_dataclass("Extended", [("patience", int, setting(5, "epochs"))], bases=(base,), frozen=True)
    assert parse(extended, "--patience", 3).patience == 3
