import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.slow


def test_fill(visit):
    page = visit("fill")
    field = page.get_by_label("A text with")
    field.fill("the ")
    page.get_by_role("button", name="Fill").click()
    expect(page.get_by_text("There is no gap")).to_be_visible()
    field.press("End")
    page.get_by_role("button", name="Put a gap").click()
    expect(field).to_have_value("the [MASK]")
    page.get_by_role("button", name="Fill").click()
    expect(page.locator("#fill-result tr")).to_have_text(["cooked50.0 %", "made25.0 %", "…ry12.5 %"])


@pytest.mark.parametrize(
    ("classified", "headline", "rows"),
    [
        (
            {"label": "good", "probabilities": {"bad": 0.125, "good": 0.875}},
            "good",
            ["good87.5 %", "bad12.5 %"],
        ),
        ({"labels": ["a", "b"], "probabilities": {"a": 0.75, "b": 0.5}}, "a, b", ["a75.0 %", "b50.0 %"]),
        (
            {"labels": [], "probabilities": {"a": 0.25}},
            "None of the labels is more probable than not.",
            None,
        ),
        ({"value": 3.25}, "3.250", []),
        ({"label": None, "probabilities": {}}, "There is no word in it that could be judged.", []),
    ],
)
def test_classify(visit, classified, headline, rows, server):
    page = visit("classify", abilities=["embed", "classify"], labels=["bad", "good"], classified=classified)
    page.locator("#classify-text").fill("so it goes")
    page.get_by_label("Second text").fill("and so on")
    page.get_by_role("button", name="Classify").click()
    expect(page.locator("#classify-result .headline")).to_have_text(headline)
    if rows is not None:
        expect(page.locator("#classify-result tr")).to_have_text(rows)
    assert server.asked == [("classify", {"texts": ["so it goes"], "pairs": ["and so on"]})]


def test_classify_without_a_pair(visit, server):
    page = visit("classify", abilities=["classify"], classified={"value": 1.0})
    page.locator("#classify-text").fill("so it goes")
    page.get_by_role("button", name="Classify").click()
    expect(page.locator("#classify-result .headline")).to_be_visible()
    assert server.asked[0][1]["pairs"] is None


def test_tag_marks_chunks(visit):
    page = visit("tag", abilities=["tag"], labels=["O", "B-PER", "I-PER"])
    page.locator("#tag-text").fill("🙂 so Ada met Alan")
    page.get_by_role("button", name="Tag").click()
    expect(page.locator("#tag-result .chunk")).to_have_text(["Ada PER", "Alan PER"])
    page.locator("#tag-text").fill("nobody")
    page.get_by_role("button", name="Tag").click()
    expect(page.get_by_text("Nothing in this text is marked.")).to_be_visible()


def test_tag_names_words(visit):
    page = visit("tag", abilities=["tag"], labels=["O", "X"])
    page.locator("#tag-text").fill("🙂 so")
    page.get_by_role("button", name="Tag").click()
    expect(page.locator("#tag-result ruby")).to_have_text(["🙂O", "soO"])


def test_answer(visit):
    page = visit("answer", abilities=["answer"])
    page.get_by_label("Question", exact=True).fill("When?")
    page.get_by_label("Text to search").fill("🙂 It was in 1902.")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#answer-result .headline")).to_have_text("1902")
    expect(page.locator("#answer-result mark")).to_have_text("1902")
    expect(page.locator("#answer-result .quiet")).to_have_text(
        "Probability of this answer: 75.0 %; that there is none: 12.5 %"
    )
    page.get_by_label("Text to search").fill("Long ago.")
    page.get_by_role("button", name="Answer").click()
    expect(page.locator("#answer-result .headline")).to_have_text("The text seems not to answer this.")
    expect(page.locator("#answer-result mark")).to_have_count(0)


def test_choose(visit, server):
    page = visit("choose", abilities=["embed", "choose"], task="quiz")
    page.locator("#choose-question").fill("Who ate it?")
    page.get_by_label("Two or more choices").fill("the chef\n\n")
    page.get_by_role("button", name="Choose").click()
    expect(page.get_by_text("Write at least two choices.")).to_be_visible()
    page.get_by_label("Two or more choices").fill("the moon\n the chef ")
    page.get_by_role("button", name="Choose").click()
    expect(page.locator("#choose-result .headline")).to_have_text("the chef")
    expect(page.locator("#choose-result tr")).to_have_text(["the moon25.0 %", "the chef75.0 %"])
    assert server.asked == [("choose", {"questions": ["Who ate it?"], "choices": [["the moon", "the chef"]]})]


def test_choose_among_options(visit, server):
    page = visit("options", abilities=["embed", "detect", "choose"])
    expect(page.get_by_role("tab")).to_have_text(["Detect", "Choose", "Embed"])
    page.locator("#options-text").fill("so it goes")
    page.get_by_label("Two or more options").fill("good\n\n")
    page.get_by_role("button", name="Choose").click()
    expect(page.get_by_text("Write at least two options.")).to_be_visible()
    page.get_by_label("Two or more options").fill("good\n $& ")
    page.get_by_label("Sentence, with").fill("It was.")
    page.get_by_role("button", name="Choose").click()
    expect(page.get_by_text("Write {} once")).to_be_visible()
    page.get_by_label("Sentence, with").fill("{text} It was {}.")
    page.get_by_role("button", name="Choose").click()
    expect(page.locator("#options-result .headline")).to_have_text("… It was $&.")
    expect(page.locator("#options-result tr")).to_have_text(["good25.0 %", "$&75.0 %"])
    body = {"texts": ["so it goes"], "options": ["good", "$&"], "template": "{text} It was {}."}
    assert server.asked == [("choose", body)]


def test_embed(visit):
    page = visit("embed")
    page.get_by_label("Two or more texts").fill("cat\n\n")
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_text("Write at least two texts")).to_be_visible()
    page.get_by_label("Two or more texts").fill("cat\n kitten \nshares")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#embed-result tbody tr")).to_have_text(
        ["1  cat1.000.800.00", "2  kitten0.801.000.60", "3  shares0.000.601.00"]
    )
