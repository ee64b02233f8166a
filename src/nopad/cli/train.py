"""``nopad train``: train a model on packs, as a configuration says."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from nopad.cli.render import console
from nopad.cli.train_progress import Bar
from nopad.cli.wording import worded
from nopad.errors import NopadError, OptionError, check_extra

__all__ = ["train"]


def train(
    config: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG.toml",
            help="A TOML file with the tables model, data, task, packing, trainer, output: docs/train-command.md.",
        ),
    ],
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            metavar="TABLE.FIELD=VALUE",
            help="A field in place of the file's, such as trainer.learning_rate=3e-5. Repeatable.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what training would be, and what it needs; train nothing.")
    ] = False,
    init_from: Annotated[
        str | None,
        typer.Option(
            "--init-from", metavar="CHECKPOINT", help="Begin with these weights, and with nothing else of that run."
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in the output folder, exactly where it stopped.")
    ] = False,
) -> None:
    """Train a model on packs, as CONFIG.toml says; Ctrl-C or a kill loses only the steps since the last checkpoint.

    The output folder gets checkpoints, metrics.jsonl, the trained model and its task. Needs the extra train: in a
    clone, pip install -e '.[train]'. On several GPUs: torchrun --nproc-per-node 8 -m nopad train CONFIG.toml

    Examples:
      nopad train config.toml --dry-run

      nopad train config.toml --set trainer.learning_rate=3e-5 --set output.folder=runs/b

      nopad train config.toml --resume

      nopad train phase2.toml --init-from runs/phase1
    """
    if resume and init_from is not None:
        raise OptionError("--resume goes on with a run, and --init-from begins one with weights of another; give one")
    from nopad.loading.ranks import Ranks

    first = Ranks.found().rank == 0
    screen = console() if first else None
    with _once(first):
        check_extra("nopad train", "train")
        from nopad.training.config import read_config
        from nopad.training.folder import RunFolder
        from nopad.training.progress import is_metric
        from nopad.training.ready import prepare
        from nopad.training.run import train as run
        from nopad.training.saving import way_on

        found = read_config(config, changes or (), init_from=init_from)
        if dry_run:
            with tempfile.TemporaryDirectory() as cache:
                said = str(prepare(found, Path(cache)))
            _say(screen, said)
            return
        folder = RunFolder(found.output.folder)
    try:
        with _once(first):
            if first:
                folder.take(found, resume=resume)
            longer = resume and folder.is_longer(found)
            if resume and not longer and (steps := folder.facts().get("finished")) is not None:
                _say(screen, f"the run in {folder.path} is over, after {steps:,} steps; its model is there")
                return
            prepared = prepare(found, folder.cache)
            per_step = _per_step(prepared.config)
            if first and resume:
                folder.check_run(per_step, prepared.data)
        _say(screen, str(prepared))
        with Bar(shown=first) as bar:
            metrics = run(
                prepared,
                folder,
                resume=resume,
                begin=None
                if resume and not longer
                else lambda: folder.begin(found, per_step=per_step, data=prepared.data),
                say=lambda line: _say(screen, line),
                tell=lambda logged: _say(screen, str(logged)),
                step=bar.step,
            )
    except KeyboardInterrupt:
        if first and folder.facts():
            _say(Console(stderr=True), f"nopad: {way_on(folder.path)}")
        raise
    finally:
        folder.leave()
    if metrics:
        values = (f"{name.removeprefix('eval_')} {value:.4g}" for name, value in metrics.items() if is_metric(name))
        _say(screen, f"result   {', '.join(values)}")
    _say(screen, f"saved    {folder.path}")


def _per_step(config: Any) -> str:
    """Return the size of an optimiser step, over all ranks and micro-steps, as text, such as "32 rows"."""
    from nopad.loading.ranks import Ranks

    packing, ranks = config.packing, Ranks.found().world_size
    unit = next(name for name in ("rows", "tokens", "sequences") if getattr(packing, name) is not None)
    per_rank = 1 if unit == "tokens" else getattr(packing, unit)
    return f"{per_rank * packing.accumulation * ranks} {'flat rows' if unit == 'tokens' else unit}"


def _say(screen: Any, text: str) -> None:
    """Print a text of the library on `screen`, with options named as in the configuration of `nopad train`.

    If `screen` is None, nothing is printed.
    """
    if screen is not None:
        screen.print(worded(text, "train"), style=None, markup=False, soft_wrap=True)


@contextmanager
def _once(first: bool) -> Iterator[None]:
    """In a ``with`` block, let only the first rank report an error of nopad.

    `first` says whether this process is the first rank. On every other rank, the error ends the process silently, with
    the same exit code.
    """
    try:
        yield
    except NopadError as error:
        if first:
            raise
        raise typer.Exit(error.exit_code) from error
