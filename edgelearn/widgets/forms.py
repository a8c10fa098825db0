"""Forms that are generated from configurations; an experiment's form, with what its plan takes, and its trainings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets
import traitlets

from edgelearn.display import plural
from edgelearn.experiments import EXPERIMENTS
from edgelearn.experiments.config import Config, ConfigError, Setting, settings
from edgelearn.experiments.experiment import Experiment
from edgelearn.extensions import check_name, import_object
from edgelearn.lab.runs import RunStore

from .pictures import WRAP, View, duration, error_line, size
from .training import TrainingView

_SLIDER_VALUES = 100  # integers within so many values get a slider
_REST_SECONDS = 0.4  # a field is edited further before that
WORKING = "<progress aria-label='working' style='width: 8em; vertical-align: middle'></progress>"
# Settings that a form shows first; the others are folded.
_FIRST = (
    "task", "model", "images", "sample", "thicket", "weights", "activations", "gradients", "observer", "policy",
    "strategy", "rounds", "clients", "method", "network", "trainable", "train", "epochs", "batch_size",
    "learning_rate", "seed",
)  # fmt: skip


class Slider(anywidget.AnyWidget):
    """A slider over values that have texts, which it shows and announces; Python hears of a change once it rests.
    (The sliders of ipywidgets announce the number of a choice, and have no name.)

    Arguments:
    - `options`: (text, value) of each step.
    - `value`: the first value, one of them.
    - `description`: its name.
    - `hint`: what it is for, shown under the pointer (default none).
    """

    _esm = Path(__file__).with_name("slider.js")
    label = traitlets.Unicode().tag(sync=True)
    hint = traitlets.Unicode().tag(sync=True)  # `tooltip` makes the view of a widget without a description fail
    texts = traitlets.List(traitlets.Unicode()).tag(sync=True)
    index = traitlets.Int().tag(sync=True)
    disabled = traitlets.Bool().tag(sync=True)
    value = traitlets.Any()

    def __init__(self, options: Sequence[tuple[str, Any]], value: Any, description: str, hint: str = "") -> None:
        texts, self.values = [text for text, _ in options], [each for _, each in options]
        index = self.values.index(value)
        super().__init__(label=description, hint=hint, texts=texts, index=index, value=value)

    @traitlets.observe("index")
    def _moved(self, change: dict) -> None:
        self.value = self.values[change["new"]]

    @traitlets.observe("value")
    def _put(self, change: dict) -> None:
        self.index = self.values.index(change["new"])


class _Shown(traitlets.Instance):
    """The configuration that a form shows. Reading it raises ConfigError while a field is invalid."""

    def get(self, obj: Any, cls: Any = None) -> Any:
        if problems := getattr(obj, "problems", None):
            raise ConfigError(*next(iter(problems.items())))
        return super().get(obj, cls)


class Form(View):
    """Controls that change a configuration.

    Arguments:
    - `config`: the initial values. The trait of this name has the configuration that the form shows. Reading it raises
      ConfigError while a field is invalid; that field is marked, with the reason beside it, and the other fields keep
      what was entered.
    - `names`: fields to show, in this order (default: all, those that are rarely changed folded).
    - `choices`: values of fields whose choices the configuration class doesn't know, such as tasks.
    - `experiment`: loads each configuration on a thread: a wrong layer or folder is then said beside its field, and
      memory and time of the training are predicted (default none: fields are checked by themselves).
    - `store`: whose runs say how long a training takes (default: the usual one).
    """

    config = _Shown(Config)

    def __init__(
        self, config: Config, names: Sequence[str] | None = None, choices: Mapping[str, Sequence[Any]] | None = None,
        experiment: Experiment | None = None, store: RunStore | None = None,
    ) -> None:  # fmt: skip
        known = settings(type(config))
        first = [name for name in known if name in _FIRST]
        folded = [name for name in known if name not in first] if names is None and len(known) > len(_FIRST) / 2 else []
        shown = [name for name in known if name not in folded] if names is None else list(names)
        self.settings = {name: known[name] for name in [*shown, *folded]}
        for name, values in (choices or {}).items():
            self.settings[name] = replace(known[name], choices=tuple(values))
        self.controls = {name: _control(setting, getattr(config, name)) for name, setting in self.settings.items()}
        self.problems: dict[str, str] = {}
        self._base = config
        self._errors = {name: ipywidgets.HTML() for name in self.controls}
        self._error = ipywidgets.HTML()  # of a field that isn't shown
        rows = {n: ipywidgets.HBox([control, self._errors[n]], layout=WRAP) for n, control in self.controls.items()}
        parts: list[ipywidgets.Widget] = [rows[name] for name in shown]
        if folded:
            more = ipywidgets.Accordion([ipywidgets.VBox([rows[name] for name in folded])], titles=("More settings",))
            parts.append(more)
        self.estimate = Estimate(experiment, store, self._refuse) if experiment is not None else None
        super().__init__([*parts, self._error, *([self.estimate] if self.estimate else [])], config=config)
        for control in self.controls.values():
            control.observe(self._changed, "value")
        if self.estimate is not None:
            self.estimate.ask(config)

    def __repr__(self) -> str:
        return f"<Form: {self.error or self.config}>"

    @property
    def error(self) -> str:
        """The problems with the values shown, by field; empty if there is none."""
        return " ".join(f"{name}: {problem}" for name, problem in self.problems.items())

    def _changed(self, change: Mapping[str, Any]) -> None:
        """Take all values that are valid by themselves; then the configuration may refuse them together."""
        values, problems = {}, {}
        for name in self.controls:
            try:
                values[name] = self._value(name)
                self.settings[name].validate(values[name])
                _find(self.settings[name], values[name])
            except ConfigError as error:
                problems[name] = error.problem
        config = None
        if not problems:
            try:
                config = replace(self._base, **values)
            except ConfigError as error:
                problems[error.name] = error.problem
        self.problems = problems
        if config is not None:
            self.config = config  # before the marks go: whoever sees none may read it at once, on another thread
        self._mark(problems)
        if self.estimate is not None:
            self.estimate.ask(config)

    def _refuse(self, config: Config, error: Exception) -> None:
        """Say beside the field that an error is about why `config` can't be trained."""
        if self.problems or config != self.config:
            return  # it was changed meanwhile
        if isinstance(error, ConfigError):
            self._mark({error.name: error.problem})
            return
        text = str(error)
        named = [name for name in self.controls if any(f"'{each}'" in text for each in _texts(getattr(config, name)))]
        given = [name for name in named if getattr(config, name) != self.settings[name].default]
        paths = [name for name in self.controls if any(each in text for each in _texts(getattr(config, name), 4))]
        self._mark({next(iter([*given, *named, *paths, "this training"])): text})

    def _mark(self, problems: Mapping[str, str]) -> None:
        self.problems = dict(problems)
        self._error.value = "".join(error_line(f"{n}: {p}") for n, p in problems.items() if n not in self.controls)
        for name, control in self.controls.items():
            self._errors[name].value = error_line(problems[name]) if name in problems else ""
            control.layout.border_left = "3px solid var(--el-fail)" if name in problems else None

    def _value(self, name: str) -> Any:
        """The value that a control shows. Raises ConfigError for a text that stands for none."""
        control, setting = self.controls[name], self.settings[name]
        if not isinstance(control, ipywidgets.Text):
            return control.value
        text = control.value.strip()
        if not text:
            return () if setting.many else None
        try:
            return tuple(map(setting.type, text.split())) if setting.many else setting.type(text)
        except ValueError:
            raise ConfigError(name, f"expected a number ({setting.type.__name__}), got '{text}'.") from None


