import threading

import pytest
from playwright.sync_api import expect

BUSY = (503, {"error": {"code": "unavailable", "message": "the queue is full"}}, {"Retry-After": "2"})


@pytest.mark.slow
def test_words_are_coloured_while_one_types(visit, word):
    page = visit()
    expect(page.get_by_text("Nothing to judge yet")).to_be_visible()
    page.get_by_label("Your text").press_sequentially("the chef ate rice")
    expect(page.locator("#detect-words .suspect")).to_have_text(["ate"])
    expect(page.get_by_role("status").filter(has_text="replaced")).to_have_text(
        "1 of 4 words looks replaced."
    )
    expect(page.get_by_text("Nothing to judge yet")).to_be_hidden()
    look = "one => [getComputedStyle(one).backgroundColor, getComputedStyle(one).textDecorationThickness]"
    suspicious, innocent = (word(text).evaluate(look) for text in ("ate", "chef"))
    assert suspicious[0] != innocent[0]
    assert suspicious[1] == "3.736px"
    assert word("ate").get_attribute("data-percent") == "93\u00a0%"


@pytest.mark.slow
def test_asks_once_for_a_burst_of_keys(visit, server):
    page = visit()
    page.get_by_label("Your text").evaluate(
        """field => ["the", "the chef", "the chef ate"].forEach(text => {
            field.value = text;
            field.dispatchEvent(new Event("input", { bubbles: true }));
        })"""
    )
    expect(page.locator("#detect-words")).to_have_text("the chef ate")
    assert [body["texts"] for _, body in server.asked] == [["the chef ate"]]


def test_summary_names_the_first_suspect_if_there_is_no_other(visit, judged):
    page = visit()
    judged("the chef")
    expect(page.locator("#detect-summary")).to_have_text(
        "None of 2 words looks replaced; most suspicious is “the”, 2 %."
    )


@pytest.mark.slow
def test_newest_answer_wins(visit):
    held = threading.Event()
    page = visit(held={"first": held})
    field = page.get_by_label("Your text")
    with page.expect_request("**/detect"):
        field.fill("first")
    with page.expect_event("requestfailed"):
        field.fill("second")
    expect(page.locator("#detect-words")).to_have_text("second")
    held.set()
    page.wait_for_timeout(100)
    expect(page.locator("#detect-words")).to_have_text("second")


@pytest.mark.slow
def test_emptied_text_forgets_words_and_errors(visit, server, judged):
    page = visit()
    judged("the chef ate")
    server.failures.append(BUSY)
    page.get_by_label("Your text").fill("more")
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("Your text").fill(" ")
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator("#detect-words .word")).to_have_count(0)


@pytest.mark.slow
def test_exact_probability_at_pointer_and_at_focus(visit, word, judged):
    page = visit()
    judged("chef was playing")
    word("chef").hover()
    expect(page.locator("#detect-detail")).to_have_text("“chef”: replaced with probability 2.0 %")
    word("chef").focus()
    page.keyboard.press("End")
    expect(page.locator("#detect-detail")).to_have_text(
        "“playing”: replaced with probability 80.0 % (play 2.0 %, ing 80.0 %)"
    )


def test_example_is_judged_at_once(visit):
    page = visit()
    page.locator("#detect-example").click()
    expect(page.locator("#detect-summary")).to_contain_text("words look")


@pytest.mark.slow
def test_html_stays_text(visit, judged):
    page = visit()
    judged("<b>bold</b> & <script>alert(1)</script>")
    assert page.locator("#detect-words :is(b, script)").count() == 0


@pytest.mark.slow
def test_words_without_generator_are_no_buttons(visit, word, server, judged):
    page = visit(abilities=["embed", "detect"])
    judged("the chef")
    expect(page.locator("#detect-words").get_by_role("button")).to_have_count(0)
    word("chef").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert [path for path, _ in server.asked] == ["detect"]
