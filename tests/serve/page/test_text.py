import pytest
from playwright.sync_api import expect

CUT = {
    ("playing it", ((0, 4), (4, 7), (8, 10))): ["playing", "it"],
    ("don't", ((0, 3), (3, 4), (4, 5))): ["don", "'", "t"],
    ("日本語", ((0, 1), (1, 2), (2, 3))): ["日", "本", "語"],
    ("한국어", ((0, 1), (1, 3))): ["한국어"],
    # Of two tokens for one character, the first has none.
    ("𝒳𝒴 🙂", ((0, 1), (1, 2), (3, 3), (3, 4))): ["𝒳𝒴", "🙂"],
    ("cafe\u0301s", ((0, 5), (5, 6))): ["cafe\u0301s"],
    ("ไทย", ((0, 1), (1, 3))): ["ไ", "ทย"],
    ("", ()): [],
}
"""Text and places of its tokens -> words."""


@pytest.mark.slow
def test_emoji_do_not_shift_words(visit, word, judged):
    page = visit()
    judged("🙂👩‍👩‍👧 𝒳 the chef ate 🙂 rice")
    expect(page.locator("#detect-words .suspect")).to_have_text(["ate"])
    word("ate").click()
    page.get_by_role("button", name="cooked").click()
    expect(page.get_by_label("Your text")).to_have_value("🙂👩‍👩‍👧 𝒳 the chef cooked 🙂 rice")


def test_tokens_become_words(visit):
    page = visit()
    cases = [[text, [{"start": start, "end": end} for start, end in spans]] for text, spans in CUT]
    found = page.evaluate(
        """async (cases) => {
            const { wordsOf } = await import("./text.js");
            return cases.map(([text, tokens]) => {
                const words = wordsOf(text, tokens);
                const texts = words.map(({start, end}) => text.slice(start, end));
                return [texts, words.flatMap(word => word.tokens).length];
            });
        }""",
        cases,
    )
    assert found == [[words, len(spans)] for (_, spans), words in CUT.items()]


@pytest.mark.slow
def test_right_to_left(visit, word, judged):
    page = visit()
    judged("שלום עולם טוב")
    boxes = [word(text).bounding_box() for text in ("שלום", "עולם")]
    assert boxes[0]["x"] > boxes[1]["x"]
    word("שלום").focus()
    page.keyboard.press("ArrowLeft")
    expect(word("עולם")).to_be_focused()


@pytest.mark.slow
def test_arrows_walk_lines(visit, word, judged):
    page = visit()
    judged("one two\nthree four\nfive")
    word("two").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(word("five")).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(word("three")).to_be_focused()