def _texts(value: Any, least: int = 1) -> list[str]:
    """The texts of a setting's value, of `least` characters or more."""
    values = value if isinstance(value, tuple) else (value,)
    return [each for each in values if isinstance(each, str) and len(each) >= least]


def _find(setting: Setting, value: Any) -> None:
    """Raises ConfigError if there is no such folder or file."""
    path = Path(value).expanduser() if isinstance(value, str) and value else None
    if setting.metavar == "DIR" and path is not None and not path.is_dir():
        raise ConfigError(setting.name, f"there is no folder '{value}' ({path.absolute()}).")
    if setting.metavar == "FILE" and path is not None and path.name != value and not path.is_file():
        raise ConfigError(setting.name, f"there is no file '{value}' ({path.absolute()}).")


def _control(setting: Setting, value: Any) -> Any:
    """The widget for a setting: a text where nothing else fits."""
    common: dict[str, Any] = {
        "description": setting.label, "tooltip": setting.help, "style": {"description_width": "10em"},
    }  # fmt: skip
    at_rest = common | {"continuous_update": False}
    low, high = setting.minimum, setting.maximum
    if setting.type is bool:
        return ipywidgets.Checkbox(value=value, **common)
    if setting.choices is not None and not setting.many:
        options = [(str(each), each) for each in dict.fromkeys((*setting.choices, value)) if each is not None]
        options += [("none", None)] * setting.optional
        if setting.ordered:
            return Slider(options, value, setting.label, setting.help)
        return ipywidgets.Dropdown(options=options, value=value, **common)
    if setting.type is int and None not in (value, low, high) and high - low < _SLIDER_VALUES:  # type: ignore[operator]
        numbers = range(int(low), int(high) + 1)  # type: ignore[arg-type]
        return Slider([(str(number), number) for number in numbers], value, setting.label, setting.help)
    text = "" if value is None else " ".join(map(str, value)) if setting.many else str(value)
    return ipywidgets.Text(value=text, placeholder=setting.help, **at_rest)


