"""The report in a real browser: no console errors, and what is clicked, typed and pressed does what it says.

`make test-browser` runs this, and installs a browser if it must.
"""

import jax
import pytest

import coopjax
from coopjax.budget import format_bytes
from coopjax.memory_profile import Buffer, MemoryProfile
from coopjax.planning.budget_frontier import Frontier, FrontierPoint
from coopjax.report.html import to_html
from tests.support import models
from tests.support.browser import browsing
from tests.support.profiles import profile_with

pytestmark = pytest.mark.browser
# On the screen, of the buffer that is live longest.
MIDDLE_OF_A_BUFFER = """(() => {
  const map = document.getElementById('map');
  const b = program.inHeap.reduce((p, q) => q.end - q.start > p.end - p.start ? q : p);
  map.scrollIntoView({ block: 'center' });
  const box = map.getBoundingClientRect(), { width, height } = inner(map);
  return [box.left + MARGIN.left + (b.start + b.end) / 2 / program.steps * width,
          box.top + MARGIN.top + height - (b.offset + b.bytes / 2) / program.top * height];
})()"""
COLOURS_DRAWN = """(() => {
  const map = document.getElementById('map'), found = new Set();
  const data = map.getContext('2d').getImageData(0, 0, map.width, map.height).data;
  for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255) found.add(String(data.slice(i, i + 3)));
  return found.size;
})()"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
  with browsing(tmp_path_factory.mktemp("profile")) as found:
    yield found


@pytest.fixture(scope="module")
def report(tmp_path_factory):
  loss, *arguments = models.mlp(depth=8, batch=256)
  plan = coopjax.plan(loss, *arguments, budget=0.6, planner="peak")
  profiles = [
    coopjax.inspect(jax.jit(jax.value_and_grad(fn, argnums=(0, 1))).lower(*arguments).compile())
    for fn in (loss, plan.apply(loss))
  ]
  point = lambda name, temp, extra: FrontierPoint(name, temp, temp, temp + 2**20, temp, extra, 1e6, "hlo")
  frontier = Frontier(
    "loss",
    None,
    (point("75%", 3 * 2**20, 0.02), point("50%", 2**21, 0.1)),
    (point("no remat", 2**22, 0.0), point("checkpoint", 2**22, 0.3), point("dots", 2**22, 0.001)),
    (("per layer", "no layers"),),
  )
  path = tmp_path_factory.mktemp("report") / "report.html"
  path.write_text(to_html(*profiles, plan=plan, frontier=frontier))
  return path, profiles, plan


@pytest.fixture
def opened(page, report):
  page.errors.clear()
  page.requests.clear()
  page.open(report[0])
  yield page
  assert not page.errors
  assert all(url == report[0].as_uri() for url in page.requests), page.requests


def picture(page):
  return page.run("document.getElementById('map').toDataURL()")


def rows(page, table="buffers"):
  return page.run(f"[...document.querySelectorAll('#{table} tbody tr')].map(r => [...r.cells].map(c => c.textContent))")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_draws_in_light_and_in_dark(page, report, scheme):
  page.errors.clear()
  page.open(report[0], scheme)
  paper = page.run("getComputedStyle(document.body).backgroundColor")
  assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
  assert page.run(COLOURS_DRAWN) >= 3 and not page.errors


def test_the_toggle_shows_the_other_program(opened, report):
  _, (before, after), _ = report
  first, cards = picture(opened), "document.getElementById('cards').textContent"
  assert f"{format_bytes(before.temp_bytes)}temporaries" in opened.run(cards)
  opened.run("document.querySelectorAll('#toggle button')[1].click()")
  opened.settle()
  assert picture(opened) != first and f"{format_bytes(after.temp_bytes)}temporaries" in opened.run(cards)
  assert opened.run("document.querySelectorAll('#toggle button')[1].ariaPressed") == "true"
  opened.press("t")
  assert picture(opened) == first


def test_search_and_sort(opened, report):
  shown = rows(opened)
  opened.press("/")
  assert opened.run("document.activeElement.id") == "search"
  opened.call("Input.insertText", text="residual f32")
  found = rows(opened)
  assert 0 < len(found) < len(shown) and all(row[1] == "residual" for row in found)
  opened.run("document.querySelector('#buffers th button[data-key=start]').click()")
  starts = [int(row[3].partition("..")[0]) for row in rows(opened)]
  assert starts == sorted(starts) and len(starts) == len(found)
  assert opened.run("document.querySelector('#buffers th[aria-sort=ascending]').textContent") == "live"


def test_keyboard_and_mouse_move_the_map(opened):
  whole = picture(opened)
  opened.run("document.getElementById('map').focus()")
  for key in ("+", "ArrowRight", "ArrowUp"):
    before = picture(opened)
    opened.press(key)
    assert picture(opened) != before, key
  opened.press("0")
  assert picture(opened) == whole
  middle = opened.run(MIDDLE_OF_A_BUFFER)
  opened.mouse("mouseMoved", *middle)
  assert "models.py" in opened.run("document.getElementById('tip').textContent")
  opened.mouse("mouseWheel", *middle, deltaX=0, deltaY=-100)
  assert picture(opened) != whole
  opened.run("document.getElementById('reset').click()")
  opened.run("document.querySelector('#buffers tbody tr').focus()")
  opened.press("ArrowDown")
  opened.press("Enter")
  assert opened.run("document.querySelectorAll('#buffers tbody tr')[1].className") == "picked"
  assert opened.run("document.activeElement.rowIndex") == 2


def test_buffers_are_grouped_by_line_and_by_layer(opened, report):
  profile = report[1][0]
  for by in ("line", "layer"):
    choose = f"document.getElementById('group').value = '{by}'; document.getElementById('group').onchange()"
    opened.run(choose)
    expected = profile.grouped(profile.at_peak(), by)
    assert [row[4] for row in rows(opened, "groups")] == [group.key for group in expected]
    assert rows(opened, "groups")[0][:3:2] == [format_bytes(expected[0].num_bytes), str(expected[0].num_buffers)]
  assert not opened.run("document.getElementById('buffers').offsetHeight")


def test_frames_at_the_peak_are_a_flame_graph(opened, report):
  profile = report[1][0]
  frames = opened.run("[...document.querySelectorAll('.flame')].map(r => [...r.children].map(b => b.title))")
  assert frames[0] == [f"{format_bytes(sum(b.num_bytes for b in profile.at_peak()))}, 100.0%: all at the peak"]
  innermost = {buffer.frames[0] for buffer in profile.at_peak() if buffer.frames}
  assert any(title.endswith(frame) for row in frames for title in row for frame in innermost)
  opened.run("document.querySelector('.flame:last-child button').click()")
  assert opened.run("document.getElementById('search').value").startswith("/") and rows(opened)


TEXTS_ON_EACH_OTHER = """(() => {
  const boxes = [...document.querySelectorAll('svg text')].map(t => [t.textContent, t.getBoundingClientRect()]);
  return boxes.flatMap(([p, a], i) => boxes.slice(i + 1).filter(([, b]) =>
    Math.min(a.right, b.right) - Math.max(a.left, b.left) > 0 &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4).map(([q]) => p + ' on ' + q)).join(', ');
})()"""
SHOWN_KEYS = "[...document.querySelectorAll('kbd')].filter(k => k.offsetHeight).map(k => k.textContent)"


def test_axes_have_titles_and_scales(opened):
  drawn = opened.run(
    "(() => { const text = [], c = CanvasRenderingContext2D.prototype, old = c.fillText;"
    "c.fillText = function (t, ...at) { text.push(t); return old.call(this, t, ...at); }; drawMap(); drawCurve();"
    "c.fillText = old; return text; })()"
  )
  assert {"address in the heap", "live temporary bytes", "step of the schedule", "0 B"} <= set(drawn)
  assert opened.run(SHOWN_KEYS) == ["t", "+", "-", "0", "/"]


def test_keys_are_told_that_do_something(page, tmp_path):
  path = tmp_path / "one.html"
  path.write_text(to_html(MemoryProfile(4, name="f", buffers=(Buffer("add", "f32[1]", 4),))))
  page.open(path)
  assert page.run(SHOWN_KEYS) == ["/"]


def test_decisions_and_frontier_are_there(opened, report):
  _, _, plan = report
  decided = rows(opened, "plan")
  assert [row[0].partition(" ")[0] for row in decided] == [each.decision for each in plan.decisions]
  opened.run("document.querySelector('#plan th button').click()")
  ordered = [row[0] for row in rows(opened, "plan")]
  assert ordered == sorted(ordered)
  # Lines as in the rows of buffers: without the directory that all of them are in.
  assert {(row[4], row[5]) for row in decided} == {
    (each.layer, each.source.rpartition("/")[2]) for each in plan.decisions if each.source
  }
  labels = opened.run("[...document.querySelectorAll('#frontier svg text')].map(t => t.textContent)")
  assert {"75%", "50%", "no remat", "checkpoint"} <= set(labels)
  assert [row[0] for row in rows(opened, "frontier")] == ["no remat", "checkpoint", "dots", "75%", "50%"]
  assert "no layers" in opened.run("document.getElementById('frontier').textContent")


def test_rows_leave_out_the_directory_that_all_lines_are_in(page, tmp_path):
  for sources, shown in (
    (("/home/me/a/train.py:1", "/home/me/b/model.py:2"), ["a/train.py:1", "b/model.py:2"]),
    (("/home/train.py:1", "model.py:2"), ["/home/train.py:1", "model.py:2"]),
  ):
    buffers = [Buffer(f"op.{i}", "f32[8]", 32 - i, source=source) for i, source in enumerate(sources)]
    path = tmp_path / "lines.html"
    path.write_text(to_html(MemoryProfile(64, buffers=tuple(buffers))))
    page.open(path)
    assert [row[6] for row in rows(page)] == shown


@pytest.mark.parametrize("width", [500, 1000, 2000])
def test_words_stay_whole_and_the_frontier_readable(opened, width):
  resized = lambda **size: opened.call("Emulation.setDeviceMetricsOverride", deviceScaleFactor=1, mobile=False, **size)
  resized(width=width, height=1000)
  opened.settle()
  # Of the page nothing is out of sight to the right; a heading is one line; a text in the picture as large as outside.
  assert opened.run("document.documentElement.scrollWidth <= innerWidth")
  assert opened.run("Math.max(...[...document.querySelectorAll('th')].map(th => th.clientHeight))") < 40
  assert opened.run("document.querySelector('svg').getScreenCTM().a") == 1
  inside = "t => t.getBoundingClientRect().right <= document.querySelector('svg').getBoundingClientRect().right"
  assert opened.run(f"[...document.querySelectorAll('svg text')].every({inside})")
  assert not opened.run(TEXTS_ON_EACH_OTHER)
  opened.call("Emulation.clearDeviceMetricsOverride")


def test_twenty_thousand_buffers_are_fluent(page, tmp_path):
  path = tmp_path / "large.html"
  path.write_text(to_html(profile_with(20_000)))
  page.errors.clear()
  page.open(path)
  whole = picture(page)
  page.run("document.getElementById('map').focus()")
  page.press("+")
  assert picture(page) != whole
  page.run(
    "document.getElementById('peak').click(); document.getElementById('search').value = 'model.py:17 ';"
    "document.getElementById('search').oninput()"
  )
  assert 0 < len(rows(page)) <= 67 and all("model.py:17" in row[6] for row in rows(page))
  assert not page.errors
