"""Measure the HTML page of a job: its size, the time to write it, its first paint and a step of zooming in Chromium.

    python benchmarks/page.py [--ranks 4 64 1024] [--lines 1000000] [--output benchmarks/page.md]

The logs are those of tests/loggen/crowd.py, in which one rank gets no answer to its Setup. --lines is the length of the log of the most ranks; the others are
shorter by their share. Needs Debian's chromium and chromium-driver (scripts/browser.sh), and selenium. Peak memory is that of `psmkit report`.
"""

from __future__ import annotations

import argparse
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.run import processor  # noqa: E402
from tests.loggen.crowd import write_merged  # noqa: E402

LINE = 95  # bytes of a line of these logs
ZOOMS = 40
#: Draws the timeline again at ever closer views, and says how many milliseconds each takes.
ZOOM = """
const rows = document.getElementById('rows'), box = rows.getBoundingClientRect(), times = [];
const step = (left) => {
  if (!left) { arguments[arguments.length - 1](times); return; }
  const begun = performance.now();
  rows.dispatchEvent(new WheelEvent('wheel', {deltaY: left > 20 ? -120 : 120, ctrlKey: true, clientX: box.x + box.width / 2, clientY: box.y + 20, cancelable: true}));
  requestAnimationFrame(() => setTimeout(() => { times.push(performance.now() - begun); step(left - 1); }));
};
step(%d);
"""


def browser() -> Any:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1600,1100",
    ):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    driver.set_script_timeout(300)
    return driver


def drawn(driver: Any, page: Path) -> tuple[float, float, list[float]]:
    """Milliseconds to the first paint and to the drawn timeline, and of each step of zooming."""
    driver.get("about:blank")
    driver.get(f"file://{page}")
    begun = time.monotonic()
    while (
        ready := driver.execute_script("return document.documentElement.dataset.ready ? performance.now() : 0")
    ) == 0:
        if time.monotonic() - begun > 300:
            raise SystemExit(f"{page.name}: the timeline was not drawn in 300 s")
        time.sleep(0.01)
    first = "return performance.getEntriesByName('first-contentful-paint').map((p) => p.startTime)[0] || 0"
    while not (paint := driver.execute_script(first)):  # the browser reports it later
        if time.monotonic() - begun > 300:
            raise SystemExit(f"{page.name}: the browser reported no first paint in 300 s")
        time.sleep(0.01)
    return paint, ready, driver.execute_async_script(ZOOM % ZOOMS)


def row(driver: Any, folder: Path, ranks: int, lines: int) -> str:
    log, page = folder / "job.log", folder / "report.html"
    write_merged(log, "unanswered", ranks, lines * LINE)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [Path(sys.executable).with_name("psmkit"), "report", log, "-o", page], check=True, capture_output=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    paint, ready, zooms = min((drawn(driver, page) for _ in range(3)), key=lambda found: found[1])
    count = sum(1 for _ in log.open("rb"))
    size = page.stat().st_size / 1e6
    print(f"{ranks} ranks: {size:.1f} MB, first paint {paint:.0f} ms", file=sys.stderr)
    return (
        f"| {ranks:,} | {count:,} | {log.stat().st_size / 1e6:.0f} | {size:.1f} | {cpu:.1f} | {after.ru_maxrss / 1024:.0f} | {paint:.0f} | {ready:.0f} "
        f"| {median(zooms):.0f} | {max(zooms):.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 64, 1024])
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    driver = browser()
    with tempfile.TemporaryDirectory() as name:
        rows = [row(driver, Path(name), n, max(args.lines * n // max(args.ranks), 1000)) for n in sorted(args.ranks)]
    driver.quit()
    text = (
        "# The HTML page of a job\n\n"
        f"`python benchmarks/page.py`, {processor()}, Linux {platform.release().split('-')[0]}, Python {platform.python_version()}, Chromium without a GPU, window of 1,600 x "
        "1,100. CPU and memory are those of `psmkit report`; memory is the most of this row and those above it. Milliseconds are the browser's: to the first paint, "
        f"to the drawn timeline (the quickest of three), and from a turn of the wheel to the next drawn picture, over {ZOOMS} turns.\n\n"
        "| ranks | lines | log MB | page MB | CPU s | memory MiB | first paint ms | timeline ms | zoom median ms | zoom most ms |\n"
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n" + "\n".join(rows) + "\n"
    )
    if args.output:
        args.output.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
