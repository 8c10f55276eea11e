// Use of memory: parts that add up to the total; and pressure.

import type { Json, Run } from "./data";
import { type Child, details, el, figure, table } from "./dom";
import * as format from "./format";
import { absentSection, number, object, reason } from "./json";
import type { Section } from "./main";
import { keyOf, stack } from "./supply";

/** Parts that add up to MemTotal, in the order of the bar. */
const PARTS: [string, string, string][] = [
  ["programs", "programs_bytes", "used by programs"],
  ["hugetlb", "hugetlb_bytes", "hugetlb pool"],
  ["cache", "page_cache_bytes", "page cache"],
  ["slab", "slab_bytes", "slab"],
  ["tables", "page_tables_bytes", "page tables"],
  ["stacks", "kernel_stacks_bytes", "kernel stacks"],
  ["other", "not_accounted_bytes", "not accounted"],
  ["free", "free_bytes", "free"],
];

/** Parts of parts. */
const SUBPARTS: Record<string, [string, string]> = {
  programs_bytes: ["programs_huge_bytes", "in huge pages"],
  page_cache_bytes: ["dirty_bytes", "dirty or under writeback"],
  slab_bytes: ["slab_reclaimable_bytes", "reclaimable"],
};

export function memoryUse(run: Run, rank: number): Section {
  const checkup = run.checkup;
  const used = object(checkup?.["use"]);
  if (checkup === null || used === null) return null;
  const title = "Use of memory";
  const total = number(used["total_bytes"]);
  if (total === null) return { title, content: [absentSection(used, "meminfo"), pressure(checkup)] };
  const shown = PARTS.flatMap(([key, field, words]) => {
    const amount = number(used[field]);
    return amount === null || amount === 0 ? [] : [{ key, words, amount }];
  });
  const available = number(used["available_bytes"]);
  const says =
    available === null
      ? `${format.bytes(total)} of memory by use`
      : `${format.bytes(available)} of ${format.bytes(total)} is available to programs ` +
        `(${format.percent(available / total)})`;
  const whole = figure(
    rank,
    [says],
    [
      "Source: /proc/meminfo; the parts add up to MemTotal. Programs: AnonPages + Shmem; page cache: ",
      "Buffers + Cached + SwapCached − Shmem; not accounted: the rest, such as drivers and balloons.",
    ],
    stack(
      shown,
      total,
      "use",
      (part) => `${part.words}: ${format.bytes(part.amount)}, ${format.percent(part.amount / total)}`,
    ),
    keyOf(
      shown.map((part) => [
        part.key,
        part.words,
        `${format.bytes(part.amount)} · ${format.percent(part.amount / total)}`,
      ]),
      "use",
    ),
    details("The numbers", numbers(used, total)),
  );
  return { title, content: [whole, pressure(checkup)] };
}

function numbers(used: Json, total: number): HTMLElement {
  const rows: Child[][] = [];
  const row = (field: string, words: string) => {
    const amount = number(used[field]);
    rows.push(
      amount === null
        ? [words, el("span", { class: "absent" }, reason(used, field)), ""]
        : [words, format.bytes(amount), format.percent(amount / total)],
    );
  };
  for (const [, field, words] of PARTS) {
    row(field, words);
    const part = SUBPARTS[field];
    if (part !== undefined) row(part[0], `– ${part[1]}`);
  }
  row("total_bytes", "total");
  row("available_bytes", "available");
  if (number(used["swap_total_bytes"]) !== 0) {
    row("swap_total_bytes", "swap");
    row("swap_used_bytes", "– used");
  }
  return table(
    "Use of memory",
    [
      { text: "part", names: true },
      { text: "amount", right: true },
      { text: "share", right: true },
    ],
    rows,
  );
}

function pressure(checkup: Json): HTMLElement {
  const found = object(checkup["pressure"]);
  if (found === null) return absentSection(checkup, "pressure");
  const rows = (["some", "full"] as const).flatMap((which) => {
    const line = object(found[which]);
    if (line === null) return [];
    const share = (field: string) => `${((number(line[field]) ?? 0) / 100).toFixed(2)} %`;
    return [
      [
        which === "some" ? "some tasks waited" : "all tasks waited",
        share("avg10_centipercent"),
        share("avg60_centipercent"),
        share("avg300_centipercent"),
        format.nanoseconds((number(line["total_us"]) ?? 0) * 1000),
      ],
    ];
  });
  return table(
    "Waiting for memory (/proc/pressure/memory)",
    [
      { text: "", names: true },
      { text: "last 10 s", right: true },
      { text: "60 s", right: true },
      { text: "300 s", right: true },
      { text: "since boot", right: true },
    ],
    rows,
  );
}
