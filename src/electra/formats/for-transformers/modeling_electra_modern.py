"""Token ids -> hidden states, logits: electra's modern encoder for transformers, trust_remote_code=True.

This file lies in the folder of a model that `electra export --to transformers` wrote, and needs nothing but
torch and transformers. It is ModernBERT (pre-norm, rotary positions, GeGLU, no biases) with queries and keys
of a fixed length and, if they differ in width, a projection of the embeddings.

B rows, L positions, H heads; numbers in a head S, a hidden state D.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)

ROTARY_BASE = 10000.0
NORMALISED_SCALE = 0.35
SHORTEST = 1e-3


class ElectraModernConfig(PretrainedConfig):
    """Sizes of an encoder."""

    model_type = "electra_modern"

    def __init__(
        self,
        vocab_size: int = 30522,
        embedding_size: int = 128,
        hidden_size: int = 256,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 4,
        intermediate_size: int = 680,
        hidden_dropout_prob: float = 0.1,
        attention_probs_dropout_prob: float = 0.1,
        max_position_embeddings: int = 512,
        initializer_range: float = 0.02,
        layer_norm_eps: float = 1e-12,
        query_key_norm: str = "rms",
        global_attention_every: int = 1,
        local_attention_window: int = 128,
        classifier_pooling: str = "cls",
        discriminator_head: str = "plain",
        **more: Any,
    ) -> None:
        if classifier_pooling not in ("cls", "mean"):
            raise ValueError(f"classifier_pooling is {classifier_pooling!r}, expected cls or mean")
        if discriminator_head not in ("plain", "with_cls"):
            raise ValueError(f"discriminator_head is {discriminator_head!r}, expected plain or with_cls")
        self.vocab_size = vocab_size
        self.embedding_size = embedding_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.hidden_dropout_prob = hidden_dropout_prob
        self.attention_probs_dropout_prob = attention_probs_dropout_prob
        self.max_position_embeddings = max_position_embeddings
        self.initializer_range = initializer_range
        self.layer_norm_eps = layer_norm_eps
        self.query_key_norm = query_key_norm
        self.global_attention_every = global_attention_every
        self.local_attention_window = local_attention_window
        self.classifier_pooling = classifier_pooling
        self.discriminator_head = discriminator_head
        super().__init__(**more)


def norm(config: ElectraModernConfig, width: int) -> nn.LayerNorm:
    """A layer norm without a bias."""
    return nn.LayerNorm(width, eps=config.layer_norm_eps, bias=False)


class Embeddings(nn.Module):
    """A table of words and a norm."""

    def __init__(self, config: ElectraModernConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.embedding_size)
        self.norm = norm(config, config.embedding_size)


class Attention(nn.Module):
    """Self-attention over the whole row or a window."""

    def __init__(self, config: ElectraModernConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.head_size = width // config.num_attention_heads
        self.normalises = config.query_key_norm == "rms"
        self.scale = NORMALISED_SCALE if self.normalises else self.head_size**-0.5
        self.dropout = config.attention_probs_dropout_prob

    def forward(self, hidden_BLD: Tensor, rotation: tuple[Tensor, Tensor], bias_B1LL: Tensor) -> Tensor:
        """The sum of what each position takes from the others."""
        query, key, value = (
            part(hidden_BLD).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        if self.normalises:
            query, key = (
                part * (self.head_size**0.5 / part.norm(dim=-1, keepdim=True).clamp(min=SHORTEST))
                for part in (query, key)
            )
        cosine_LS, sine_LS = (part.to(query.dtype) for part in rotation)
        query, key = (
            part * cosine_LS + part.roll(self.head_size // 2, -1) * sine_LS for part in (query, key)
        )
        mixed_BHLS = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=bias_B1LL,
            dropout_p=self.dropout if self.training else 0.0,
            scale=self.scale,
        )
        output: Tensor = self.output(mixed_BHLS.transpose(1, 2).flatten(2))
        return output


class FeedForward(nn.Module):
    """Half of the inner layer through gelu, as a gate of the other half."""

    def __init__(self, config: ElectraModernConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.output = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, hidden_BLD: Tensor) -> Tensor:
        """The output at each position."""
        gate_BLF, inner_BLF = self.inner(hidden_BLD).chunk(2, dim=-1)
        output: Tensor = self.output(functional.gelu(gate_BLF) * inner_BLF)
        return output


class Layer(nn.Module):
    """Attention, then feed-forward; the first layer has no norm before its attention."""

    def __init__(self, config: ElectraModernConfig, number: int) -> None:
        super().__init__()
        self.attention_norm = norm(config, config.hidden_size) if number else nn.Identity()
        self.attention = Attention(config)
        self.feed_forward_norm = norm(config, config.hidden_size)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_BLD: Tensor, rotation: tuple[Tensor, Tensor], bias_B1LL: Tensor) -> Tensor:
        """The next layer's input."""
        mixed_BLD = self.attention(self.attention_norm(hidden_BLD), rotation, bias_B1LL)
        hidden_BLD = hidden_BLD + self.dropout(mixed_BLD)
        output: Tensor = hidden_BLD + self.dropout(self.feed_forward(self.feed_forward_norm(hidden_BLD)))
        return output


