"""`derive`: find out by probing a small copy how a model of an unknown type could be run on packs.

The answer is a `Family`, the facts about one model type, as in the tables of `nopad.model.families`. A module *mixes*
tokens if it moves information between them. Nothing here is a proof. Where probing cannot decide, `derive` yields
several families, the likeliest first, and the audit judges them (`nopad.admitting.proof`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from nopad.admitting.probing import length_for, probe, unsteady
from nopad.admitting.search import Probed, Seen, beside, moved
from nopad.admitting.small import ran
from nopad.errors import UnsupportedModelError
from nopad.model.calls import parameters
from nopad.model.families import Family, Pooled
from nopad.model.known import class_of
from nopad.model.own import is_own
from nopad.model.postconditions import LAYERS

__all__ = ["Derived", "Times", "base_of", "derive", "most_tokens"]

MASK = "attention_mask"
FURTHEST = 4  # the highest position from which a table of positions is expected to count


@dataclass(frozen=True)
class Times:
    """A function for `Family.mixes` that returns a constant: how often tokens are mixed in one call of a model.

    To mix tokens is to move information between them, as attention does. `Times` is for models in which this number
    does not follow from the number of layers. Unlike an ordinary function, it can be compared and stored.

    Attributes:
        count: the constant.
    """

    count: int

    def __call__(self, config: Any) -> int:
        """Return `count`; the configuration is not used."""
        return self.count


@dataclass(frozen=True)
class Derived:
    """A way to run a small copy on packs, which probing found.

    Attributes:
        family: the facts about the model type that nopad needs to run the copy on packs; not proven yet.
        each: for each class of modules that mix tokens (move information between them), by the class's name: the list
            ``[modules, calls]``, the number of these modules in the copy and of their calls when the copy runs once.
    """

    family: Family
    each: dict[str, list[int]]

    def of(self, model: nn.Module) -> Family:
        """Return the `Family` (facts about a model type) for `model`, whose small copy was probed.

        Mostly this is `family` itself. But if `each` is not empty, the mixing calls of `model` are counted from its
        modules in two cases:

        * `family.mixes` is a `Times`. The result has the count as its `mixes`, and 1 as its `attends`.
        * `family.mixes` is None, and `family.attends` (mixing calls per layer) is not 1. If the count is `attends` for
          each layer of `model`, the result is `family`. Otherwise it is as in the first case.
        """
        if not self.each or (self.family.mixes is None and self.family.attends == 1):
            return self.family
        if self.family.mixes is not None and not isinstance(self.family.mixes, Times):
            return self.family
        there = Counter(class_of(module).__name__ for module in model.modules())
        count = sum(calls * there[name] // modules for name, (modules, calls) in self.each.items())
        if self.family.mixes is None and count == self.family.attends * _layers(model.config):
            return self.family
        return replace(self.family, attends=1, mixes=Times(count))


def derive(model: Any, close: float, table: Family | None = None) -> Iterator[Derived]:
    """Yield each way in which a small model could run on packs, as a `Derived`, the likeliest first.

    A `Derived` has a `Family`, the facts about one model type. A module mixes tokens if it moves information between
    them.

    Args:
        model: a model in float64 and in evaluation mode, which is run many times.
        close: differences of at most this, relative to an output's largest value, are rounding.
        table: the `Family` of the model's type in nopad's tables. It is yielded first, unless one of the user's own
            modules mixes tokens. None: the type is not in the tables.

    Raises:
        UnsupportedModelError: no `Family` can be derived; `table` may have been yielded before. The cause is one of
            these:

            * the forward method of the model, or of its base model, mixes tokens outside of any submodule
            * one of the user's own modules does not always compute the same function, for example since it decides by
              values of its input; and it cannot be run on each sequence by itself
            * code of the user's own changes gradients in a module that neither mixes tokens nor is inside one that does
            * modules of two classes with the same name mix tokens
            * the result that a mixing module gives for a row changes if another row is in the batch, or the module does
              not run on two rows
            * how often a mixing module runs depends on the tokens
    """
    base = base_of(model)
    most = most_tokens(model.config)
    length = length_for(model, None if most is None else most - 4)
    tokens = [5 + 3 * at for at in range(length)]
    probed = probe(model, base, tokens, close)
    _check_own(probed)
    if table is not None and not any(is_own(class_of(one)) for one in probed.mixing):
        yield Derived(table, {})
    if probed.unsplit is not None:
        raise _unsplit(probed.unsplit)
    _check_names(probed)
    _check_rows(model, probed)
    odd = unsteady(model, probed)
    if odd:
        raise UnsupportedModelError(
            f"how often the {odd} modules of {type(model).__name__} run depends on the values of a row (data-dependent "
            "control flow), so a proof on some values says nothing of others"
        )
    causal = _is_causal(model, tokens, close)
    line = Family(route="interface" if probed.attended else "mixers")
    line = replace(line, mixers=tuple(dict.fromkeys(class_of(one).__name__ for one in probed.mixing)))
    line = replace(line, alone=tuple(dict.fromkeys(class_of(one).__name__ for one in probed.alone)))
    line = replace(line, places=tuple(_places(model, probed)))
    line = _with_positions(line, model, base, probed)
    line = _with_pooling(line, model, base, probed, causal)
    line, each = _with_counts(line, model.config, probed)
    attended = tuple(dict.fromkeys(class_of(module).__name__ for module in probed.attended))
    for variant in _variants(line, causal, attended, _sets_attention(model)):
        yield Derived(variant, each)


def _check_own(probed: Probed) -> None:
    """Check the user's own code in modules that nopad cannot run sequence by sequence.

    These are the model, its base model, and modules that return nothing per token. `probed` says what was found in
    them.

    Raises:
        UnsupportedModelError: a forward method mixes tokens by itself, a module does not always compute the same, or
            code changes gradients and cannot be followed.
    """
    if probed.unsplit is not None and is_own(class_of(probed.unsplit)):
        raise _unsplit(probed.unsplit)
    if probed.varies is not None:
        module, why = probed.varies
        raise UnsupportedModelError(
            f"what the forward method of {type(module).__name__} computes is not always the same: {why}. A proof on "
            "some sequences says nothing of others; move what decides into a module of its own, which gets and gives "
            "one state per token"
        )
    for module, name in probed.gradients.items():
        raise UnsupportedModelError(
            f"{type(module).__name__} changes gradients by code of its own ({name}), which cannot be followed and may "
            "mix tokens; use functions of PyTorch, or move this into a module of its own, which gets and gives one "
            "state per token, so that nopad can run it on each sequence alone"
        )


def _unsplit(module: nn.Module) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"the forward method of {type(module).__name__} moves information between tokens by itself, "
        "outside of any module that could be run sequence by sequence; move that into a module of its own, which "
        "gets and gives one state per token"
    )


def _sets_attention(model: Any) -> bool:
    """Return whether the model lets users choose its attention function by name (``attn_implementation``)."""
    can = getattr(model, "_can_set_attn_implementation", None)
    return can is not None and bool(can())


def _variants(line: Family, causal: bool, attended: tuple[str, ...], registers: bool) -> Iterator[Family]:
    """Yield `line` and variants of it that also agree with what probing found, the likeliest first.

    Each is a `Family`, the facts about one model type. Probing leaves these questions open, so the variants differ in
    the fields in parentheses:

    * Does a module with attention of its own get a mask, make one, or need none (`route`, `masked`)?
    * Can nopad's attention replace the registered one? If not, the modules that call the registered attention are run
      on each sequence by itself (`mixers`).
    * Does a decoder read its result from the first token (`pooled`)?
    * Do the tables that probing found hold something other than positions (`tables`)? Do the model's positions limit
      the width of rows (`narrow`)?

    Args:
        line: the facts that probing found.
        causal: whether no token sees later ones.
        attended: class names of the modules that call the registered attention, the one set by ``attn_implementation``.
        registers: whether the model lets users choose a registered attention.
    """
    ways: list[dict[str, Any]] = [{}]
    if line.route == "mixers":
        ways = [*([{"route": "interface"}] if registers else []), {}, {"masked": False}]
    else:
        ways += [{"route": "mixers", "mixers": (*attended, *line.mixers), "masked": masked} for masked in (True, False)]
    if causal:
        ways.append({**ways[-1], "pooled": "first"})
    for tables in (line.tables, ()) if line.tables else ((),):
        for narrow in dict.fromkeys((line.narrow, True)):
            for way in ways:
                yield replace(line, tables=tables, narrow=narrow, **way)


def base_of(model: Any) -> Any:
    """Return the model without its head; for a model without a head, the model itself."""
    return getattr(model, getattr(model, "base_model_prefix", "") or "", model)


def most_tokens(config: Any) -> int | None:
    """Return the number of positions that a configuration states; None: it states none."""
    text = config.get_text_config()
    found = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None)
    return int(found) if isinstance(found, int) and found > 0 else None


def _check_names(probed: Probed) -> None:
    """Check that no two classes of modules that mix tokens (move information between them) have the same name.

    `probed` says which modules mix tokens.

    Raises:
        UnsupportedModelError: two classes have the same name.
    """
    kinds = {class_of(module) for module in (*probed.mixing, *probed.attended)}
    for name, count in Counter(kind.__name__ for kind in kinds).items():
        if count > 1:
            where = ", ".join(sorted(kind.__module__ for kind in kinds if kind.__name__ == name))
            raise UnsupportedModelError(
                f"this model has two versions of the class {name} ({where}), and nopad tells modules by the names of "
                "their classes; load the code once, and build the model anew"
            )


def _check_rows(model: nn.Module, probed: Probed) -> None:
    """Check the modules that mix tokens: a module's result for a row must not change if another row is in the batch.

    One module of each class is tried. `probed` says which modules of `model` mix tokens (move information between
    them).

    Raises:
        UnsupportedModelError: a result changes, or a module does not run on two rows.
    """
    names = {module: name for name, module in model.named_modules()}
    first = {class_of(module): module for module in reversed(probed.mixing)}
    for kind, module in first.items():
        try:
            alike = beside(probed, module)
            why = "its result for a row changes if the batch has another row, so it reads the values of all rows"
        except Exception as error:  # a model's code may raise anything
            alike, why = False, f"has no dimension for the batch: on two rows, {type(error).__name__}: {error}"
        if not alike:
            raise UnsupportedModelError(
                f"{names[module]} ({kind.__name__}) of {type(model).__name__} mixes tokens, and {why}"
            )


def _is_causal(model: Any, tokens: list[int], close: float) -> bool:
    """Return whether no token sees later ones: changing the last or middle token changes nothing before it.

    This is tried on one sequence, the ids `tokens`. The result is also True if no output has one entry per token.
    Differences of at most `close`, relative to an output's largest value, are rounding.
    """
    length = len(tokens)
    before = ran(model, tokens)
    for place in (length - 1, length // 2):
        changed = [*tokens[:place], tokens[place] + 1, *tokens[place + 1 :]]
        if min(moved(before, ran(model, changed), length, close), default=length) < place:
            return False
    return True


def _with_counts(line: Family, config: Any, probed: Probed) -> tuple[Family, dict[str, list[int]]]:
    """Return `line` with the number of mixing calls set, and the dict for `Derived.each`, as a tuple.

    `line` has the facts about a model type. The number says how often modules mix tokens (move information between
    them) while the copy runs once, by the calls recorded in `probed`. If it is above 0 and a multiple of the number of
    layers (`_layers` of `config`), the field `attends` is set to the number per layer. Otherwise the field `mixes` is
    set to the number for the whole model.
    """
    each: dict[str, list[int]] = {}
    runs = probed.attended + Counter({module: probed.seen[module].calls for module in probed.mixing})
    for module, count in runs.items():
        pair = each.setdefault(class_of(module).__name__, [0, 0])
        pair[0], pair[1] = pair[0] + 1, pair[1] + count
    total, layers = sum(runs.values()), _layers(config)
    if layers and total and total % layers == 0:
        return replace(line, attends=total // layers), each
    return replace(line, mixes=Times(total)), each


def _layers(config: Any) -> int:
    """Return the number of layers that a configuration states, times `inner_group_num` (ALBERT); 0: it states none."""
    text = config.get_text_config()
    layers = next((int(getattr(text, name)) for name in LAYERS if getattr(text, name, None) is not None), 0)
    return layers * int(getattr(text, "inner_group_num", 1))


def _places(model: Any, probed: Probed) -> Iterator[tuple[str, int | None]]:
    """Yield the pairs (name of an argument, dimension) for `Family.places`, each once.

    They come from the tensors that the mixing modules got as arguments, also inside tuples and dicts. L is the number
    of probed tokens. A tensor gives one pair for each of its dimensions of size L: ALiBi ``[heads, 1, L]`` gives (name,
    2). A tensor without such a dimension gives (name, None). Left out are scalars, all tensors ``[1, L, ...]`` (such as
    hidden states), and attention masks of four dimensions.
    """
    length = len(probed.tokens)
    found: dict[tuple[str, int | None], None] = {}
    for module in probed.mixing:
        for name, value in probed.seen[module].given.items():
            for leaf in tree_leaves(value):
                if not isinstance(leaf, Tensor) or leaf.dim() == 0 or tuple(leaf.shape[:2]) == (1, length):
                    continue
                if name == MASK and leaf.dim() == 4:
                    continue
                dims: list[int | None] = [dim for dim, size in enumerate(leaf.shape) if size == length]
                found |= {(name, dim): None for dim in (dims or [None])}
    yield from found


def _with_positions(line: Family, model: Any, base: Any, probed: Probed) -> Family:
    """Return `line`, the facts about a model type, with those fields set that say how the model counts positions.

    If the base model takes `position_ids`, only `after_padding` may be set: whether positions begin after
    `padding_idx`. Otherwise two fields are set. `tables` has the tables of positions that the model reads by itself.
    `narrow` says whether a row may have no more slots than the model has positions. `probed` has the recorded calls of
    all modules on one sequence.
    """
    length = len(probed.tokens)
    takes = "position_ids" in parameters(type(base).forward)
    if takes and "position_ids" in parameters(type(model).forward):
        plain = ran(model, probed.tokens)
        ids = torch.arange(length)[None]
        if moved(plain, ran(model, probed.tokens, position_ids=ids), length, probed.close):
            index = getattr(getattr(base, "embeddings", None), "padding_idx", None)
            if index is not None:
                again = ran(model, probed.tokens, position_ids=ids + index + 1)
                line = replace(line, after_padding=not moved(plain, again, length, probed.close))
    if takes:
        return line
    names = {module: name for name, module in model.named_modules()}
    inside = {part for one in probed.mixing for part in one.modules()}
    tables: dict[str, int] = {}
    for module, seen in probed.seen.items():
        if isinstance(module, nn.Embedding) and module not in inside:
            offset = _counts_from(module, seen, probed.tokens)
            if offset is not None:
                tables[names[module].rpartition(".")[2]] = offset
                if not isinstance(seen.given.get("input"), Tensor):
                    line = replace(line, narrow=True)
    return replace(line, tables=tuple(tables.items()))


def _counts_from(table: nn.Embedding, seen: Seen, tokens: list[int]) -> int | None:
    """Return which row of a table of position embeddings the first token got; None: it is no such table.

    A table holds positions if the tokens, in order, got consecutive rows of it. Only the rows 0 to 4 are tried for the
    first token. `seen` is the recorded call of the table, and `tokens` are the token ids of the sequence.
    """
    given = seen.output
    if not isinstance(given, Tensor) or given.numel() != len(tokens) * table.embedding_dim:
        return None
    rows = given.reshape(len(tokens), -1)
    for offset in range(min(FURTHEST, table.num_embeddings - len(tokens)) + 1):
        if torch.equal(rows, table.weight[offset : offset + len(tokens)]):
            return offset
    return None


def _with_pooling(line: Family, model: Any, base: Any, probed: Probed, causal: bool) -> Family:
    """Return `line`, the facts about a model type, with the fields `pooler`, `head`, `pooled` and `readers` set.

    These say which modules read one hidden state per sequence, and of which token. `probed` has the recorded calls of
    all modules on one sequence. If no such module is found, and `causal` is true (no token sees later ones), the head
    is taken to read the state of the last token.
    """
    found: dict[str, tuple[str, int, Pooled]] = {}
    for role, holder in (("pooler", base), ("head", model)):
        if holder is base and role == "head":
            continue
        for name, child in holder.named_children():
            read = None if child is base or child not in probed.seen else _reads(child, holder, probed)
            if read is not None:
                found.setdefault(role, (name, *read))
    readers = []
    for role, (name, dims, how) in found.items():
        holder = base if role == "pooler" else model
        kind = class_of(getattr(holder, name))
        if dims == 3 and not kind.__module__.startswith("transformers."):
            readers.append(kind.__name__)
        part = name, dims
        line = replace(line, pooler=part, pooled=how) if role == "pooler" else replace(line, head=part, pooled=how)
    if causal and not found:
        head = next(
            (name for name in ("score", "classifier") if isinstance(getattr(model, name, None), nn.Module)), None
        )
        line = replace(line, pooled="last", head=("score", 0) if head is None else (head, 0))
    return replace(line, readers=tuple(dict.fromkeys(readers)))


def _reads(child: nn.Module, holder: Any, probed: Probed) -> tuple[int, Pooled] | None:
    """Return how a module that may be a head or pooler reads one hidden state per sequence; None: it does not.

    The first value returned is 3 if the module gets the states of all tokens, ``[1, L, hidden]``, and 2 if it gets one
    state, ``[1, hidden]``. The second says which state it reads: that of the "first" or "last" token, or the "mean"
    over all tokens.

    Args:
        child: the module.
        holder: the model, or its base model, of which `child` is a direct submodule.
        probed: the recorded calls of all modules.
    """
    length, seen = len(probed.tokens), probed.seen[child]
    given = next((one for one in seen.given.values() if isinstance(one, Tensor) and one.is_floating_point()), None)
    made = [one for one in tree_leaves(seen.output) if isinstance(one, Tensor)]
    if given is None or not made or any(length in one.shape for one in made):
        return None
    if given.dim() == 3 and tuple(given.shape[:2]) == (1, length):
        name = next(name for name, one in seen.given.items() if one is given)
        with torch.no_grad():
            read = [at for at in range(length) if _changes(child, {**seen.given}, name, at, made[0])]
        if read == [0]:
            return 3, "first"
        return (3, "last") if read == [length - 1] else None
    if given.dim() == 2 and given.shape[0] == 1:
        for other, past in probed.seen.items():
            if other is child or (other is holder and holder is base_of(holder)):
                continue
            for states in tree_leaves(dict(past.output) if hasattr(past.output, "items") else past.output):
                if isinstance(states, Tensor) and states.dim() == 3 and tuple(states.shape[:2]) == (1, length):
                    ways: dict[Pooled, Tensor] = {"first": states[:, 0], "last": states[:, -1], "mean": states.mean(1)}
                    for how, value in ways.items():
                        if value.shape == given.shape and torch.allclose(value, given, rtol=1e-9, atol=1e-12):
                            return 2, how
    return None


def _changes(child: nn.Module, given: dict[str, Any], name: str, place: int, before: Tensor) -> bool:
    value = given[name].clone()
    value[:, place] += 1.0 + torch.arange(value.shape[-1], dtype=value.dtype) / 7
    after = next(one for one in tree_leaves(child.forward(**{**given, name: value})) if isinstance(one, Tensor))
    return not torch.equal(before, after)
