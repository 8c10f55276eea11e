// Format of numbers, as on the terminal (crates/pagelab-report: style.rs, quantity_format.rs). Both follow
// the cases of test/unit/format_cases.json, except that negative numbers have a minus sign here.

const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
/** A narrow no-break space. */
const THIN = "\u202f";
const NONE = "–";

/** An amount with a binary prefix and three significant digits: `23.5 GiB`. */
export function bytes(amount: number): string {
  let unit = 0;
  let value = amount;
  while (Math.abs(value) >= 999.5 && unit + 1 < BINARY.length) {
    value /= 1024;
    unit += 1;
  }
  return `${threeDigits(value)} ${BINARY[unit]}`;
}

/** The size of a block, an exact power of two, as short as an axis needs it: `4K`, `2M`. */
export function shortSize(amount: number): string {
  return bytes(amount).replace(/ (.)(iB)?$/, "$1");
}

/** At most three significant digits, without trailing decimals of whole numbers below 1000. */
export function threeDigits(value: number): string {
  const size = Math.abs(value);
  if (size >= 99.95 || size === Math.trunc(size)) return minus(fixed(value, 0));
  if (size >= 9.995) return minus(fixed(value, 1));
  return minus(fixed(value, 2).replace(/\.00$/, ""));
}

/** A share of 1 in per cent, which is `100 %` or `0 %` only if it is exactly that. */
export function percent(share: number): string {
  const value = share * 100;
  if (value <= 0) return "0 %";
  if (value >= 100) return "100 %";
  if (value < 0.01) return "less than 0.01 %";
  if (value > 99.9) return "more than 99.9 %";
  if (value >= 99.5 || (value >= 0.995 && value < 9.95)) return `${fixed(value, 1)} %`;
  return value < 0.995 ? `${fixed(value, 2)} %` : `${fixed(value, 0)} %`;
}

/** Three significant digits and a value other than 0 never as 0: `0.250`, `1.00`, `12 345`. */
function quantity(value: number): string {
  const size = Math.abs(value);
  if (size >= 1e15) return minus(value.toExponential(2).replace("+", ""));
  if (size === Math.trunc(size) || size >= 99.95) return count(value);
  if (size >= 9.995) return minus(fixed(value, 1));
  if (size >= 0.9995) return minus(fixed(value, 2));
  if (size >= 0.001) return minus(fixed(value, 3));
  return value > 0 ? "<0.001" : ">−0.001";
}

/** A number with this many decimals. A tie is rounded to the even digit, as Rust does, and not up. */
function fixed(value: number, decimals: number): string {
  // Only odd multiples of a power of two lie exactly between two decimals.
  const halves = Math.abs(value) * 2 ** (decimals + 1);
  if (halves % 2 !== 1) return value.toFixed(decimals);
  const scale = 10 ** decimals;
  const below = Math.floor(Math.abs(value) * scale);
  const even = below % 2 === 0 ? below : below + 1;
  return (Math.sign(value) * (even / scale)).toFixed(decimals);
}

/** A whole number in groups of three digits: `12 800`. */
export function count(value: number): string {
  return minus(String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, THIN));
}

/** A number in full: groups of three digits before the point, decimals unchanged. */
export function exact(value: number): string {
  if (Number.isInteger(value)) return count(value);
  const [whole = "", rest] = String(value).split(".");
  return rest === undefined || whole.includes("e")
    ? minus(String(value))
    : `${minus(whole.replace(/\B(?=(\d{3})+$)/g, THIN))}.${rest}`;
}

/**
 * An index as the kernel writes it: three decimals, the rest cut off. What a division made too small by less
 * than a millionth is not cut off.
 */
export function index(value: number): string {
  return minus((Math.trunc(value * 1000 + Math.sign(value) * 1e-6) / 1000).toFixed(3));
}

const SCALES: [number, string][] = [
  [1, "ns"],
  [1e3, "µs"],
  [1e6, "ms"],
  [1e9, "s"],
];

