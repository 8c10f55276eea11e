// Structure of the settings of variants: a numeric axis, or a factorial of several keys. Pure.

/** A variant with its settings. */
export interface Variant {
  name: string;
  settings: Map<string, string>;
}

/** `512M`, `0.8`, `1.5 GiB`, or the target in `{order=9, target=0.8}` as a number; null if it is none. */
export function numeric(text: string): number | null {
  const bare = text.trim().replace(/^"(.*)"$/, "$1");
  const found = /^(\d+(?:\.\d+)?)\s*([KMGTkmgt]?)(?:i?B)?\s*(%?)$/.exec(bare);
  if (found === null) {
    const target = /(?:^|[\s{,])target\s*=\s*(\d+(?:\.\d+)?)/.exec(bare);
    return target === null ? null : Number(target[1]);
  }
  const power = " KMGT".indexOf((found[2] || " ").toUpperCase());
  return Number(found[1]) * 1024 ** power;
}

/** Variants that differ in one numeric key alone. */
export interface Axis {
  key: string;
  /** Common settings, in words; may be empty. */
  common: string;
  /** By ascending number; null is without the setting. */
  places: { variant: number; label: string; value: number | null }[];
}

/** Axes with at least three places. */
export function axes(variants: Variant[]): Axis[] {
  const keys = new Set(variants.flatMap(({ settings }) => [...settings.keys()]));
  const found: Axis[] = [];
  for (const key of keys) {
    const groups = new Map<string, Axis>();
    variants.forEach(({ name, settings }, variant) => {
      const text = settings.get(key);
      const value = text === undefined ? null : numeric(text);
      if (text !== undefined && value === null) return;
      const others = [...settings]
        .filter(([other]) => other !== key)
        .map(([other, of]) => `${other} ${of}`);
      const common = others.sort().join(", ");
      const group = groups.get(common) ?? { key, common, places: [] };
      groups.set(common, group);
      group.places.push({
        variant,
        label: text === undefined ? name : text.replace(/^.*target\s*=\s*/, ""),
        value,
      });
    });
    for (const group of groups.values()) {
      const numbers = new Set(group.places.flatMap(({ value }) => (value === null ? [] : [value])));
      if (numbers.size < 3) continue;
      group.places.sort((a, b) => (a.value ?? Infinity) - (b.value ?? Infinity));
      found.push(group);
    }
  }
  return found;
}

/** Variants as the cells of a table. */
export interface Crossing {
  keys: string[];
  rows: string[];
  columns: string[];
  /** Indices of variants, row by row; null: no variant. */
  cells: (number | null)[][];
}

const NOT_SET = "–";

/** The factorial of all keys that vary, if there are two of them and most of its cells exist. */
export function findFactorial(variants: Variant[]): Crossing | null {
  const all = [...new Set(variants.flatMap(({ settings }) => [...settings.keys()]))];
  const of = (variant: Variant, key: string) => variant.settings.get(key) ?? NOT_SET;
  const keys = all.filter((key) => new Set(variants.map((variant) => of(variant, key))).size > 1);
  if (keys.length < 2 || variants.length < 4) return null;
  const half = Math.ceil(keys.length / 2);
  const label = (variant: Variant, some: string[]) => some.map((key) => of(variant, key)).join(" · ");
  const [down, right] = [keys.slice(0, half), keys.slice(half)];
  const rows = [...new Set(variants.map((variant) => label(variant, down)))];
  const columns = [...new Set(variants.map((variant) => label(variant, right)))];
  if (rows.length < 2 || columns.length < 2 || variants.length * 3 < rows.length * columns.length)
    return null;
  const cells = rows.map((row) =>
    columns.map((column) => {
      const at = variants.findIndex(
        (variant) => label(variant, down) === row && label(variant, right) === column,
      );
      return at < 0 ? null : at;
    }),
  );
  return { keys, rows, columns, cells };
}
