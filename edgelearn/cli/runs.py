"""Commands on runs: list, compare and export them, predict with their networks, make many."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgelearn import atomic
from edgelearn.display import megabytes, plural
from edgelearn.errors import ExtensionError, RunError, UsageError
from edgelearn.experiments import EXPERIMENTS
from edgelearn.experiments.config import Config, ConfigError, Setting, find_setting, setting
from edgelearn.extensions import import_object
from edgelearn.lab.runs import Run, RunStore, RunSummary, export, interval, list_table
from edgelearn.lab.runs import compare as compare_runs
from edgelearn.lab.runs.page import KINDS, exported
from edgelearn.lab.runs.results import setting_text
from edgelearn.tables import Table

from .answer import Answer, show, width
from .parser import DEVICE, FIELDS, NONE, RUNS, argument, command, png

if TYPE_CHECKING:
    from edgelearn.experiments.sweep import Outcome

PRUNED = ("failed", "interrupted", "damaged")
COMMANDS = ("delete", "restore", "prune", "resume", "rerun")
SUMMARY = {
    "id, folder, kind": "of the run", "status": "running, finished, failed, interrupted or damaged",
    "started, updated": "times as texts", "epochs": "finished ones",
    "device, results, config": "as in the run's record",
    "last": "newest row of its history", "problem": "why a damaged run can't be read, or null",
    "bytes": "of its files", "name, tags, note": "what a reader wrote",
    "progress": "of a running one: phase, done, total, left (seconds); else null",
}  # fmt: skip
WORDS = (
    "show this run (its id or the start of it) as JSON; or `delete RUN …`, `restore RUN …`, which brings back what a "
    "page deleted, `prune`, `resume RUN`, or `rerun RUN NAME=VALUE …`, which trains with its configuration again, but "
    "for these settings"
)
FORMATS = "by the file's suffix: .json, .html (one page), .csv, .tex, or .svg and .pdf (the curves)"


@command("runs", many=SUMMARY)
def list_runs(
    words: tuple[str, ...] = argument((), WORDS, metavar="RUN"),
    export: str | None = setting(None, f"write it to one file instead, {FORMATS}", metavar="FILE"),
    name: str | None = setting(None, "name the run"),
    tags: tuple[str, ...] | None = setting(None, "give the run these tags instead of those it has", const=()),
    note: str | None = setting(None, "write a note on the run"),
    yes: bool = setting(False, "prune: delete what it lists"),
    days: int = setting(0, "prune: only what nothing was written to for so many days", minimum=0),
    runs: RunStore = RUNS,
) -> Answer:  # fmt: skip
    """List the runs, newest first; show or export one, train it again; delete some.

    `edgelearn runs prune` lists the runs that failed, were interrupted or are damaged, `edgelearn runs prune --yes`
    deletes them. What runs compare and predict with is gone with them."""
    described = {what: text for what, text in (("name", name), ("tags", tags), ("note", note)) if text is not None}
    if described and (len(words) != 1 or words[0] == "prune"):
        raise UsageError("--name, --tags and --note describe one run: put its id, or the start of it, before them.")
    match words:
        case ():
            if export:
                raise RunError("The command names no run to export: put its id, or the start of it, before --export.")
            return _list(runs)
        case "delete", first, *more:
            return _delete([_summary(runs, name) for name in (first, *more)], runs)
        case ("prune",):
            return _prune(runs, days, yes)
        case "restore", first, *more:
            return _restore([runs.restore(each) for each in (first, *more)], runs)
        case "resume", run:
            return _resume(runs, run)
        case "rerun", run, *changes:
            return _rerun(runs, run, changes)
        case (run,) if run not in COMMANDS:
            return _describe(runs, run, described) if described else _show(runs, run, export)
    raise UsageError(
        f"'{' '.join(words):.80}' is no command of runs. One run is shown at a time; or write delete RUN [RUN …], "
        f"restore RUN [RUN …], prune, resume RUN, or rerun RUN [NAME=VALUE …]."
    )


FIELDS["runs RUN"] = "object", {
    "format": "version of this document", "run": "its record: configuration, device, versions, results",
    "history": "a row an epoch",
}  # fmt: skip


def _show(store: RunStore, name: str, file: str | None) -> Answer:
    record = export(store.open(name))
    if file:
        write_file([store.open(name)], file)
    else:
        print(json.dumps(record, indent=1))
    return Answer(record)


def write_file(runs: Sequence[Run], file: str) -> None:
    """Write a run, or several side by side, to a file whose suffix says how. Raises RunError if that can't be done."""
    kind = Path(file).suffix.removeprefix(".")
    atomic.write_bytes(file, exported(runs, compare_runs(runs), kind if kind in KINDS else "json")[1])


