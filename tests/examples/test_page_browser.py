"""The page of tracks in a real browser: it draws, filters, leads from errors to tracklets, and believes no name."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.mtmc.page.errors import find_errors
from examples.mtmc.page.page import View, write_page
from examples.mtmc.recordings.tracklets import Recording
from tests.examples.views import HOSTILE, network, view, without_truth

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra dev)")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("no Chromium on the PATH (on Debian: apt install chromium)", allow_module_level=True)

LAPTOP, PHONE = (1366, 768), (390, 844)
JOINED = """() => { const g = document.getElementById('matrix'), joined = g.data[1], l = g._fullLayout;
const box = g.getBoundingClientRect(), size = l._size;
return [box.x + size.l + l.xaxis.d2p(joined.x[3]), box.y + size.t + l.yaxis.d2p(joined.y[3])]; }"""
BARS = "() => document.getElementById('timeline').data[0]"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@contextmanager
def opened(browser: Any, path: Path, size: tuple[int, int] = LAPTOP) -> Iterator[Any]:
    """The page once it is drawn; at the end nothing must have been said on the console or asked of a network."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, reduced_motion="reduce")
    page, said, asked = context.new_page(), [], []
    page.set_default_timeout(20_000)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: (said.append(f"dialog {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri(), timeout=60_000)
    page.locator("html[data-drawn=true]").wait_for(state="attached", timeout=60_000)
    yield page
    assert said == [] and asked == [path.as_uri()]
    context.close()


def written(folder: Path, shown: View, name: str = "report.html") -> Path:
    write_page(folder / name, shown)
    return folder / name


@pytest.fixture(scope="module")
def shown() -> View:
    return view()


@pytest.fixture(scope="module")
def path(shown: View, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("page"), shown)


@pytest.fixture(scope="module")
def module_page(browser: Any, path: Path) -> Iterator[Any]:
    with opened(browser, path) as page:
        yield page


@pytest.fixture
def page(module_page: Any) -> Any:
    """The page of a laptop as it is after Reset."""
    module_page.locator("#f-reset").click()
    if module_page.locator("#t-all").is_enabled():
        module_page.locator("#t-all").click()
    return module_page


def bars(page: Any) -> set[int]:
    """The numbers of the tracklets that the timeline shows."""
    return set(page.evaluate(BARS)["customdata"])


def point_at(page: Any, drawn: Any, click: bool = False) -> None:
    """Move the mouse to the middle of something drawn: what listens lies over it."""
    box = drawn.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.click(x, y) if click else page.mouse.move(x, y)


def highlighted(page: Any) -> set[int]:
    """The tracklets with the thick edge of a choice."""
    drawn = page.evaluate(BARS)
    return {n for n, width in zip(drawn["customdata"], drawn["marker"]["line"]["width"], strict=True) if width == 3}


def test_every_picture_is_drawn(page: Any, shown: View) -> None:
    for name in ("map", "timeline", "matrix", "reliability"):
        assert page.locator(f"#{name} svg.main-svg").count() > 0, name
    assert page.locator("#timeline .point path").count() == len(shown.recording.tracklets)
    assert page.locator("#transits figure").count() == 6
    page.locator("#h-transits").scroll_into_view_if_needed()
    page.locator("#transits .one svg.main-svg").first.wait_for()
    assert page.locator("#flows tbody tr").count() == len(shown.network.links)
    heads = page.locator("section h2").all_inner_texts()
    assert heads[0] == "Scores" and heads[-1] == "More words"


def test_filters(page: Any, shown: View) -> None:
    tracklets, identity = shown.recording.tracklets, shown.identity
    errors = find_errors(shown)
    page.locator("#f-camera").select_option(label="hall")
    here = {n for n, t in enumerate(tracklets) if t.camera == "hall"}
    assert bars(page) == here
    assert page.locator("#f-count").inner_text().startswith(f"{len(here)} of {len(tracklets)} tracklets")
    own = [n for n, e in enumerate(errors, 1) if "hall" in (tracklets[e.earlier].camera, tracklets[e.later].camera)]
    assert page.locator("#errors button.error").all_inner_texts() == [f"Error {n}" for n in own]
    page.locator("#f-reset").click()
    page.locator("#f-errors").check()
    assert bars(page) == {n for e in errors for n in (e.earlier, e.later)}
    page.locator("#f-camera").select_option(label="yard")
    assert bars(page) == {n for e in errors for n in (e.earlier, e.later) if tracklets[n].camera == "yard"}
    page.locator("#f-reset").click()
    page.locator("#f-identity").fill("8")
    assert bars(page) == {n for n, who in enumerate(identity.tolist()) if who + 1 == 8}
    assert page.locator("#identities button").all_inner_texts() == ["Identity 8"]
    page.locator("#f-identity").fill("99999")
    assert bars(page) == set() and page.locator("#identities").inner_text().strip() == "None."
    page.locator("#f-reset").click()
    page.locator("#e-kind").select_option(label="missed join")
    missed = sum(e.kind == "missed" for e in errors)
    assert page.locator("#errors button.error").count() == missed > 0
    page.locator("#e-kind").select_option(label="all")
    assert page.locator("#errors button.error").count() == len(errors) > missed


def test_time_moves_and_zooms(page: Any) -> None:
    before = page.locator("#t-shown").inner_text()
    page.locator("#t-in").click()
    page.locator("#t-in").click()
    fewer = bars(page)
    page.locator("#t-later").click()
    assert bars(page) != fewer and page.locator("#t-shown").inner_text() != before
    page.locator("#t-from").focus()
    page.keyboard.press("Home")
    assert 0 in bars(page) and page.locator("#t-earlier").is_disabled()


def test_the_keyboard_alone_leads_to_an_error_and_back(page: Any, shown: View) -> None:
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    page.locator("body").press("Tab")
    if page.evaluate("document.activeElement.className") != "skip":  # focus went on from where it was
        page.locator("a.skip").focus()
    assert page.locator("a.skip").bounding_box()["x"] >= 0, "the skip link shows when it has the focus"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    active = "document.activeElement.dataset.error"
    for _ in range(400):
        page.keyboard.press("Tab")
        if page.evaluate(active) is not None:
            break
    assert page.evaluate(active) == "0"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "where the focus is can be seen"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    assert page.evaluate(active) == "1"
    page.keyboard.press("Enter")
    error = find_errors(shown)[1]
    assert highlighted(page) == {error.earlier, error.later}
    assert page.evaluate("document.activeElement.id") == "details"
    assert error.why in page.locator("#details").inner_text()
    assert page.locator("#errors tr[aria-current=true] button.error").inner_text() == "Error 2"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('#details') !== null")
    page.locator("#back").press("Enter")
    assert page.evaluate(active) == "1"
    page.locator("#e-next").press("Enter")
    error = find_errors(shown)[2]
    assert highlighted(page) == {error.earlier, error.later}


def test_a_bar_leads_to_its_errors_and_reasons(page: Any, shown: View) -> None:
    error = find_errors(shown)[3]
    page.evaluate("document.getElementById('h-timeline').scrollIntoView()")
    place = page.evaluate(BARS)["customdata"].index(error.later)
    point_at(page, page.locator("#timeline .point path").nth(place), click=True)
    assert highlighted(page) == {error.later}
    tracklet = shown.recording.tracklets[error.later]
    assert f"{tracklet.camera} #{tracklet.id}: identity" in page.locator("#details").inner_text()
    for row in page.locator("#details tbody tr").all():
        texts = [text.replace("−", "-") for text in row.locator("td.n").all_inner_texts()[1:]]
        values = [float(text) for text in texts]
        assert sum(values[:-1]) == pytest.approx(values[-1], abs=0.01 * len(values))
    page.locator("#details button", has_text="Error 4").click()
    assert highlighted(page) == {error.earlier, error.later}
    assert page.locator("#errors tr.chosen").inner_text().startswith("Error 4")


def test_reasons_on_hover(page: Any, shown: View) -> None:
    page.evaluate("document.getElementById('h-matrix').scrollIntoView()")
    x, y = page.evaluate(JOINED)
    page.mouse.move(x, y)
    page.locator("#matrix .hoverlayer .hovertext", has_text="joined").wait_for()
    words = page.locator("#matrix .hoverlayer .hovertext").text_content()
    for reason in ("appearance", "link", "time", "zone", "company", "nobody", "score", "joined"):
        assert reason in words, reason


def test_every_control_has_a_name(page: Any) -> None:
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('button, select, input, [role=region], [role=img]')].filter(
        (e) => !(e.getAttribute('aria-label') || e.textContent.trim() || (e.labels && e.labels.length))).length"""
    )
    assert nameless == 0
    assert page.locator("th:not([scope])").count() == 0


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_the_page_is_no_wider_than_the_window(browser: Any, tmp_path: Path, size: tuple[int, int]) -> None:
    names = ("gate", "the hall behind the second stair, seen from the north", "x" * 90, "shop")
    path = written(tmp_path, view(names, words="longword" * 30))
    with opened(browser, path, size) as page:
        page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        page.locator("#errors button.error").first.click()
        page.locator("#h-transits").scroll_into_view_if_needed()
        wide = page.evaluate(
            """(width) => [...document.querySelectorAll('main *, header *')].filter((e) =>
            !e.parentElement.closest('.wide, .lanes, .picture, .one') && e.getBoundingClientRect().right > width + 1
            ).map((e) => e.outerHTML.slice(0, 80))""",
            size[0],
        )
        assert wide == []
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]


def test_a_hostile_name_does_nothing_and_is_shown_as_it_is(browser: Any, tmp_path: Path) -> None:
    path = written(tmp_path, view(("a", HOSTILE), people=12, words=HOSTILE))
    with opened(browser, path) as page:
        assert page.title() == " ".join(f"Tracks: {HOSTILE}".split())
        assert page.locator("#f-camera option").all_text_contents() == ["all", "a", HOSTILE]
        assert page.locator("h1").inner_text() == f"Tracks: {HOSTILE}"
        assert HOSTILE in page.locator("#flows").text_content()
        page.locator("#errors button.error").first.click()
        start = HOSTILE[:19]  # of a name that is too long for a picture
        assert f"{start}…" in page.locator("#map").text_content()
        assert HOSTILE[:10] in page.locator("#timeline").text_content()
        assert HOSTILE[:7] in page.locator("#matrix").text_content()
        page.locator("#map").scroll_into_view_if_needed()
        point_at(page, page.locator("#map .scatterlayer .trace .point").last)
        page.locator("#map .hoverlayer .hovertext").wait_for()
        assert HOSTILE[:50] in page.locator("#map .hoverlayer").text_content()
        assert page.locator("main img, #map image, #map a, #timeline a").count() == 0


def bare(shown: View) -> View:
    """Nothing but what a view must have."""
    return View(shown.title, shown.recording, shown.identity, shown.network)


def of_nothing() -> View:
    return View("nothing", Recording(network(("a", "b")), []), np.zeros(0, dtype=np.int64), network(("a", "b")))


def without_looks() -> View:
    shown = view(placed=False)
    assert shown.reasons is not None
    return replace(shown, reasons=replace(shown.reasons, appearance=np.zeros(len(shown.reasons.appearance))))


CASES = {
    "an empty recording": (of_nothing, "0 of 0 tracklets"),
    "one camera": (lambda: view(("only",)), "40 of 40 tracklets"),
    "no truth": (lambda: without_truth(view()), "least sure of"),
    "no embeddings, no places": (without_looks, "stand on a circle"),
    "no pairs": (lambda: bare(view()), "160 of 160 tracklets"),
    "one tracklet": (lambda: replace(bare(view(("a",), people=1)), true=np.array([-1])), "1 of 1 tracklets"),
}


@pytest.mark.parametrize("case", CASES)
def test_pages_that_lack_something_load(browser: Any, tmp_path: Path, case: str) -> None:
    make, words = CASES[case]
    shown = make()
    with opened(browser, written(tmp_path, shown), PHONE) as page:
        assert words in page.locator("body").inner_text()
        assert page.locator("#timeline svg.main-svg").count() > 0
        assert page.locator("#h-reliability").is_visible() == (shown.reliability is not None)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
        if shown.recording.tracklets:
            page.locator("#identities button").first.click()
            assert 0 in highlighted(page)
