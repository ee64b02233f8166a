"""``nopad pack``: pack a corpus into a dataset."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from nopad.assignment import Order
from nopad.cli.content import Chat, ChatOptions, Suffixes, TextFields, TextPair, content_of, encoder_for
from nopad.cli.inputs import open_inputs, passed_over
from nopad.cli.monitor import Bars
from nopad.cli.options import (
    AlgorithmOptions,
    Carry,
    EmptyPolicy,
    Even,
    Force,
    IdsField,
    MaskField,
    OnBadRecord,
    OverLong,
    PadId,
    Seed,
    SpecialTokens,
    TextUnit,
    TokenizerSpec,
    Validation,
    VocabSize,
    parse_depth,
    parse_options,
    parse_policies,
    parse_reader,
    parse_share,
)
from nopad.cli.pretrain import Pretrain, PretrainOptions, parse_pretrain
from nopad.cli.render import console, outcome
from nopad.cli.standard_input import StdinFormat, from_stdin
from nopad.cli.starting_over import way_out
from nopad.corpus import CorpusOptions, LengthsFile, load_tokenizer
from nopad.planning import ALGORITHMS, Plan
from nopad.store import Manifest, PackOptions, pack_corpus
from nopad.store.choice import check_divisible
from nopad.store.manifest import MANIFEST, PLAN, split_folders
from nopad.store.shards import SHARD_TOKENS
from nopad.store.starting_over import DATASET, replaced
from nopad.store.workspace import check_outside

__all__ = ["pack"]


def pack(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...",
            help="Files (text, JSONL, JSON, CSV, TSV, Parquet, Arrow), folders or URLs of them, folders of .npy "
            "arrays, hf:NAME, - for standard input; lengths (.npy) with --index-only. NAME=INPUT for each: sources "
            "that are counted apart.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FOLDER", help="The dataset folder: new, empty, or of an interrupted equal call."
        ),
    ],
    capacity: Annotated[int, typer.Option("--capacity", "-c", metavar="N", help="Most tokens a pack may hold.")],
    depth: Annotated[
        str | None, typer.Option("--depth", "-d", metavar="D", help="Most sequences a pack may hold, or none.")
    ] = None,
    algorithm: Annotated[
        str, typer.Option("--algorithm", "-a", metavar="NAME", help=f"One of {', '.join(ALGORITHMS)}.")
    ] = "auto",
    option: AlgorithmOptions = None,
    even: Even = False,
    seed: Seed = 0,
    order: Annotated[
        Order, typer.Option("--order", help="Order of the packs: random, by the seed; or close to that of the source.")
    ] = "random",
    index_only: Annotated[
        bool, typer.Option("--index-only", help="Write which sequence goes where, and leave the tokens in the source.")
    ] = False,
    shard_tokens: Annotated[
        int, typer.Option("--shard-tokens", metavar="N", help="About how many tokens a file holds.")
    ] = SHARD_TOKENS,
    tokenizer: TokenizerSpec = None,
    over_long: OverLong = "error",
    empty: EmptyPolicy = "skip",
    on_bad_record: OnBadRecord = "error",
    special_tokens: SpecialTokens = True,
    text_unit: TextUnit = "file",
    text_field: TextFields = None,
    text_pair: TextPair = None,
    chat: Chat = None,
    chat_option: ChatOptions = None,
    suffix: Suffixes = None,
    stdin_format: StdinFormat = None,
    ids_field: IdsField = None,
    carry: Carry = None,
    mask_field: MaskField = None,
    pad_id: PadId = None,
    vocab_size: VocabSize = None,
    validation: Validation = None,
    pretrain: Pretrain = None,
    pretrain_option: PretrainOptions = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was packed as one JSON object.")] = False,
    force: Force = False,
) -> None:
    """Pack a corpus into a dataset of Parquet shards; run the same command again to finish an interrupted job.

    Examples:
      nopad pack corpus/ -o packed --capacity 2048 --over-long split

      nopad pack a.jsonl b.jsonl -o packed --capacity 512 --depth 8 --tokenizer tokenizer.json

      nopad pack tokenised/*.parquet -o packed --capacity 4096 --carry labels --over-long truncate

      nopad pack chats.jsonl -o packed -c 4096 --tokenizer path/to/model --over-long drop

      nopad pack pairs.csv -o packed -c 512 --text-pair question answer --carry label

      nopad pack lengths.npy -o index --capacity 512 --index-only

      nopad pack web=web/ code=code/ -o packed -c 4096 --validation 1%

      nopad pack articles/ -o packed -c 512 --pretrain bert -P copies=5 --over-long split
    """
    others = {"ids_field": ids_field, "pad_id": pad_id, "pretrain": pretrain}
    content = content_of(text_field, text_pair, chat, chat_option, others)
    policies = parse_policies(special_tokens, over_long, empty, on_bad_record, vocab_size)
    options = CorpusOptions(capacity=capacity, **policies)
    reader = parse_reader(
        text_unit, content.text_field, ids_field, carry, mask_field, pad_id, suffix, find_labels=pretrain is None
    )
    as_pairs = parse_pretrain(pretrain, pretrain_option, tokenizer, policies, seed)
    inputs = from_stdin(inputs, stdin_format)
    source = open_inputs(inputs, reader, policies, encoder_for(content, inputs, capacity, policies, tokenizer))
    source = source if as_pairs is None else as_pairs(source, capacity)
    needs_tokenizer = not isinstance(source, LengthsFile) and source.kind != "ids"
    packing = PackOptions(
        depth=parse_depth(depth),
        algorithm=algorithm,
        seed=seed,
        order=order,
        options=parse_options(option, even),
        shard_tokens=shard_tokens,
        validation=parse_share(validation),
    )
    packing.checked(capacity)
    check_divisible(source, packing.validation)
    check_outside(source.folders, out)
    loaded = load_tokenizer(tokenizer) if needs_tokenizer else None
    reused = not force and ((out / MANIFEST).exists() or bool(split_folders(out)))
    with Bars() as monitor, way_out(out, DATASET):
        job: Any = {"tokenizer": loaded, "packing": packing, "index_only": index_only, "monitor": monitor}
        if force:
            replaced(out, DATASET, lambda place: pack_corpus(source, place, options, **job))
        else:
            pack_corpus(source, out, options, **job)
    if as_json:
        print(json.dumps(_facts(out, reused, source.ignored), indent=1))
    else:
        _show(out, reused, source.ignored)


def _facts(out: Path, reused: bool, ignored: Sequence[str]) -> dict[str, Any]:
    """Return what was packed as a dict of JSON values.

    It says whether the output was there already (`reused`), which files in folders were not read (`ignored`), and the
    facts of each dataset; there are two datasets with ``--validation``.
    """
    found = []
    for folder in split_folders(out) or [out]:
        manifest, plan = Manifest.load(folder), Plan.load(folder / PLAN)
        found.append(
            {
                "folder": str(folder),
                "kind": manifest.kind,
                **plan.summary(),
                "capacity": manifest.capacity,
                "bytes": sum(shard.bytes for shard in manifest.shards),
                "carried": dict(manifest.carried),
                "left_out": list(manifest.source["left_out"]),
                "counts": dict(manifest.counts),
                "sources": [dict(part) for part in manifest.sources],
                "notes": list(plan.notes),
            }
        )
    return {"reused": reused, "passed_over": list(ignored), "datasets": found}


def _show(out: Path, reused: bool, ignored: Sequence[str]) -> None:
    """Print what was packed, whether it was there already (`reused`), and which files were not read (`ignored`)."""
    screen = console()
    for folder in split_folders(out) or [out]:
        manifest = Manifest.load(folder)
        if folder != out:
            screen.print(f"[bold]{folder.name}[/]")
        screen.print(outcome(manifest, Plan.load(folder / PLAN)), soft_wrap=not screen.is_terminal)
        size = sum(shard.bytes for shard in manifest.shards)
        screen.print(f"  {folder}: {manifest.kind} dataset, {size:,} bytes", markup=False, soft_wrap=True)
    if ignored:
        screen.print(f"  {passed_over(ignored)}", style="yellow", markup=False, soft_wrap=True)
    if reused:
        screen.print("  [green]already packed[/]: the source is the same, and every file has its checksum")
    screen.print(f"  Next: nopad verify {out}", markup=False, soft_wrap=True)
