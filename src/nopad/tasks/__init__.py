"""Tasks turn records into sequences, and a model's outputs into predictions; objectives compute losses."""

from nopad.errors import MissingExtraError, install

try:
    import torch  # noqa: F401
    import transformers  # noqa: F401
except ImportError as error:
    raise MissingExtraError(f"running tasks needs {error.name}; {install('torch')}") from error

from nopad.corpus.squad import read_squad
from nopad.tasks.answers import Answers
from nopad.tasks.causal import CausalLM, Chat
from nopad.tasks.classification import GLUE, Classification, Regression, SeveralLabels, glue
from nopad.tasks.contrastive import Contrastive, InBatch
from nopad.tasks.embedding import Embedder
from nopad.tasks.examples import Examples
from nopad.tasks.folder import Texts
from nopad.tasks.masked import MaskedLM
from nopad.tasks.masking import Masking
from nopad.tasks.next_sentence import OfPretraining
from nopad.tasks.objective import Meter, Objective
from nopad.tasks.objectives import OfSequences, OfSpans, OfTokens, objective_of
from nopad.tasks.pairing import OfPreferences, OfRewards
from nopad.tasks.pooled import embed
from nopad.tasks.predicting import Predictions, predict
from nopad.tasks.prediction_files import PredictionFiles, predict_files
from nopad.tasks.predictor import Predicted, Predictor
from nopad.tasks.preferences import DPO, Pairs
from nopad.tasks.pretraining import Pretraining
from nopad.tasks.reference import reference_logprobs
from nopad.tasks.scores import sequence_logprobs
from nopad.tasks.task import Task
from nopad.tasks.tokens import TokenClassification
from nopad.tasks.vectors import Embedding

__all__ = [
    "DPO",
    "GLUE",
    "Answers",
    "CausalLM",
    "Chat",
    "Classification",
    "Contrastive",
    "Embedder",
    "Embedding",
    "Examples",
    "InBatch",
    "MaskedLM",
    "Masking",
    "Meter",
    "Objective",
    "OfPreferences",
    "OfPretraining",
    "OfRewards",
    "OfSequences",
    "OfSpans",
    "OfTokens",
    "Pairs",
    "Predicted",
    "PredictionFiles",
    "Predictions",
    "Predictor",
    "Pretraining",
    "Regression",
    "SeveralLabels",
    "Task",
    "Texts",
    "TokenClassification",
    "embed",
    "glue",
    "objective_of",
    "predict",
    "predict_files",
    "read_squad",
    "reference_logprobs",
    "sequence_logprobs",
]
