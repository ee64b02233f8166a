"""All errors of nopad, in one tree.

NopadError
├── InputError              an argument or input cannot be used                    exit 2
│   ├── LengthError         a length is 0, negative, not an integer, above capacity
│   ├── OptionError         an option has an invalid value: unknown algorithm, depth < 1, ...
│   ├── FormatError         a file or saved state is not what it claims to be: histogram, plan, packs, ...
│   ├── PlanMismatchError   a plan, packs or a saved state are for other lengths, data or settings
│   ├── SourceError         an input is missing, unreadable, was changed, or holds nothing usable
│   ├── RecordError         one record of a corpus is bad: file, line, reason
│   ├── BalanceError        sequences or packs cannot be divided among ranks, or a cost is invalid
│   ├── BatchError          a packed batch cannot be built, or does not fit the model: columns, device, dtype
│   └── UnsupportedModelError   sequences of this model cannot be kept apart, or no proof exists that they are
├── NotPackSafeError        a packed batch was given to a model that is not pack-safe   exit 2
├── OutputError             the result cannot be written to this place             exit 2
│   ├── OutputExistsError   the folder already holds something else
│   ├── OutputBusyError     another process is writing there
│   └── ResumeError         the unfinished job there was started with other inputs or settings
├── ServingError            a request was not answered                             exit 1
│   ├── QueueFullError      too many tokens wait already
│   ├── DeadlineError       its deadline has passed, or cannot be met
│   ├── RequestError        the model fails for this request, or gives NaN
│   └── RunnerClosedError   the runner was closed, or its worker died
├── TrainingError           a training step failed                                  exit 1
│   ├── LossError           the loss of a micro-batch is NaN or infinite
│   └── DeviceMemoryError   a step needs more memory than the device has
├── StorageError            the disk is full, or a read or write failed            exit 3
├── CorruptError            a packed dataset is damaged or incomplete              exit 1
├── InterruptedJobError     stopped by the user; run again to resume               exit 130
└── MissingExtraError       an optional part is not installed (also an ImportError)  exit 2

Messages say what was wrong (index, value), what is allowed, and what to do. Catch `NopadError` to catch every error
above. An `InputError` and all its subclasses are also a `ValueError`.
"""

from __future__ import annotations

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


def install(extra: str) -> str:
    """Return, for error messages, the commands that install nopad with `extra`: from an index, or in a clone.

    >>> install("report")
    "pip install 'nopad[report]', or in a clone pip install -e '.[report]'"
    """
    return f"pip install 'nopad[{extra}]', or in a clone pip install -e '.[{extra}]'"


class NopadError(Exception):
    """Base class of all errors that nopad raises on purpose."""

    exit_code = 2


class InputError(NopadError, ValueError):
    """An argument or input cannot be used."""


class LengthError(InputError):
    """A sequence length is 0, negative, not an integer, or above the capacity."""


class OptionError(InputError):
    """An option has an invalid value."""


class FormatError(InputError):
    """A file (histogram, plan, packs, tokenizer, ...) or a saved state is not what it claims to be, or is damaged."""


class PlanMismatchError(InputError):
    """A plan, packs or a saved state are for other lengths, data or settings than those they are used with."""


class SourceError(InputError):
    """An input is missing, unreadable, was changed while in use, or holds nothing usable."""


class RecordError(InputError):
    """One record of a corpus is bad; the message gives the file, the line and the reason."""


class BalanceError(InputError):
    """Sequences or packs cannot be divided among the ranks (too few, over the cap), or a cost is invalid."""


class BatchError(InputError):
    """A packed batch cannot be built from the given data, or does not fit the model that it is given to."""


class UnsupportedModelError(InputError):
    """This model cannot keep the sequences of a pack apart, or no proof exists that it does."""


class NotPackSafeError(NopadError, AttributeError, TypeError):
    """A packed batch was given to a model that would let its sequences see each other.

    Also an AttributeError, so that `hasattr` on the batch's attention mask returns False instead of raising, and a
    TypeError.
    """


class OutputError(NopadError):
    """The result cannot be written to this place."""


class OutputExistsError(OutputError):
    """The output folder already holds something else."""


class OutputBusyError(OutputError):
    """Another process is writing to the output folder."""


class ResumeError(OutputError):
    """The unfinished job in the output folder was started with other inputs or settings."""


class ServingError(NopadError):
    """A request was not answered."""

    exit_code = 1


class QueueFullError(ServingError):
    """Too many tokens wait already; the request may be sent again later."""


class DeadlineError(ServingError):
    """The deadline of a request has passed before it ran, or cannot be met."""


class RequestError(ServingError):
    """The model fails for this one request, or gives NaN for it; the others of its batch are answered."""


class RunnerClosedError(ServingError):
    """The runner was closed, or its worker died, before the request ran."""


class TrainingError(NopadError):
    """A training step failed."""

    exit_code = 1


class LossError(TrainingError):
    """The loss of a micro-batch is NaN or infinite."""


class DeviceMemoryError(TrainingError):
    """A training step needs more memory than the device has."""


class StorageError(NopadError):
    """The disk is full, or a read or write failed."""

    exit_code = 3


class CorruptError(NopadError):
    """A packed dataset is damaged or incomplete."""

    exit_code = 1


class InterruptedJobError(NopadError):
    """The user stopped a job; running it again resumes it."""

    exit_code = 130


class MissingExtraError(NopadError, ImportError):
    """An optional part of nopad (an extra) is not installed."""
