"""XLM-R ("Unsupervised cross-lingual representation learning at scale", Conneau et al., 2020).

RoBERTa's encoder, pre-trained by masked tokens on text in 100 languages at once, with one unigram vocabulary of 250,002
pieces for all of them. It is not given the language of a text.

B batch, T positions, D width.
"""

from heedful.models.roberta.model import RobertaEncoder
from heedful.models.xlm_roberta.config import XlmRobertaConfig


class XlmRoberta(RobertaEncoder):
    """tokens (B, T) of any language -> a vector for each token (B, T, D)."""

    def __init__(self, config: XlmRobertaConfig) -> None:
        super().__init__(config)
