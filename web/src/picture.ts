// A picture of physical memory: a canvas of pixels whose frames are described under pointer and cursor.

import type { Category, PictureLayout, Picture } from "./data";
import { numbers } from "./decode";
import { details, el, heading, newId, scroller, vars } from "./dom";
import * as format from "./format";
import { frameAt, findRun, numberAt, rowsOf } from "./pixel_path";

/** After the last frame. */
const NO_CATEGORY = 255;
/** A narrower picture is enlarged initially. */
const WIDTH_MIN = 900;
/** Space beside a picture: the page's edges, and the bands of zones. */
const SIDE_PIXELS = 80;
const ZOOMS = [1, 2, 4, 8, 16];

/** Pixels with their meaning. */
export interface Pixels {
  layout: PictureLayout;
  legend: Category[];
  cells: ArrayLike<number>;
  /** Colours, if they are not those of the legend. */
  colours: ArrayLike<number> | null;
}

/** A picture that can be queried, enlarged and replaced. */
export class PictureView {
  readonly element: HTMLElement;
  private readonly canvas: HTMLCanvasElement;
  private readonly cursor = el("div", { class: "picture-cursor", hidden: true });
  private readonly readout = el("output", { class: "readout", "aria-live": "polite" });
  private readonly sheet: HTMLElement;
  private readonly zones = el("div", { class: "picture-zones", "aria-hidden": "true" });
  private zoom: number;
  /** The pixel under the cursor. */
  private at: [number, number] | null = null;

  constructor(
    label: string,
    private pixels: Pixels,
  ) {
    const { width } = pixels.layout;
    const room = Math.min(WIDTH_MIN, document.documentElement.clientWidth - SIDE_PIXELS);
    this.zoom = ZOOMS.findLast((zoom) => zoom === 1 || width * zoom <= room) ?? 1;
    this.canvas = el("canvas", {
      tabindex: 0,
      role: "img",
      "aria-roledescription": "map of memory",
      "aria-label": label,
    });
    const help = newId("help");
    this.canvas.setAttribute("aria-describedby", help);
    this.sheet = el("div", { class: "picture-sheet" }, this.canvas, this.cursor);
    const choose = el("select", { id: newId("zoom") });
    for (const one of ZOOMS)
      choose.append(el("option", { value: one, selected: one === this.zoom }, `${one} ×`));
    choose.addEventListener("change", () => {
      this.zoom = Number(choose.value);
      this.resize();
    });
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.element = el(
      "div",
      {},
      el("p", {}, el("label", { for: choose.id }, "Size of a pixel "), choose),
      this.readout,
      el("div", { class: "picture", tabindex: -1 }, this.zones, this.sheet),
      el(
        "p",
        { id: help, class: "hidden-help" },
        "Arrow keys move a cursor by a pixel, Page Up and Page Down by 64 rows, Home and End to the ends of ",
        "a row, Escape removes it. Zones and memory blocks are announced with each pixel.",
      ),
    );
    this.show(pixels);
  }

  /** Shows other pixels and keeps the cursor. */
  show(pixels: Pixels): void {
    this.pixels = pixels;
    const { width, height } = pixels.layout;
    if (this.canvas.width !== width) this.canvas.width = width;
    if (this.canvas.height !== height) this.canvas.height = height;
    if (this.at !== null) this.at = [inside(this.at[0], width), inside(this.at[1], height)];
    draw(this.canvas, pixels);
    this.zones.replaceChildren(...bands(pixels.layout));
    this.resize();
  }

  private resize(): void {
    const { width, height } = this.pixels.layout;
    this.sheet.style.setProperty("width", `${width * this.zoom}px`);
    for (const one of [this.sheet, this.zones]) one.style.setProperty("height", `${height * this.zoom}px`);
    this.say();
  }

  private say(): void {
    const { at, zoom } = this;
    this.readout.textContent =
      at === null
        ? "Point at the picture, or focus it and use the arrow keys."
        : describe(this.pixels, at[0], at[1]);
    this.cursor.hidden = at === null;
    if (at === null) return;
    this.cursor.style.setProperty("left", `${at[0] * zoom}px`);
    this.cursor.style.setProperty("top", `${at[1] * zoom}px`);
    for (const name of ["width", "height"]) this.cursor.style.setProperty(name, `${zoom}px`);
  }

  private point(event: PointerEvent): void {
    const { width, height } = this.pixels.layout;
    const box = this.canvas.getBoundingClientRect();
    this.at = [
      inside(Math.floor(((event.clientX - box.left) / box.width) * width), width),
      inside(Math.floor(((event.clientY - box.top) / box.height) * height), height),
    ];
    this.say();
  }

