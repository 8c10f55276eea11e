// Reading the JSON documents: a value, or the reason of its absence, which stands beside every null.

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

/** Why a field is null. */
export function reason(of: Json, field: string): string {
  return text(of[`${field}_absent_reason`]) ?? "not in the data";
}

/** What is said where a value is absent. */
export function absent(why: string): HTMLElement {
  return el("span", { class: "absent" }, `not available: ${why}`);
}

/** A paragraph in the place of a section that has no data. */
export function absentSection(of: Json, field: string): HTMLElement {
  return el("p", {}, absent(reason(of, field)));
}

/** A number shown by `show`, or why it is absent. */
export function shown(of: Json, field: string, show: (value: number) => string): HTMLElement | string {
  const value = number(of[field]);
  return value === null ? absent(reason(of, field)) : show(value);
}
