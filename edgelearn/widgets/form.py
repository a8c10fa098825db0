"""A form with a control for each field of an experiment's configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

import ipywidgets
import traitlets

from edgelearn.experiments.config import Config, ConfigError, Setting, settings
from edgelearn.lab.runs import figures

_SLIDER_VALUES = 100  # integers within so many values get a slider
_STYLE = {"description_width": "10em"}


class Form(ipywidgets.VBox):
    """Controls that change a configuration.

    Arguments:
    - `config`: the initial values. The trait of this name always has the configuration that the form shows; while a
      control holds an invalid value, the form shows the error and `config` stays as it was.
    - `names`: fields to show, in this order (default: all).
    - `choices`: values of fields whose choices the configuration class doesn't know, such as tasks.
    """

    config = traitlets.Instance(Config)

    def __init__(
        self, config: Config, names: Sequence[str] | None = None, choices: Mapping[str, Sequence[Any]] | None = None
    ) -> None:
        known = settings(type(config))
        self.controls: dict[str, ipywidgets.ValueWidget] = {}
        self._read: dict[str, Callable[[Any], Any]] = {}
        for name in known if names is None else names:
            setting = known[name]
            if choices and name in choices:
                setting = replace(setting, choices=tuple(choices[name]))
            self.controls[name], self._read[name] = _control(setting, getattr(config, name))
        self._error = ipywidgets.HTML()
        super().__init__([*self.controls.values(), self._error], config=config)
        for control in self.controls.values():
            control.observe(self._changed, "value")

    def __repr__(self) -> str:
        return f"<Form: {self.config}>"

    @property
    def error(self) -> str:
        """The problem with the values shown; empty if there is none."""
        return self._error.value

    def _changed(self, change: Mapping[str, Any]) -> None:
        try:
            values = {name: self._read[name](control.value) for name, control in self.controls.items()}
            config = replace(self.config, **values)
        except ConfigError as error:
            self._error.value = f"<span style='color: {figures.ORANGE}'>{escape(str(error))}</span>"
        else:
            self._error.value = ""
            self.config = config


def _control(setting: Setting, value: Any) -> tuple[ipywidgets.ValueWidget, Callable[[Any], Any]]:
    """The widget for a setting, and the function from the widget's value to the setting's."""
    common: dict[str, Any] = {"description": setting.label, "tooltip": setting.help, "style": _STYLE}
    if setting.type is bool:
        return ipywidgets.Checkbox(value=value, **common), bool
    if setting.choices is not None and not setting.many:
        options = [(str(each), each) for each in dict.fromkeys((*setting.choices, value)) if each is not None]
        if setting.optional:
            options.append(("none", None))
        if setting.ordered:
            return ipywidgets.SelectionSlider(options=options, value=value, continuous_update=False, **common), _same
        return ipywidgets.Dropdown(options=options, value=value, **common), _same
    low, high = setting.minimum, setting.maximum
    bounded = value is not None and low is not None and high is not None and high - low < _SLIDER_VALUES
    if setting.type is int and bounded:
        return ipywidgets.IntSlider(value=value, min=low, max=high, continuous_update=False, **common), int
    text = "" if value is None else " ".join(map(str, value)) if setting.many else str(value)
    control = ipywidgets.Text(value=text, placeholder=setting.help, continuous_update=False, **common)
    return control, lambda text: _parse(setting, text.strip())


def _same(value: Any) -> Any:
    return value


def _parse(setting: Setting, text: str) -> Any:
    """The value that `text` stands for. Raises ConfigError if it stands for none."""
    if not text:
        return () if setting.many else None
    try:
        return tuple(map(setting.type, text.split())) if setting.many else setting.type(text)
    except ValueError:
        raise ConfigError(setting.name, f"expected a number ({setting.type.__name__}), got '{text}'.") from None
