// The machine, its memory settings, and the instruments that work.

import type { Json, JsonValue, Run } from "./data";
import { type Child, details, el, table } from "./dom";
import * as format from "./format";
import { number, object, objects, reason, text } from "./json";
import type { Section } from "./main";

export function machine(run: Run): Section {
  const title = "Machine and settings";
  const checkup = run.checkup;
  if (checkup === null) {
    // The manifest's description of the machine, if there is no snapshot.
    const known: Json = { machine: run.run.machine, settings: run.run.settings };
    return { title, content: [settings(known), facts(known)] };
  }
  return { title, content: [instruments(checkup), settings(checkup), facts(checkup), counters(checkup)] };
}

function instruments(checkup: Json): HTMLElement {
  const all = objects(checkup["instruments"]);
  const hidden = all.filter((one) => one["works"] !== true);
  const rows = all.map((one): Child[] => [
    (text(one["name"]) ?? "").replace(/_/g, " "),
    text(one["purpose"]) ?? "",
    one["works"] === true ? "works" : "not available on this machine",
    text(one["found"]) ?? reason(one, "found"),
  ]);
  const list = hidden.map((one) =>
    el("li", {}, el("strong", {}, (text(one["name"]) ?? "").replace(/_/g, " ")), `: ${reason(one, "found")}`),
  );
  return el(
    "div",
    {},
    all.length === 0
      ? el("p", {}, "No instrument was tested.")
      : list.length === 0
        ? el("p", {}, "All instruments work on this machine.")
        : el("div", {}, el("p", {}, "Not available:"), el("ul", { class: "hidden-things" }, ...list)),
    details(
      "All instruments",
      table(
        "Instruments",
        [{ text: "instrument", names: true }, { text: "for" }, { text: "state" }, { text: "found" }],
        rows,
      ),
    ),
  );
}

/** Formats a value of a document; its unit is at the end of the name. */
export function formatValue(name: string, value: JsonValue | undefined, of: Json): Child {
  if (value === null || value === undefined) return el("span", { class: "absent" }, reason(of, name));
  if (typeof value === "number") {
    if (name.endsWith("_bytes")) return format.bytes(value);
    if (name.endsWith("_kib")) return format.bytes(value * 1024);
    if (name.endsWith("_ns")) return format.nanoseconds(value);
    return format.exact(value);
  }
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "string") return value;
  if (Array.isArray(value)) {
    return value.map((item) => (typeof item === "object" ? JSON.stringify(item) : String(item))).join(" ");
  }
  return JSON.stringify(value);
}

function words(name: string): string {
  return name.replace(/_(bytes|kib|ns)$/, "").replace(/_/g, " ");
}

/** Name and value, by row. */
function pairTable(caption: string, of: Json, keep: (name: string) => boolean = () => true): HTMLElement {
  const rows = Object.entries(of)
    .filter(([name]) => !name.endsWith("_absent_reason") && keep(name))
    .map(([name, value]): Child[] => [words(name), formatValue(name, value, of)]);
  return table(caption, [{ text: "", names: true }, { text: "" }], rows);
}

function settings(checkup: Json): HTMLElement {
  const all = object(checkup["settings"]) ?? {};
  const thp = object(all["thp"]);
  const parts: HTMLElement[] = [];
  if (thp !== null) {
    parts.push(pairTable("Transparent huge pages", thp, (name) => name !== "sizes" && name !== "khugepaged"));
    const sizes = objects(thp["sizes"]).map((size): Child[] => [
      format.bytes(number(size["size_bytes"]) ?? 0),
      formatValue("enabled", size["enabled"], size),
      formatValue("shmem_enabled", size["shmem_enabled"], size),
    ]);
    if (sizes.length > 0) {
      parts.push(
        table(
          "By size",
          [{ text: "size", right: true, names: true }, { text: "enabled" }, { text: "shared memory" }],
          sizes,
        ),
      );
    }
    const daemon = object(thp["khugepaged"]);
    if (daemon !== null) parts.push(counterTable("khugepaged", daemon));
  } else {
    parts.push(el("p", {}, "Transparent huge pages: ", reason(all, "thp")));
  }
  const pools = objects(all["hugetlb_pools"]).map((pool) => [
    format.bytes(number(pool["page_size_bytes"]) ?? 0),
    ...["total_pages", "free_pages", "reserved_pages", "surplus_pages", "overcommit_pages"].map((field) =>
      format.count(number(pool[field]) ?? 0),
    ),
  ]);
  if (pools.length > 0) {
    parts.push(
      table(
        "hugetlb pools, in pages",
        ["size", "total", "free", "reserved", "surplus", "overcommit"].map((name, at) => ({
          text: name,
          right: true,
          names: at === 0,
        })),
        pools,
      ),
    );
  }
  const swap = objects(all["swap_areas"]).map((area) => [
    text(area["name"]) ?? "",
    text(area["kind"]) ?? "",
    format.bytes(number(area["size_bytes"]) ?? 0),
    format.bytes(number(area["used_bytes"]) ?? 0),
  ]);
  parts.push(
    swap.length === 0
      ? el("p", {}, "Swap: ", all["swap_areas"] === null ? reason(all, "swap_areas") : "none")
      : table(
          "Swap",
          [
            { text: "area", names: true },
            { text: "kind" },
            { text: "size", right: true },
            { text: "used", right: true },
          ],
          swap,
        ),
  );
  const vm = object(all["vm"]);
  if (vm !== null && Object.keys(vm).length > 0) parts.push(counterTable("/proc/sys/vm", vm));
  return details("Settings", ...parts);
}

