#!/usr/bin/env python3
"""Shows reports in a browser, at the widths of a phone, a tablet and a desk, in light and in dark, and on paper.

    python3 scripts/pages.py crates/lab/tests/data/report.html
    python3 scripts/pages.py run/index.html --pictures DIR

Fails if a page is wider than its window, if a table is cut instead of scrolling, or if a text of a figure leaves the figure or is smaller than
10 pixels. With --pictures it leaves a picture of each page at each width, and a PDF. Needs Chromium: apt-get install -y chromium
"""

import argparse
import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

WIDTHS = (390, 768, 1600)
DARK = "@media screen and (prefers-color-scheme: dark)"

# Runs in a copy of the page: reports have no scripts.
MEASURE = """
<script>
addEventListener("load", () => setTimeout(() => {
  const found = [], root = document.documentElement;
  const tell = (what, node) => found.push(what + ": " + (node.textContent || "").trim().slice(0, 60));
  if (root.scrollWidth > innerWidth) tell("wider than the window by " + (root.scrollWidth - innerWidth) + " px", {});
  for (const node of document.querySelectorAll("body *")) {
    const box = node.getBoundingClientRect();
    if (box.width && box.right > innerWidth + 1 && !node.closest(".scroll, svg")) tell("leaves the window", node);
  }
  const pad = parseFloat(getComputedStyle(document.body).paddingLeft) - 4;
  for (const svg of document.querySelectorAll("svg.chart")) {
    const all = svg.getBoundingClientRect(), texts = [...svg.querySelectorAll("text")];
    if (!all.width) continue;
    const scale = all.width / svg.viewBox.baseVal.width;
    texts.forEach((text, i) => {
      const box = text.getBoundingClientRect();
      if (!box.width) return;
      if (box.left < all.left - pad || box.right > all.right + pad) tell("a text leaves its figure", text);
      const size = parseFloat(getComputedStyle(text).fontSize) * scale;
      if (size < 10) tell("a text of " + size.toFixed(1) + " px", text);
      for (const other of texts.slice(i + 1)) {
        const its = other.getBoundingClientRect();
        const across = Math.min(box.right, its.right) - Math.max(box.left, its.left);
        const down = Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top);
        if (across > 1 && down > 0.35 * box.height) tell("texts overlap", {textContent: text.textContent + " / " + other.textContent});
      }
    });
  }
  parent.postMessage(JSON.stringify({found, height: root.scrollHeight}), "*");
}, 100));
</script>
"""

# A window of Chromium cannot be as narrow as a phone, a frame can.
FRAME = """<!DOCTYPE html><body style="margin:0"><iframe src="{page}" style="border:0;width:{width}px;height:{height}px"></iframe>
<pre id="found"></pre><script>addEventListener("message", e => document.getElementById("found").textContent = e.data)</script>"""


def chromium() -> str:
    """Returns the path of the browser."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    sys.exit("pages.py needs Chromium. Install it with: apt-get install -y chromium")


def browse(*arguments: str) -> str:
    """Runs the browser without a window and returns what it prints."""
    common = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files"]
    done = subprocess.run([chromium(), *common, "--virtual-time-budget=3000", *arguments], capture_output=True, text=True, timeout=300)
    if done.returncode:
        sys.exit(f"the browser failed ({done.returncode}): {done.stderr[-500:]}")
    return done.stdout


def measure(page: str, folder: Path, width: int) -> dict:
    """Returns the defects of `page` at `width`, and its height."""
    (folder / "page.html").write_text(page.replace("</body>", MEASURE + "</body>"))
    (folder / "frame.html").write_text(FRAME.format(page="page.html", width=width, height=1000))
    dom = browse(f"--window-size={max(width, 600)},1000", "--dump-dom", (folder / "frame.html").as_uri())
    found = re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)
    if not found or not found[1]:
        sys.exit("the page did not report: its scripts did not run")
    return json.loads(html.unescape(found[1]))


def picture(page: str, folder: Path, width: int, height: int, to: Path) -> None:
    """Leaves a picture of all of `page`."""
    (folder / "page.html").write_text(page)
    (folder / "frame.html").write_text(FRAME.format(page="page.html", width=width, height=height))
    browse(f"--window-size={max(width, 500)},{height}", f"--screenshot={to}", (folder / "frame.html").as_uri())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("reports", nargs="+", type=Path)
    parser.add_argument("--pictures", type=Path, help="folder for pictures and PDFs")
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for report in options.reports:
            light = report.read_text()
            if light.count(DARK) != 1:
                sys.exit(f"{report}: no report of isochrome")
            for width in WIDTHS:
                measured = measure(light, folder, width)
                for what in measured["found"]:
                    print(f"{report} at {width}: {what}")
                wrong += len(measured["found"])
                print(f"{report} at {width}: {measured['height']} px high")
                if options.pictures:
                    options.pictures.mkdir(parents=True, exist_ok=True)
                    schemes = {"light": light, "dark": light.replace(DARK, "@media screen")}
                    for scheme, page in schemes.items():
                        to = options.pictures.absolute() / f"{report.stem}-{width}-{scheme}.png"
                        picture(page, folder, width, min(measured["height"], 12000), to)
            if options.pictures:
                (folder / "page.html").write_text(light)
                pdf = options.pictures.absolute() / f"{report.stem}.pdf"
                browse("--no-pdf-header-footer", f"--print-to-pdf={pdf}", (folder / "page.html").as_uri())
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
