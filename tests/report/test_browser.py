"""Pages in a real browser: nothing fails, nothing leaves its card, and all of it can be used."""

import shutil

import pytest

from tests.commands import compare
from tests.commands import report as main
from tests.report.shown import EMBEDDED

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
NAME = "beyond-draft-free"  # two tasks, two temperatures, claims of its paper
PAGES = {
    "page": f"after/{NAME}/page.html",
    "index": "after/index.html",
    "compare": "after/compare.html",
}
# Of each card the elements that are wider than it, but for those in something that scrolls or cuts.
OUTSIDE = """() => {
  const cards = [...document.querySelectorAll(
    "figure, details, article, dl, pre, .card, .group, .tiles > div, .notice")];
  const cut = (each, card) => {
    for (let e = each.parentElement; e && e !== card.parentElement; e = e.parentElement)
      if (getComputedStyle(e).overflowX !== "visible") return true;
    return false;
  };
  const wide = (each, edge) => each.getBoundingClientRect().right > edge + 1;
  const found = cards.filter((card) => wide(card, innerWidth) && !cut(card, document.body));
  for (const card of cards) {
    const edge = card.getBoundingClientRect().right;
    found.push(...[...card.querySelectorAll("*")].filter((e) => wide(e, edge) && !cut(e, card)));
  }
  return found.map((each) => each.outerHTML.slice(0, 120));
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    for name in ("before", "after"):
        shutil.copytree(EMBEDDED / NAME, folder / name / NAME)
    after = folder / "after"
    assert main(["all", NAME, "--results", str(after)]) == 0
    assert compare([str(folder / "before"), str(after), "--out", str(after)]) == 0
    return folder


@pytest.fixture(scope="module")
def browser():
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    driver = pytest.importorskip("playwright.sync_api", reason="needs playwright and chromium")
    if program is None:
        pytest.skip("needs playwright and chromium")
    with driver.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def shown(browser, site):
    """Opens a page of the site; what its console says is in ``page.said``."""
    contexts = []

    def show(name, width=1280, **how):
        how |= {"viewport": {"width": width, "height": 900}, "reduced_motion": "reduce"}
        contexts.append(browser.new_context(**how))
        page = contexts[-1].new_page()
        page.said = []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.goto((site / PAGES[name]).as_uri())
        return page

    yield show
    for context in contexts:
        context.close()


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_error_and_nothing_outside_its_card(name, width, shown):
    page = shown(name, width)
    for details in page.query_selector_all("details > summary"):
        details.click()
    assert page.said == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(OUTSIDE) == []


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_somewhere(name, shown, site):
    page = shown(name)
    links = page.eval_on_selector_all("a[href]", "all => all.map(e => e.getAttribute('href'))")
    for link in links:
        if link.startswith("#"):
            assert page.query_selector(link), link
        else:
            assert ((site / PAGES[name]).parent / link).is_file(), link
    assert links or name == "compare"


@pytest.mark.parametrize("name", PAGES)
def test_without_scripts_a_page_can_be_read(name, shown):
    page = shown(name, java_script_enabled=False)
    text = page.inner_text("main")
    assert {"page": "1.93", "index": NAME, "compare": "identical"}[name] in text


def column(page, place):
    table = page.query_selector("table.sortable")
    cells = table.query_selector_all(f"tbody tr:not(.baseline) td:nth-child({place}) b")
    return [float(cell.inner_text()) for cell in cells]


def test_headings_sort_and_choices_hide(shown):
    page = shown("page")
    head = page.locator("table.sortable").first.locator("th button").nth(2)
    head.click()
    falling = column(page, 3)
    assert falling == sorted(falling, reverse=True) and len(set(falling)) > 3
    head.click()
    assert column(page, 3) == sorted(falling)
    page.select_option("select[data-filter=task]", "squad")
    titles = [
        each.inner_text() for each in page.query_selector_all(".group h3") if each.is_visible()
    ]
    assert len(titles) == 2 and all(title.startswith("SQuAD") for title in titles)
    page.fill("input[data-decoders]", "sd")
    rows = page.query_selector_all("table.sortable tbody tr:not(.baseline)")
    assert {row.inner_text().split()[0] for row in rows if row.is_visible()} == {"SD"}