def _describe(store: RunStore, name: str, described: dict[str, Any]) -> Answer:
    run = store.open(name)
    found = run.annotate(**described)
    texts = found | {"tags": ", ".join(found["tags"])}
    print(f"{run.id}: " + "; ".join(f"{what}: {text}" for what, text in texts.items() if text))
    return Answer([_summary(store, run.id)])


def _restore(names: list[str], store: RunStore) -> Answer:
    for each in names:
        print(f"{each} is restored.")
    return Answer([_summary(store, each) for each in names])


def _list(store: RunStore) -> Answer:
    found = store.list()
    if not found:
        print(f"No runs in {store.root} yet.")
        return Answer([])
    print(list_table(found, width()))
    print(f"{plural(len(found), 'run')} in {store.root}, {megabytes(sum(each.bytes for each in found))}")
    return Answer(found)


def _summary(store: RunStore, name: str) -> RunSummary:
    """The summary of a run. Raises RunError if there is none or more than one."""
    found = store.find(name)
    return next(each for each in store.list() if each.id == found)


def _delete(chosen: list[RunSummary], store: RunStore) -> Answer:
    for each in chosen:
        store.delete(each.id)
        print(f"{each.id} is deleted, {megabytes(each.bytes)}.")
    return Answer(chosen)


def _prune(store: RunStore, days: int, yes: bool) -> Answer:
    before = (datetime.now(UTC) - timedelta(days=days)).isoformat()
    found = [each for each in store.list() if each.status in PRUNED and (each.updated or each.started) <= before]
    if not found:
        print(f"No run in {store.root} failed, was interrupted or is damaged.")
        return Answer([])
    if yes:
        return _delete(found, store)
    print(list_table(found, width()))
    print(f"{megabytes(sum(each.bytes for each in found))}. To delete them: edgelearn runs prune --yes")
    return Answer(found)


def _experiment(record: dict[str, Any]) -> Any:
    """The experiment of a run's record. Raises RunError for a kind that no command trains."""
    if record["kind"] not in EXPERIMENTS:
        raise RunError(
            f"{record['id']} is a run of '{record['kind']}', which no command trains from its record. Those of "
            f"{', '.join(EXPERIMENTS)} can be trained again."
        )
    return import_object(EXPERIMENTS[record["kind"]])


def _rerun(store: RunStore, name: str, changes: Sequence[str]) -> Answer:
    from edgelearn.train import ProgressBar

    record = store.open(name).record
    experiment = _experiment(record)
    before = experiment.config_type.from_dict(record["config"])
    config = replace(before, **dict(_change(experiment.config_type, text) for text in changes))
    old, new = before.to_dict(), config.to_dict()
    changed = [[key, setting_text(old[key]), setting_text(new[key])] for key in new if new[key] != old[key]]
    again = {"of": record["id"], "changed": changed}
    results = experiment.start(config, store, [ProgressBar()], again=again)
    return Answer([_summary(store, store.list()[0].id)], 130 if results is None else 0)


def _change(config: type[Config], text: str) -> tuple[str, Any]:
    """The name of a setting and its new value from NAME=VALUE."""
    if text.startswith("seed="):
        return "seed", _value(find_setting(config, "seed"), text.partition("=")[2])
    name, values = _values(config, text, False)
    if len(values) != 1:
        raise ConfigError(name, f"give one value, not {text.partition('=')[2]!r:.80}.")
    return name, values[0]


def _resume(store: RunStore, name: str) -> Answer:
    from edgelearn.train import ProgressBar

    run = store.open(name)
    results = _experiment(run.record).resume(run.id, store, [ProgressBar()])
    return Answer([_summary(store, run.id)], 130 if results is None else 0)


