"""Texts in a template: which tokens are the option's, what is cut, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.errors import InputError
from electra.text import tokenizer as tokenizers
from electra.text.templates import OptionPrompts, Template
from electra.text.tokenizer import TokenizerConfig

ROOM = 16
OPTIONS = ("old", "a small city", "café")


@pytest.fixture(scope="module", params=["wordpiece", "bpe", "unigram"])
def any_tokenizer(request):
    texts = ["the old river was in a small city and new music is fast to read café naïve reading . , : ! it"]
    return tokenizers.train(texts * 9, TokenizerConfig(vocab_size=300, algorithm=request.param))


def prompts(tokenizer, options=OPTIONS, template="It was {}.", max_length=ROOM + 2):
    return OptionPrompts.check(options, template, tokenizer, max_length=max_length)


def test_the_sentence_follows_the_text_or_has_a_place_for_it():
    assert Template("It was {}.").fill(" a text ", "good") == ("a text It was good.", (0, 6), (14, 18))
    assert Template("A {} one: {text}!").fill("a text", "good") == ("A good one: a text!", (12, 18), (2, 6))
    # Neither the text nor an option is a template.
    assert Template("It was {}.").fill("{} {text}", "{text}").whole == "{} {text} It was {text}."


@pytest.mark.parametrize("template", ["It was.", "", "{} or {}", "{text} {text} {}", "{text}", 3])
def test_other_templates_are_refused(template):
    with pytest.raises(InputError, match=r"^template is .*expected"):
        Template(template)


@pytest.mark.parametrize(
    "template", ["It was {}.", "A {} one: {text}", "{text}{}", "({}) {text}!", "{}{text}"]
)
def test_the_tokens_of_an_option_are_known_by_their_characters(any_tokenizer, template):
    # The words of the option stand in the text and in the template, too: searching would find others.
    texts = ["old river, a small city", "café old"]
    for row in prompts(any_tokenizer, template=template, max_length=200).rows(texts, cut=True):
        said = letters(any_tokenizer.decode(row.ids_T[row.place]))
        option = letters(OPTIONS[row.shown.option])
        # Where they touch, a token may have letters of both.
        assert said == option or ("}{" in template and option in said)


def letters(text):
    return "".join(char for char in text.replace("é", "e").lower() if char.isalpha())


@given(num_words=st.integers(0, 60), before=st.booleans(), cut=st.booleans())
def test_any_text_fits_with_the_whole_sentence(tokenizer, make_text, num_words, before, cut):
    template = "so it was {} here: {text}" if before else "so it was {} here."
    text = make_text(num_words)
    rows = list(prompts(tokenizer, template=template).rows([text], cut=cut))
    ids_of_text = tokenizer.encode([text]).ids.tolist()
    sentences = [
        tokenizer.encode([template.replace("{text}", "").replace("{}", option)]).ids.tolist()
        for option in OPTIONS
    ]
    kept = {}
    for row in rows:
        assert len(row.ids_T) <= ROOM
        option = tokenizer.encode([OPTIONS[row.shown.option]]).ids.tolist()
        assert row.ids_T[row.place].tolist() == option
        sentence = sentences[row.shown.option]
        ids = row.ids_T.tolist()
        shown = ids[len(sentence) :] if before else ids[: len(ids) - len(sentence)]
        assert (ids[: len(sentence)] if before else ids[len(shown) :]) == sentence
        kept.setdefault(row.shown.option, []).append(shown)
    # As much of the text beside each option; the beginning of it, or all.
    assert kept[0] == kept[1] == kept[2]
    if cut:
        assert kept[0] == [ids_of_text[: len(kept[0][0])]]
        assert len(kept[0][0]) == min(len(ids_of_text), ROOM - max(map(len, sentences)))
    else:
        assert sum(row.shown.weight for row in rows) == len(OPTIONS) * len(ids_of_text)
        assert kept[0][-1] == ids_of_text[len(ids_of_text) - len(kept[0][-1]) :]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "^options has 0 texts"),
        (["old"], "^options has 1 texts"),
        ("old", "^options is one string"),
        (["old", 3], r"^options\[1\] is of type int"),
        (["old", "\ud800"], r"^options\[1\] holds"),
        (["old", " \n"], r"^options\[1\] is .*nothing to the tokenizer"),
        (["ΩΩ", "old"], r"^options\[0\] is 'ΩΩ', unknown to the tokenizer"),
        (["old", "new", "Old "], r"^options\[2\] is 'Old ', .*the same as options\[0\]"),
        (["old", "city " * 20], r"^options\[1\] is .* tokens, and a row of the model has room for 16"),
    ],
)
def test_what_cannot_be_chosen_from_is_refused(tokenizer, options, message):
    with pytest.raises(InputError, match=message) as caught:
        prompts(tokenizer, options=options)
    assert len(str(caught.value)) < 400


def test_a_text_without_tokens_weighs_nothing(tokenizer):
    rows = list(prompts(tokenizer).rows(["", "old", " "], cut=False))
    assert [row.shown for row in rows] == [
        *((0, option, 0) for option in range(3)),
        *((1, option, 1) for option in range(3)),
        *((2, option, 0) for option in range(3)),
    ]


def test_texts_come_in_order_however_many_are_tokenized_at_once(tokenizer, make_text, monkeypatch):
    texts = [make_text(1 + number % 40, seed=number) for number in range(20)]
    whole = list(prompts(tokenizer).rows(texts, cut=False))
    monkeypatch.setattr("electra.text.templates.PROMPTS_AT_ONCE", 7)
    parts = list(prompts(tokenizer).rows(texts, cut=False))
    assert [(row.shown, row.place, row.ids_T.tolist()) for row in parts] == [
        (row.shown, row.place, row.ids_T.tolist()) for row in whole
    ]
