"""Token features from the layers of an encoder (Devlin et al., 2019, section 5.3).

B batch, T positions, D width.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

# Of the embeddings and of what each block leaves, (B, T, D) each; "all" are the blocks, without the embeddings.
FEATURES: Mapping[str, Callable[[Sequence[Tensor]], Tensor]] = {
    "first": lambda layers: layers[0],
    "last": lambda layers: layers[-1],
    "second_to_last": lambda layers: layers[-2],
    "sum_last_four": lambda layers: torch.stack(list(layers[-4:])).sum(0),
    "concat_last_four": lambda layers: torch.cat(list(layers[-4:]), -1),
    "sum_all": lambda layers: torch.stack(list(layers[1:])).sum(0),
}
