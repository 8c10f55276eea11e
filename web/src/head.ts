// The head of a run: machine, time, ending, command.

import type { Run } from "./data";
import { el, heading } from "./dom";
import { moment, nanoseconds } from "./format";
import { number, object } from "./json";

export function header(run: Run, rank: number, id: string): HTMLElement[] {
  const facts = run.head.facts.map((fact) => el("li", {}, fact));
  const parts = [
    heading(rank, { id }, rank > 1 ? `${run.name}: ${run.head.name}` : run.head.name),
    el("ul", { class: "facts", "aria-label": "The machine" }, ...facts),
    el("p", { class: "when" }, startTime(run)),
    el("p", { class: "command" }, el("code", {}, run.run.command_line.join(" "))),
  ];
  if (run.log?.is_there === true && run.run.ending !== "not_closed") {
    parts.push(
      el(
        "p",
        { class: "notice", role: "note" },
        el("strong", {}, "In two files: "),
        `the last records are in ${run.log.path}, which belongs to the file. Copy both.`,
      ),
    );
  }
  const ended = ending(run);
  if (ended !== null) parts.push(ended);
  if (run.not_shown.length > 0) {
    parts.push(
      el(
        "div",
        { class: "notice", role: "note" },
        el("p", {}, el("strong", {}, "Not shown, because this version of pagelab does not recognise it:")),
        el("ul", {}, ...run.not_shown.map((what) => el("li", {}, what))),
      ),
    );
  }
  return parts;
}

function startTime(run: Run): string {
  const taken = object(run.checkup?.["taken"]);
  const live = taken === null || number(taken["euid"]) !== null;
  const facts: string[] = [];
  if (taken !== null && !live) {
    const realtime = number(taken["realtime_ns"]);
    facts.push(`Saved tree${realtime === null ? ", date unknown" : ` of ${moment(realtime)}`}`);
    facts.push(`read ${moment(run.run.started_realtime_ns)}`);
  } else {
    facts.push(`${taken === null ? "Started" : "Snapshot of"} ${moment(run.run.started_realtime_ns)}`);
    if (run.run.started_boottime_ns !== null)
      facts.push(`${nanoseconds(run.run.started_boottime_ns)} after boot`);
    const euid = taken === null ? null : number(taken["euid"]);
    if (euid !== null) facts.push(euid === 0 ? "as root" : "not as root");
  }
  if (run.run.ended_after_ns !== null) facts.push(`took ${nanoseconds(run.run.ended_after_ns)}`);
  if (run.run.seed !== null) facts.push(`seed ${run.run.seed}`);
  facts.push(`pagelab ${run.run.tool_version}`);
  return facts.join(" · ");
}

/** Warning if a run did not end normally. */
function ending(run: Run): HTMLElement | null {
  switch (run.run.ending) {
    case "complete":
      return null;
    case "stopped":
      return el(
        "p",
        { class: "notice", role: "note" },
        el("strong", {}, "Ended early: "),
        `${run.run.end_reason ?? "no reason stored"}. `,
        "This report has the measurements up to then.",
      );
    case "not_closed":
      return el(
        "p",
        { class: "notice", role: "note" },
        el("strong", {}, "Never closed: "),
        "its writer was killed, power was lost, or it is still running. ",
        run.log === null || run.log.is_there
          ? "This report has everything that was written."
          : `Records may be in ${run.log.path}, which belongs to the file but is missing beside it.`,
      );
  }
}
