// Creation of elements. Text is inserted as text, never as markup: names in a report are untrusted.

export type Child = Node | string | null | undefined | false;
export type Attributes = Record<string, string | number | boolean | null | undefined>;

function fill<E extends Element>(element: E, attributes: Attributes, children: Child[]): E {
  for (const [name, value] of Object.entries(attributes)) {
    // The page's content security policy blocks this attribute; element.style.setProperty() is allowed.
    if (name === "style" || name.startsWith("on")) throw new Error(`attribute ${name}`);
    if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false)
      element.setAttribute(name, String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  return fill(document.createElement(tag), attributes, children);
}

export function svg<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): SVGElementTagNameMap[K] {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/** Sets custom properties of a style, which the content security policy allows. */
export function vars<E extends HTMLElement | SVGElement>(element: E, values: Record<string, string>): E {
  for (const [name, value] of Object.entries(values)) element.style.setProperty(`--${name}`, value);
  return element;
}

let ids = 0;

/** A new id. It differs from those of data blocks, which are `page` and `b0`, `b1` …. */
export function newId(what: string): string {
  ids += 1;
  return `${what}-${ids}`;
}

/** A heading of the second to sixth rank. */
export function heading(rank: number, attributes: Attributes, ...children: Child[]): HTMLElement {
  const tag = `h${Math.min(6, Math.max(1, rank))}` as "h2";
  return el(tag, attributes, ...children);
}

export interface Column {
  text: string;
  /** Right alignment for numbers; decimals align too, since digits are equally wide. */
  right?: boolean;
  /** Column with the name of the row. */
  names?: boolean;
}

/** A table that scrolls horizontally on a narrow screen. */
export function table(caption: string | null, columns: Column[], rows: Child[][]): HTMLElement {
  const cell = (tag: "td" | "th", column: Column | undefined, child: Child, scope?: string) =>
    el(tag, { class: column?.right ? "right" : null, scope }, child);
  const head = el("tr", {}, ...columns.map((column) => cell("th", column, column.text, "col")));
  const body = rows.map((row) =>
    el(
      "tr",
      {},
      row.length === 1 && columns.length > 1
        ? el("th", { class: "part", colspan: columns.length, scope: "colgroup" }, row[0])
        : null,
      ...(row.length === 1 && columns.length > 1 ? [] : row).map((child, at) => {
        const column = columns[at];
        return column?.names ? cell("th", column, child, "row") : cell("td", column, child);
      }),
    ),
  );
  const whole = el(
    "table",
    {},
    caption === null ? null : el("caption", {}, caption),
    columns.some((column) => column.text !== "") ? el("thead", {}, head) : null,
    el("tbody", {}, ...body),
  );
  return scroller(whole, caption ?? "table");
}

/** Content wider than the screen scrolls in a region that is reachable by keyboard. */
export function scroller(content: HTMLElement, label: string): HTMLElement {
  return el("div", { class: "scroll", role: "region", "aria-label": label, tabindex: 0 }, content);
}

/** Calls `act` with the width of an element at once and whenever it changes. */
export function onWidth(of: HTMLElement, act: (width: number) => void): void {
  let width = 0;
  new ResizeObserver(() => {
    if (of.clientWidth !== width) {
      width = of.clientWidth;
      act(width);
    }
  }).observe(of);
}

export function details(summary: Child, ...content: Child[]): HTMLDetailsElement {
  return el("details", {}, el("summary", {}, summary), ...content);
}

/** A chart: its title states the result, its foot the source. */
export function figure(rank: number, title: Child[], source: Child[], ...content: Child[]): HTMLElement {
  const id = newId("figure");
  return el(
    "figure",
    { "aria-labelledby": id },
    heading(rank, { id, class: "figure-title" }, ...title),
    ...content,
    el("figcaption", { class: "source" }, ...source),
  );
}

/** Makes a sentence of a phrase without capital and dot. */
export function sentence(phrase: string): string {
  const first = phrase.charAt(0).toUpperCase() + phrase.slice(1);
  return /[.!?]$/.test(first) ? first : `${first}.`;
}

const colours = new Map<string, string>();

/** Cached colours, cleared after a change of theme. */
export function forgetColours(): void {
  colours.clear();
}

/** The current colour of a CSS expression: `var(--slab)`. */
export function colour(expression: string): string {
  const known = colours.get(expression);
  if (known !== undefined) return known;
  const probe = el("span", { hidden: true });
  probe.style.color = expression;
  document.body.append(probe);
  const resolved = getComputedStyle(probe).color;
  probe.remove();
  colours.set(expression, resolved);
  return resolved;
}
