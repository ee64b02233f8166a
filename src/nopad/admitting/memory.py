"""Remember proofs in files, by a fingerprint of everything that they depend on.

A proof depends on:

* the source of the model's classes, and of the Python modules that these use
* what the user's own modules hold
* the configuration, and the kind of head that was asked for
* the versions of torch, transformers and Python, and the code of nopad

The files lie in ``nopad/proofs`` under ``$XDG_CACHE_HOME`` if that is an absolute path, else under ``~/.cache``; each
has a checksum of itself. A damaged file counts as missing. Nothing is remembered if

* some of the user's own code that the model's classes use has no file (a notebook, ``python -c``)
* something that the user's own modules hold cannot be hashed
* the model was changed after it was built (a hook, a replaced forward method)
* the user has no home folder, and ``$XDG_CACHE_HOME`` is no absolute path
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import os
import platform
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields, replace
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar

import torch
import transformers

import nopad
from nopad.admitting.deriving import Times
from nopad.admitting.marks import NAMES_ONLY, is_library, mark_of, settings_of
from nopad.admitting.proof import Proof
from nopad.admitting.small import own_parts
from nopad.admitting.wrapping import WrapperProof
from nopad.files import PARTIAL_SUFFIX
from nopad.model.families import FAMILIES, Family
from nopad.model.wrapper_parts import Admitted
from nopad.notation import from_json
from nopad.seal import sealed, unsealed

__all__ = ["fingerprint", "folder", "recall", "recall_wrapper", "remember", "remember_wrapper"]

P = TypeVar("P")

log = logging.getLogger("nopad")

FORMAT = 4
LIBRARIES = ("torch", "transformers", "nopad")  # their versions are in the fingerprint


def folder() -> Path:
    """Return the folder of remembered proofs, which may not exist yet.

    Raises:
        FileNotFoundError: the user has no home folder, and ``$XDG_CACHE_HOME`` names no absolute path.
    """
    cache = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "nopad" / "proofs"
    except RuntimeError as error:  # as in a container that runs with the number of a user that it does not have
        raise FileNotFoundError(f"{error}; set XDG_CACHE_HOME") from error


def fingerprint(model: Any, head: str | None = None, base: Any = None) -> str | None:
    """Return a SHA-256, in hex, of all that a proof of `model` depends on.

    None: some of this cannot be found or hashed, or the model was changed after it was built, so the proof cannot be
    remembered. `head` is the kind of head that the user names. `base` is the transformers model inside, if `model` is
    the user's own module around it; else None.
    """
    whole = model if base is None else base
    kinds = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in map(type, model.modules())}
    parts: list[Any] = [
        FORMAT,
        code_of_nopad(),
        torch.__version__,
        transformers.__version__,
        platform.python_version(),
    ]
    parts += [head, type(model).__module__, type(model).__qualname__, _settings(whole.config), base is not None]
    for name in sorted(kinds):
        parts.append((name, _code_of(kinds[name])))
    if own_parts(whole):
        return None
    patched = [one for kind in kinds.values() for above in kind.__mro__ for one in vars(above).values()]
    patched = [one for one in patched if isinstance(one, FunctionType) and not is_library(one.__module__ or "")]
    # Of a wrapper all that it holds, its modules of PyTorch and their settings too.
    reached = mark_of(list(settings_of(model)) if base is None else model, patched)
    if reached is None:
        return None
    parts.append(reached)
    files: dict[str, str] = {}
    for kind in kinds.values():
        for above in kind.__mro__:
            if not _sources(sys.modules.get(above.__module__), files):
                return None
    parts.append(sorted(files.items()))
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=repr).encode()).hexdigest()


@cache
def code_of_nopad() -> str:
    """Return a SHA-256, in hex, of nopad's version and source files.

    The version alone is not enough: in a checkout, files change while the version stays.
    """
    digest = hashlib.sha256(nopad.__version__.encode())
    for path in sorted(Path(nopad.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def recall(model: Any, head: str | None = None) -> Proof | None:
    """Return the remembered proof of a model; None: there is none.

    A file that cannot be read or is damaged counts as missing. `head` is the kind of head that the user names, or None.
    """
    return _recalled(fingerprint(model, head), _read)


def recall_wrapper(wrapper: Any, base: Any) -> WrapperProof | None:
    """Return the remembered proof of a wrapper around `base`; None: there is none.

    A file that cannot be read or is damaged counts as missing.
    """
    return _recalled(fingerprint(wrapper, None, base), _read_wrapper)


def remember(model: Any, head: str | None, proof: Proof) -> None:
    """Write a proof to its file. Nothing is written for a model without a fingerprint.

    If the file cannot be written, a warning is logged, and no error is raised.
    """
    mark = fingerprint(model, head)
    _keep(mark, proof.model, {} if mark is None else _written(proof, mark))


def remember_wrapper(wrapper: Any, base: Any, proof: WrapperProof) -> None:
    """Write the proof of a wrapper around `base` to its file. Nothing is written for a wrapper without a fingerprint.

    If the file cannot be written, a warning is logged, and no error is raised.
    """
    mark = fingerprint(wrapper, None, base)
    _keep(mark, proof.model, {**asdict(proof), "format": FORMAT, "fingerprint": mark})


def _recalled(mark: str | None, read: Callable[[dict[str, Any], str], P]) -> P | None:
    if mark is None:
        return None
    try:
        return read(unsealed(from_json((folder() / f"{mark}.json").read_text())), mark)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _keep(mark: str | None, name: str, stored: dict[str, Any]) -> None:
    if mark is None:
        log.info(f"the proof of {name} is not remembered: some of its code has no source file, or is changed")
        return
    try:
        path = folder() / f"{mark}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        _put(path, json.dumps(sealed(stored), indent=1, sort_keys=True))
    except OSError as error:
        log.warning(f"the proof of {name} is not remembered, and will be done again: {error}")


def _put(path: Path, text: str) -> None:
    """Write a file as a whole: first a temporary file with a name of its own, then a rename.

    So the ranks of a job may write the same proof at the same time.
    """
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}{PARTIAL_SUFFIX}")  # mkstemp's file would have mode 0600
    try:
        partial.write_text(text)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _settings(config: Any) -> dict[str, Any]:
    return {name: value for name, value in config.to_dict().items() if name not in NAMES_ONLY}


def _code_of(kind: type) -> str:
    """Return a SHA-256, in hex, of the code of a class's own methods, as they are now.

    Inherited methods are left out.
    """
    found = hashlib.sha256()
    for name, value in sorted(vars(kind).items()):
        function = inspect.unwrap(value) if callable(value) else getattr(value, "__func__", None)
        if isinstance(function, FunctionType):
            found.update(name.encode())
            _hash_code(function.__code__, found)
    return found.hexdigest()


def _hash_code(code: CodeType, found: Any) -> None:
    found.update(code.co_code)
    found.update(repr((code.co_names, code.co_varnames)).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _hash_code(constant, found)
        else:
            found.update(repr(constant).encode())


def _sources(module: ModuleType | None, files: dict[str, str]) -> bool:
    """Add to `files`, by module name, the SHA-256 of a Python module's file and of the files of modules that it uses.

    The standard library, torch, transformers and nopad are left out, since their versions are in the fingerprint. Of
    another installed package's module, only its own file is added. The result is False if one of the user's own modules
    (of no installed package) has no file, or if `module` is None.
    """
    if module is None:
        return False
    name = module.__name__
    path = getattr(module, "__file__", None)
    if name in files or (is_library(name) and name.partition(".")[0] in (*LIBRARIES, *sys.stdlib_module_names)):
        return True
    if path is None or not Path(path).is_file():
        return is_library(name)
    files[name] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    if is_library(name):
        return True
    return all(_sources(other, files) for other in _used(module))


def _used(module: ModuleType) -> Iterator[ModuleType]:
    for value in list(vars(module).values()):
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        other = sys.modules.get(name) if isinstance(name, str) else None
        if other is not None and other is not module:
            yield other


def _written(proof: Proof, mark: str) -> dict[str, Any]:
    stored: dict[str, Any] = {**asdict(replace(proof, family=None)), "format": FORMAT, "fingerprint": mark}
    if proof.family is not None and proof.family is FAMILIES.get(proof.kind):
        stored["family"] = {"table": proof.kind}
    elif proof.family is not None:
        line = {one.name: getattr(proof.family, one.name) for one in fields(Family) if one.name != "refuse"}
        mixes = line.pop("mixes")
        stored["family"] = {**line, "times": mixes.count if isinstance(mixes, Times) else None}
    return stored


def _read(stored: dict[str, Any], mark: str) -> Proof:
    if stored.pop("format") != FORMAT or stored.pop("fingerprint") != mark:
        raise ValueError("another format, or another model's proof")
    line = stored.pop("family")
    family = None
    if line is not None and "table" in line:
        family = FAMILIES[line["table"]]
    elif line is not None:
        times = line.pop("times")
        family = Family(
            **{name: _tuples(value) for name, value in line.items()}, mixes=None if times is None else Times(times)
        )
    covers = _admitted(stored.pop("covers"))
    proof = Proof(**{**stored, "family": family, "covers": covers, "remembered": True})
    if type(proof.admitted) is not bool or (proof.admitted and family is None):
        raise ValueError("no line for an admitted model")
    return proof


def _read_wrapper(stored: dict[str, Any], mark: str) -> WrapperProof:
    if stored.pop("format") != FORMAT or stored.pop("fingerprint") != mark:
        raise ValueError("another format, or another model's proof")
    admitted = _admitted(stored.pop("admitted"))
    proof = WrapperProof(**{**stored, "admitted": admitted, "remembered": True})
    if (admitted is None) == (not proof.reason):
        raise ValueError("neither admitted nor refused")
    return proof


def _admitted(stored: dict[str, Any] | None) -> Admitted | None:
    return None if stored is None else Admitted(**{**stored, "columns": _tuples(stored["columns"])})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
