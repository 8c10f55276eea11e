// Charts as files: an SVG or a table, made in the page on request. Nothing leaves the page.

import { el, onWidth, svg } from "./dom";
import { type Palette, PAPER, SCREEN, type Shape, toText } from "./drawing";

/** Width of a chart in a file. */
const PAPER_WIDTH = 900;

/** Rows of a table in the format of RFC 4180; no cell is a formula. */
export function csv(rows: (string | number | null)[][]): string {
  const cell = (of: string | number | null) => {
    if (of === null) return "";
    if (typeof of === "number") return String(of);
    const plain = of.replace(/[\u0000-\u001f\u007f]/g, " ");
    const harmless = /^[=+\-@]/.test(plain) && !Number.isFinite(Number(plain)) ? `'${plain}` : plain;
    return /[",]|^\s|\s$|^$/.test(harmless) ? `"${harmless.replace(/"/g, '""')}"` : harmless;
  };
  return rows.map((row) => `${row.map(cell).join(",")}\n`).join("");
}

/** A name for a file out of names that strangers chose. */
export function fileName(words: string[], end: string): string {
  const plain = words.map((word) => word.replace(/[^A-Za-z0-9.-]+/g, "_").replace(/^[._]+|_+$/g, ""));
  return `${
    plain
      .filter((word) => word !== "")
      .join("-")
      .slice(0, 80) || "chart"
  }.${end}`;
}

function save(name: string, type: string, content: string): void {
  // A data address needs nothing of the policy; the link is gone when it was followed.
  const link = el("a", {
    download: name,
    href: `data:${type};charset=utf-8,${encodeURIComponent(content)}`,
  });
  link.click();
}

function draw(of: Shape): SVGElement {
  const children = of.children.map((child) => (typeof child === "string" ? child : draw(child)));
  return svg(of.tag, of.attributes, ...children);
}

/** A chart that follows the width of its place, with buttons that save it and its numbers. */
export function chart(
  words: string[],
  drawing: (width: number, palette: Palette) => Shape,
  rows: () => (string | number | null)[][],
): HTMLElement {
  const place = el("div", {
    class: "drawing scroll",
    role: "region",
    "aria-label": words.join(", "),
    tabindex: 0,
  });
  onWidth(place, (width) => place.replaceChildren(draw(drawing(width, SCREEN))));
  const button = (label: string, act: () => void) => {
    const made = el(
      "button",
      { type: "button", "aria-label": `Save as ${label}: ${words.join(", ")}` },
      label,
    );
    made.addEventListener("click", act);
    return made;
  };
  const tools = el(
    "div",
    { class: "plot-tools" },
    button("SVG", () => save(fileName(words, "svg"), "image/svg+xml", toText(drawing(PAPER_WIDTH, PAPER)))),
    button("CSV", () => save(fileName(words, "csv"), "text/csv", csv(rows()))),
  );
  return el("div", {}, place, tools);
}
