"""Run unmodified transformers models on packed batches, so that each sequence gets the result it would get alone."""

from nopad.errors import MissingExtraError, install

try:
    import torch  # noqa: F401
    import transformers  # noqa: F401
except ImportError as error:
    raise MissingExtraError(f"running models needs {error.name}; {install('torch')}") from error

from nopad.model.compiled import static_inputs
from nopad.model.linear import fast_linear
from nopad.model.pooling import pooled
from nopad.model.precision import lowered
from nopad.model.safety import is_packed, packed, unpacked

__all__ = ["fast_linear", "is_packed", "lowered", "packed", "pooled", "static_inputs", "unpacked"]