function facts(checkup: Json): HTMLElement {
  const all = object(checkup["machine"]) ?? {};
  const rows: Child[][] = [];
  for (const [name, value] of Object.entries(all)) {
    if (name.endsWith("_absent_reason")) continue;
    const inner = object(value);
    if (inner !== null) {
      const phrases = Object.entries(inner)
        .filter(
          ([field, item]) =>
            !field.endsWith("_absent_reason") && item !== null && field !== "flags" && field !== "levels",
        )
        .map(([field, item]) => `${words(field)} ${String(formatValue(field, item, inner))}`);
      rows.push([words(name), phrases.join(", ")]);
    } else if (name !== "caches") {
      rows.push([words(name), formatValue(name, value, all)]);
    }
  }
  const caches = objects(all["caches"]).map((cache) => [
    `L${number(cache["level"])} ${text(cache["kind"]) ?? ""}`,
    format.bytes(number(cache["size_bytes"]) ?? 0),
    formatValue("ways", cache["ways"], cache),
    formatValue("line_bytes", cache["line_bytes"], cache),
  ]);
  const levels = objects(object(all["tlb"])?.["levels"]).map((level): Child[] => [
    `L${number(level["level"])} ${text(level["holds"]) ?? ""}`,
    (Array.isArray(level["page_sizes_bytes"]) ? level["page_sizes_bytes"] : [])
      .map((size) => (typeof size === "number" ? format.bytes(size) : ""))
      .join(", "),
    format.count(number(level["entries"]) ?? 0),
    formatValue("ways", level["ways"], level),
  ]);
  return details(
    "The machine",
    table("The machine", [{ text: "", names: true }, { text: "" }], rows),
    caches.length > 0
      ? table(
          "Caches of CPU 0",
          [
            { text: "cache", names: true },
            { text: "size", right: true },
            { text: "ways", right: true },
            { text: "line", right: true },
          ],
          caches,
        )
      : null,
    levels.length > 0
      ? table(
          "TLB",
          [
            { text: "TLB", names: true },
            { text: "pages" },
            { text: "entries", right: true },
            { text: "ways", right: true },
          ],
          levels,
        )
      : null,
  );
}

function counterTable(caption: string, of: Json): HTMLElement {
  const rows = Object.entries(of).map(([name, value]): Child[] => [
    name.replace(/_kib$/, ""),
    formatValue(name, value, of),
  ]);
  return table(
    caption,
    [
      { text: "", names: true },
      { text: "", right: true },
    ],
    rows,
  );
}

/** All other values, under the kernel's names. */
function counters(checkup: Json): HTMLElement {
  const parts: HTMLElement[] = [];
  const zones = objects(object(checkup["fragmentation"])?.["zoneinfo"]).filter(
    (zone) => (number(zone["present_pages"]) ?? 0) > 0,
  );
  const fields = [
    "present_pages",
    "managed_pages",
    "free_pages",
    "min_pages",
    "low_pages",
    "high_pages",
    "per_cpu_pages",
  ];
  if (zones.length > 0) {
    parts.push(
      table(
        "Zones and watermarks, in pages (zoneinfo)",
        [
          { text: "zone", names: true },
          ...fields.map((field) => ({ text: field.replace(/_pages$/, "").replace("_", "-"), right: true })),
        ],
        zones.map((zone): Child[] => [
          `${number(zone["node"])} ${text(zone["zone"])}`,
          ...fields.map((field) => formatValue(field, zone[field], zone)),
        ]),
      ),
    );
  }
  const meminfo = object(object(checkup["use"])?.["meminfo"]);
  if (meminfo !== null) parts.push(counterTable("meminfo", meminfo));
  const vmstat = object(checkup["vmstat"]);
  if (vmstat !== null) parts.push(counterTable("vmstat", vmstat));
  return details("All counters", ...(parts.length > 0 ? parts : [el("p", {}, reason(checkup, "vmstat"))]));
}
