// A small memory step by step: the request, the actions of the allocator, and the pages, under each policy.

import type { Demo, DemoStep } from "./data";
import { type Child, details, el, figure, heading, scroller, table } from "./dom";
import { Scrubber } from "./timelapse";
import { share } from "./sim_charts";

/** A step is shown longer than a picture: it has text to read. */
const STAY_MS = 1500;
/** First pages listed in a cell of the table, at most. */
const LISTED_PAGES_MAX = 4;

type Lane = Demo["lanes"][number];

/** Owner of a page, in words. */
const OWNER_NAMES: Record<string, string> = {
  ".": "free",
  A: "program A",
  B: "program B",
  H: "a huge page",
  K: "the kernel",
  N: "the dentry cache",
};

/** Pages in runs of one holder and block, in words: for readers who do not see the picture. */
export function describeFrames(frames: string): string {
  const runs: string[] = [];
  let from = 0;
  for (let at = 1; at <= frames.length; at++) {
    const goes = at < frames.length && frames[at]!.toUpperCase() === frames[from]!.toUpperCase();
    if (goes) continue;
    const range = at - from === 1 ? `page ${from}` : `pages ${from} to ${at - 1}`;
    runs.push(`${range} ${OWNER_NAMES[frames[from]!.toUpperCase()] ?? frames[from]!}`);
    from = at;
  }
  return runs.join(", ");
}

function pages(demo: Demo, lane: Lane, step: DemoStep): HTMLElement {
  const touched = new Set(step.touched);
  // Without pageblocks, all frames always have the same owner.
  const hasOwners = new Set(lane.steps.flatMap((other) => other.owners)).size > 1;
  const blocks: HTMLElement[] = [];
  for (let from = 0; from < step.frames.length; from += demo.block_frames) {
    const signs = [...step.frames.slice(from, from + demo.block_frames)];
    const owner = lane.lists[step.owners[from / demo.block_frames] ?? 0] ?? "";
    blocks.push(
      el(
        "div",
        { class: "demo-block" },
        el("span", { class: "demo-first" }, String(from)),
        el(
          "div",
          { class: "demo-pages" },
          ...signs.map((sign, at) =>
            el(
              "span",
              {
                class: touched.has(from + at) ? "demo-page demo-touched" : "demo-page",
                "data-of": sign.toUpperCase(),
              },
              sign,
            ),
          ),
        ),
        hasOwners ? el("span", { class: "demo-owner" }, owner) : null,
      ),
    );
  }
  const label = `Pages under ${lane.policy}: ${describeFrames(step.frames)}`;
  return el("div", { class: "demo-memory", role: "img", "aria-label": label }, ...blocks);
}

function freeLists(lane: Lane, step: DemoStep): HTMLElement {
  const columns = [
    { text: "free blocks of", names: true },
    ...step.unusable.map((_, order) => {
      const text = order === 0 ? "1 page" : `${2 ** order} pages`;
      return { text, right: true };
    }),
  ];
  const cell = (blocks: number[]): Child => {
    if (blocks.length === 0) return "–";
    const more = blocks.length > LISTED_PAGES_MAX ? ` +${blocks.length - LISTED_PAGES_MAX}` : "";
    return `${blocks.slice(0, LISTED_PAGES_MAX).join(" ")}${more}`;
  };
  const rows = step.free.map((orders, list): Child[] => {
    return [lane.lists[list] ?? String(list), ...orders.map(cell)];
  });
  rows.push(["F_u", ...step.unusable.map(share)]);
  return table(`Free lists under ${lane.policy}`, columns, rows);
}

function laneOf(demo: Demo, lane: Lane, at: number): HTMLElement {
  const step = lane.steps[at]!;
  return el(
    "section",
    { class: "demo-lane", "data-policy": lane.policy },
    heading(4, {}, lane.policy),
    el("ul", {}, ...step.actions.map((did) => el("li", {}, did))),
    pages(demo, lane, step),
    freeLists(lane, step),
  );
}

/** Number of huge pages under each policy at the end. */
function ending(demo: Demo): HTMLElement {
  const rows = demo.lanes.map(({ policy, steps }): Child[] => {
    const last = steps.at(-1)!;
    const count = (sign: string) => String(last.frames.split(sign).length - 1);
    return [policy, count("H"), count("."), share(last.unusable[demo.goal_order] ?? 0)];
  });
  const columns = ["policy", "huge pages", "free pages", `F_u(${demo.goal_order})`].map((word, at) =>
    at === 0 ? { text: word, names: true } : { text: word, right: true },
  );
  return table("After the last step", columns, rows);
}

/** The complete page. */
export function demonstration(demo: Demo): HTMLElement[] {
  const asked = el("output", { class: "map-when" });
  const lanes = el("div", { class: "demo-lanes" });
  const choose = el("fieldset", { class: "demo-choose" }, el("legend", {}, "Policies shown"));
  const isShown = demo.lanes.map((_, at) => at < 2);
  const steps = Math.max(...demo.lanes.map((lane) => lane.steps.length));
  const show = (at: number): string => {
    const words = `Step ${at} of ${steps - 1}: ${demo.lanes[0]!.steps[at]!.request}`;
    asked.textContent = words;
    lanes.replaceChildren(
      ...demo.lanes.filter((_, lane) => isShown[lane]).map((lane) => laneOf(demo, lane, at)),
    );
    return words;
  };
  const scrubber = new Scrubber("Step", steps - 1, show, STAY_MS);
  demo.lanes.forEach(({ policy }, at) => {
    const box = el("input", { type: "checkbox", checked: isShown[at]! });
    box.addEventListener("change", () => {
      isShown[at] = box.checked;
      scrubber.go(scrubber.at);
    });
    choose.append(el("label", {}, box, ` ${policy} `));
  });
  const button = (words: string, by: number) => {
    const made = el("button", { type: "button" }, words);
    made.addEventListener("click", () => scrubber.go(scrubber.at + by));
    return made;
  };
  scrubber.go(0);
  const kinds = Object.entries(OWNER_NAMES).map(([sign, words]) =>
    el(
      "div",
      { class: "kind" },
      el("span", { class: "demo-page", "data-of": sign }, sign),
      el("span", { class: "kind-words" }, words),
    ),
  );
  return [
    el("h1", {}, demo.title),
    el("p", { class: "source" }, demo.facts.join(" · ")),
    el(
      "section",
      { "aria-label": "Step by step" },
      heading(2, {}, "Step by step"),
      figure(
        3,
        ["The same requests under each policy"],
        ["Source: the simulator's own allocator. A capital letter begins a block; framed pages changed."],
        choose,
        scrubber.element,
        el("p", { class: "demo-buttons" }, button("Back", -1), button("Next", 1)),
        asked,
        el("div", { class: "legend" }, ...kinds),
        lanes,
      ),
    ),
    el("section", { "aria-label": "Result" }, heading(2, {}, "Result"), ending(demo)),
    el(
      "section",
      { "aria-label": "As text" },
      heading(2, {}, "As text"),
      details("Terminal output", scroller(el("pre", {}, demo.text), "The steps as text")),
    ),
  ];
}
