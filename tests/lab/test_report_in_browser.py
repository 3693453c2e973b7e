"""The page of a report in Chromium, where there is one."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedskew.lab.scaling import page as scaling_page
from tests.support.scaling_clock import Clock, study

pytestmark = pytest.mark.slow

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """Chromium without a window, over the DevTools protocol on a pipe."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        wire = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                wire,
                CHROMIUM,
                *flags,
                "--remote-debugging-pipe",
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = ours_in, ours_out
        self._buffer, self._number, self._session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + 30
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._in, 1 << 20)
            assert part, "the browser is gone"
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)

    def wait_for(self, method: str) -> None:
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._read())

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)
        os.close(self._in)
        os.close(self._out)


def complaints(browser: Browser) -> list[dict[str, Any]]:
    """What a page has said on the console, and errors of its script."""
    kinds = (
        "Log.entryAdded",
        "Runtime.exceptionThrown",
        "Runtime.consoleAPICalled",
        "Page.javascriptDialogOpening",
    )
    return [event for event in browser.events if event.get("method") in kinds]


@pytest.fixture
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium, chromium-browser or google-chrome")
    with tempfile.TemporaryDirectory(prefix="fedskew-browser-", ignore_cleanup_errors=True) as profile:
        opened = Browser(Path(profile))
        yield opened
        opened.close()


def test_the_page_in_a_browser(sweep: Path, browser: Browser) -> None:
    """Kills: a console error, a request that leaves the page, a page that scrolls sideways on a phone, a dead header,
    theme button or hover value."""
    page = sweep / "report" / "report.html"
    browser.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
    browser.call("Page.navigate", url=page.as_uri())
    browser.wait_for("Page.loadEventFired")
    browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.evaluate("document.documentElement.scrollWidth") == 390
    browser.call("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)

    column = "[...document.querySelectorAll('#trials tbody tr')].map(row => row.cells[{}].textContent)"
    accuracy = browser.evaluate(
        "[...document.querySelectorAll('#trials th button')].findIndex(b => b.textContent === 'final (%)')"
    )
    click = f"document.querySelectorAll('#trials th button')[{accuracy}].click()"
    browser.evaluate(click)
    risen = browser.evaluate(column.format(accuracy))
    assert risen[-1] == "" and [float(x) for x in risen[:-1]] == sorted(float(x) for x in risen[:-1])
    assert browser.evaluate(f"document.querySelectorAll('#trials th')[{accuracy}].ariaSort") == "ascending"
    browser.evaluate(click)
    fallen = browser.evaluate(column.format(accuracy))
    assert fallen[-1] == "" and fallen[:-1] == risen[-2::-1]

    colour = "getComputedStyle(document.body).backgroundColor"
    light = browser.evaluate(colour)
    browser.evaluate("document.getElementById('theme').click()")
    assert browser.evaluate(colour) != light
    assert browser.evaluate("document.querySelector('#curves img').naturalWidth") > 500

    place = browser.evaluate(
        "(async () => { const mark = document.querySelector('#table-1 td'), frame = requestAnimationFrame;"
        " mark.scrollIntoView({block: 'center'}); await new Promise(done => frame(() => frame(done)));"
        " const box = mark.getBoundingClientRect();"
        " return [box.left + box.width / 3, box.top + box.height / 3, mark.dataset.tip]; })()"
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])
    shown = "[document.getElementById('tip').hidden, document.getElementById('tip').textContent]"
    assert browser.evaluate(shown) == [False, place[2]]
    browser.evaluate("document.querySelector('#table-1 td').focus({focusVisible: true})")
    assert browser.evaluate(shown)[1].startswith("mu=0, alpha=0.05\n95 % interval ")

    methods = [event["method"] for event in browser.events if "method" in event]
    assert "Network.requestWillBeSent" in methods
    requested = {
        event["params"]["request"]["url"]
        for event in browser.events
        if event.get("method") == "Network.requestWillBeSent"
    }
    assert {url for url in requested if not url.startswith("data:")} == {page.as_uri()}
    assert complaints(browser) == []


def test_the_page_of_a_scaling_study_in_a_browser(tmp_path: Path, browser: Browser) -> None:
    """Kills: a console error, a page that scrolls sideways on a phone, a header that sorts numbers as words."""
    measured = study(tmp_path / "study")
    measured.measure(Clock())
    page, *_ = scaling_page.write(measured, (16, 64))
    browser.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
    browser.call("Page.navigate", url=page.as_uri())
    browser.wait_for("Page.loadEventFired")
    assert browser.evaluate("document.documentElement.scrollWidth") == 390
    guesses = "document.querySelector('[aria-label=\"Predictions\"]')"
    browser.evaluate(f"[0, 1].forEach(() => {guesses}.querySelector('th button').click())")
    first = browser.evaluate(f"[...{guesses}.querySelectorAll('tbody th')].map(cell => cell.textContent)")
    assert first == ["64", "16"]
    assert complaints(browser) == []