class ElectraModernPreTrainedModel(PreTrainedModel):
    """What all classes below have in common."""

    config_class = ElectraModernConfig
    base_model_prefix = "encoder"
    _no_split_modules = ("Layer",)
    _supports_sdpa = True


class ElectraModernModel(ElectraModernPreTrainedModel):
    """Token ids -> hidden states. Segments are not told apart, so token_type_ids change nothing."""

    def __init__(self, config: ElectraModernConfig) -> None:
        super().__init__(config)
        self.embeddings = Embeddings(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.projection: nn.Module = nn.Identity()
        if config.embedding_size != config.hidden_size:
            self.projection = nn.Linear(config.embedding_size, config.hidden_size, bias=False)
        self.layers = nn.ModuleList(Layer(config, number) for number in range(config.num_hidden_layers))
        self.norm = norm(config, config.hidden_size)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The table of words."""
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Another table of words."""
        self.embeddings.word_embeddings = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **more: Any,
    ) -> BaseModelOutput | tuple[Any, ...]:
        """Hidden states; where the mask is 0 there is padding."""
        vector_BLE = self.embeddings.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        hidden_BLD = self.projection(self.dropout(self.embeddings.norm(vector_BLE)))
        length, device = hidden_BLD.shape[1], hidden_BLD.device
        position_L = torch.arange(length, device=device)
        size = self.config.hidden_size // self.config.num_attention_heads
        angle = position_L[:, None] * ROTARY_BASE ** (-torch.arange(0, size, 2, device=device) / size)
        rotation = (torch.cat([angle.cos()] * 2, dim=-1), torch.cat([-angle.sin(), angle.sin()], dim=-1))
        low = torch.finfo(hidden_BLD.dtype).min / 2
        bias_B1LL = torch.zeros(1, 1, 1, length, dtype=hidden_BLD.dtype, device=device)
        if attention_mask is not None:
            bias_B1LL = bias_B1LL.masked_fill(attention_mask[:, None, None] == 0, low)
        bias_B1LL = bias_B1LL.expand(-1, -1, length, -1)
        far_LL = (position_L[:, None] - position_L).abs() > self.config.local_attention_window // 2
        states = [hidden_BLD]
        for number, layer in enumerate(self.layers):
            is_local = number % self.config.global_attention_every != 0
            bias = bias_B1LL.masked_fill(far_LL, low) if is_local else bias_B1LL
            hidden_BLD = layer(hidden_BLD, rotation, bias)
            states.append(hidden_BLD)
        found = BaseModelOutput(last_hidden_state=self.norm(hidden_BLD))
        if output_hidden_states or (output_hidden_states is None and self.config.output_hidden_states):
            found.hidden_states = tuple(states)
        return found.to_tuple() if return_dict is False else found


class PredictionHead(nn.Module):
    """A dense layer, gelu, a norm."""

    def __init__(self, config: ElectraModernConfig, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, width, bias=False)
        self.norm = norm(config, width)

    def forward(self, hidden_BLD: Tensor) -> Tensor:
        """What is compared with the words, or judged."""
        output: Tensor = self.norm(functional.gelu(self.dense(hidden_BLD)))
        return output


class GeneratorHead(PredictionHead):
    """Hidden states -> logits over the vocabulary, by the table of words."""

    def __init__(self, config: ElectraModernConfig) -> None:
        super().__init__(config, config.embedding_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))


class DiscriminatorHead(PredictionHead):
    """Hidden states -> one logit for each position; with_cls: of its state with that of [CLS] added to it."""

    def __init__(self, config: ElectraModernConfig) -> None:
        super().__init__(config, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, 1)
        self.context_norm: nn.Module | None = None
        if config.discriminator_head == "with_cls":
            self.context_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_BLD: Tensor) -> Tensor:
        """Logits (B, L)."""
        if self.context_norm is not None:
            hidden_BLD = self.context_norm(hidden_BLD + hidden_BLD[:, :1])
        logits_BL: Tensor = self.output(super().forward(hidden_BLD)).squeeze(-1)
        return logits_BL