@command("compare", one={
    "runs": "ids", "differences": "by key of the configuration: its value by run",
    "results": "a list a run: as in the run's record",
})  # fmt: skip
def compare(
    run: tuple[str, ...] = argument(help="ids, or starts of ids"),
    plot: Path | None = png("draw the learning curves over each other"),
    export: str | None = setting(None, f"write the comparison to a file, too, {FORMATS}", metavar="FILE"),
    runs: RunStore = RUNS,
) -> dict:
    """Put runs side by side: what differs in their configurations, and how they ended."""
    comparison = compare_runs([runs.open(name) for name in run])
    print(comparison.to_text(width()))
    if plot:
        comparison.plot(plot)
    if export:
        write_file([runs.open(name) for name in run], export)
    return comparison.to_dict()


@command("predict", many={
    "image": "file", "classes": "name and probability, best first", "problem": "text or null",
})  # fmt: skip
def predict(
    image: tuple[str, ...] = argument(help="JPEG or PNG files"),
    run: str | None = setting(None, "the run whose network is used (default: the newest)", metavar="RUN"),
    runs: RunStore = RUNS,
    device: str | None = DEVICE,
) -> Answer:
    """Name what is in pictures, with the network of a finished run."""
    from edgelearn.experiments import tasks

    found = []
    for path, answer in tasks.predict(image, runs, run, device):
        problem, classes = (answer, []) if isinstance(answer, str) else (None, answer)
        print(f"{path}: " + (problem or ", ".join(f"{name} {share:.1%}" for name, share in classes)))
        named = [{"name": name, "probability": share} for name, share in classes]
        found.append({"image": path, "classes": named, "problem": problem})
    return Answer(found, int(any(each["problem"] for each in found)))


