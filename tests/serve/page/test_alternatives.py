import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.slow

BUSY = (503, {"error": {"code": "unavailable", "message": "the queue is full"}}, {"Retry-After": "2"})


def test_chosen_with_the_keyboard_only(visit, word, server, judged):
    page = visit()
    judged("the chef ate rice")
    page.get_by_label("Your text").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    expect(page.get_by_role("dialog", name="Instead of ate")).to_be_visible()
    expect(page.get_by_role("button", name="cooked")).to_be_focused()
    assert server.asked[-1] == ("fill", {"texts": ["the chef [MASK] rice"], "top": 6})
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Your text")).to_have_value("the chef made rice")
    expect(word("made")).to_be_focused()
    expect(page.locator("#detect-words .suspect")).to_have_count(0)


def test_list_shows_shares_and_no_special_token(visit, word, judged):
    page = visit()
    judged("the chef ate rice")
    word("ate").click()
    expect(page.get_by_role("dialog").get_by_role("listitem")).to_have_text(
        ["cooked50.0 %", "made25.0 %", "…ry12.5 %"]
    )


def test_piece_of_a_word_goes_to_the_word_before(visit, word, judged):
    page = visit()
    judged("the bake ate rice")
    word("ate").click()
    page.get_by_role("button", name="…ry").click()
    expect(page.get_by_label("Your text")).to_have_value("the bakery rice")


def test_gap_in_the_text_is_not_taken_for_the_word(visit, word, judged):
    page = visit()
    judged("a [MASK] chef ate")
    word("chef").click()
    expect(page.get_by_role("dialog").get_by_role("listitem").first).to_have_text("made25.0 %")


@pytest.mark.parametrize("way", ["escape", "elsewhere"])
def test_closes(visit, way, word, judged):
    page = visit()
    judged("the chef ate rice")
    word("ate").click()
    expect(page.get_by_role("button", name="cooked")).to_be_focused()
    if way == "escape":
        page.keyboard.press("Escape")
        expect(word("ate")).to_be_focused()
    else:
        page.get_by_role("heading", name="electra").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_label("Your text")).to_have_value("the chef ate rice")


def test_error_is_told_in_the_list(visit, word, server, judged):
    page = visit()
    judged("the chef ate rice")
    server.failures.append(BUSY)
    word("ate").click()
    alert = page.get_by_role("dialog").get_by_role("alert")
    expect(alert).to_contain_text("the queue is full")
    alert.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("button", name="cooked")).to_be_focused()
