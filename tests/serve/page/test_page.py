import pytest
from playwright.sync_api import expect

from electra.prediction.load import load
from electra.serve.app import build_app
from electra.serve.limits import Limits
from running import serving

ALL = {
    "abilities": ["embed", "detect", "fill", "corrupt", "classify", "tag", "answer", "choose"],
    "labels": ["O", "B-PER", "I-PER"],
    "task": "everything",
    "classified": {"label": "B-PER", "probabilities": {"O": 0.25, "B-PER": 0.75}},
}


@pytest.mark.slow
def test_only_what_the_model_can(visit):
    expect(visit().get_by_role("tab")).to_have_text(["Detect", "Game", "Fill", "Embed"])
    tuned = visit(abilities=["embed", "tag"], labels=["NOUN", "VERB"])
    expect(tuned.get_by_role("tab")).to_have_text(["Tag", "Embed"])
    expect(tuned.locator("#model-facts")).to_have_text(
        "tiny · reads 128 tokens at once, longer texts in windows · 2 labels"
    )


@pytest.mark.slow
def test_arrow_keys(visit):
    page = visit()
    page.get_by_role("tab", name="Detect").focus()
    for key, name in (
        ("ArrowRight", "Game"),
        ("End", "Embed"),
        ("ArrowRight", "Detect"),
        ("ArrowLeft", "Embed"),
    ):
        page.keyboard.press(key)
        expect(page.get_by_role("tab", name=name)).to_be_focused()
        expect(page.get_by_role("tab", selected=True)).to_have_text([name])
        expect(page.get_by_role("tabpanel")).to_have_count(1)
        expect(page.get_by_role("tabpanel", name=name)).to_be_visible()


def test_address_names_the_tab(visit):
    page = visit("game")
    expect(page.get_by_role("tab", selected=True)).to_have_text("Game")
    page.get_by_role("tab", name="Embed").click()
    assert page.url.endswith("#embed")


def test_fields_have_labels(visit):
    page = visit(**ALL)
    expect(page.get_by_role("tab")).to_have_count(8)
    unnamed = page.locator("textarea, input").evaluate_all(
        "fields => fields.filter(field => !field.labels.length).map(field => field.id)"
    )
    assert unnamed == []


def fill_every_tab(page, server):
    """Something long in each tab, so that it could be too wide."""
    long = "the chef ate " * 12 + "x" * 90 + " 🙂 wine 12"
    fields = {
        "detect": "text",
        "game": "text",
        "fill": "text",
        "classify": "text",
        "tag": "text",
        "answer": "context",
        "choose": "question",
    }
    for tab, field in fields.items():
        page.goto(f"{server.address}#{tab}")
        page.locator(f"#{tab}-{field}").fill(f"{long} cooked [MASK]")
        if tab == "answer":
            page.locator("#answer-question").fill("why")
        if tab == "choose":
            page.locator("#choose-choices").fill(f"{long}\n{long}")
        if tab != "detect":
            page.locator(f"#{tab} button[type=submit]").click()
        if tab == "game":
            page.locator("#game-words .word").last.click()
            page.get_by_role("button", name="Reveal").click()
        ready = page.locator(f"#{tab} :is(.word, .result > *)").first
        expect(ready).to_be_visible()
        yield tab
    page.goto(f"{server.address}#embed")
    page.get_by_label("Two or more texts").fill("cat\nkitten\nshares\n" * 4)
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#embed-result table")).to_be_visible()
    yield "embed"


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_is_wider_than_the_window(visit, width, server):
    page = visit(window={"width": width, "height": 740}, **ALL)
    for tab in fill_every_tab(page, server):
        widths = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert widths[0] <= widths[1], tab
    page = visit("options", window={"width": width, "height": 740}, abilities=["choose"])
    long = "the chef ate " * 12 + "x" * 90
    page.locator("#options-text").fill(long)
    page.locator("#options-list").fill(f"{long}\n{long} wine")
    page.get_by_role("button", name="Choose").click()
    expect(page.locator("#options-result .headline")).to_be_visible()
    widths = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert widths[0] <= widths[1]


CONTRAST = """() => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const luminance = (name) => {
        canvas.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(name);
        canvas.fillRect(0, 0, 1, 1);
        const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map(c => c / 255)
            .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    return PAIRS.map(([ink, ground]) => {
        const [a, b] = [luminance(ink), luminance(ground)].sort((x, y) => y - x);
        return [ink, ground, (a + 0.05) / (b + 0.05)];
    });
}"""
INKS = [
    ["--ink", "--page"],
    ["--ink", "--card"],
    ["--quiet", "--page"],
    ["--quiet", "--card"],
    ["--accent", "--card"],
    ["--on-accent", "--accent"],
    ["--ink", "--found"],
    ["--ink", "--missed"],
    ["--ink", "--alarm"],
    ["--ink", "--highlight"],
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_can_be_read(visit, scheme):
    page = visit(media={"color_scheme": scheme})
    ratios = page.evaluate(CONTRAST.replace("PAIRS", str(INKS)))
    assert len(ratios) == len(INKS)
    assert [pair for *pair, ratio in ratios if ratio < 4.5] == []
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(251, 251, 249)", "dark": "rgb(18, 22, 27)"}[scheme]


def test_still_for_those_who_want_it(visit):
    page = visit(media={"reduced_motion": "reduce"})
    moving = page.locator("button, .reading").evaluate_all(
        "all => all.filter(one => getComputedStyle(one).transitionDuration !== '0s').length"
    )
    assert moving == 0


@pytest.mark.slow
def test_on_a_real_server_with_a_real_model(page, run):
    application = build_app(load(run), limits=Limits())
    with serving(application) as url:
        page.servers.append(url)
        page.goto(url)
        page.get_by_label("Your text").fill("🙂 the old river was in a small city")
        words = page.locator("#detect-words .word")
        expect(words.last).to_have_text("city")
        words.last.click()
        expect(page.get_by_role("dialog").get_by_role("listitem").first).to_contain_text("%")
        page.keyboard.press("Escape")
        page.get_by_role("tab", name="Game").click()
        page.get_by_label("The text to play with").fill("🙂 the old river was in a small city")
        page.get_by_role("button", name="Corrupt").click()
        page.locator("#game-words .word").first.click()
        page.get_by_role("button", name="Reveal").click()
        expect(page.locator("#game-score")).to_contain_text("1 round")
        page.get_by_role("tab", name="Embed").click()
        page.get_by_label("Two or more texts").fill("the old river\nnew music")
        page.get_by_role("button", name="Compare").click()
        expect(page.locator("#embed-result tbody tr").first).to_contain_text("1.00")
        page.get_by_role("tab", name="Choose").click()
        page.locator("#options-text").fill("the old river")
        page.get_by_label("Two or more options").fill("old\nfast music")
        page.get_by_role("button", name="Choose").click()
        expect(page.locator("#options-result tr")).to_have_count(2)
