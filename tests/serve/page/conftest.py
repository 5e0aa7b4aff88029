import pytest
from playwright.sync_api import expect, sync_playwright

from canned_server import Stub, serving

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 15_000
"""Milliseconds that a busy machine may take."""
DESKTOP = {"width": 1200, "height": 800}


@pytest.fixture(scope="module")
def chromium(browser_path):
    """A page of a real browser. Of a module, not of all: its event loop would be in the way of others."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path, args=FLAGS)
        page = browser.new_page()
        page.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)
        yield page
        browser.close()


@pytest.fixture(scope="module")
def server():
    """A server whose answers are known."""
    with serving(Stub()) as stub:
        yield stub


@pytest.fixture
def page(chromium, server):
    """The browser's page. In no test may there be an error in it, or a request to another host."""
    troubles, servers = [], [server.address]

    def hear(message):
        was_meant = server.has_failed and message.text.startswith("Failed to load resource")
        if message.type in ("error", "warning") and not was_meant:
            troubles.append(message.text)

    def see(request):
        if not request.url.startswith(tuple(servers)):
            troubles.append(f"a request to {request.url}")

    def fail(error):
        troubles.append(str(error))

    listeners = {"console": hear, "request": see, "pageerror": fail}
    for event, listener in listeners.items():
        chromium.on(event, listener)
    chromium.servers = servers
    yield chromium
    chromium.evaluate("sessionStorage.clear()")
    for event, listener in listeners.items():
        chromium.remove_listener(event, listener)
    assert troubles == []


@pytest.fixture
def visit(page, server):
    """`visit(tab, window=..., media=..., **settings)`: the page on a server with these settings."""

    def go(tab="", *, window=DESKTOP, media=None, **settings):
        server.__init__(address=server.address, **settings)
        page.goto("about:blank")
        page.set_viewport_size(window)
        page.emulate_media(**{"color_scheme": "light", "reduced_motion": "no-preference", **(media or {})})
        # Its first question comes after its load, and must not take a failure that is meant for the next.
        with page.expect_response(f"{server.address}model"):
            page.goto(f"{server.address}#{tab}")
        return page

    yield go
    for event in server.held.values():
        event.set()


@pytest.fixture
def word(page):
    """`word("ate")`: where a word is in the text of a panel."""

    def find(text, panel="detect"):
        return page.locator(f"#{panel}-words").get_by_text(text, exact=True)

    return find


@pytest.fixture
def judged(page):
    """`judged(text)`: type it and wait until the discriminator has seen it."""

    def write(text):
        page.get_by_label("Your text").fill(text)
        expect(page.locator("#detect-words")).to_have_text(text)

    return write
