"""Models whose type is not in nopad's tables: derive how packs can run, prove it on a small copy, or refuse the model.

Here, to prove means to audit a small copy of the model on packs, after checks that the audit is valid for the model.
"""

from nopad.errors import MissingExtraError, install

try:
    import torch  # noqa: F401
    import transformers  # noqa: F401
except ImportError as error:
    raise MissingExtraError(f"running models needs {error.name}; {install('torch')}") from error

from nopad.admitting.front import packed, proof_of
from nopad.admitting.proof import Proof

__all__ = ["Proof", "packed", "proof_of"]
