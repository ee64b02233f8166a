"""Common tasks of a model on packs: embed texts, score sequences."""

from nopad.errors import MissingExtraError

try:
    import torch  # noqa: F401
    import transformers  # noqa: F401
except ImportError as error:
    raise MissingExtraError(f"running tasks needs {error.name}: pip install 'nopad[torch]'") from error

from nopad.tasks.embedding import Embedder, embed
from nopad.tasks.folder import Texts
from nopad.tasks.scores import sequence_logprobs

__all__ = ["Embedder", "Texts", "embed", "sequence_logprobs"]
