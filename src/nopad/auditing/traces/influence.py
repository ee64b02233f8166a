"""`Trace`: which tokens of a batch a poisoned token reaches, module by module."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.errors import OptionError
from nopad.files import local_path, write_text

__all__ = ["Trace"]

Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """How far each token's state moves, module by module, when one token of the batch is replaced by another.

    A token may move those of its own sequence. Where it moves a token of another sequence, sequences leak into each
    other. P is the number of poisoned tokens, M that of module outputs, T that of tokens in the batch.

    Attributes:
        model: class name of the model.
        how: the backend or collator that is meant to keep sequences apart.
        modules: names of the modules, in the order in which they finish, then those of the model's outputs; M strings.
        influence: largest change of each token's values in an output, relative to the output's largest value; float64
            ``[P, M, T]``. Infinite: it became infinite or NaN. NaN: the output has no value for this token.
        sequences: number of each token's sequence; int64 ``[T]``.
        positions: number of each token in its sequence, from 0; int64 ``[T]``.
        rows: number of the row of the batch in which each token lies; int64 ``[T]``.
        source: number of columns that are tokens of the sequences; the others are tokens of their targets.
        poisoned: the column of each poisoned token; int64 ``[P]``.
        limit: largest change of another sequence that is not a leak: 0 on a CPU, else a few roundings.
        drawn: the modules that are drawn: embeddings, layers, the first module that leaks, and outputs; int64.
        outputs: number of the model's outputs, which come last in `modules`.

    >>> import nopad.auditing
    >>> from transformers import BertConfig, BertModel, DataCollatorWithFlattening
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    >>> trace = nopad.auditing.trace(BertModel(BertConfig(**sizes)))
    >>> trace.isolated, trace.influence.shape[2] == len(trace.sequences)
    (True, True)
    """

    model: str
    how: str
    modules: tuple[str, ...]
    influence: Floats
    sequences: Numbers
    positions: Numbers
    rows: Numbers
    source: int
    poisoned: Numbers
    limit: float
    drawn: Numbers
    outputs: int

    @cached_property
    def matrix(self) -> Floats:
        """How far each token moves, by whichever poisoned token moves it most; float64 ``[M, T]``."""
        return _most(self.influence)

    @cached_property
    def leaks(self) -> Floats:
        """How far tokens of one sequence move each token of the others; float64 ``[M, T]``, 0 where nothing leaks."""
        found: Floats = np.nan_to_num(_most(self.leaking), nan=0.0, posinf=math.inf)
        return found

    @cached_property
    def leaking(self) -> Floats:
        """The entries of `influence` that are leaks; 0 elsewhere; float64 ``[P, M, T]``."""
        other = self.sequences[None, :] != self.sequences[self.poisoned][:, None]
        found: Floats = np.where(other[:, None, :] & (self.influence > self.limit), self.influence, 0.0)
        return found

    @property
    def isolated(self) -> bool:
        """Whether no poisoned token moves another sequence in an output of the model.

        If no output of the model can be divided among sequences, its modules decide.
        """
        return not self.leaks[-self.outputs if self.outputs else 0 :].any()

    @property
    def first_leak(self) -> str | None:
        """Name of the first module in which a poisoned token moves another sequence; None: there is none."""
        found = np.flatnonzero(self.leaks.any(1))
        return self.modules[found[0]] if found.size else None

    @property
    def reached(self) -> list[int]:
        """Numbers of the sequences that a poisoned token of another sequence moves in some module, ascending."""
        return [int(number) for number in np.unique(self.sequences[self.leaks.any(0)])]

    def summary(self, named: bool = True) -> str:
        """Return what was poisoned and what it reached, as one sentence; `named`: with the model, and how it is run."""
        tokens = [f"token {self.positions[at]} of sequence {self.sequences[at]}" for at in self.poisoned]
        said = tokens[0] if len(tokens) == 1 else f"{len(tokens)} tokens, one at a time,"
        head = f"{self.model}, {self.how}: {said} replaced" if named else f"{said} replaced"
        if self.first_leak is None:
            return f"{head}; only its own sequence moves" if len(tokens) == 1 else f"{head}; none leaves its sequence"
        numbers = self.reached
        into = f"sequence{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
        most = self.leaks.max()
        tail = f"; LEAKS into {into} from {self.first_leak} on, by up to {most:.1e}"
        return head + (tail if not self.isolated else tail.replace("LEAKS", "moves") + ", but no result shows it")

    def draw(self, width: int | None = None, colour: bool = False) -> str:
        """Return the trace as text: layers down, tokens across, a shade for how far each token moves.

        Args:
            width: number of characters of a line. Where the tokens do not fit, neighbours within a sequence share a
                character. None: as wide as it takes.
            colour: use ANSI colours: blue for the own sequence, orange for leaks. Else leaks are x and X.

        Raises:
            OptionError: `width` is too small for one character per sequence.
        """
        from nopad.auditing.traces.text import drawn

        return drawn(self, width, colour)

    def to_svg(self) -> str:
        """Return the trace as an SVG picture that adapts to light and dark pages and names each value on hover."""
        from nopad.auditing.traces.svg import picture

        return picture(self)

    def save(self, path: str | Path) -> None:
        """Write the trace as a picture (``.svg``), text (``.txt``) or numbers (``.json``).

        Raises:
            OptionError: the path has another suffix, or there is no such folder.
            StorageError: the file cannot be written.
        """
        target = local_path(path)
        makers = {".svg": self.to_svg, ".txt": self.draw, ".json": self.to_json}
        if target.suffix not in makers:
            raise OptionError(f"{target}: a trace is saved as one of {', '.join(makers)}")
        if not target.parent.is_dir():
            raise OptionError(f"{target}: there is no folder {target.parent}; make it, or choose another path")
        write_text(target, makers[target.suffix]())

    def to_dict(self) -> dict[str, Any]:
        """Return the trace as plain dicts and lists; a change that is infinite or NaN becomes None."""

        def plain(row: Floats) -> list[float | None]:
            return [float(value) if math.isfinite(value) else None for value in row]

        return {
            "model": self.model,
            "how": self.how,
            "isolated": self.isolated,
            "first_leak": self.first_leak,
            "reached": self.reached,
            "limit": self.limit,
            "sequences": self.sequences.tolist(),
            "positions": self.positions.tolist(),
            "poisoned": self.poisoned.tolist(),
            "modules": list(self.modules),
            "drawn": self.drawn.tolist(),
            "influence": [[plain(row) for row in each] for each in self.influence],
        }

    def to_json(self) -> str:
        """Return the result of `to_dict` as JSON."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def __str__(self) -> str:
        return self.draw()


def _most(values: Floats) -> Floats:
    """Return the largest of the first axis, without NaN; NaN where all are."""
    found: Floats = np.where(np.isnan(values).all(0), np.nan, np.nan_to_num(values, nan=-1.0, posinf=np.inf).max(0))
    return found
