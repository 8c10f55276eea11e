// A heat map whose cells are selected by pointer or with the arrow keys.

import { el } from "./dom";
import type { HeatMap } from "./drawing";

const MOVES: Record<string, [down: number, right: number]> = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
};

/** Text of a cell. */
export function sayCell(map: HeatMap, row: number, column: number): string {
  const cell = map.cells[row]?.[column];
  if (cell === undefined || cell === null) return `${map.rows[row]}, ${map.columns[column]}: not measured`;
  return `${cell.label}: ${cell.lines.join(", ")}`;
}

/** The chart with a line below it for the cell under the pointer or the keyboard cursor. */
export function withReadout(map: HeatMap, drawing: HTMLElement): HTMLElement {
  const place = drawing.querySelector<HTMLElement>("[tabindex]");
  const hint = "Point at a cell, or use the arrow keys.";
  const readout = el("p", { class: "readout cell-readout", "aria-live": "polite" }, hint);
  let [row, column] = [-1, -1];
  const show = () => {
    readout.textContent = sayCell(map, row, column);
    // Missing cells have no title, so the others keep their order.
    const before = map.cells.flat().slice(0, row * map.columns.length + column);
    const rects = [...(place?.querySelectorAll("rect:has(> title)") ?? [])];
    const isThere = map.cells[row]?.[column] != null;
    const chosen = isThere ? rects[before.filter((cell) => cell !== null).length] : undefined;
    for (const rect of rects) rect.classList.toggle("chosen", rect === chosen);
    chosen?.scrollIntoView({ block: "nearest", inline: "nearest" });
  };
  place?.addEventListener("keydown", (event) => {
    const move = MOVES[event.key];
    if (move === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const within = (at: number, of: number) => Math.min(Math.max(at, 0), of - 1);
    row = row < 0 ? 0 : within(row + move[0], map.rows.length);
    column = column < 0 ? 0 : within(column + move[1], map.columns.length);
    show();
  });
  place?.addEventListener("pointermove", (event) => {
    // The text of a cell covers it.
    const under = document.elementsFromPoint(event.clientX, event.clientY);
    const title = under.map((one) => one.querySelector(":scope > title")).find((of) => of !== null);
    if (title !== undefined && place.contains(title)) readout.textContent = title.textContent;
  });
  return el("div", {}, drawing, readout);
}
