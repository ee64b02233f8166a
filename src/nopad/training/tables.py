"""The tables of a configuration of `nopad train`: one frozen dataclass each, with the same fields as in the file.

Each dataclass checks that its fields fit each other. The type of each field is checked before, by
`nopad.training.config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, Literal

from nopad.corpus.options import Empty, OnBadRecord, TextUnit
from nopad.errors import OptionError
from nopad.files import local_path
from nopad.loading.groups import Together
from nopad.loading.legs import Last
from nopad.options import is_number
from nopad.planning.registry import check_algorithm, complete_options
from nopad.training.scaling import How
from nopad.training.schedules import Schedule

__all__ = ["CHOOSES", "TABLES", "Data", "Model", "Optimizer", "Output", "Packing", "TaskTable", "TrainConfig"]

# The field that an optional table must have
CHOOSES = {"optimizer": "name", "schedule": "counts"}


@dataclass(frozen=True, kw_only=True)
class Model:
    """``[model]``: which model is trained.

    Attributes:
        name: a folder or a name on the hub, which gives configuration, tokenizer and (without `init_from`) weights.
        init_from: a checkpoint, or the folder of a run, with whose weights training begins (`--init-from`).
        tokenizer: a folder or a name on the hub whose tokenizer replaces the model's.
        fresh: whether to begin with random weights.
        dtype: dtype of the parameters.
        backend: how attention keeps sequences apart (`nopad.packed`).
        config: fields of the model's configuration to change, such as a dropout.
        lora: options of `peft.LoraConfig`; if there are any, only adapters are trained, and modules that peft trains as
            a whole, such as a new head.

    Raises:
        OptionError: neither `name` nor `init_from` is given, or both `fresh` and `init_from`.
    """

    name: str | None = None
    init_from: str | None = None
    tokenizer: str | None = None
    fresh: bool = False
    dtype: Literal["float32", "bfloat16", "float16", "float64"] = "float32"
    backend: str = "auto"
    config: Mapping[str, Any] = field(default_factory=dict)
    lora: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name is None and self.init_from is None:
            raise OptionError("model.name is missing: a folder with a model, or a name on the hub")
        if self.fresh and self.init_from is not None:
            raise OptionError("model.fresh means random weights, and model.init_from gives some; leave one out")


@dataclass(frozen=True, kw_only=True)
class Data:
    """``[data]``: what the model is trained and evaluated on.

    Attributes:
        train: files or folders of records (with a task), or one place where tokens are stored: a packed dataset, a
            folder of arrays, or another source that `nopad.loading.sources.open_tokens` reads.
        eval: the evaluation data, in one of the forms that `train` may have. Without it, the validation split of a
            packed dataset is used, if there is one.
        empty: what happens to a record, or a stored sequence, without a token: "skip" leaves it out and counts it,
            "error" stops. None: "skip" if the task has the option `empty`, "error" for stored tokens. For a task that
            reads records and has no such option, `nopad train` refuses any value but None.
        on_bad_record: what happens to a record that cannot be decoded: "error" stops, "skip" leaves it out and counts
            it.
        text_unit: what a record of a text file is: each "line", each "paragraph" (between empty lines), or the whole
            "file"; None: a line, or a paragraph for the task ``pretrain``.
        held_out: share of the training records, from 0 to below 1, that is used for evaluation instead of training;
            drawn with ``trainer.data_seed``, or ``trainer.seed`` without it.

    Raises:
        OptionError: `train` is missing, a name in `train` or `eval` is empty, `held_out` is out of range, or both
            `held_out` and `eval` are given.
    """

    train: tuple[str, ...] | str = ()
    eval: tuple[str, ...] | str = ()
    empty: Empty | None = None
    on_bad_record: OnBadRecord = "error"
    text_unit: TextUnit | None = None
    held_out: float = 0.0

    def __post_init__(self) -> None:
        for name in ("train", "eval"):
            given = getattr(self, name)
            object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given))
            if not all(getattr(self, name)):
                raise OptionError(f"data.{name} has an empty name; give files or folders")
        if not self.train:
            raise OptionError("data.train is missing: files or folders of records, or a packed dataset")
        if not is_number(self.held_out) or not 0 <= self.held_out < 1:
            raise OptionError(f"data.held_out is {self.held_out}; it is a share of the records, from 0 to below 1")
        if self.held_out and self.eval:
            raise OptionError("data.held_out and data.eval are two ways to have an evaluation; give one of them")


@dataclass(frozen=True, kw_only=True)
class TaskTable:
    """``[task]``: the task that turns records into sequences and says what is learned.

    Attributes:
        name: name of a task (`nopad.tasks`); None: the data are tokens, and the model's head decides what is learned.
        options: the task's options by name: labels, text, max_length, ...
    """

    name: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Packing:
    """``[packing]``: options of `nopad.PackedLoader`.

    Attributes:
        capacity: most tokens of a pack. None: the rows of a packed dataset are used unchanged. For records, without
            `tokens` and `sequences`, None means the smaller of 2,048 and the model's number of positions, but at least
            ``task.max_length``.
        rows, tokens, sequences: number of rows, tokens or sequences that a rank takes per micro-step; give at most one
            of them. If none is given, a rank takes as many rows as 8 sequences of average length fill, or one row if
            the data are stored tokens.
        token_cap: with `sequences`, most tokens that a rank takes per micro-step.
        depth, algorithm, options: how packs are planned, as in `nopad.plan`.
        cost: the cost model by which ranks are balanced: "tokens", or "attention:HIDDEN_SIZE".
        last: as in `nopad.PackedLoader`; by default ("short"), the last step of an epoch has fewer rows if not enough
            packs are left.
        accumulation, balance, align, together, prefetch: as in `nopad.PackedLoader`.
        correction: how hyper-parameters that were tuned without packs are corrected by the packing factor
            (`nopad.training.scale_for_packing`): "accumulation", "betas" or "none".

    Raises:
        OptionError: two of `rows`, `tokens` and `sequences` are given, a number other than `prefetch` is below 1, there
            is no such algorithm, or the algorithm does not have one of `options` or does not allow its value.
    """

    capacity: int | None = None
    rows: int | None = None
    tokens: int | None = None
    sequences: int | None = None
    token_cap: int | None = None
    accumulation: int = 1
    last: Last = "short"
    balance: str = "karmarkar_karp"
    cost: str = "tokens"
    align: int = 1
    together: Together = "rank"
    prefetch: int = 2
    depth: int | None = None
    algorithm: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)
    correction: How = "none"

    def __post_init__(self) -> None:
        given = [name for name in ("rows", "tokens", "sequences") if getattr(self, name) is not None]
        if len(given) > 1:
            raise OptionError(f"packing.{given[0]} and packing.{given[1]} both say what a micro-step is; give one")
        for name in ("capacity", "rows", "tokens", "sequences", "token_cap", "accumulation", "align", "depth"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"packing.{name} is {value}, and must be at least 1")
        check_algorithm(self.algorithm)
        complete_options(self.algorithm, self.options)

    def plan_options(self) -> dict[str, Any]:
        """Return the options of `nopad.plan` that this table gives, without a `depth` or `algorithm` at its default."""
        made = dict(self.options)
        if self.depth is not None:
            made["depth"] = self.depth
        return made | ({"algorithm": self.algorithm} if self.algorithm != "auto" else {})


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """``[optimizer]``: an optimiser of nopad, in place of ``trainer.optim``.

    Its learning rate, betas, eps and weight decay are ``trainer.learning_rate``, ``adam_beta1``, ``adam_beta2``,
    ``adam_epsilon`` and ``weight_decay``; the last two default to MLPerf's 1e-6 and 0.01. Gradients are clipped by
    ``trainer.max_grad_norm``.

    Attributes:
        name: "lamb".
        bias_correction, max_weight_norm, max_trust_ratio, adapt_undecayed, foreach: see `nopad.training.Lamb`.
    """

    name: Literal["lamb"]
    bias_correction: bool = True
    max_weight_norm: float | None = None
    max_trust_ratio: float | None = None
    adapt_undecayed: bool = False
    foreach: bool | None = None

    def switches(self) -> dict[str, Any]:
        """Return those fields of this table that are options of `nopad.training.Lamb`, by name."""
        return {name: value for name, value in asdict(self).items() if name != "name"}


@dataclass(frozen=True, kw_only=True)
class Output:
    """``[output]``: where checkpoints and results are written.

    Attributes:
        folder: folder for checkpoints, metrics and the trained model: a new or empty one, or that of a resumed run.

    Raises:
        OptionError: `folder` is missing, is a URL, or cannot be written in UTF-8.
    """

    folder: str = ""

    def __post_init__(self) -> None:
        if not self.folder:
            raise OptionError("output.folder is missing: where checkpoints and the trained model go")
        local_path(self.folder)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The configuration of a run: one attribute for each table of the file. `read_config` reads one from a file.

    Raises:
        OptionError: two tables contradict each other: ``[optimizer]`` and ``trainer.optim`` are both given;
            ``trainer.weight_decay`` is 0, and ``[optimizer]`` does not set `adapt_undecayed`; or ``[schedule]`` is
            given, and a field of ``[trainer]`` for the Trainer's own schedule.
    """

    model: Model
    data: Data
    output: Output
    task: TaskTable = field(default_factory=TaskTable)
    packing: Packing = field(default_factory=Packing)
    optimizer: Optimizer | None = None
    schedule: Schedule | None = None
    trainer: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.optimizer is not None and "optim" in self.trainer:
            raise OptionError(
                f"optimizer.name is {self.optimizer.name!r}, and trainer.optim another one; leave one out"
            )
        if self.optimizer is not None and not self.optimizer.adapt_undecayed and self.trainer.get("weight_decay") == 0:
            raise OptionError(
                "trainer.weight_decay is 0, and LAMB adapts only what has decay, so this would be Adam; leave it out "
                "(0.01), or set optimizer.adapt_undecayed"
            )
        for name in ("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "warmup_ratio"):
            if self.schedule is not None and name in self.trainer:
                raise OptionError(f"trainer.{name} and [schedule] both say what the learning rate does; leave one out")

    def document(self) -> dict[str, dict[str, Any]]:
        """Return the tables as dicts by name, without fields that have their defaults, and without empty tables.

        Some fields are kept even at their defaults: those of ``[trainer]``, the options of ``[task]``, and the fields
        that choose an optimizer (``name``) or a schedule (``counts``).
        """
        made: dict[str, dict[str, Any]] = {}
        for table in fields(self):
            value = getattr(self, table.name)
            if table.name == "trainer":
                made["trainer"] = dict(value)
            elif table.name == "task":
                made["task"] = ({"name": value.name} if value.name else {}) | dict(value.options)
            elif value is not None:
                kept = CHOOSES.get(table.name)
                usual = {one.name: _default(one) for one in fields(value) if one.name != kept}
                made[table.name] = {
                    name: one for name, one in asdict(value).items() if name not in usual or one != usual[name]
                }
        return {name: values for name, values in made.items() if values}


def _default(one: Any) -> Any:
    return one.default if one.default is not MISSING else one.default_factory()


TABLES: dict[str, Any] = {"model": Model, "data": Data, "task": TaskTable, "packing": Packing}
TABLES |= {"optimizer": Optimizer, "schedule": Schedule, "trainer": None, "output": Output}
