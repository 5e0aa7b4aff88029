import pytest

from electra.model.encoder import Encoder, initialise
from electra.model.sizes import EncoderConfig
from electra.seeds import python_random, torch_generator
from electra.tasks.families.family import TextExample
from electra.text import tokenizer as tokenizers
from electra.text.tokenizer import Tokenizer, TokenizerConfig

GOOD, BAD = ("fine", "lovely", "bright", "warm"), ("dull", "awful", "grey", "cold")
FILLING = ("the", "film", "story", "was", "and", "music", "seemed", "rather", "to", "me", "day", "house")


def opinions(count: int, *, seed: int = 0) -> list[TextExample]:
    """Texts of 3 to 20 words, of class 1 if one of them is a good word, of class 0 if it is a bad one."""
    random = python_random(seed, "opinions")
    examples = []
    for number in range(count):
        words = random.choices(FILLING, k=random.randint(2, 19))
        label = random.randrange(2)
        words.insert(random.randint(0, len(words)), random.choice((BAD, GOOD)[label]))
        examples.append(
            TextExample(id=str(number), where=f"line {number}", text=" ".join(words), label=label)
        )
    return examples


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """A vocabulary of the words of `opinions`, and of their letters."""
    return tokenizers.train([example.text for example in opinions(200)], TokenizerConfig(vocab_size=256))


@pytest.fixture(scope="session")
def tiny_config(tokenizer: Tokenizer) -> EncoderConfig:
    """The tiny preset with the vocabulary of `tokenizer`, dropout included."""
    return EncoderConfig.preset("tiny", vocab_size=tokenizer.vocab_size, max_position_embeddings=64)


@pytest.fixture
def tiny_encoder(tiny_config: EncoderConfig) -> Encoder:
    """A random encoder, the same every time."""
    encoder = Encoder(tiny_config)
    initialise(encoder, std=0.05, generator=torch_generator(0, "tiny encoder"))
    return encoder


@pytest.fixture(scope="session")
def make_opinions():
    """`make_opinions(count, seed=0)`: labelled texts that a tiny model can learn."""
    return opinions
