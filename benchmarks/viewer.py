"""How large the page of `ceqr watch` is for an episode of 5,000 steps, how fast it opens, and how fast it scrubs.

    python -m benchmarks.viewer                 # needs Chromium and playwright
    python -m benchmarks.viewer page.html       # the same for a page of your own

Unless a page is given, the episode is invented: six actions with 50 quantiles each, and ten channels of 10 x 10 cells
at random, none of which compresses well. Opening is from the request to the first frame. Scrubbing sets the slider
once a frame of the screen, somewhere else each time, as fast as the browser asks for frames; what is drawn by then
counts. Beside it stand how many frames a page gets that draws nothing, and what the page's own script takes for one.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright
from tests.browsing import CHROMIUM, FLAGS
from tests.viewer.subjects import invented, subject, watched

from ceqr.viewer import page

STEPS = 5_000
SCRUB = """async () => {
  const seek = document.getElementById('seek'), most = Number(seek.max);
  const next = () => new Promise((done) => requestAnimationFrame(done));
  const began = performance.now();
  for (let i = 0; i < 240; i++) {
    seek.value = (i * 977) % (most + 1);
    seek.dispatchEvent(new Event('input'));
    await next();
  }
  return 240000 / (performance.now() - began);
}"""
IDLE = """async () => {
  const began = performance.now();
  for (let i = 0; i < 240; i++) await new Promise((done) => requestAnimationFrame(done));
  return 240000 / (performance.now() - began);
}"""
COST = """() => new Promise((done) => {
  const seek = document.getElementById('seek'), costs = [];
  const real = window.requestAnimationFrame;
  window.requestAnimationFrame = (draw) => {
    const began = performance.now();
    draw(began);
    costs.push(performance.now() - began);
    return 0;
  };
  for (let i = 0; i < 240; i++) {
    seek.value = (i * 977) % (Number(seek.max) + 1);
    seek.dispatchEvent(new Event('input'));
  }
  window.requestAnimationFrame = real;
  costs.sort((a, b) => a - b);
  done(costs[Math.floor(costs.length / 2)]);
})"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        if len(sys.argv) > 1:
            path = Path(sys.argv[1]).resolve()
        else:
            seen = np.random.default_rng(0).random((STEPS, 10, 10, 10)) < 0.1
            made = watched([subject("ceqr-dqn", "minatar/seaquest")], [[invented(STEPS, 6, 50, seen)]])
            path = Path(folder) / "doubt.html"
            path.write_bytes(page.render(made))
        print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            for size in ((1440, 900), (390, 844)):
                opened = browser.new_page(viewport={"width": size[0], "height": size[1]})
                began = time.monotonic()
                opened.goto(path.as_uri())
                opened.wait_for_selector("body[data-ready]")
                print(f"{size[0]} x {size[1]}: open after {time.monotonic() - began:.2f} s", end=", ")
                idle, rate, cost = (opened.evaluate(each) for each in (IDLE, SCRUB, COST))
                print(f"scrubs at {rate:.0f} frames/s (idle {idle:.0f}), {cost:.1f} ms of script a frame")
            browser.close()


if __name__ == "__main__":
    main()
