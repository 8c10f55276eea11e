// A picture of physical memory: a canvas of pixels whose frames are read out under pointer and keyboard.

import type { Picture } from "./data";
import { numbers } from "./decode";
import { details, el, heading, newId, scroller, vars } from "./dom";
import * as format from "./format";
import { frameAt, holder, numberAt } from "./way";

/** Behind the last frame. */
const NOTHING = 255;
/** A picture of fewer pixels across is enlarged at first. */
const WIDTH_MIN = 900;
const ZOOMS = [1, 2, 4, 8, 16];

/** The whole page of a picture. */
export async function picture(of: Picture): Promise<HTMLElement[]> {
  const cells = await numbers(of.cells);
  const colours = of.colours === null ? null : await numbers(of.colours);
  const canvas = el("canvas", {
    width: of.width,
    height: of.height,
    tabindex: 0,
    role: "img",
    "aria-roledescription": "map of memory",
    "aria-label": of.title,
  });
  draw(canvas, of, cells, colours);
  const readout = el("output", { class: "readout", "aria-live": "polite" });
  const start = "Point at the picture, or focus it and use the arrow keys.";
  readout.textContent = start;
  const cursor = el("div", { class: "picture-cursor", hidden: true });
  const sheet = el("div", { class: "picture-sheet" }, canvas, cursor);
  const frame = el("div", { class: "picture", tabindex: -1 }, sheet);
  let zoom = ZOOMS.findLast((zoom) => zoom === 1 || of.width * zoom <= WIDTH_MIN) ?? 1;
  let at: [number, number] | null = null;
  const show = () => {
    readout.textContent = at === null ? start : describe(of, cells, at[0], at[1]);
    cursor.hidden = at === null;
    if (at === null) return;
    for (const [name, value] of [["left", at[0]], ["top", at[1]]] as const) {
      cursor.style.setProperty(name, `${value * zoom}px`);
    }
    for (const name of ["width", "height"]) cursor.style.setProperty(name, `${zoom}px`);
  };
  const resize = () => {
    sheet.style.setProperty("width", `${of.width * zoom}px`);
    sheet.style.setProperty("height", `${of.height * zoom}px`);
    show();
  };
  const choose = el("select", { id: newId("zoom") });
  for (const one of ZOOMS) choose.append(el("option", { value: one, selected: one === zoom }, `${one} ×`));
  choose.addEventListener("change", () => {
    zoom = Number(choose.value);
    resize();
  });
  const inside = (value: number, size: number) => Math.min(size - 1, Math.max(0, value));
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    at = [
      inside(Math.floor(((event.clientX - box.left) / box.width) * of.width), of.width),
      inside(Math.floor(((event.clientY - box.top) / box.height) * of.height), of.height),
    ];
    show();
  });
  canvas.addEventListener("keydown", (event) => {
    const steps: Record<string, [number, number]> = {
      ArrowLeft: [-1, 0],
      ArrowRight: [1, 0],
      ArrowUp: [0, -1],
      ArrowDown: [0, 1],
      PageUp: [0, -64],
      PageDown: [0, 64],
      Home: [-of.width, 0],
      End: [of.width, 0],
    };
    const step = steps[event.key];
    if (step !== undefined) {
      const [x, y] = at ?? [0, 0];
      at = at === null ? [0, 0] : [inside(x + step[0], of.width), inside(y + step[1], of.height)];
    } else if (event.key === "Escape") at = null;
    else return;
    event.preventDefault();
    show();
    cursor.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
  resize();
  return [
    el("h1", {}, of.title),
    ...of.subtitle.map((line) => el("p", { class: "source" }, line)),
    legend(of),
    el("p", {}, el("label", { for: choose.id }, "Size of a pixel "), choose),
    readout,
    frame,
    el(
      "p",
      { class: "source" },
      "Arrow keys move a cursor by a pixel, Page Up and Page Down by 64 rows, Home and End to the ends of ",
      "a row, ",
      "Escape takes it away. Edges of zones and memory blocks are read out with each pixel.",
    ),
    el(
      "section",
      {},
      heading(2, {}, "As text"),
      details("What the terminal shows", scroller(el("pre", {}, of.text), "The picture as text")),
    ),
  ];
}

function draw(
  canvas: HTMLCanvasElement,
  of: Picture,
  cells: ArrayLike<number>,
  colours: ArrayLike<number> | null,
): void {
  const context = canvas.getContext("2d");
  if (context === null) return;
  const image = context.createImageData(of.width, of.height);
  for (let at = 0; at < cells.length; at++) {
    const category = of.legend[cells[at]!];
    if (category === undefined) continue;
    for (let part = 0; part < 3; part++) {
      image.data[at * 4 + part] = colours === null ? category.colour[part]! : colours[at * 3 + part]!;
    }
    image.data[at * 4 + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

function legend(of: Picture): HTMLElement {
  const rows = of.legend
    .filter((category) => category.pages > 0)
    .map((category) => {
      const [red, green, blue] = category.colour;
      return el(
        "div",
        { class: "kind" },
        vars(el("span", { class: "swatch" }), { colour: `rgb(${red} ${green} ${blue})` }),
        el("span", { class: "kind-words" }, `${category.letter.trim() || "blank"}  ${category.label}`),
        el("span", { class: "kind-count" }, format.bytes(category.pages * of.page_size_bytes)),
      );
    });
  return el("div", { class: "legend" }, ...rows);
}

/** What is at a pixel, in words. */
function describe(of: Picture, cells: ArrayLike<number>, x: number, y: number): string {
  const category = of.legend[cells[y * of.width + x] ?? NOTHING];
  const frame = frameAt(of.extents, numberAt(of, x, y) * of.pages_per_pixel);
  if (category === undefined || frame === null) return "Nothing: behind the last frame.";
  const zone = holder(of.zones, frame);
  const block = holder(of.memory_blocks, frame);
  const last = frame + of.pages_per_pixel - 1;
  return [
    of.pages_per_pixel === 1 ? `frame ${frame}` : `frames ${frame} to ${last}`,
    format.address(frame * of.page_size_bytes),
    of.pages_per_pixel === 1 ? category.label : `${category.label} (${of.blend})`,
    zone === undefined ? "no zone" : zone.name,
    `pageblock ${Math.floor(frame / of.pageblock_pages)}`,
    block === undefined ? null : `memory${block.number}${block.online ? "" : ", offline"}`,
  ]
    .filter((part) => part !== null)
    .join(" · ");
}
