"""Load a tokenizer as an object of transformers: it may have a chat template, and says which tokens are special."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from nopad.corpus.network import hub_in_reach, not_had
from nopad.corpus.tokenizer import default_file, with_words
from nopad.errors import FormatError, MissingExtraError, install
from nopad.wording import first_line

__all__ = ["load_transformers_tokenizer"]


def load_transformers_tokenizer(spec: str | Path | None = None) -> Any:
    """Load a tokenizer of transformers.

    Args:
        spec: a folder, a ``tokenizer.json``, or a name on the hub. If there is a ``tokenizer_config.json`` beside a
            ``tokenizer.json``, all tokenizer files of the folder are read. None: the tokenizer of bert-base-uncased, if
            it is installed, as for `nopad.load_tokenizer`.

    Raises:
        MissingExtraError: transformers is not installed, or no tokenizer is chosen and the default one is not there.
        FormatError: there is no such tokenizer, transformers cannot read it, or it has only special tokens (a
            ``tokenizer.json`` that is read alone is not checked for this).
    """
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError(f"chats and pairs need {error.name}; {install('torch')}") from error
    path = Path(default_file() if spec is None else spec)
    here = path.exists() or path.suffix == ".json" or str(spec).startswith((".", "/", "~"))
    if here and not path.exists():
        raise FormatError(f"{spec}: no such file or folder; give a tokenizer.json, a folder with one, or a hub name")
    beside = path.is_file() and (path.parent / "tokenizer_config.json").is_file()
    with nullcontext(True) if here else hub_in_reach() as online:
        try:
            if path.is_file() and not beside:
                made: Any = transformers.PreTrainedTokenizerFast
                return made(tokenizer_file=str(path))
            made = transformers.AutoTokenizer.from_pretrained(str(path.parent if beside else path))
        except Exception as error:  # a damaged file or a missing package may raise anything
            if not here:
                raise not_had(path, error, online, "tokenizer") from error
            raise FormatError(f"{spec}: transformers cannot read this tokenizer ({first_line(error)})") from error
    return with_words(made, spec)
