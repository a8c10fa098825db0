"""Train an experiment with several settings and seeds: here, or on the machines of a Ray cluster.

`edgelearn sweep federated strategy=fedavg,fedyogi rounds=5 --seeds 0 1 2 --engine ray` makes six runs. What is finished
in the run store isn't trained again, and what was interrupted goes on: repeat the command after a kill."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edgelearn.errors import ExtensionError, RunError
from edgelearn.experiments import EXPERIMENTS
from edgelearn.experiments.config import Config, ConfigError, Setting, find_setting
from edgelearn.extensions import import_object
from edgelearn.lab.runs import RunStore, interval

from . import parser as names
from .answer import Answer, print_table
from .parser import NONE, whole
from .training import add_runs_folder

if TYPE_CHECKING:
    from edgelearn.experiments.sweep import Outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "experiment", type=names.one_of(EXPERIMENTS, "experiment"), metavar="EXPERIMENT",
        help=f"{', '.join(EXPERIMENTS)}, or MODULE:CLASS",
    )  # fmt: skip
    add(
        "settings", nargs="*", metavar="NAME=VALUE,VALUE", default=[],
        help="settings of the experiment, with one value or more; those of its own command, with _ for -",
    )  # fmt: skip
    add("--seeds", nargs="+", type=whole(0), default=(0, 1, 2), help="(default: 0 1 2)")
    add("--engine", choices=("local", "ray"), default="local", help="one after the other (default), or on Ray")
    add("--cores", type=whole(1), default=1, help="of each training on Ray (default: 1)")
    add_runs_folder(parser)


def run(options: argparse.Namespace) -> Answer:
    from edgelearn.experiments.experiment import Experiment
    from edgelearn.experiments.sweep import Job, combine

    name: str = options.experiment
    experiment: Any = import_object(EXPERIMENTS.get(name, name))
    if not isinstance(experiment, Experiment):
        raise ExtensionError(f"'{name}' is no Experiment, but {experiment!r:.80}.")
    varied = dict(_values(experiment.config_type, each) for each in options.settings)
    shared = {name: values[0] for name, values in varied.items() if len(values) == 1}
    varied = {name: values for name, values in varied.items() if len(values) > 1}
    configs = combine(experiment.config_type(**shared), varied, options.seeds)
    jobs = [Job(experiment, config, str(RunStore(options.runs).root)) for config in configs]
    outcomes: dict[int, Outcome] = {}
    for number, outcome in _engine(options)(jobs):
        outcomes[number] = outcome
        print(f"{len(outcomes)} of {len(jobs)}: {_text(configs[number], [*varied, 'seed'])}: {_result(outcome)}")
    in_order = [outcomes[number] for number in range(len(jobs))]
    _print_means(configs, in_order, list(varied))
    found = [
        {"settings": {name: getattr(config, name) for name in varied}, "seed": config.to_dict()["seed"],
         "run": outcome.run, "results": outcome.results, "problem": outcome.problem}
        for config, outcome in zip(configs, in_order, strict=True)
    ]  # fmt: skip
    return Answer(found, int(any(outcome.problem for outcome in in_order)))


def _engine(options: argparse.Namespace):
    if options.engine == "local":
        from edgelearn.experiments.sweep import in_turn

        return in_turn
    from edgelearn.experiments.sweep import on_ray

    return on_ray(options.cores)


def _values(config: type[Config], text: str) -> tuple[str, list[Any]]:
    """The name of a setting and its values, from NAME=VALUE,VALUE."""
    name, equals, values = text.partition("=")
    name = name.replace("-", "_")
    if not equals:
        raise RunError(f"'{text}' is no setting: write NAME=VALUE or NAME=VALUE,VALUE.")
    setting = find_setting(config, name)
    if name == "seed":
        raise ConfigError(name, "give seeds by --seeds.")
    found = [_value(setting, each) for each in values.split(",")]
    return name, [tuple(found)] if setting.many else found


def _value(setting: Setting, text: str) -> Any:
    if text == NONE and setting.optional:
        return None
    try:
        return {"yes": True, "no": False}[text] if setting.type is bool else setting.type(text)
    except (KeyError, ValueError):
        expected = "yes or no" if setting.type is bool else setting.type.__name__
        raise ConfigError(setting.name, f"expected {expected}, got '{text}'.") from None


def _text(config: Config, shown: Sequence[str]) -> str:
    return ", ".join(f"{name} {getattr(config, name)}" for name in shown)


def _result(outcome: Outcome) -> str:
    if outcome.results is None:
        return f"failed: {outcome.problem}"
    accuracy = outcome.results.get("accuracy")
    return f"{outcome.run}" + (f", accuracy {accuracy:.2%}" if accuracy is not None else "")


def _print_means(configs: Sequence[Config], outcomes: Sequence[Outcome], varied: Sequence[str]) -> None:
    """A row for each combination of settings: mean and 95 % interval of the accuracy over its seeds."""
    groups: dict[tuple, list[Outcome]] = {}
    for config, outcome in zip(configs, outcomes, strict=True):
        groups.setdefault(tuple(str(getattr(config, name)) for name in varied), []).append(outcome)
    rows = []
    for values, group in groups.items():
        found = [o.results["accuracy"] for o in group if o.results and o.results.get("accuracy") is not None]
        shown = f"{sum(found) / len(found):.2%}" if found else ""
        if len(found) > 1:
            shown += f" ± {interval(found).margin:.2%}"
        rows.append((*values, f"{sum(o.results is not None for o in group)} of {len(group)}", shown))
    print_table((*varied, "seeds", "accuracy ± 95 %"), rows)
