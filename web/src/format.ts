// How numbers look: the same as in the terminal (crates/pagelab-report/src/style.rs).

const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
/** A narrow blank that does not break. */
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
  if (size >= 99.95 || size === Math.trunc(size)) return minus(value.toFixed(0));
  if (size >= 9.995) return minus(value.toFixed(1));
  return minus(value.toFixed(2).replace(/\.00$/, ""));
}

/** A share of 1 in per cent, which is `100 %` or `0 %` only if it is exactly that. */
export function percent(share: number): string {
  const value = share * 100;
  if (value <= 0) return "0 %";
  if (value >= 100) return "100 %";
  if (value < 0.01) return "less than 0.01 %";
  if (value > 99.9) return "more than 99.9 %";
  if (value >= 99.5 || (value >= 0.995 && value < 9.95)) return `${value.toFixed(1)} %`;
  return value < 0.995 ? `${value.toFixed(2)} %` : `${value.toFixed(0)} %`;
}

/** A whole number in groups of three digits: `12 800`. */
export function count(value: number): string {
  return minus(String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, THIN));
}

/** Any number in full: groups of three digits before the point, what is behind it as it is. */
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

/** A time of nanoseconds: `2.37 ms`, `3 min 20 s`. */
export function nanoseconds(ns: number): string {
  if (ns === 0) return "0 s";
  if (Math.abs(ns) >= 60e9) return longTime(ns / 1e9);
  let scale = SCALES[0]!;
  for (const other of SCALES) if (Math.abs(ns) >= other[0] * 0.9995) scale = other;
  return `${threeDigits(ns / scale[0])} ${scale[1]}`;
}

/** Seconds and more: `3 min 20 s`, `2 h 5 min`, `3 d 4 h`. */
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

/** A moment of the wall clock in UTC: `2026-11-22 00:19:33 UTC`. */
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
