// The report as the terminal shows it, to be copied into a mail.

import type { Run } from "./data";
import { details, el, scroller } from "./dom";
import type { Section } from "./main";

export function terminal(run: Run): Section {
  return {
    title: "As text",
    content: [
      details("The report as the terminal shows it", scroller(el("pre", {}, run.text), "The report as text")),
    ],
  };
}