class ElectraModernForMaskedLM(ElectraModernPreTrainedModel):
    """The generator: what could stand in a gap."""

    def __init__(self, config: ElectraModernConfig) -> None:
        super().__init__(config)
        self.encoder = ElectraModernModel(config)
        self.generator_head = GeneratorHead(config)
        self.post_init()

    def forward(
        self, input_ids: Tensor | None = None, labels: Tensor | None = None, **more: Any
    ) -> MaskedLMOutput:
        """Logits (B, L, V)."""
        hidden_BLD = self.encoder(input_ids, **more)[0]
        table_VE = self.encoder.embeddings.word_embeddings.weight
        logits = functional.linear(self.generator_head(hidden_BLD), table_VE, self.generator_head.bias)
        loss = None if labels is None else functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return MaskedLMOutput(loss=loss, logits=logits)


class ElectraModernForPreTraining(ElectraModernPreTrainedModel):
    """The discriminator: above 0, a token looks replaced."""

    def __init__(self, config: ElectraModernConfig) -> None:
        super().__init__(config)
        self.encoder = ElectraModernModel(config)
        self.discriminator_head = DiscriminatorHead(config)
        self.post_init()

    def forward(self, input_ids: Tensor | None = None, **more: Any) -> TokenClassifierOutput:
        """Logits (B, L)."""
        return TokenClassifierOutput(logits=self.discriminator_head(self.encoder(input_ids, **more)[0]))


class ElectraModernWithClassifier(ElectraModernPreTrainedModel):
    """An encoder with one linear layer."""

    num_outputs: int | None = None
    """As many as labels, if None."""

    def __init__(self, config: ElectraModernConfig) -> None:
        super().__init__(config)
        self.encoder = ElectraModernModel(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, self.num_outputs or config.num_labels)
        self.post_init()

    def judge(self, input_ids: Tensor | None, **more: Any) -> Tensor:
        """Logits at each position."""
        logits: Tensor = self.classifier(self.dropout(self.encoder(input_ids, **more)[0]))
        return logits

    def judge_row(self, input_ids: Tensor | None, attention_mask: Tensor | None, **more: Any) -> Tensor:
        """Logits of a whole row: by [CLS], or by the mean of all positions that are not padding."""
        hidden_BLD = self.encoder(input_ids, attention_mask=attention_mask, **more)[0]
        if self.config.classifier_pooling == "cls":
            vector_BD = hidden_BLD[:, 0]
        elif attention_mask is None:
            vector_BD = hidden_BLD.mean(dim=1)
        else:
            total_BD = hidden_BLD.masked_fill((attention_mask == 0)[..., None], 0.0).sum(dim=1)
            vector_BD = total_BD / attention_mask.sum(dim=1, keepdim=True)
        logits: Tensor = self.classifier(self.dropout(vector_BD))
        return logits


class ElectraModernForSequenceClassification(ElectraModernWithClassifier):
    """A label, labels or a number for a text."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **more: Any,
    ) -> SequenceClassifierOutput:
        """Logits (B, labels)."""
        logits, loss = self.judge_row(input_ids, attention_mask, **more), None
        if labels is not None:
            match self.config.problem_type:
                case "regression":
                    loss = functional.mse_loss(logits.squeeze(-1), labels.float())
                case "multi_label_classification":
                    loss = functional.binary_cross_entropy_with_logits(logits, labels.float())
                case _:
                    loss = functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


class ElectraModernForTokenClassification(ElectraModernWithClassifier):
    """A tag for each token."""

    def forward(
        self, input_ids: Tensor | None = None, labels: Tensor | None = None, **more: Any
    ) -> TokenClassifierOutput:
        """Logits (B, L, tags)."""
        logits = self.judge(input_ids, **more)
        loss = None if labels is None else functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return TokenClassifierOutput(loss=loss, logits=logits)


class ElectraModernForQuestionAnswering(ElectraModernWithClassifier):
    """Where an answer begins and ends."""

    num_outputs = 2

    def forward(self, input_ids: Tensor | None = None, **more: Any) -> QuestionAnsweringModelOutput:
        """Start and end logits (B, L)."""
        start_BL, end_BL = self.judge(input_ids, **more).unbind(-1)
        return QuestionAnsweringModelOutput(start_logits=start_BL, end_logits=end_BL)


class ElectraModernForMultipleChoice(ElectraModernWithClassifier):
    """Which of some texts fits."""

    num_outputs = 1

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **more: Any
    ) -> MultipleChoiceModelOutput:
        """Logits (B, choices)."""
        mask = None if attention_mask is None else attention_mask.flatten(0, 1)
        more.pop("token_type_ids", None)
        logits = self.judge_row(input_ids.flatten(0, 1), mask, **more)
        return MultipleChoiceModelOutput(logits=logits.view(input_ids.shape[:2]))
