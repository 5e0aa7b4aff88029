import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.slow

BUSY = (503, {"error": {"code": "unavailable", "message": "the queue is full"}}, {"Retry-After": "2"})


def test_busy_server_can_be_tried_again(visit, server):
    page = visit()
    server.failures += [BUSY, BUSY]
    page.get_by_label("Your text").fill("the chef ate")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("The server cannot answer now: the queue is full. It asks to wait 2 s.")
    alert.get_by_role("button", name="Try again").click()
    expect(alert).to_be_visible()
    alert.get_by_role("button", name="Try again").click()
    expect(page.locator("#detect-words .suspect")).to_have_text(["ate"])
    expect(page.get_by_role("alert")).to_have_count(0)


def test_errors_are_told_in_words(visit, server):
    page = visit()
    for code, message, words, can_retry in (
        (422, "texts has 70,000 characters", "The server refused: texts has 70,000 characters.", False),
        (413, "the body is large", "too large for this server", False),
        (408, "the body is slow", "took too long", True),
        (500, None, "code 500 and no explanation", True),
    ):
        error = {"code": "some", "message": message}
        server.failures.append((code, {"error": error} if message else {}, {}))
        page.get_by_label("Your text").fill(f"the chef ate {code}")
        expect(page.get_by_role("alert")).to_contain_text(words)
        expect(page.get_by_role("button", name="Try again")).to_have_count(int(can_retry))


def test_server_that_is_gone(visit, word, server):
    page = visit()
    page.route("**/detect", lambda route: route.abort())
    server.has_failed = True
    page.get_by_label("Your text").fill("the chef ate")
    expect(page.get_by_role("alert")).to_contain_text("does not answer")
    page.unroute("**/detect")
    page.get_by_role("button", name="Try again").click()
    expect(word("ate")).to_be_visible()


def test_model_can_be_asked_for_again(visit):
    page = visit(failures=[BUSY])
    expect(page.get_by_role("tab")).to_have_count(0)
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("tab", name="Detect")).to_be_visible()


def give(page, key):
    page.locator("#key-value").fill(key)
    page.get_by_role("button", name="Use it").click()


def test_asked_for_once_and_kept(visit, judged):
    page = visit(key="sesame")
    expect(page.get_by_role("dialog")).to_be_visible()
    expect(page.get_by_text("That key was refused.")).to_be_hidden()
    give(page, "wrong")
    expect(page.get_by_text("That key was refused.")).to_be_visible()
    give(page, "sesame")
    judged("the chef ate")
    page.reload()
    judged("the chef")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert page.evaluate("localStorage.length") == 0


def test_cancelled(visit):
    page = visit(key="sesame")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("alert")).to_contain_text("The server wants a key.")
    page.get_by_role("button", name="Try again").click()
    give(page, "sesame")
    expect(page.get_by_role("tab", name="Detect")).to_be_visible()
