"""Can somebody who has not read the docs see what is going on? The live page in a real browser, while things happen.

`FAIRLANE_SHOTS=DIRECTORY` keeps what the browser saw, to be looked at by people.
"""

from __future__ import annotations

import re
import socket

import pytest

from proxy import page
from tests.proxy.browser import MISSING, Browser, browser
from tests.proxy.scene import CAPS, scene
from tests.proxy.serving import TWO_LANES, serving
from tests.wire import ScriptedBackend

needs_browser = pytest.mark.skipif(bool(MISSING), reason=MISSING)
FIXED = 'server: {listen: "127.0.0.1:0", admin: "127.0.0.1:%d", access_log: off, drain: {grace: 0s, timeout: 5s}}\n'
SEEN_TEXT = """
const behind = (node) => {
  for (; node; node = node.parentElement) {
    const colour = getComputedStyle(node).backgroundColor;
    if (!/, 0\\)$|transparent/.test(colour)) return colour;
  }
  return "rgb(255, 255, 255)";
};
return [...document.querySelectorAll("body *")]
  .filter(node => node.offsetParent && [...node.childNodes].some(child => child.nodeType === 3 && child.data.trim()))
  .map(node => [getComputedStyle(node).color, behind(node), node.textContent.slice(0, 40)]);
"""


def luminance(colour: str) -> float:
    """Of `rgb(r, g, b)`, as WCAG 2 computes it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


async def poorest_contrast(window: Browser) -> tuple[float, str]:
    """The text that stands out least from what is behind it."""
    ratios = []
    for ink, paper, text in await window.run(SEEN_TEXT):
        light, dark = sorted((luminance(ink), luminance(paper)), reverse=True)
        ratios.append(((light + 0.05) / (dark + 0.05), text))
    assert len(ratios) > 40
    return min(ratios)


async def slots(window: Browser, backend: str) -> tuple[int, int]:
    """How many slots are drawn as taken, and how many at all?"""
    drawn = f'[data-backend="{backend}"] .slots > i'
    return len(await window.texts(drawn + ".on")), len(await window.texts(drawn))


@needs_browser
async def test_lanes_fill_caps_hold_and_a_failover_is_seen() -> None:
    async with scene() as town, browser() as window:
        await window.look()
        await window.open(town.proxy.admin_url + "/")
        await window.until("#status", lambda text: text == "serving")
        assert await window.texts(".pool h3") == ["small", "large", "batch"]
        await window.until('[data-pool="large"]', lambda text: "own-large · primary" in text and "nobody waits" in text)

        town.call("tiny", "sk-A", 4)
        town.call("big", "sk-A", 14)
        town.call("big", "sk-B", 18)
        await window.until('[data-pool="large"] [data-lane="slow"]', lambda text: re.search(r"[1-9]\d* waiting", text))
        await window.until('[data-pool="large"] [data-lane="slow"] .bad', lambda text: "/s" in text)  # refused, in so many words
        await window.until('[data-pool="large"] [data-lane="fast"]', lambda text: re.search(r"TTFT p95 [\d.]+ m?s", text))
        for backend in ("gpu-a", "gpu-b"):
            await window.until(f'[data-backend="{backend}"]', lambda text: "8 of 8 full" in text)
            assert await slots(window, backend) == (8, 8)
        await window.until("#refusals", lambda text: "queue full in large, lane slow" in text)
        await window.keep("load")

        town.kill("gpu-a", "gpu-b")
        await window.until('[data-pool="large"] .standby', lambda text: "rented · standby" in text)
        await window.until("#events", lambda text: "failover large: own-large → rented" in text)
        await window.until('[data-platform="own-large"]', lambda text: "out of service" in text)
        taken, there = await slots(window, "api")
        assert 0 < taken <= there == CAPS["api"]
        await town.proxy.admin("/-/cap/small-1/2", "POST")
        await town.proxy.admin("/-/serve/small/own-small", "POST")
        pulled = await window.until(".lever", lambda text: "pinned" in text and "capped" in text)
        assert "Pool small is pinned to own-small" in pulled and "POST /-/uncap/small-1" in pulled
        await window.keep("failover")

        assert (await poorest_contrast(window))[0] > 4.5
        await window.look(dark=True)
        assert luminance(await window.run("return getComputedStyle(document.body).backgroundColor")) < 0.02
        contrast, text = await poorest_contrast(window)
        assert contrast > 4.5, text
        await window.keep("failover-dark")
        for dark in (False, True):
            await window.look(390, 844, dark=dark)
            assert await window.run("return document.documentElement.scrollWidth") <= 390
            assert await window.run(
                "return [...document.querySelectorAll('.card')].every(card => card.scrollWidth <= card.clientWidth + 1)"
            )
            await window.keep("phone-dark" if dark else "phone")

        asked = await window.run("return performance.getEntriesByType('resource').map(entry => entry.name)")
        assert asked and all(url.startswith(town.proxy.admin_url + "/") for url in asked)
        assert await window.complaints() == []


@needs_browser
async def test_the_page_outlives_the_proxy_and_counts_anew() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    file = TWO_LANES + "platforms: {p: {probe: none, backends: {b: {url: %s, max_streams: 4}}}}\npools: {main: {primary: p}}\n"
    async with ScriptedBackend() as backend, browser() as window:
        text = file % f'"{backend.url}"'
        await window.look()
        async with serving(text, server=FIXED % port) as proxy:
            await window.open(proxy.admin_url + "/")
            await window.until("#status", lambda word: word == "serving")
            for _ in range(3):
                assert (await proxy.ask()).status == 200
            await window.until('[data-lane="fast"] .facts', lambda facts: re.search(r"answered (?!0/s)[\d.]+/s", facts))
        await window.until("#lost", lambda note: "No answer since" in note)
        await window.until("#status", lambda word: word == "no answer")
        assert await window.texts(".pool h3") == ["main"]  # what was known is still there to be read
        await window.keep("lost")
        async with serving(text, server=FIXED % port) as proxy:
            await window.until("#status", lambda word: word == "serving")
            assert await window.texts("#lost") == []
            await window.until('[data-lane="fast"] .facts', lambda facts: "answered 0/s" in facts)
            assert (await proxy.ask()).status == 200
            await window.until('[data-lane="fast"] .facts', lambda facts: re.search(r"answered (?!0/s)[\d.]+/s", facts))


def test_the_page_is_one_file_that_names_nothing_outside() -> None:
    text = page.html().decode()
    assert not re.search(r"""(src|href)=["'](?!data:|debug/|metrics)""", text)
    assert set(re.findall(r"https?://[^\s\"'<)]+", text)) == {"http://www.w3.org/2000/svg"}  # a name space, not a place
    assert "innerHTML" not in text and "eval(" not in text  # what the state says is text, whatever it says
    assert len(text) < 40_000
