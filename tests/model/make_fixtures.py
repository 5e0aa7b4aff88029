"""Write fixtures/transformers.safetensors: random tiny weights, inputs, and what transformers makes of them.

Run by hand: python tests/model/make_fixtures.py. The file lets parity be tested without transformers.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

COMMON = {
    "vocab_size": 60,
    "embedding_size": 16,
    "max_position_embeddings": 12,
    "num_hidden_layers": 2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
DISCRIMINATOR = {**COMMON, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 32}
GENERATOR = {**COMMON, "hidden_size": 12, "num_attention_heads": 1, "intermediate_size": 16}


def main() -> None:
    torch.manual_seed(11)
    lengths = torch.tensor([12, 7, 1])
    attention_mask = (torch.arange(12) < lengths[:, None]).long()
    inputs = {
        "input_ids": torch.randint(0, 60, (3, 12)) * attention_mask,
        "attention_mask": attention_mask,
        "token_type_ids": (torch.arange(12) > lengths[:, None] // 2).long() * attention_mask,
    }
    tensors = {f"in/{name}": tensor for name, tensor in inputs.items()}
    for part, values, model_class in (
        ("discriminator", DISCRIMINATOR, ElectraForPreTraining),
        ("generator", GENERATOR, ElectraForMaskedLM),
    ):
        model = model_class(ElectraConfig(**values)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                # Far from the usual start, so that no mistake hides behind small numbers or zero biases.
                parameter.add_(torch.randn_like(parameter) * 0.3)
            output = model(**inputs, output_hidden_states=True)
        weights = {
            name: tensor for name, tensor in model.state_dict().items() if name != "generator_lm_head.weight"
        }
        tensors |= {f"{part}/{name}": tensor for name, tensor in weights.items()}
        tensors[f"out/{part}_logits"] = output.logits
        tensors |= {f"out/{part}_hidden_{n}": hidden for n, hidden in enumerate(output.hidden_states)}
    configs = {"discriminator": json.dumps(DISCRIMINATOR), "generator": json.dumps(GENERATOR)}
    folder = Path(__file__).parent / "fixtures"
    folder.mkdir(exist_ok=True)
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        folder / "transformers.safetensors",
        configs,
    )


if __name__ == "__main__":
    main()
