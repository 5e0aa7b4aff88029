"""An encoder's folder in transformers layout -> the same folder, which sentence-transformers loads too.

    SentenceTransformer(folder).encode(texts)        # the vectors that `Similarity` was trained to make

The files are those of the models published since its version 2; later versions write other names, and read
these without a word.
"""

from pathlib import Path

from electra import files
from electra.errors import InputError
from electra.tasks.similarity import Pooling

MODULES = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
"""What a text goes through, with the subfolder of each."""

POOLING_KEYS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
}


def add_sentence_transformer(folder: Path, *, pooling: Pooling, max_length: int) -> None:
    """Say how texts become vectors, in the files that sentence-transformers reads beside config.json."""
    config = files.read_json(folder / "config.json")
    if config.get("model_type") not in ("electra", "bert"):
        raise InputError(
            f"{folder} cannot be made a folder for sentence-transformers: its model_type is "
            f"{config.get('model_type')!r}, expected 'electra' or 'bert'. "
            f"{config.get('not_transformers_because', '')}".rstrip()
        )
    (folder / MODULES["Pooling"]).mkdir(exist_ok=True)
    files.write_json(
        folder / MODULES["Pooling"] / "config.json",
        {
            "word_embedding_dimension": config["hidden_size"],
            **{key: mode == pooling for mode, key in POOLING_KEYS.items()},
        },
    )
    # The tokenizer changes the case itself, if at all.
    longest = min(max_length, config["max_position_embeddings"])
    files.write_json(
        folder / "sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False}
    )
    files.write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"})
    # Last, since by this file the folder is known.
    files.write_json(
        folder / "modules.json",
        [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (kind, path) in enumerate(MODULES.items())
        ],
    )
