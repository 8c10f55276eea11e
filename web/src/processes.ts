// The largest processes and their huge pages; allocation failures in the kernel's log.

import type { Run } from "./data";
import { type Child, el, sentence, table } from "./dom";
import * as format from "./format";
import { absentSection, number, object, objects, reason, text } from "./json";
import type { Section } from "./main";

export function processes(run: Run): Section {
  const checkup = run.checkup;
  if (checkup === null) return null;
  const title = "Processes";
  const found = object(checkup["processes"]);
  if (found === null) return { title, content: [absentSection(checkup, "processes")] };
  const largest = objects(found["largest"]);
  const deep = largest.some((process) => number(process["eligible_bytes"]) !== null);
  const rows = largest.map((process): Child[] => {
    const amount = (field: string) => format.bytes(number(process[field]) ?? 0);
    const huge =
      (number(process["anon_huge_bytes"]) ?? 0) +
      (number(process["shmem_huge_bytes"]) ?? 0) +
      (number(process["file_huge_bytes"]) ?? 0);
    const anonymous = number(process["anonymous_bytes"]) ?? 0;
    const anonHuge = number(process["anon_huge_bytes"]) ?? 0;
    const eligible = number(process["eligible_bytes"]);
    const cells: Child[] = [
      text(process["name"]) ?? el("span", { class: "absent" }, reason(process, "name")),
      String(number(process["pid"]) ?? ""),
      amount("rss_bytes"),
      amount("anonymous_bytes"),
      huge === 0 ? "–" : format.bytes(huge),
      anonymous > 0 ? format.percent(anonHuge / anonymous) : "–",
      amount("hugetlb_bytes"),
    ];
    if (deep) cells.push(eligible === null ? "–" : format.bytes(eligible));
    return cells;
  });
  const columns = [
    { text: "name", names: true },
    ...[
      "pid",
      "resident",
      "anonymous",
      "in huge pages",
      "of anonymous",
      "hugetlb",
      ...(deep ? ["eligible"] : []),
    ].map((name) => ({ text: name, right: true })),
  ];
  const notes: string[] = [];
  const unreadable = number(found["unreadable"]) ?? 0;
  if (unreadable > 0)
    notes.push(`${format.count(unreadable)} more not read: ${text(found["unreadable_reason"]) ?? ""}`);
  const over = number(found["skipped_over_budget"]) ?? 0;
  if (over > 0)
    notes.push(`${format.count(over)} skipped: their page tables take too long to walk`);
  if (found["is_budget_spent"] === true)
    notes.push("the time budget ran out before all of the largest were read");
  const total = number(found["total"]) ?? 0;
  const caption = `The ${largest.length} largest of ${format.count(total)} processes (smaps_rollup)`;
  return {
    title,
    content: [
      rows.length > 0
        ? table(caption, columns, rows)
        : el("p", {}, `None of ${format.count(total)} processes was read.`),
      ...notes.map((note) => el("p", { class: "source" }, sentence(note))),
    ],
  };
}

export function failures(run: Run): Section {
  const log = object(run.checkup?.["allocation_failures"]);
  const reports = objects(log?.["reports"]);
  if (log === null || reports.length === 0) return null;
  const rows = reports.map((report): Child[] => {
    const at = number(report["at_us"]);
    const order = number(report["order"]);
    return [
      at === null ? "–" : `${(at / 1e6).toFixed(1)} s`,
      text(report["process"]) ?? "",
      order === null ? "–" : String(order),
      text(report["detail"]) ?? "",
    ];
  });
  const content = [
    table(
      "Reports in the kernel log",
      [
        { text: "after boot", right: true },
        { text: "process", names: true },
        { text: "order", right: true },
        { text: "request" },
      ],
      rows,
    ),
  ];
  if (log["log_overwritten"] === true) {
    content.push(
      el("p", { class: "source" }, "The start of the log was overwritten: earlier entries may be missing."),
    );
  }
  return { title: "Allocation failures", content };
}
