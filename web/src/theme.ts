// Light and dark: the system's preference, until the reader overrides it for this page. Nothing is stored.

import { el, forgetColours } from "./dom";

const listeners = new Set<() => void>();
const dark = matchMedia("(prefers-color-scheme: dark)");

/** Calls `redraw` whenever the colours change: canvases do not follow a style sheet by themselves. */
export function onTheme(redraw: () => void): void {
  listeners.add(redraw);
}

function redrawAll(): void {
  forgetColours();
  for (const redraw of listeners) redraw();
}

function isDark(): boolean {
  const chosen = document.documentElement.dataset["theme"];
  return chosen === undefined ? dark.matches : chosen === "dark";
}

export function themeButton(): HTMLButtonElement {
  const button = el("button", { type: "button", class: "theme" });
  const show = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Show the page in ${isDark() ? "light" : "dark"} colours`);
    redrawAll();
  };
  button.addEventListener("click", () => {
    document.documentElement.dataset["theme"] = isDark() ? "light" : "dark";
    show();
  });
  dark.addEventListener("change", show);
  // Paper is light: canvases are redrawn when the print style begins and ends.
  matchMedia("print").addEventListener("change", redrawAll);
  show();
  return button;
}