@command("sweep", many={
    "settings": "those that vary, by name", "seed": "number", "run": "id", "results": "of the run, or null",
    "problem": "why there are none, or empty",
})  # fmt: skip
def sweep(
    experiment: str = argument(help="", choices=tuple(EXPERIMENTS), extensible=True, metavar="EXPERIMENT"),
    settings: tuple[str, ...] = argument(
        (), "settings of the experiment, with one value or more; those of its own command, with _ for -",
        metavar="NAME=VALUE,VALUE",
    ),
    seeds: tuple[int, ...] = setting((0, 1, 2), "of the trainings of each combination or trial", minimum=0),
    sampler: str | None = setting(
        None, "make trials instead of every combination: at random, or nearer to the best ones (tpe)",
        choices=("random", "tpe"),
    ),
    trials: int | None = setting(None, "of the sampler (default 20)", minimum=1),
    seed: int | None = setting(None, "of the sampler (default 0)", minimum=0),
    engine: str = setting("local", "one after the other (default), or on Ray", choices=("local", "ray")),
    cores: int = setting(1, "of each training on Ray", minimum=1),
    runs: RunStore = RUNS,
) -> Answer:  # fmt: skip
    """Train an experiment with several settings and seeds: here, or on the machines of a Ray cluster.

    `edgelearn sweep federated strategy=fedavg,fedyogi rounds=5 --seeds 0 1 2 --engine ray` makes six runs. With a
    sampler, settings also have ranges: `fraction=0.1..1 server_rate=0.001..1:log --sampler tpe --trials 30`. What is
    finished in the run store isn't trained again, and what was interrupted goes on: repeat the command after a kill."""
    from edgelearn.experiments.experiment import Experiment
    from edgelearn.experiments.sweep import Job, Range, Sampler, combine, in_turn, on_ray, search

    chosen: Any = import_object(EXPERIMENTS.get(experiment, experiment))
    if not isinstance(chosen, Experiment):
        raise ExtensionError(f"'{experiment}' is no Experiment, but {chosen!r:.80}.")
    if sampler is None and (trials is not None or seed is not None):
        raise UsageError("--trials and --seed are of a sampler: add --sampler random or --sampler tpe.")
    given = dict(_values(chosen.config_type, each, sampler is not None) for each in settings)
    varied = {name: values for name, values in given.items() if isinstance(values, Range) or len(values) > 1}
    shared = chosen.config_type(**{name: values[0] for name, values in given.items() if name not in varied})

    def jobs(combinations: dict[str, Any]) -> list[Job]:
        return [Job(chosen, config, str(runs.root)) for config in combine(shared, combinations, seeds)]

    run_jobs = in_turn if engine == "local" else on_ray(cores)
    if sampler is None:
        work = jobs(varied)
        ended = ((number // len(seeds), work[number], outcome) for number, outcome in run_jobs(work))
        count = len(work)
    else:
        count = (trials or 20) * len(seeds)
        ended = search(
            Sampler(sampler, varied, seed or 0), trials or 20,
            lambda proposed: jobs({name: [value] for name, value in proposed.items()}), run_jobs,
        )  # fmt: skip
    found: list[Trained] = []
    for trial, job, outcome in ended:
        values = {name: getattr(job.config, name) for name in varied}
        found.append(Trained(trial, values, job.config.to_dict()["seed"], outcome))
        shown = ", ".join(f"{name} {_shown(value)}" for name, value in (values | {"seed": found[-1].seed}).items())
        print(f"{len(found)} of {count}: {shown}: {_result(outcome)}")
    found.sort(key=lambda each: (each.trial, seeds.index(each.seed)))
    _print_means(found, list(varied), numbered=sampler is not None)
    return Answer(
        [
            {"settings": each.settings, "seed": each.seed}
            | {entry.name: getattr(each.outcome, entry.name) for entry in fields(each.outcome)}
            for each in found
        ],
        int(any(each.outcome.problem for each in found)),
    )


@dataclass(frozen=True)
class Trained:
    """A training of a sweep. `trial`: number of its combination of settings; `settings`: those that vary, by name."""

    trial: int
    settings: dict[str, Any]
    seed: int
    outcome: Outcome


def _values(config: type[Config], text: str, sampled: bool) -> tuple[str, Any]:
    """The name of a setting and its values from NAME=VALUE,VALUE, or its range from NAME=LOW..HIGH."""
    from edgelearn.experiments.sweep import parse_range

    name, equals, values = text.partition("=")
    name = name.replace("-", "_")
    if not equals:
        raise RunError(f"'{text}' is no setting: write NAME=VALUE or NAME=VALUE,VALUE.")
    each = find_setting(config, name)
    if name == "seed":
        raise ConfigError(name, "give seeds by --seeds.")
    if found := parse_range(each, values):
        if not sampled or each.many:
            remedy = (
                "a setting of several values has no range." if sampled else "a range needs --sampler random or tpe."
            )
            raise ConfigError(name, remedy)
        return name, found
    several = [_value(each, value) for value in values.split(",")]
    return name, [tuple(several)] if each.many else several


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _value(each: Setting, text: str) -> Any:
    if text == NONE and (each.optional or each.many):
        return None if each.optional else ()
    try:
        return {"yes": True, "no": False}[text] if each.type is bool else each.type(text)
    except (KeyError, ValueError):
        expected = "yes or no" if each.type is bool else each.type.__name__
        raise ConfigError(each.name, f"expected {expected}, got '{text}'.") from None


def _result(outcome: Outcome) -> str:
    if outcome.results is None:
        return f"failed: {outcome.problem}"
    accuracy = outcome.results.get("accuracy")
    return f"{outcome.run}" + (f", accuracy {accuracy:.2%}" if accuracy is not None else "")


def _print_means(trainings: Sequence[Trained], varied: Sequence[str], numbered: bool) -> None:
    """A row for each combination of settings: mean and 95 % interval of the accuracy over its seeds. `numbered`: they
    are trials, and the best comes first; a training that failed counts as 0 there."""
    groups: dict[int, list[Trained]] = {}
    for each in trainings:
        groups.setdefault(each.trial, []).append(each)
    rows = []
    for trial, group in groups.items():
        results = [each.outcome.results for each in group if each.outcome.results is not None]
        found = [each["accuracy"] for each in results if each.get("accuracy") is not None]
        shown = f"{sum(found) / len(found):.2%}" if found else ""
        if len(found) > 1:
            shown += f" ± {interval(found).margin:.2%}"
        values = [_shown(value) for value in group[0].settings.values()]
        number = [str(trial)] if numbered else []
        rows.append((sum(found) / len(group), (*number, *values, f"{len(results)} of {len(group)}", shown)))
    if numbered:
        rows.sort(key=lambda row: -row[0])
    heads = ["trial"] if numbered else []
    show(Table((*heads, *varied, "seeds", "accuracy ± 95 %"), [row for _, row in rows]))