/** A duration of nanoseconds: `2.37 ms`, `3 min 20 s`, `1 h 0 min`. */
export function nanoseconds(ns: number): string {
  if (ns < 0) return `−${nanoseconds(-ns)}`;
  const seconds = Math.floor(ns / 1e9);
  if (seconds >= 86400) return `${count(Math.floor(seconds / 86400))} d ${Math.floor(seconds / 3600) % 24} h`;
  if (seconds >= 3600) return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds / 60) % 60} min`;
  if (seconds >= 60) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  let scale = SCALES[0]!;
  for (const other of SCALES) if (ns >= other[0] * 0.9995) scale = other;
  return `${quantity(ns / scale[0])} ${scale[1]}`;
}

/** Seconds and more on an axis, as short as it needs them: `3 min 20 s`, `2 h`, `3 d 4 h`. */
export function longTime(seconds: number): string {
  const sign = seconds < 0 ? "−" : "";
  const whole = Math.round(Math.abs(seconds));
  const parts: [number, string][] = [
    [Math.floor(whole / 86400), "d"],
    [Math.floor(whole / 3600) % 24, "h"],
    [Math.floor(whole / 60) % 60, "min"],
    [whole % 60, "s"],
  ];
  const first = parts.findIndex(([value]) => value > 0);
  if (first < 0) return "0 s";
  const shown = parts.slice(first, first + 2).filter(([value]) => value > 0);
  return sign + shown.map(([value, unit]) => `${value} ${unit}`).join(" ");
}

/** A wall-clock time in UTC: `2026-11-22 00:19:33 UTC`. */
export function moment(realtimeNs: number): string {
  const date = new Date(realtimeNs / 1e6);
  if (Number.isNaN(date.getTime())) return `${realtimeNs} ns since 1970`;
  return `${date.toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

/** An address in hexadecimal digits, grouped by four. */
export function address(value: number): string {
  return `0x${value.toString(16)}`;
}

/** A value of a series in its unit, in full where that is exact. `null` is a reading that failed. */
export function value(of: number | null, unit: string): string {
  if (of === null || Number.isNaN(of)) return NONE;
  switch (unit) {
    case "bytes":
      return `${bytes(of)}`;
    case "bytes/s":
      return `${bytes(of)}/s`;
    case "ns":
      return nanoseconds(of);
    case "us":
      return nanoseconds(of * 1000);
    case "permille":
      return index(of / 1000);
    case "count":
      return exact(rounded(of));
    case "count/s":
      return `${exact(rounded(of))}/s`;
    default:
      return `${exact(rounded(of))} ${unit}`;
  }
}

/** A label on an axis: shorter than the value itself. */
export function tick(of: number, unit: string): string {
  switch (unit) {
    case "bytes":
      return of === 0 ? "0" : bytes(of);
    case "bytes/s":
      return of === 0 ? "0" : `${bytes(of)}/s`;
    case "ns":
      return nanoseconds(of);
    case "us":
      return nanoseconds(of * 1000);
    case "permille":
      return minus(String(of / 1000));
    default:
      return large(of);
  }
}

/** `1.5 M`: large numbers on an axis. */
export function large(of: number): string {
  const size = Math.abs(of);
  for (const [scale, sign] of [
    [1e12, "T"],
    [1e9, "G"],
    [1e6, "M"],
    [1e4, "k"],
  ] as const) {
    if (size >= scale) return `${threeDigits(of / (sign === "k" ? 1e3 : scale))} ${sign}`;
  }
  return minus(String(rounded(of)));
}

/** `56k`, `1.8M`: a count where there is room for four signs. */
export function shortCount(of: number): string {
  if (of < 1e4) return String(of);
  const signs = ["k", "M", "G", "T", "P", "E"];
  let size = of / 1e3;
  let at = 0;
  while (size >= 999.5 && at < signs.length - 1) {
    size /= 1e3;
    at += 1;
  }
  return `${size < 9.95 ? size.toFixed(1) : Math.round(size)}${signs[at]}`;
}

/** Rates are quotients: six digits are more than their clock deserves. */
function rounded(of: number): number {
  return Number.isInteger(of) ? of : Number(of.toPrecision(6));
}

function minus(text: string): string {
  return text.replace(/^-/, "−");
}
