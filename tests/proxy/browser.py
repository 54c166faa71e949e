"""A real browser for tests of the live page: Debian's chromium, headless, driven by selenium."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = "" if CHROMIUM and DRIVER else "no browser here: apt-get install chromium chromium-driver (make test does it where root runs it)"
SHOTS = os.environ.get("FAIRLANE_SHOTS")  # a directory: what the tests see is kept there, to be looked at
WITHIN_S = 20.0


class Browser:
    """One window. The page is served by the loop of the test, so everything that waits for the browser does so in a thread."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    async def open(self, url: str) -> None:
        await asyncio.to_thread(self._driver.get, url)

    async def run(self, script: str, *arguments: Any) -> Any:
        """What this JavaScript returns."""
        return await asyncio.to_thread(self._driver.execute_script, script, *arguments)

    async def texts(self, selector: str) -> list[str]:
        """What stands in each of these elements?"""
        found: list[str] = await self.run("return [...document.querySelectorAll(arguments[0])].map(node => node.textContent)", selector)
        return found

    async def text(self, selector: str) -> str:
        return " ".join(await self.texts(selector))

    async def until(self, selector: str, condition: Callable[[str], Any]) -> str:
        """The text of these elements once it is so."""
        try:
            async with asyncio.timeout(WITHIN_S):
                while not condition(text := await self.text(selector)):
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"{selector} still says: {await self.text(selector)!r}") from None
        return text

    async def look(self, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        """Makes the window this large, and the room light or dark."""
        await self._command(
            "Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self._command("Emulation.setEmulatedMedia", {"features": scheme})

    async def keep(self, name: str) -> None:
        """The whole page as a picture, if somebody wants to look."""
        if SHOTS:
            size = (await self._command("Page.getLayoutMetrics", {}))["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
            shot = await self._command("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
            Path(SHOTS, name + ".png").write_bytes(base64.b64decode(shot["data"]))

    async def complaints(self) -> list[str]:
        """What its console says: errors of the script, broken policies, failed requests."""
        return [each["message"] for each in await asyncio.to_thread(self._driver.get_log, "browser")]

    async def _command(self, name: str, arguments: dict[str, Any]) -> Any:
        return await asyncio.to_thread(self._driver.execute_cdp_cmd, name, arguments)


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """A browser with nothing in it, until the block ends."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as home:
        driver = await asyncio.to_thread(_start, home)
        try:
            yield Browser(driver)
        finally:
            await asyncio.to_thread(driver.quit)


def _start(home: str) -> Any:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for switch in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run"):
        options.add_argument(switch)
    options.add_argument(f"--user-data-dir={home}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(DRIVER))
