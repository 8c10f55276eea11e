// How long a zoom of a million points takes in Chromium, from the key to the last pixel drawn. Prints one
// line for `cargo xtask bench`: `node test/run.mjs bench`.

import { WITHOUT, frames, launch, open } from "./browser/harness";

const ZOOMS = 24;

async function main() {
  const line = {
    bar: "page_zoom_ms",
    unit: "ms",
    how: "Chromium without a GPU, 1200 pixels wide, a million points in a chart",
  };
  if (WITHOUT !== false) {
    console.log(JSON.stringify({ ...line, value: null, why: "no Chromium" }));
    return;
  }
  const { browser, close } = await launch();
  try {
    const { page, wrong } = await open(browser, "million");
    if (wrong.length > 0) throw new Error(wrong.join("; "));
    const plot = await page.$(".plot");
    await plot.focus();
    for (let zoom = 0; zoom < ZOOMS; zoom++) {
      // In, in, out again, and the whole, which is the most there is to look through.
      await page.keyboard.press(["+", "+", "-", "0"][zoom % 4]);
      await frames(page);
    }
    const samples = await page.evaluate(() =>
      performance.getEntriesByName("pagelab zoom").map(({ duration }) => Number(duration.toFixed(2))),
    );
    if (samples.length < ZOOMS) throw new Error(`${samples.length} of ${ZOOMS} zooms were drawn`);
    console.log(JSON.stringify({ ...line, value: Math.max(...samples), samples }));
  } finally {
    await close();
  }
}

await main();
