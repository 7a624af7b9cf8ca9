"""The life of a fit's run folder: from its configuration to its members, figures and result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import torch
from torch import nn

from rppdyn.jobs.config.fit import FitConfig
from rppdyn.jobs.config.preflight import preflight
from rppdyn.jobs.fitting.members import FitSubject
from rppdyn.jobs.plots import draw_pathways
from rppdyn.jobs.results import FitResult
from rppdyn.priors import Evidence
from rppdyn.runs import CheckpointError, Progress, RunFolder, RunFolderError, Session, stop_on_signals
from rppdyn.runs.checkpoints import load_tensors
from rppdyn.runs.files import write_tensors
from rppdyn.runs.workers import torch_threads

__all__ = ["load_members", "pathway_rows", "run_fit", "save_members"]

MEMBERS = "members.pt"
STATE = "state.pt"


def run_fit(config: FitConfig, build: Callable[[], FitSubject], *, resume: bool, progress: bool) -> FitResult:
    """Fit into the configuration's run folder, measure the finished members, and leave them, the figures and the result there.

    Args:
        build: the configured task and members.
        resume: go on from the folder's last checkpoint; start where there is no folder yet.
        progress: show a bar on standard error.
    Raises:
        RunFolderError: the folder exists (without `resume`), is in use, or holds another configuration.
        ConfigError, ValueError: what is configured can't be built; no folder has been made then.
        CheckpointError: the folder's checkpoints are all damaged.
    """
    finished = preflight(config, resume)
    if finished is not None:
        return FitResult.from_dict(finished)
    with Session(config) as run, torch_threads(config.threads, config.seeds), closing(build()) as subject:
        run.begin(
            lambda checkpoint: subject.load_state_dict(load_tensors(checkpoint / STATE)),
            evaluate_every=config.evaluation.every * subject.steps_per_epoch,
            checkpoint_every=config.checkpoint_every * subject.steps_per_epoch,
        )
        done = _fit(subject, run, f"{config.task_name} {config.model_name}", progress)
        stopped = "stopped; a checkpoint was written" if run.saved else "stopped"
        folder = run.folder
        result = FitResult(
            run=str(folder.path),
            verb=config.verb,
            task=config.task_name,
            model=config.model_name,
            seeds=config.all_seeds,
            epochs=config.optimiser.epochs,
            metrics=folder.metrics.last(),
            compiled=subject.compiled,
            interrupted=not done,
            note="" if done else stopped,
        )
        if done:
            subject.give_up()
            with torch.no_grad():
                result.test = subject.test()
            result.pathways = pathway_rows(subject.evidence())
            save_members(subject.module, folder)
            subject.save(folder)
            result.seconds = run.seconds
            run.finish(result)
            if result.pathways:  # figures last: none of them may cost the result
                draw_pathways(result.pathways, folder.figures / "pathways.png")
            subject.draw(folder)
            if config.reports:
                _report(folder)
    return result


def _fit(subject: FitSubject, run: Session, description: str, progress: bool) -> bool:
    """Take the steps that are left; whether all were taken. A stop ends them after a step, or where the step can't end."""
    steps = subject.steps

    def evaluate(step: int) -> None:
        metrics = subject.evaluate()
        run.record(step, metrics)
        bar.show(**subject.headline(metrics))

    with stop_on_signals() as stop, Progress(steps, description=description, enabled=progress) as bar:
        if subject.compiled:
            bar.say("compiling")
        bar.update(run.saved)
        for step in range(run.saved, steps):
            if run.due(step):
                evaluate(step)
            try:
                subject.step(step)
            except Exception:
                if stop:  # ctrl-C ends what the step waits for, too, such as a compiler
                    return False
                raise
            bar.update(step + 1)
            if stop or run.save_due(step + 1) or step + 1 == steps:
                run.checkpoint(step + 1, lambda folder: torch.save(subject.state_dict(), folder / STATE))
            if stop:
                return False
        if run.recorded < steps:
            evaluate(steps)
    return True


def pathway_rows(members: Sequence[Evidence | None]) -> list[dict[str, Any]]:
    """A row for each pathway, its numbers lists over members: ``precision``, ``norm`` of the coefficients, and its shares
    (:meth:`~rppdyn.priors.Evidence.shares`).

    They are None for a member that has no evidence, and there are no rows if none has.
    """
    first = next((one for one in members if one is not None), None)
    if first is None:
        return []
    rows: list[dict[str, Any]] = [
        {"layer": p.layer, "pathway": p.name, "coefficients": int(count)}
        for p, count in zip(first.pathways, first.counts, strict=True)
    ]
    for one in members:
        values = {} if one is None else _numbers(one)
        for i, row in enumerate(rows):
            for name in ("precision", "norm", "effective", "normalised", "relative"):
                row.setdefault(name, []).append(values[name][i] if values else None)
    return rows


def _numbers(one: Evidence) -> dict[str, list[float]]:
    precision = (-one.log_variances.detach()).exp().tolist()
    return {"precision": precision, "norm": one.squared_norms.sqrt().tolist()} | {
        name: values.tolist() for name, values in one.shares().items()
    }


def _report(folder: RunFolder) -> None:
    """The page of this run alone."""
    from rppdyn.jobs import report
    from rppdyn.jobs.config.command import ReportConfig

    report.run(ReportConfig(runs=[str(folder.path)], out=str(folder.path / "report.html")))


def save_members(module: nn.Module, folder: RunFolder) -> None:
    """The fitted members' parameters, tensors alone."""
    write_tensors(folder.path / MEMBERS, module.state_dict())


def load_members(module: nn.Module, folder: RunFolder) -> None:
    """Give a stack, or what contains one, the parameters of a finished run.

    Raises:
        RunFolderError: the run is unfinished, or the file is damaged or of another network.
    """
    path = folder.path / MEMBERS
    if folder.result() is None:
        raise RunFolderError(f"{folder.path} is unfinished: let it go on with --resume {folder.path}")
    try:
        module.load_state_dict(load_tensors(path))
    except CheckpointError as error:
        state, both = ("damaged", f"it and {folder.result_file}") if path.exists() else ("missing", folder.result_file)
        raise RunFolderError(
            f"{path} is {state}: delete {both}, and use --resume {folder.path} to write both again"
        ) from error
    except (RuntimeError, TypeError) as error:
        raise RunFolderError(
            f"{path} is of another network than config.yaml says: delete the folder and fit again"
        ) from error
