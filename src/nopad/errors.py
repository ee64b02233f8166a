"""All errors of nopad, in one tree.

NopadError
├── InputError              an argument or input cannot be used                    exit 2
│   ├── LengthError         a length is 0, negative, not an integer, or above a limit
│   ├── OptionError         an option is unknown, invalid, or does not fit the data or other options
│   ├── FormatError         a file, model or saved state is missing, damaged, or not what it claims to be
│   ├── PlanMismatchError   a plan, packs or a saved state are for other lengths, data or settings
│   ├── SourceError         an input is missing, unreadable, was changed, or has an unexpected form
│   ├── RecordError         a record is bad (the message says which one and why), or too few are usable
│   ├── BalanceError        sequences or packs cannot be divided among ranks, or a cost is invalid
│   ├── BatchError          a packed batch cannot be built, or data do not fit it or the model
│   └── UnsupportedModelError   this model cannot run on packs as asked, or no proof exists that it can
├── NotPackSafeError        a packed batch was given to a model that is not pack-safe   exit 2
├── OutputError             the result cannot be written to this folder            exit 2
│   ├── OutputExistsError   the path is a file, or the folder already holds something else
│   ├── OutputBusyError     another process is writing to this folder
│   └── ResumeError         the job there cannot be resumed: other inputs or settings, damage, nothing to resume
├── ServingError            a request was not answered, or waiting would never end  exit 1
│   ├── QueueFullError      too many tokens wait already
│   ├── DeadlineError       the deadline of a request has passed, or cannot be met
│   ├── RequestError        the model gives no usable result for this request
│   └── RunnerClosedError   the runner was closed, its worker thread died, or it belongs to another process
├── TrainingError           a training step failed                                  exit 1
│   ├── LossError           the loss of a micro-batch is NaN or infinite
│   └── DeviceMemoryError   a step needs more memory than the device has
├── StorageError            the disk is full, or reading or writing failed         exit 3
├── CorruptError            files that nopad wrote are damaged or incomplete       exit 1
├── InterruptedJobError     the user stopped a job; run it again to resume it      exit 130
└── MissingExtraError       an optional package is not installed (also an ImportError)  exit 2

The exit code is that of the command `nopad` if the error ends it. Messages say what was wrong (index, value), what is
allowed, and what to do. Catch `NopadError` to catch every error above. An `InputError` and all its subclasses are also
a `ValueError`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "BalanceError",
    "BatchError",
    "CorruptError",
    "DeadlineError",
    "DeviceMemoryError",
    "FormatError",
    "InputError",
    "InterruptedJobError",
    "LengthError",
    "LossError",
    "MissingExtraError",
    "NopadError",
    "NotPackSafeError",
    "OptionError",
    "OutputBusyError",
    "OutputError",
    "OutputExistsError",
    "PlanMismatchError",
    "QueueFullError",
    "RecordError",
    "RequestError",
    "ResumeError",
    "RunnerClosedError",
    "ServingError",
    "SourceError",
    "StorageError",
    "TrainingError",
    "UnsupportedModelError",
]


# What ends a user's code early. If SystemExit got through, `sys.exit(0)` in it would end an audit as if it had passed.
FOREIGN: tuple[type[BaseException], ...] = (Exception, SystemExit)


def install(extra: str, *others: str) -> str:
    """Return the command that installs the optional packages of `extra`, as text for error messages.

    It is run in a clone of the repository, since nopad is in no package index yet. `others` are packages that belong to
    no extra, and are installed too.

    >>> install("report")
    "in a clone: pip install -e '.[report]'"
    >>> install("train", "trl")
    "in a clone: pip install -e '.[train]' trl"
    """
    return " ".join((f"in a clone: pip install -e '.[{extra}]'", *others))


# What the parts that need an extra import; the extra `train` also has what only some runs use.
_PACKAGES = {"torch": ("torch", "transformers"), "train": ("torch", "transformers", "accelerate")}


def check_extra(what: str, extra: str, *others: str) -> None:
    """Check that the packages of an extra are installed, without importing them.

    `extra` is "torch" or "train"; `others` are further packages to check, which belong to no extra. In the message,
    `what` stands for the part of nopad that needs the packages, such as "training".

    Raises:
        MissingExtraError: a package is not installed; the message names it, and the command that installs it.
    """
    for name in (*_PACKAGES[extra], *others):
        if find_spec(name) is None:
            raise MissingExtraError(f"{what} needs {name}; {install(extra, *others)}")


def load_torch(what: str) -> Any:
    """Return the module torch; `what` says in the message what needs torch.

    Raises:
        MissingExtraError: torch, or a package that torch needs, is not installed.
    """
    try:
        return import_module("torch")
    except ImportError as error:
        raise MissingExtraError(f"{what} needs {error.name}; {install('torch')}") from error


class NopadError(Exception):
    """Base class of nopad's errors; catching it catches all of them.

    `exit_code` is the exit code of the command `nopad` if this error ends it.
    """

    exit_code = 2


class InputError(NopadError, ValueError):
    """An argument or an input cannot be used; the subclasses say why. It is a ValueError too.

    `placed` is True if the message names the place in the input already, such as ``a.jsonl, line 7``.
    """

    placed = False


class LengthError(InputError):
    """A sequence length is 0, negative, not an integer, or above the capacity or another limit.

    Also raised if lengths or counts have an unexpected shape or range, or if there are no sequences or too many.
    """


class OptionError(InputError):
    """An option is unknown, has an invalid value, or does not fit the data or other options."""


class FormatError(InputError):
    """A file (histogram, plan, packs, ...), a folder or a saved state cannot be read, or is not what it claims to be.

    The file is missing, unreadable, damaged, or of another kind or version. Also raised for a tokenizer or a model that
    cannot be loaded or used, and for a certificate (the proof of a plan's lower bound) that cannot be checked.
    """


class PlanMismatchError(InputError):
    """A plan, packs or a saved state are for other lengths, data or settings than those they are used with."""


class SourceError(InputError):
    """An input is missing, unreadable, was changed while in use, has an unexpected form, or holds nothing usable."""


class RecordError(InputError):
    """A record is bad, and the message says which one and why; or too few records are usable."""


class BalanceError(InputError):
    """Sequences or packs cannot be divided among ranks, or a cost is invalid.

    For example, there are too few of them, or one has more tokens than a rank may get in a step.
    """


class BatchError(InputError):
    """A packed batch cannot be built from the given data, or does not fit the model that it is given to.

    Also raised for data that do not fit a batch (labels, weights, results to unpack), and for requests, collated
    batches and losses that do not have the expected form.
    """


class UnsupportedModelError(InputError):
    """A model cannot run on packs in the way that was asked.

    For example:

    * the model does not keep the sequences of a pack apart, or no proof exists that it does
    * nopad does not know the model's head, its results, or the loss by which it learns
    * the model cannot be compiled
    * the model cannot be cut to its first layers for an audit
    """


class NotPackSafeError(NopadError, AttributeError, TypeError):
    """A packed batch was used as an ordinary one, such as by a model that is not pack-safe.

    In such a model, the sequences of a row would see each other. The error is also a TypeError; and it is an
    AttributeError, so that ``hasattr`` on the batch's attention mask returns False instead of raising.
    """


class OutputError(NopadError):
    """The result cannot be written to the output folder; the subclasses say why."""


class OutputExistsError(OutputError):
    """The output path is a file, or the folder already holds other files, or the result of another job."""


class OutputBusyError(OutputError):
    """Another process is writing to the output folder."""


class ResumeError(OutputError):
    """The job (packing or training) in the output folder cannot be resumed.

    There are four causes:

    * the job was started with other inputs or settings, or its input has changed since
    * its files are damaged or missing, or contradict each other
    * there is no training run to resume
    * the training run has no checkpoint from which it could go on, or one without the state of the optimiser
    """


class ServingError(NopadError):
    """A request was not answered.

    Also raised if waiting would never end: a callback waits for its own runner, which goes on only when the callback
    has returned.
    """

    exit_code = 1


class QueueFullError(ServingError):
    """Too many tokens wait already; the request may be sent again later."""


class DeadlineError(ServingError):
    """The deadline of a request has passed before it ran, or cannot be met."""


class RequestError(ServingError):
    """The model raised an error for a request, gave NaN or no usable result, or is in training mode.

    The other requests of the batch are answered, unless the cause concerns them too.
    """


class RunnerClosedError(ServingError):
    """The runner was closed, or its worker thread died, before the request ran; or another process made the runner."""


class TrainingError(NopadError):
    """A training step failed."""

    exit_code = 1


class LossError(TrainingError):
    """The loss of a micro-batch is NaN or infinite."""


class DeviceMemoryError(TrainingError):
    """A training step needs more memory than the device has."""


class StorageError(NopadError):
    """The disk is full, reading or writing failed, or a shared folder belongs to another user."""

    exit_code = 3


class CorruptError(NopadError):
    """A packed dataset, or another folder that nopad wrote, is damaged, incomplete, or was changed while in use."""

    exit_code = 1


class InterruptedJobError(NopadError):
    """The user stopped a job, such as packing. To resume it, run the same command or call again."""

    exit_code = 130


class MissingExtraError(NopadError, ImportError):
    """An optional package is not installed; the message says which one, and usually the command that installs it."""
