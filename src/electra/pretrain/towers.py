"""Token ids -> for each position, hidden states that have seen all tokens but the one standing there.

Electric's generator: two transformers, one reading from the left and one from the right. Position t gets the
left one's state at t - 1 and the right one's at t + 1, so a single pass gives the distribution of every token
given all the others.

B rows, L positions, D numbers in a hidden state of one tower.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from electra.model.encoder import Embeddings, Encoder
from electra.model.self_attention import AttentionInputs
from electra.model.sizes import EncoderConfig


class Tower(Encoder):
    """An encoder whose positions see themselves and the tokens on one side."""

    def __init__(
        self,
        config: EncoderConfig,
        *,
        side: Literal["left", "right"],
        embeddings: Embeddings | None = None,
    ) -> None:
        super().__init__(config, embeddings=embeddings)
        self.side = side

    def attention_inputs(self, hidden_BLD: Tensor, attention_mask_BL: Tensor | None) -> AttentionInputs:
        """Padding, positions, and nothing from the other side."""
        inputs = super().attention_inputs(hidden_BLD, attention_mask_BL)
        length, dtype = hidden_BLD.shape[1], self.attention_dtype(hidden_BLD)
        position_L = torch.arange(length, device=hidden_BLD.device)
        distance_LL = position_L[:, None] - position_L
        unseen_LL = distance_LL < 0 if self.side == "left" else distance_LL > 0
        bias = torch.zeros((), dtype=dtype, device=hidden_BLD.device) if inputs.bias is None else inputs.bias
        # As low as for padding: finite, so that a position that sees nothing gives no NaN.
        bias = bias.masked_fill(unseen_LL, torch.finfo(dtype).min / 2)
        return inputs._replace(bias=bias, bias_is_padding=False)


class TwoTowers(nn.Module):
    """A tower for each side, over one set of embeddings."""

    def __init__(self, config: EncoderConfig, *, embeddings: Embeddings | None = None) -> None:
        super().__init__()
        self.left = Tower(config, side="left", embeddings=embeddings)
        self.right = Tower(config, side="right", embeddings=self.left.embeddings)

    @property
    def embeddings(self) -> Embeddings:
        """The embeddings of both towers."""
        return self.left.embeddings

    def forward(
        self,
        input_ids_BL: Tensor,
        *,
        token_type_ids_BL: Tensor | None = None,
        attention_mask_BL: Tensor | None = None,
        text_T: Tensor | None = None,
    ) -> Tensor:
        """Hidden states (B, L, 2 D) that do not depend on the token of their own position."""
        left_BLD, right_BLD = (
            tower(
                input_ids_BL,
                token_type_ids_BL=token_type_ids_BL,
                attention_mask_BL=attention_mask_BL,
                text_T=text_T,
            )
            for tower in (self.left, self.right)
        )
        if attention_mask_BL is not None:
            # A row's last token has nothing on its right, as if the row filled the batch.
            right_BLD = right_BLD * attention_mask_BL[..., None]
        # The original wraps round at the ends, where a position would see itself: there is nothing here.
        before_BLD = functional.pad(left_BLD[:, :-1], (0, 0, 1, 0))
        after_BLD = functional.pad(right_BLD[:, 1:], (0, 0, 0, 1))
        return torch.cat([before_BLD, after_BLD], dim=-1)
