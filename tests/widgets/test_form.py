from dataclasses import dataclass, fields, make_dataclass, replace

import ipywidgets
import pytest

from edgelearn.experiments.config import Config, setting
from edgelearn.experiments.flowers import FlowersConfig
from edgelearn.experiments.keywords.embedding import KeywordsConfig
from edgelearn.experiments.memory import MemoryConfig
from edgelearn.experiments.precision import PrecisionConfig
from edgelearn.widgets import Form


@dataclass(frozen=True)
class Everything(Config):
    name: str = setting("x", "a name")
    flag: bool = setting(False, "a flag")
    count: int | None = setting(None, "a number", minimum=1)
    hour: int = setting(3, "an hour", minimum=0, maximum=23)
    rate: float = setting(0.003, "a rate", above=0)
    color: str | None = setting("red", "a color", choices=("red", "blue"))
    bits: str = setting("8", "bits", choices=("4", "8"), ordered=True)
    layers: tuple[str, ...] = setting(("a", "b"), "layers")


@pytest.mark.parametrize("config", [FlowersConfig, PrecisionConfig, MemoryConfig, KeywordsConfig, Everything])
def test_every_field_has_a_control(config):
    form = Form(config())
    assert list(form.controls) == [field.name for field in fields(config)]
    form._changed({})
    assert form.config == config() and not form.error, "reading the controls changes no value"


def test_a_new_field_is_a_new_control():
    extended = make_dataclass(
        "Extended", [("patience", int, setting(5, "epochs"))], bases=(FlowersConfig,), frozen=True
    )
    form = Form(extended(), ["patience", "seed"])
    form.controls["patience"].value = "7"
    assert list(form.controls) == ["patience", "seed"] and form.config == extended(patience=7)


@pytest.mark.parametrize(
    ("name", "kind", "shown", "value"),
    [
        ("name", ipywidgets.Text, "y", "y"),
        ("flag", ipywidgets.Checkbox, True, True),
        ("count", ipywidgets.Text, "5", 5),
        ("hour", ipywidgets.IntSlider, 5, 5),
        ("rate", ipywidgets.Text, "1e-3", 0.001),
        ("color", ipywidgets.Dropdown, None, None),
        ("bits", ipywidgets.SelectionSlider, "4", "4"),
        ("layers", ipywidgets.Text, "c d", ("c", "d")),
    ],
)
def test_controls(name, kind, shown, value):
    form, seen = Form(Everything()), []
    form.observe(lambda change: seen.append(change["new"]), "config")
    assert type(form.controls[name]) is kind and form.controls[name].tooltip
    form.controls[name].value = shown
    assert seen == [form.config] == [replace(Everything(), **{name: value})]


def test_errors_and_choices():
    form = Form(MemoryConfig(), choices={"task": ("sample", "cifar10")})
    assert [value for _, value in form.controls["task"].options] == ["sample", "cifar10"]
    for text in ("0", "many"):
        form.controls["epochs"].value = text
        assert "epochs" in form.error and text in form.error and form.config == MemoryConfig()
    form.controls["epochs"].value = ""
    assert not form.error
    form.controls["epochs"].value = "2"
    assert form.config == MemoryConfig(epochs=2)
