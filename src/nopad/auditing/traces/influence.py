"""`Trace`: which tokens of a batch change, module by module, when one token is poisoned (replaced by another)."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopad.errors import OptionError
from nopad.files import local_path, write_text
from nopad.properties import cached_property

__all__ = ["Trace"]

Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """How much each token's values change, module by module, when one token of the batch is poisoned.

    To poison a token is to replace it by another one. This may change the values of its own sequence; if it changes
    those of another sequence by more than `limit`, this is a leak. P is the number of poisoned tokens, M the number of
    module outputs, and T the number of tokens in the batch; each of these tokens is a column.

    Attributes:
        model: class name of the model.
        how: the backend or collator that is meant to keep sequences apart.
        modules: names of the modules, in the order in which they finish, then names of the model's outputs; M strings.
        influence: largest change of each token's values in an output, relative to the output's largest value; float64
            ``[P, M, T]``. Infinite: a value is infinite or NaN before or after, and not the same in both. NaN: the
            output has no value for this token, or values of another shape after the change.
        sequences: index of each token's sequence; int64 ``[T]``.
        positions: index of each token in its sequence; int64 ``[T]``.
        rows: index of the batch's row in which each token lies; int64 ``[T]``.
        source: number of columns that are tokens of the sequences; the later ones are tokens of their targets, which
            the decoder of an encoder–decoder reads.
        poisoned: the column of each poisoned token; int64 ``[P]``.
        limit: largest change of another sequence that is not a leak, relative as in `influence`. It is 0 on a CPU, and
            a few roundings on other devices. If another sequence changes by more, the limit becomes a few roundings per
            layer in two cases: the poisoned token changes which tokens are computed together (as in a mixture of
            experts), or where a collator puts the sequences.
        drawn: indices in `modules` of the entries that pictures show: embeddings, layers, the first module that leaks,
            and outputs; int64.
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
        """The largest change of each token by any poisoned token, for each module output; float64 ``[M, T]``.

        The entry is NaN where the output has no value for the token.
        """
        return _most(self.influence)

    @cached_property
    def leaks(self) -> Floats:
        """The largest leak into each token, for each module output; float64 ``[M, T]``, 0 where there is none.

        A leak is a change above `limit` by a poisoned token of another sequence.
        """
        found: Floats = np.nan_to_num(_most(self.leaking), nan=0.0, posinf=math.inf)
        return found

    @cached_property
    def leaking(self) -> Floats:
        """The entries of `influence` that are leaks, and 0 for all other entries; float64 ``[P, M, T]``."""
        other = self.sequences[None, :] != self.sequences[self.poisoned][:, None]
        found: Floats = np.where(other[:, None, :] & (self.influence > self.limit), self.influence, 0.0)
        return found

    @property
    def isolated(self) -> bool:
        """Whether there is no leak in any output of the model.

        If no output of the model can be divided among sequences, the outputs of its modules count instead.
        """
        return not self.leaks[-self.outputs if self.outputs else 0 :].any()

    @property
    def first_leak(self) -> str | None:
        """Name of the first module, or output of the model, in which there is a leak; None: there is no leak."""
        found = np.flatnonzero(self.leaks.any(1))
        return self.modules[found[0]] if found.size else None

    @property
    def reached(self) -> list[int]:
        """Indices of the sequences into which a poisoned token of another sequence leaks in some module, ascending."""
        return [int(number) for number in np.unique(self.sequences[self.leaks.any(0)])]

    def summary(self, named: bool = True) -> str:
        """Return one sentence that says which token was replaced, and which sequences changed because of this.

        If several tokens were replaced, it gives their number instead. With `named`, the sentence begins with the class
        of the model and the backend or collator.
        """
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
        """Return the trace as text: a line for each drawn module, a column for each token, darker for larger changes.

        Args:
            width: most characters of a line of the picture; the summary above it and the legend below it may be
                longer. If the tokens do not fit, neighbours within a sequence share a character. None: as many as
                needed.
            colour: use ANSI colours: blue for the poisoned token's own sequence, orange for leaks. Without colours,
                leaks are the letters x and X.

        Raises:
            OptionError: `width` is too small for one character per sequence.
        """
        from nopad.auditing.traces.text import drawn

        return drawn(self, width, colour)

    def to_svg(self) -> str:
        """Return the trace as an SVG picture, as text.

        The picture adapts to light and dark pages, and shows by how much a cell changed when the pointer is on it.
        """
        from nopad.auditing.traces.svg import picture

        return picture(self)

    def save(self, path: str | Path) -> None:
        """Write the trace to a file: a picture (``.svg``), text (``.txt``) or numbers (``.json``), by its suffix.

        A file that exists is replaced.

        Raises:
            OptionError: the path has another suffix, is a URL or cannot be written in UTF-8, or its folder does not
                exist.
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
        """Return the trace as plain dicts and lists, with the properties `isolated`, `first_leak` and `reached`.

        Changes that are infinite or NaN become None. The attributes `rows`, `source` and `outputs` are left out.
        """

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
        """Return the result of `to_dict` as JSON text."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def __str__(self) -> str:
        return self.draw()


def _most(values: Floats) -> Floats:
    """Return the largest value along the first axis, NaN left out; NaN where all values are NaN."""
    found: Floats = np.where(np.isnan(values).all(0), np.nan, np.nan_to_num(values, nan=-1.0, posinf=np.inf).max(0))
    return found
