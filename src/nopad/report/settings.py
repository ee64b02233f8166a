"""`Settings`: the title of a report, and the speed, price and power from which it computes what epochs take."""

from __future__ import annotations

from dataclasses import dataclass

from nopad.errors import OptionError
from nopad.options import Option, is_number, shown

__all__ = ["Settings"]

_COUNTS = {
    "batch_size": Option(default=32, high=2**20, help="sequences in a batch"),
    "rows_per_step": Option(default=None, none=True, help="rows in an optimiser step"),
    "epochs": Option(default=1, help="number of epochs"),
    "of_tokens": Option(default=None, none=True, high=10**18, help="tokens of the whole corpus"),
    "gpus": Option(default=None, none=True, high=2**20, help="number of GPUs"),
}
_RATES = ("tokens_per_second", "price_per_hour", "watts")
LOW, HIGH = 1e-9, 1e15  # so that quotients and products stay finite


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Title of a report, and the numbers from which it computes what epochs take.

    A number is not shown if it needs a rate that is None.

    Attributes:
        title: heading of the page; None: "Packing report:" and the names of its subjects.
        batch_size: number of sequences in a batch with dynamic padding; each batch is padded to its longest sequence.
        rows_per_step: number of rows in an optimiser step, over all GPUs and micro-batches; None: steps are not shown.
        epochs: number of epochs for which the table, the bars and the savings are computed.
        of_tokens: number of tokens in the whole corpus, if the subject is a sample of it. The table, the bars and the
            savings are then extrapolated to this number. None: the subject is the whole corpus.
        tokens_per_second: number of slots (tokens and padding) that one GPU computes per second; None: hours, money and
            energy are not shown.
        price_per_hour: price of one GPU for one hour; needs `tokens_per_second`.
        currency: currency of the price, such as "$" or "EUR"; needs `price_per_hour`.
        watts: power of one GPU, in watts; needs `tokens_per_second`.
        gpus: number of GPUs; needs `tokens_per_second`; None: one.

    Raises:
        OptionError: a number is out of range, or is given without the `tokens_per_second` that it needs; `currency` is
            given without `price_per_hour`; `title` is blank; or a value has a wrong type.
    """

    title: str | None = None
    batch_size: int = 32
    rows_per_step: int | None = None
    epochs: int = 1
    of_tokens: int | None = None
    tokens_per_second: float | None = None
    price_per_hour: float | None = None
    currency: str = ""
    watts: float | None = None
    gpus: int | None = None

    @property
    def span(self) -> str:
        """What the table of the report is about: "an epoch", or a number of epochs such as "3 epochs".

        If the numbers are extrapolated, the number of tokens is added, such as "an epoch of 1,000,000 tokens
        (extrapolated)".
        """
        epochs = "an epoch" if self.epochs == 1 else f"{self.epochs:,} epochs"
        return epochs if self.of_tokens is None else f"{epochs} of {self.of_tokens:,} tokens (extrapolated)"

    def __post_init__(self) -> None:
        for name, option in _COUNTS.items():
            option.check(name, getattr(self, name))
        for name in _RATES:
            value = getattr(self, name)
            if value is not None and not (is_number(value) and LOW <= value <= HIGH):
                raise OptionError(f"{name} must be a number above 0, from {LOW:g} to {HIGH:g}, got {shown(value)}")
        if not isinstance(self.title, str | None):
            raise OptionError(f"title is {shown(self.title)}; it is some text, or None")
        if not isinstance(self.currency, str):
            raise OptionError(f"currency is {shown(self.currency)}; it is some text, such as '$' or 'EUR'")
        if self.title is not None and not self.title.strip():
            raise OptionError("the title is empty; give some text, or leave it out")
        if self.currency and self.price_per_hour is None:
            raise OptionError("currency says what a price is in; give price_per_hour too")
        for name in ("price_per_hour", "watts", "gpus"):
            if getattr(self, name) is not None and self.tokens_per_second is None:
                raise OptionError(f"{name} needs tokens_per_second: what one GPU computes, measured on full rows")