class Estimate(ipywidgets.HTML):
    """A line with the memory and the time that a training is predicted to take, once it is loaded and planned on a
    thread. Of several configurations the last one counts.

    Arguments:
    - `experiment`: loads them; without the network, since nothing is downloaded to predict.
    - `store`: whose runs say how long a training takes (default: the usual one).
    - `refuse`: called with a configuration and the error that it leads to.
    """

    def __init__(
        self, experiment: Experiment, store: RunStore | None, refuse: Callable[[Config, Exception], object]
    ) -> None:
        self._experiment, self._store, self._refuse = experiment, store or RunStore(), refuse
        self._wanted: Config | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        super().__init__()

    def ask(self, config: Config | None) -> None:
        """Predict a configuration, or show nothing."""
        with self._lock:
            self._wanted = config
            self.value = f"Planning … {WORKING}" if config is not None else ""
            if config is not None and self._thread is None:
                self._thread = threading.Thread(target=self._work, name="edgelearn-estimate", daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Wait until nothing is being predicted."""
        while (thread := self._thread) is not None:
            thread.join()

    def _work(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(_REST_SECONDS)
            config, text, error = self._wanted, "", None
            try:
                text = self._predict(config) if config is not None else ""
            except Exception as found:  # a form has no other place for it
                error = found
            with self._lock:
                if config is not self._wanted:
                    continue
                self.value, self._thread = text, None
            if error is not None and config is not None:
                self._refuse(config, error)
            return

    def _predict(self, config: Config) -> str:
        offline = {"download": False} if "download" in settings(type(config)) else {}
        training = self._experiment.load(replace(config, **offline))
        seconds = training.remaining(self._store).seconds
        source = training.sources[0] if training.sources else training.data.get("description", "")
        return (
            f"<b>{size(training.phases.peak_bytes)}</b> of device memory planned, about <b>{duration(seconds)}</b> on "
            f"{escape(training.model.device.id)}. <span class='el-quiet'>{escape(source)}</span>"
        )


class ExperimentView(View):
    """An experiment to try: presets, a form for every setting with the memory and time that it leads to, and a list of
    trainings. Of those that are started one trains at a time, and the others wait.

    Arguments:
    - `experiment`: its name, such as "flowers" (see edgelearn.experiments.EXPERIMENTS), or itself.
    - `store`: where runs are created (default: the usual one).
    - `config`: the configuration to begin with (default: the first preset's).
    - `names`: fields to show (default: all).

    Raises UsageError for an unknown name.
    """

    def __init__(
        self, experiment: str | Experiment, store: RunStore | None = None, config: Config | None = None,
        names: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        self.experiment = find_experiment(experiment) if isinstance(experiment, str) else experiment
        self.store, self._names = store or RunStore(), names
        self._presets = dict(self.experiment.presets()) or {"defaults": self.experiment.config_type()}
        if config is not None:
            self._presets = {"as given": config, **self._presets}
        self._preset = ipywidgets.Dropdown(
            options=list(self._presets), description="Preset", style={"description_width": "10em"}
        )
        self._start = ipywidgets.Button(description="Start", icon="play", button_style="primary")
        self._said = ipywidgets.HTML()
        self._form, self._jobs, self._views = ipywidgets.VBox(), ipywidgets.VBox(), list[TrainingView]()
        row = ipywidgets.HBox([self._start, self._said], layout=WRAP)
        super().__init__([self._preset, self._form, row, self._jobs])
        self._preset.observe(lambda _: self._show(), "value")
        self._start.on_click(lambda _: self.start())
        self._show()

    def __repr__(self) -> str:
        return f"<ExperimentView of {self.experiment.kind}: {self.form.error or self.form.config}>"

    @property
    def form(self) -> Form:
        """The form of the chosen preset."""
        return self._form.children[0]

    @property
    def trainings(self) -> list[TrainingView]:
        """The views of the trainings that were started, the newest first."""
        return list(self._views)

    def start(self) -> TrainingView | None:
        """Train what the form shows, after the trainings that were started before; None if a field is invalid."""
        if self.form.problems:
            self._said.value = error_line(f"Not started. {self.form.error}")
            return None
        config, preset = self.form.config, self._chosen.to_dict()
        view = TrainingView(partial(self.experiment.load, config), self.store)
        changed = [f"{name} {value}" for name, value in config.to_dict().items() if value != preset[name]]
        title = ipywidgets.HTML(f"<b>{escape(', '.join([str(self._preset.value), *changed]))}</b>")
        self._views.insert(0, view)
        self._jobs.children = [title, view, *self._jobs.children]
        view.training.start()
        waiting = view.training.place
        self._said.value = f"Waits for {plural(waiting, 'training')} to end." if waiting else "Started."
        return view

    def wait(self) -> None:
        """Wait until no training runs, and nothing is being predicted."""
        for view in self.trainings:
            view.training.wait()
        if self.form.estimate is not None:
            self.form.estimate.wait()

    def close(self) -> None:
        """Remove the view; its trainings stop after their current steps and are saved."""
        for view in getattr(self, "_views", ()):  # Python closes a view whose constructor failed
            view.close()
        super().close()

    @property
    def _chosen(self) -> Config:
        return self._presets[str(self._preset.value)]

    def _show(self) -> None:
        tasks = [preset.task for preset in self._presets.values() if hasattr(preset, "task")]
        choices = {"task": list(dict.fromkeys(tasks))} if tasks else None
        self._form.children = [Form(self._chosen, self._names, choices, self.experiment, self.store)]
        self._said.value = ""


def find_experiment(kind: str) -> Experiment:
    """The experiment of this name. Raises UsageError if there is none."""
    check_name(kind, EXPERIMENTS, "experiment")
    return import_object(EXPERIMENTS[kind])
