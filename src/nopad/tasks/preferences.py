"""Tasks on preference pairs (a chosen and a rejected answer): reward models, and DPO.

A record has ``chosen`` and ``rejected``, both strings or both lists of messages, with or without a ``prompt``
(`nopad.corpus.conversations.pair_of`). A pair becomes two sequences, the chosen answer first, which stay together in
every step (``Examples.group`` is 2). Two per-sequence values, ``pair`` and ``chosen``, say which sequences are a pair
(`nopad.tasks.pairing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from nopad.batch import PackedBatch
from nopad.corpus.chats import Answered, ChatEncoder, EndOfTurn, fitted
from nopad.corpus.conversations import Conversation, Passage, conversation_of, pair_of, roles_of
from nopad.errors import RecordError
from nopad.losses import PreferenceLoss
from nopad.tasks.causal import Likely, answered, counted_once
from nopad.tasks.examples import Examples, field_of, float_of, numbered
from nopad.tasks.pairing import REFERENCE, OfPreferences, OfRewards
from nopad.tasks.task import Task

__all__ = ["DPO", "Pairs"]


class Pairs(Task):
    """Training a reward model on pairs; the model gives a number per text or chat, larger for the chosen answer.

    Strings get the tokenizer's special tokens. If none of these comes after a text, the tokenizer's end-of-sequence
    token is added there, if it has one. A ``prompt`` is put before both answers. An optional column ``margin`` says by
    how much the rewards should differ.

    For predictions (``encode(records, labels=False)``), a record may be a pair, a chat, a ``prompt`` with a
    ``completion``, or a text.

    Args:
        tokenizer: the model's tokenizer; with a chat template for chats.
        text: column of the text, for predictions on texts.
        center_rewards_coefficient: weight of the squared sum of a pair's rewards in the loss; None: 0.
        template: arguments of the chat template, such as ``{"enable_thinking": False}``.
        roles: dict from the records' own names of roles to the usual ones, such as ``{"bot": "assistant"}``.
        max_length, over_long: see `Task`. With "drop", a pair is dropped if one of its answers is too long. A truncated
            sequence keeps its last token if that is a special or added token.

    Raises:
        OptionError: an option has an invalid value.

    >>> import nopad
    >>> task = nopad.tasks.Pairs(tokenizer)
    >>> made = task.encode([{"prompt": "is it ?", "chosen": " yes", "rejected": " no no"}])
    >>> made.group, made.sequences.seq_lengths.tolist(), made.sequences.values["chosen"].tolist()
    (2, [6, 7], [1, 0])
    """

    name = "reward"
    texts_by: ClassVar[tuple[str, ...]] = ("text",)
    texts_always: ClassVar[tuple[str, ...]] = ("prompt", "chosen", "rejected")
    auto: ClassVar[str] = "AutoModelForSequenceClassification"
    record_columns: ClassVar[tuple[str, ...]] = ("pair",)

    def __init__(
        self,
        tokenizer: Any,
        *,
        text: str = "text",
        center_rewards_coefficient: float | None = None,
        template: Mapping[str, Any] | None = None,
        roles: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(tokenizer, **options)
        self.text, self.template, self.roles = text, template, roles_of(roles)
        self.objective = OfRewards(center_rewards_coefficient=center_rewards_coefficient)

    def encode(self, records: Iterable[Mapping[str, Any]], *, labels: bool = True) -> Examples:
        """Turn records into sequences; see `Task.encode`.

        Sequences of pairs have three per-sequence values: ``pair`` (the record's number), ``chosen`` (1 or 0) and
        ``margin`` (by how much the rewards should differ; 0 if the record does not say).

        Raises:
            RecordError: a record lacks a column or has another form; the chat template refuses a chat; a text has no
                token; or `labels` is False, and only some of the records are pairs.
            LengthError: a sequence is longer than `max_length`, and `over_long` is "error"; or there is no record.
            OptionError: a record is a chat, and the tokenizer has no chat template; or a record is strings, and it is
                not known where the tokenizer puts special tokens.
        """
        encoder = ChatEncoder(self.tokenizer, options=self.template)
        listed = list(numbered(records))
        kinds = {_is_pair(record) for _, record in listed} if not labels else {True}
        if len(kinds) > 1:
            raise RecordError("some records are pairs, and others are not; predict them in two files")
        group = 2 if True in kinds else 1
        counts: dict[str, int] = {}
        found: list[Answered] = []
        kept: list[int] = []
        margins: list[float] = []
        for number, record in listed:
            given = pair_of(record, number, self.roles) if group == 2 else (self._single(record, number),)
            made = self._fitted([encoder.ids(one, number) for one in given], encoder, number, counts)
            if made is not None:
                found += made
                kept += [number] * group
                margins += [_margin(record, number)] * group
        examples = answered(found, kept, len(listed), counts, group=group)
        tokens = {"input_ids": examples.sequences.tokens["input_ids"]}
        made_of = replace(examples, sequences=replace(examples.sequences, tokens=tokens))
        return _paired(made_of, margin=np.array(margins, np.float32)) if group == 2 else made_of

    def _single(self, record: Mapping[str, Any], number: int) -> Conversation | Passage:
        if record.get(self.text) is not None:
            return Passage(prompt="", completion=field_of(record, self.text, number))
        return conversation_of(record, number, self.roles)

    def _fitted(
        self, ids: list[list[int]], encoder: ChatEncoder, number: int, counts: dict[str, int]
    ) -> list[Answered] | None:
        made = []
        before: dict[str, int] = {}
        for one in ids:
            kept = fitted(Answered(ids=one, learned=[True] * len(one)), number, before, self.max_length, self.over_long)
            if kept is None:
                break
            if len(kept.ids) < len(one) and one[-1] in encoder.template.stops:
                kept = replace(kept, ids=[*kept.ids[:-1], one[-1]])
            made.append(kept)
        return counted_once(made if len(made) == len(ids) else None, before, counts)

    def model_options(self) -> dict[str, Any]:
        """Return a setting of the model's configuration: ``num_labels``, which is 1."""
        return {"num_labels": 1}

    def results(self, outputs: Any, batch: PackedBatch) -> list[dict[str, Any]]:
        """Return a dict for each sequence, with ``reward``, a number."""
        objective = self.objective
        assert isinstance(objective, OfRewards)
        return [{"reward": one} for one in objective.rewards(outputs, batch).double().tolist()]

    def merged(self, results: Sequence[dict[str, Any]], examples: Examples) -> list[dict[str, Any] | None]:
        """Return a dict for each record; None if the task left the record out.

        For a pair, the dict has the rewards ``chosen`` and ``rejected``, and their difference as ``margin``. For any
        other record, it has ``reward``.
        """
        if examples.group == 1:
            return super().merged(results, examples)
        found = _by_pair(results, examples)
        for one in found:
            if one is not None:
                one |= {name: one[name]["reward"] for name in ("chosen", "rejected")}
                one["margin"] = one["chosen"] - one["rejected"]
        return found


class DPO(Likely):
    """Direct preference optimisation (DPO) of a causal language model; the reference model runs once, before training.

    Only the tokens of the answers count. In chats, these are the assistant's messages in ``chosen`` and ``rejected``,
    with the end of turn. Strings need a ``prompt``, and their answers include the end-of-sequence token. If two chats
    have no ``prompt``, the messages with which both begin are the prompt, but never the last message of the shorter
    chat.

    Args:
        tokenizer: the model's tokenizer; with a chat template for chats.
        beta, loss_type, label_smoothing: options of the loss; see `OfPreferences`.
        end_of_turn: "require" refuses an answer that does not end with a special or added token; "any" accepts every
            end.
        template: arguments of the chat template, such as ``{"enable_thinking": False}``.
        roles: dict from the records' own names of roles to the usual ones, such as ``{"bot": "assistant"}``.
        max_length, over_long: see `Task`. A pair is dropped if one of its sequences is dropped, or if truncation leaves
            no token of one of its answers.

    Raises:
        OptionError: an option has an invalid value.

    >>> import nopad
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> task = nopad.tasks.DPO(tokenizer, beta=0.2)
    >>> made = task.encode([{"prompt": "is it ?", "chosen": " yes", "rejected": " no no"}])
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> model = nopad.packed(LlamaForCausalLM(LlamaConfig(vocab_size=96, **sizes)))
    >>> made = nopad.tasks.reference_logprobs(model, made, capacity=32)
    >>> batch = next(iter(task.loader(made, 32, rows=1)))
    >>> loss, _ = task.objective.step(model, batch)  # the model equals its reference: log 2
    >>> round(loss.item(), 4)
    0.6931
    """

    name = "dpo"
    compares = True
    record_columns: ClassVar[tuple[str, ...]] = ("pair",)
    texts_always: ClassVar[tuple[str, ...]] = ("prompt", "chosen", "rejected", "completion")

    def __init__(
        self,
        tokenizer: Any,
        *,
        beta: float = 0.1,
        loss_type: PreferenceLoss = "sigmoid",
        label_smoothing: float = 0.0,
        end_of_turn: EndOfTurn = "require",
        template: Mapping[str, Any] | None = None,
        roles: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(tokenizer, **options)
        self.objective = OfPreferences(beta=beta, loss_type=loss_type, label_smoothing=label_smoothing)
        self.roles = roles_of(roles)
        self.choices: dict[str, Any] = {"end_of_turn": end_of_turn, "options": template}
        ChatEncoder(tokenizer, **self.choices)

    def encode(self, records: Iterable[Mapping[str, Any]], *, labels: bool = True) -> Examples:
        """Turn pairs into sequences; see `Task.encode`.

        The sequences have the per-token column ``labels``, and the per-sequence values ``pair`` (the record's number)
        and ``chosen`` (1 or 0). The labels come from the pairs, so the argument `labels` has no effect. Before
        training, pass the result to `nopad.tasks.reference_logprobs`.

        Raises:
            RecordError: a record lacks a column or has another form; the chat template refuses a chat; or an answer has
                no token, does not end as `end_of_turn` says, or has tokens that cannot be told from the prompt's.
            LengthError: a sequence is longer than `max_length`, and `over_long` is "error"; or there is no record.
            OptionError: a record is a chat, and the tokenizer has no chat template; or a record is strings, and the
                tokenizer has no end-of-sequence token, or it is not known where it puts special tokens.
        """
        encoder = ChatEncoder(self.tokenizer, **self.choices)
        counts: dict[str, int] = {}
        found: list[Answered] = []
        kept: list[int] = []
        number = -1
        for number, record in numbered(records):
            before: dict[str, int] = {}
            both = [part for one in pair_of(record, number, self.roles, prompted=True) for part in encoder(one, number)]
            fit = [fitted(one, number, before, self.max_length, self.over_long) for one in both]
            left = counted_once([one for one in fit if one is not None] if None not in fit else None, before, counts)
            if left is not None:
                found += left
                kept += [number] * 2
        return _paired(answered(found, kept, number + 1, counts, group=2))

    def results(self, outputs: Any, batch: PackedBatch) -> list[dict[str, Any]]:
        """Return, for each sequence (an answer), a dict with ``logprob``, ``mean_logprob`` and ``tokens``.

        ``logprob`` is the sum of the log-probabilities of the labelled tokens, ``tokens`` their number, and
        ``mean_logprob`` the quotient of the two (None without labelled tokens). If the batch has the reference model's
        ``reference_logp``, the dict also has ``reward``: `beta` times the difference ``logprob - reference_logp``.
        """
        found = super().results(outputs, batch)
        if REFERENCE in batch:
            objective = self.objective
            assert isinstance(objective, OfPreferences)
            for one, reference in zip(found, batch[REFERENCE].tolist(), strict=True):
                one["reward"] = objective.beta * (one["logprob"] - reference)
        return found

    def merged(self, results: Sequence[dict[str, Any]], examples: Examples) -> list[dict[str, Any] | None]:
        """Return a dict for each pair, with the results of its two answers as ``chosen`` and ``rejected``.

        The entry of a pair that was left out is None.
        """
        return _by_pair(results, examples)


def _is_pair(record: Mapping[str, Any]) -> bool:
    return any(record.get(name) is not None for name in ("chosen", "rejected"))


def _paired(examples: Examples, **values: NDArray[Any]) -> Examples:
    """Return `examples` with per-sequence values: ``pair`` (index of the record), ``chosen`` (1 or 0), and `values`.

    `examples` must have two sequences per record already, the chosen answer first. ``pair`` and ``chosen`` are int64
    ``[n]``; each of `values` has one entry per sequence.
    """
    at = np.arange(len(examples))
    values = {"pair": examples.record.astype(np.int64), "chosen": 1 - at % 2, **values}
    return replace(examples, sequences=replace(examples.sequences, values=values))


def _by_pair(results: Sequence[dict[str, Any]], examples: Examples) -> list[dict[str, Any] | None]:
    found: list[dict[str, Any] | None] = [None] * examples.records
    for record, chosen, rejected in zip(examples.record.tolist()[::2], results[::2], results[1::2], strict=True):
        found[record] = {"chosen": chosen, "rejected": rejected}
    return found


def _margin(record: Mapping[str, Any], number: int) -> float:
    value = record.get("margin")
    if value is None:
        return 0.0
    return float_of(value, f"record {number}: margin")
