// Access to JSON documents: a value, or the reason of its absence, which accompanies every null.

import type { Json, JsonValue } from "./data";
import { el } from "./dom";

export function object(value: JsonValue | undefined): Json | null {
  return value !== null && typeof value === "object" && !Array.isArray(value) ? value : null;
}

export function objects(value: JsonValue | undefined): Json[] {
  return Array.isArray(value) ? value.map(object).filter((item) => item !== null) : [];
}

export function numbersOf(value: JsonValue | undefined): number[] {
  return Array.isArray(value) ? value.filter((item) => typeof item === "number") : [];
}

export function texts(value: JsonValue | undefined): string[] {
  return Array.isArray(value) ? value.filter((item) => typeof item === "string") : [];
}

export function number(value: JsonValue | undefined): number | null {
  return typeof value === "number" ? value : null;
}

export function text(value: JsonValue | undefined): string | null {
  return typeof value === "string" ? value : null;
}

/** Reason why a field is null. */
export function reason(of: Json, field: string): string {
  return text(of[`${field}_absent_reason`]) ?? "not in the data";
}

/** Text in place of an absent value. */
export function absent(why: string): HTMLElement {
  return el("span", { class: "absent" }, `not available: ${why}`);
}

/** A paragraph in place of a section without data. */
export function absentSection(of: Json, field: string): HTMLElement {
  return el("p", {}, absent(reason(of, field)));
}

/** A number formatted by `show`, or the reason of its absence. */
export function shown(of: Json, field: string, show: (value: number) => string): HTMLElement | string {
  const value = number(of[field]);
  return value === null ? absent(reason(of, field)) : show(value);
}
