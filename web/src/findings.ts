// Findings: a sentence, its evidence, the next command.

import type { Run } from "./data";
import { el } from "./dom";
import { objects, text, texts } from "./json";
import type { Section } from "./main";

export function findings(run: Run): Section {
  if (run.checkup === null) return null;
  const found = objects(run.checkup["findings"]);
  const problems = objects(run.checkup["problems"]).map((problem) =>
    el("li", {}, text(problem["message"]) ?? ""),
  );
  const content: HTMLElement[] = [];
  if (found.length === 0) {
    content.push(el("p", { class: "verdict" }, text(run.checkup["verdict"]) ?? "no findings"));
  } else {
    const items = found.map((finding) => {
      const weight = text(finding["weight"]) ?? "";
      return el(
        "li",
        { class: ["failure", "cost"].includes(weight) ? `finding weighs-${weight}` : "finding" },
        el(
          "p",
          { class: "sentence" },
          capital(text(finding["sentence"]) ?? "", text(finding["id"])),
          " ",
          el("span", { class: "weight" }, weight),
        ),
        ...texts(finding["evidence"]).map((line) => el("p", { class: "evidence" }, line)),
        commands(texts(finding["next"])),
      );
    });
    content.push(el("ol", { class: "findings" }, ...items));
  }
  if (problems.length > 0) {
    content.push(
      el(
        "div",
        { class: "notice", role: "note" },
        el("p", {}, el("strong", {}, "Could not be parsed:")),
        el("ul", {}, ...problems),
      ),
    );
  }
  return { title: "Findings", content };
}

/** Capitalises a sentence, unless the name of a process begins it. */
function capital(sentence: string, id: string | null): string {
  if (id === "process_without_huge_pages") return sentence;
  return sentence.charAt(0).toUpperCase() + sentence.slice(1);
}

function commands(lines: string[]): HTMLElement | null {
  if (lines.length === 0) return null;
  const items = lines.map((line) => {
    const copy = el("button", { type: "button", class: "copy", "aria-label": `Copy: ${line}` }, "copy");
    copy.addEventListener("click", () => {
      navigator.clipboard.writeText(line).then(
        () => {
          copy.textContent = "copied";
        },
        () => {
          copy.textContent = "not allowed";
        },
      );
    });
    return el("li", {}, el("code", {}, line), "clipboard" in navigator ? copy : null);
  });
  return el("ul", { class: "next", "aria-label": "Next" }, ...items);
}
