// The report as on the terminal, for copying.

import type { Run } from "./data";
import { details, el, scroller } from "./dom";
import type { Section } from "./main";

export function terminal(run: Run): Section {
  return {
    title: "As text",
    content: [
      details("Terminal output", scroller(el("pre", {}, run.text), "The report as text")),
    ],
  };
}
