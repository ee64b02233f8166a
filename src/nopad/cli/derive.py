"""``nopad audit --derive MODEL``: find out how the sequences of an unknown type of model can be kept apart.

The result is printed in one line: whether the model is admitted, and why. If it is admitted, the next line is its entry
for the table of model families (`nopad.model.families`), as code. With ``--json``, both are one JSON object.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

from nopad.corpus.network import hub_in_reach, not_had
from nopad.errors import FormatError, MissingExtraError, OptionError, UnsupportedModelError, install
from nopad.files import is_model_folder
from nopad.wording import first_line

__all__ = ["Finding", "derived"]


@dataclass(frozen=True)
class Finding:
    """What `derived` found out about a model.

    Attributes:
        proof: the `nopad.admitting.Proof`: whether the model is admitted, and why.
        line: the model's entry for the table of model families, as code; "": the model is refused.
    """

    proof: Any
    line: str

    def to_json(self) -> str:
        """Return the proof as a JSON object, with `line` as its "family" (null if the model is refused)."""
        found = asdict(replace(self.proof, family=None))
        return json.dumps({**found, "family": self.line or None}, indent=1, allow_nan=False)

    def __str__(self) -> str:
        head = str(self.proof)
        return f"{head}\n  {json.dumps(self.proof.kind)}: {self.line}," if self.line else head


def derived(spec: str | None) -> Finding:
    """Find out how the sequences of a model can be kept apart, and prove it on a small copy with random weights.

    `spec` is a folder or a name on the hub. Only the configuration is read, and only code of transformers runs. torch
    is set to use one thread.

    Raises:
        OptionError: `spec` is None.
        FormatError: there is no configuration at `spec`, or it cannot be read, or no model can be built from it.
        UnsupportedModelError: the model has code of its own, outside transformers, which nopad does not import.
        MissingExtraError: torch or transformers is not installed.
    """
    if spec is None:
        raise OptionError("give a MODEL with --derive, a folder with a config.json or a name on the hub")
    try:
        import torch
        import transformers as library
    except ImportError as error:
        raise MissingExtraError(f"running models needs {error.name}; {install('torch')}") from error
    from nopad.admitting import proof_of
    from nopad.admitting.line import line_of

    transformers: Any = library
    transformers.logging.set_verbosity_error()
    config = _config(transformers, spec)
    named = [getattr(transformers, name, None) for name in config.architectures or ()]
    kind = next((found for found in named if found is not None), None)
    try:
        with torch.device("meta"):
            model = transformers.AutoModel.from_config(config) if kind is None else kind(config)
    except Exception as error:  # a configuration may name anything
        raise FormatError(f"{spec}: transformers cannot build this model ({first_line(error)})") from error
    torch.set_num_threads(1)  # a small copy runs: several threads would mostly wait for each other
    proof = proof_of(model, again=True)
    return Finding(proof, "" if proof.family is None else line_of(proof.family))


def _config(transformers: Any, spec: str) -> Any:
    here = is_model_folder(spec)
    with nullcontext(True) if here else hub_in_reach() as online:
        try:
            config = transformers.AutoConfig.from_pretrained(spec, trust_remote_code=False)
        except Exception as error:  # a damaged file may raise anything
            if "trust_remote_code" in str(error):
                raise _remote(spec) from error
            if not here:
                raise not_had(spec, error, online, "configuration") from error
            raise FormatError(f"{spec}: transformers cannot read this configuration ({first_line(error)})") from error
    known = [name for name in config.architectures or () if hasattr(transformers, name)]
    if getattr(config, "auto_map", None) and not known:
        raise _remote(spec)
    return config


def _remote(spec: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{spec}: the code of this model is its own (auto_map), and nopad imports no such code; load the model in "
        "Python yourself, and call nopad.packed(model), which proves it"
    )
