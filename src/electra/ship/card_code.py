"""What was exported -> lines of Python that load and use it, true where the card lies.

A card is run by its test as it stands, in its own folder.
"""

from collections.abc import Sequence

from electra.ship.exporting import Source
from electra.tasks.layout import HEAD_WEIGHTS

TEXT, OTHER, GAP = "The chef ate the meal.", "A cook had dinner.", "The [MASK] ate the meal."
QUESTION = "Who ate the meal?"

ABILITIES = {
    "discriminator": f'model.detect(["{TEXT}"])  # how probably each token was replaced',
    "generator": f'model.fill(["{GAP}"])  # what could stand in the gap',
    "encoder": f'model.embed(["{TEXT}", "{OTHER}"])  # a vector for each text',
    "classification": f'model.classify(["{TEXT}"])  # a second list would be the other texts of pairs',
    "multi_label": f'model.classify(["{TEXT}"])  # a second list would be the other texts of pairs',
    "regression": f'model.classify(["{TEXT}"])  # a second list would be the other texts of pairs',
    "similarity": f'model.similarity(["{TEXT}"], ["{OTHER}"])',
    "tagging": f'model.tag(["{TEXT}"])',
    "question_answering": f'model.answer(["{QUESTION}"], ["{TEXT}"])',
}
"""What a model is -> how `electra.load` uses it. Choices between texts have no method there."""

PIPELINES = {
    "generator": f'pipeline("fill-mask", model=folder)("{GAP}")',
    "classification": f'pipeline("text-classification", model=folder)("{TEXT}")',
    "multi_label": f'pipeline("text-classification", model=folder, top_k=None)("{TEXT}")',
    "regression": f'pipeline("text-classification", model=folder, function_to_apply="none")("{TEXT}")',
    "tagging": f'pipeline("token-classification", model=folder)("{TEXT}")',
}
"""What a model is -> how a pipeline of transformers uses it."""

LINES = {
    "discriminator": [
        f'inputs = tokenizer("{TEXT}", return_tensors="pt")',
        "replaced = model(**inputs).logits.sigmoid()  # how probably each token was replaced",
    ],
    "encoder": [
        f'inputs = tokenizer("{TEXT}", return_tensors="pt")',
        "hidden = model(**inputs).last_hidden_state  # (texts, tokens, numbers)",
    ],
    "head": [
        f'inputs = tokenizer("{TEXT}", return_tensors="pt")',
        "first = model(**inputs).last_hidden_state[:, 0]",
        f'head = load_file(f"{{folder}}/{HEAD_WEIGHTS}")',
        'logits = first @ head["output.weight"].T + head["output.bias"]',
    ],
    "question_answering": [
        f'inputs = tokenizer("{QUESTION}", "{TEXT}", return_tensors="pt")',
        "output = model(**inputs)",
        "first, last = output.start_logits.argmax(), output.end_logits.argmax()",
        'answer = tokenizer.decode(inputs["input_ids"][0, first : last + 1])',
    ],
    "multiple_choice": [
        'ends = ["The chef.", "The meal."]',
        f'inputs = tokenizer(["{QUESTION}"] * 2, ends, padding=True, return_tensors="pt")',
        "logits = model(**{name: ids[None] for name, ids in inputs.items()}).logits",
    ],
}
"""What a model is -> how its class in transformers is used."""

VECTORS = ["from sentence_transformers import SentenceTransformer", ""]
FOLDER = ['folder = "."  # where this card lies', ""]


def kind_of(source: Source) -> str:
    """What a model is: its part, or the family of its task."""
    return source.part or str(source.about["family"])


def with_transformers(source: Source, architecture: str) -> list[str]:
    """How others use what was exported for them; empty if there is no way."""
    kind = kind_of(source)
    if kind in PIPELINES and architecture != "ElectraModel":
        return ["from transformers import pipeline", "", *FOLDER, PIPELINES[kind]]
    if kind == "similarity":
        comparison = f'vectors = model.encode(["{TEXT}", "{OTHER}"])'
        return [
            *VECTORS,
            *FOLDER,
            "model = SentenceTransformer(folder)",
            comparison,
            "cosines = model.similarity(vectors, vectors)",
        ]
    if kind in ("classification", "multi_label"):
        return [*class_lines(architecture, LINES["head"], more=["from safetensors.torch import load_file"])]
    if kind == "question_answering" and architecture == "ElectraModel":
        return []
    lines = class_lines(architecture, LINES[kind])
    if kind == "encoder":
        encode = f'SentenceTransformer(folder).encode(["{TEXT}", "{OTHER}"])  # a vector for each text'
        lines += ["", *VECTORS, encode]
    return lines


def class_lines(architecture: str, lines: Sequence[str], *, more: Sequence[str] = ()) -> list[str]:
    """Load tokenizer and model by their classes, and use them."""
    return [
        "import torch",
        *more,
        f"from transformers import AutoTokenizer, {architecture}",
        "",
        *FOLDER,
        "tokenizer = AutoTokenizer.from_pretrained(folder)",
        f"model = {architecture}.from_pretrained(folder)",
        "with torch.no_grad():",
        *(f"    {line}" for line in lines),
    ]


def with_onnxruntime(source: Source, outputs: Sequence[str]) -> list[str]:
    """How any program uses a graph."""
    kind = kind_of(source)
    question = f'"{QUESTION}", ' if kind == "question_answering" else ""
    text = GAP if kind == "generator" else TEXT
    comma = "," if len(outputs) == 1 else ""
    return [
        "import onnxruntime",
        # The automatic one asks for the model's class, which transformers may not have.
        "from transformers import PreTrainedTokenizerFast",
        "",
        *FOLDER,
        "tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)",
        'session = onnxruntime.InferenceSession(f"{folder}/model.onnx")',
        f'inputs = tokenizer({question}"{text}", return_tensors="np")',
        f"{', '.join(outputs)}{comma} = session.run({list(outputs)}, dict(inputs))",
    ]


def with_electra(source: Source, *, engine: str) -> list[str]:
    """How we use it; empty if there is no method for it."""
    use = ABILITIES.get(kind_of(source))
    option = "" if engine == "torch" else f', engine="{engine}"'
    return (
        [] if use is None else ["import electra", "", *FOLDER, f"model = electra.load(folder{option})", use]
    )