  private key(event: KeyboardEvent): void {
    const { width, height } = this.pixels.layout;
    const steps: Record<string, [number, number]> = {
      ArrowLeft: [-1, 0],
      ArrowRight: [1, 0],
      ArrowUp: [0, -1],
      ArrowDown: [0, 1],
      PageUp: [0, -64],
      PageDown: [0, 64],
      Home: [-width, 0],
      End: [width, 0],
    };
    const step = steps[event.key];
    if (step !== undefined) {
      const [x, y] = this.at ?? [0, 0];
      this.at = this.at === null ? [0, 0] : [inside(x + step[0], width), inside(y + step[1], height)];
    } else if (event.key === "Escape") this.at = null;
    else return;
    event.preventDefault();
    this.say();
    this.cursor.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}

function inside(value: number, size: number): number {
  return Math.min(size - 1, Math.max(0, value));
}

/** The complete page of a picture. */
export async function picture(of: Picture): Promise<HTMLElement[]> {
  const cells = await numbers(of.cells);
  const colours = of.colours === null ? null : await numbers(of.colours);
  const view = new PictureView(of.title, { layout: of, legend: of.legend, cells, colours });
  const pages = of.legend.map((category) => category.pages);
  return [
    el("h1", {}, of.title),
    ...of.subtitle.map((line) => el("p", { class: "source" }, line)),
    legend(of.legend, pages, of.page_size_bytes),
    view.element,
    el(
      "section",
      {},
      heading(2, {}, "As text"),
      details("Terminal output", scroller(el("pre", {}, of.text), "The picture as text")),
    ),
  ];
}

function draw(canvas: HTMLCanvasElement, { layout, legend, cells, colours }: Pixels): void {
  const context = canvas.getContext("2d");
  if (context === null) return;
  const image = context.createImageData(layout.width, layout.height);
  for (let at = 0; at < cells.length; at++) {
    const category = legend[cells[at]!];
    if (category === undefined) continue;
    for (let part = 0; part < 3; part++) {
      image.data[at * 4 + part] = colours === null ? category.colour[part]! : colours[at * 3 + part]!;
    }
    image.data[at * 4 + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

/** Bands of zones beside the rows of the picture; larger zones are drawn first. */
function bands(layout: PictureLayout): HTMLElement[] {
  if (layout.pixel_layout === "hilbert") return [];
  const found = layout.zones.flatMap((zone, at) => {
    const [top, end] = rowsOf(layout, zone);
    return end <= top ? [] : [{ name: zone.name, at, top, rows: end - top }];
  });
  found.sort((a, b) => b.rows - a.rows);
  return found.map(({ name, at, top, rows }) => {
    const band = el("div", { class: `zone-band zone-band-${at % 2}`, title: name }, name);
    band.style.setProperty("top", `${(100 * top) / layout.height}%`);
    band.style.setProperty("height", `${(100 * rows) / layout.height}%`);
    return band;
  });
}

/** A colour of the legend as CSS has it. */
export function rgb({ colour: [red, green, blue] }: Category): string {
  return `rgb(${red} ${green} ${blue})`;
}

/** The categories that occur, with their amounts. */
export function legend(categories: Category[], pages: number[], pageBytes: number): HTMLElement {
  const rows = categories.flatMap((category, at) => {
    const amount = pages[at] ?? 0;
    if (amount === 0) return [];
    return el(
      "div",
      { class: "kind" },
      vars(el("span", { class: "swatch" }), { colour: rgb(category) }),
      el("span", { class: "kind-words" }, `${category.letter.trim() || "blank"}  ${category.label}`),
      el("span", { class: "kind-count" }, format.bytes(amount * pageBytes)),
    );
  });
  return el("div", { class: "legend" }, ...rows);
}

/** Describes a pixel. */
function describe({ layout, legend, cells }: Pixels, x: number, y: number): string {
  const category = legend[cells[y * layout.width + x] ?? NO_CATEGORY];
  const pages = layout.pages_per_pixel;
  const frame = frameAt(layout.extents, numberAt(layout, x, y) * pages);
  if (category === undefined || frame === null) return "No memory: after the last frame.";
  const zone = findRun(layout.zones, frame);
  const block = findRun(layout.memory_blocks, frame);
  return [
    pages === 1 ? `frame ${frame}` : `frames ${frame} to ${frame + pages - 1}`,
    format.address(frame * layout.page_size_bytes),
    pages === 1 ? category.label : `${category.label} (${layout.blend})`,
    zone === undefined ? "no zone" : zone.name,
    `pageblock ${Math.floor(frame / layout.pageblock_pages)}`,
    block === undefined ? null : `memory${block.number}${block.online ? "" : ", offline"}`,
  ]
    .filter((part) => part !== null)
    .join(" · ");
}
