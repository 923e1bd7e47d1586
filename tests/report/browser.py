"""A page in Debian's chromium (scripts/browser.sh): what a user sees and clicks."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Page", "browser", "needed"]

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
#: For the tests that need it.
needed = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium and chromedriver: see scripts/browser.sh")

DEADLINE = 60.0


class Page:
    """A page in a browser."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, file: Path, hash: str = "") -> Page:
        self.driver.get("about:blank")
        self.driver.get(f"file://{file}{hash}")
        self.expect(lambda: self.js("return document.documentElement.dataset.ready") is not None)
        assert self.js("return document.documentElement.dataset.ready") == "yes", self.js(
            "return document.body.innerText"
        )
        return self

    def js(self, script: str, *args: object) -> Any:
        return self.driver.execute_script(script, *args)

    def expect(self, holds: Callable[[], object]) -> None:
        end = time.monotonic() + DEADLINE
        while not holds():
            assert time.monotonic() < end, "the page did not get there"
            time.sleep(0.02)

    def type(self, name: str, text: str) -> None:
        self.driver.find_element("id", name).send_keys(text)

    def click(self, name: str) -> None:
        self.driver.find_element("id", name).click()

    def text(self, name: str) -> str:
        return str(self.js(f"return document.getElementById('{name}').innerText"))

    def shown(self, name: str) -> bool:
        return bool(self.js(f"return !document.getElementById('{name}').hidden"))

    def pixels(self, name: str) -> int:
        """How many colours a canvas shows: one if it is empty."""
        return int(
            self.js(
                f"const c = document.getElementById('{name}'); const d = new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer);"
                "return new Set(d).size"
            )
        )

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


@contextmanager
def browser() -> Iterator[Page]:
    """A browser for the pages of a module."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1400,1000",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield Page(driver)
    finally:
        driver.quit()
