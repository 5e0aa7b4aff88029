import re

import pytest
from playwright.sync_api import expect

MEAL = "the chef cooked the meal with wine"


@pytest.fixture
def corrupted(page):
    """`corrupted()`: a round begins."""

    def begin():
        page.get_by_label("The text to play with").fill(MEAL)
        page.get_by_role("button", name="Corrupt").click()
        expect(page.locator("#game-words")).to_have_text("the chef ate the moon with wine")

    return begin


@pytest.mark.slow
def test_guess_against_the_discriminator(visit, word, corrupted):
    page = visit("game")
    corrupted()
    for text in ("ate", "chef", "moon"):
        word(text, "game").click()
    word("chef", "game").click()
    expect(page.locator("#game-count")).to_have_text("2 words marked")
    page.get_by_role("button", name="Reveal").click()
    expect(page.get_by_text("You win this round.")).to_be_visible()
    rows = page.locator("#game-result .scores tbody tr")
    expect(rows).to_have_text(["You2 of 20", "Discriminator1 of 21"])
    expect(page.locator("#game-result .word-table tbody tr")).to_have_text(
        [
            "cooked → ate✓ found✓ found 93 %",
            "meal → moon✓ found✗ missed 2 %",
            "wine–! false alarm 61 %",
        ]
    )
    expect(page.locator("#game-score")).to_have_text("1 round: you 1, discriminator 0, drawn 0")


def test_missed_words_and_false_alarms_are_marked(visit, word, corrupted):
    page = visit("game")
    corrupted()
    word("chef", "game").click()
    page.get_by_role("button", name="Reveal").click()
    for text, outcome in (("ate", "missed"), ("moon", "missed"), ("chef", "alarm")):
        expect(word(text, "game")).to_have_class(re.compile(rf"\b{outcome}\b"))
    expect(page.locator("#game-words .model-mark")).to_have_text(["ate"])
    expect(page.get_by_text("The discriminator wins this round.")).to_be_visible()
    assert "missed" in word("ate", "game").get_attribute("aria-label")


@pytest.mark.slow
def test_keyboard_only_and_rounds_add_up(visit, word):
    page = visit("game")
    page.get_by_label("The text to play with").fill(MEAL)
    page.keyboard.press("Control+Enter")
    expect(word("the", "game").first).to_be_focused()
    for key in ("ArrowRight", "ArrowRight", " "):
        page.keyboard.press(key)
    expect(word("ate", "game")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Reveal")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#game-result")).to_be_focused()
    page.get_by_role("button", name="Next round").click()
    expect(page.locator("#game-result")).to_be_hidden()
    expect(page.get_by_role("button", name="Reveal")).to_be_disabled()
    page.keyboard.press("Space")
    page.get_by_role("button", name="Reveal").click()
    expect(page.locator("#game-score")).to_have_text("2 rounds: you 0, discriminator 1, drawn 1")
    page.reload()
    expect(page.locator("#game-score")).to_have_text("2 rounds: you 0, discriminator 1, drawn 1")
    page.get_by_role("button", name="Start over").click()
    expect(page.locator("#game-score")).to_have_text("")


@pytest.mark.slow
def test_marks_do_not_change_after_the_reveal(visit, word, corrupted):
    page = visit("game")
    corrupted()
    word("with", "game").click()
    page.get_by_role("button", name="Reveal").click()
    word("ate", "game").click()
    expect(page.locator("#game-result .scores tbody tr").first).to_have_text("You0 of 21")
    expect(page.locator("#game-words [aria-pressed]")).to_have_count(0)


def test_rate_and_a_new_seed_go_to_the_server(visit, server, corrupted):
    page = visit("game")
    page.get_by_label("Words that the generator may rewrite").fill("40")
    expect(page.locator("#game-rate-shown")).to_have_text("40 %")
    corrupted()
    with page.expect_response("**/corrupt"):
        page.get_by_role("button", name="Corrupt").click()
    bodies = [body for _, body in server.asked]
    assert [body["mask_prob"] for body in bodies] == [0.4, 0.4]
    assert bodies[0]["seed"] != bodies[1]["seed"]


def test_other_seeds_are_tried_if_nothing_was_replaced(visit, server):
    page = visit("game")
    page.get_by_label("The text to play with").fill("nothing here changes")
    page.get_by_role("button", name="Corrupt").click()
    expect(page.locator("#game-words .word")).to_have_count(3)
    assert len({body["seed"] for _, body in server.asked}) == 5


@pytest.mark.slow
def test_without_text_the_field_is_next(visit, server):
    page = visit("game")
    page.get_by_role("button", name="Corrupt").click()
    expect(page.get_by_label("The text to play with")).to_be_focused()
    page.locator("#game-example").click()
    assert len(page.get_by_label("The text to play with").input_value()) > 100
    assert server.asked == []


def test_phrases_are_marked_and_judged_as_one(visit):
    page = visit("game")
    page.get_by_label("The text to play with").fill("The old city was full of music and wine")
    page.get_by_role("button", name="Corrupt").click()
    words = page.locator("#game-words .word")
    expect(words).to_have_text(["The old city", "was", "without 🙂 any snow", "and", "wine"])
    expect(page.locator("#game-title")).to_have_text("Which phrases were replaced?")
    expect(page.locator("#game-count")).to_have_text("Mark a phrase first.")
    words.nth(2).click()
    expect(page.locator("#game-count")).to_have_text("1 phrase marked")
    page.get_by_role("button", name="Reveal").click()
    expect(page.locator("#game-result .word-table tr")).to_have_text(
        ["PhraseYouDiscriminator", "full of music → without 🙂 any snow✓ found✓ found 70 %"]
    )
    expect(page.locator("#game-result .scores tbody tr")).to_have_text(["You1 of 10", "Discriminator1 of 10"])
