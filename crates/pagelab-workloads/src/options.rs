//! What one may choose of a workload: names, kinds and defaults as data, so that the command line, recipes
//! and help are of one table.

use std::collections::BTreeMap;

use pagelab_model::Bytes;

/// One thing to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHead {
    /// Its name: `--size` on the command line, `size` in a recipe.
    pub name: &'static str,
    /// What its value is.
    pub kind: Kind,
    /// Its default, as it would be typed.
    pub default: &'static str,
    /// What it means, in one line without a trailing dot.
    pub help: &'static str,
}

/// Kinds of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `64M`, `1G`: bytes with a binary suffix.
    Size,
    /// A whole number from the first to the second, decimal or `0x` and hexadecimal.
    Number(u64, u64),
    /// A number with a fraction, from 0 to this many thousandths.
    Thousandths(u64),
    /// One of these words; the first need not be the default.
    Word(&'static [&'static str]),
    /// `yes` or `no`.
    Switch,
    /// The name of a file or folder; empty: none.
    Path,
}

/// A checked value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Of [`Kind::Size`].
    Size(Bytes),
    /// Of [`Kind::Number`].
    Number(u64),
    /// Of [`Kind::Thousandths`].
    Thousandths(u64),
    /// Of [`Kind::Word`] and [`Kind::Path`].
    Text(String),
    /// Of [`Kind::Switch`].
    Switch(bool),
}

/// The options of one run: a value for each head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    heads: &'static [OptionHead],
    values: BTreeMap<&'static str, Value>,
}

/// The first option of every workload.
pub const fn size(default: &'static str, help: &'static str) -> OptionHead {
    OptionHead { name: "size", kind: Kind::Size, default, help }
}

/// The second option of every workload.
pub const SEED: OptionHead = OptionHead {
    name: "seed",
    kind: Kind::Number(0, u64::MAX),
    default: "1",
    help: "Seed of everything random",
};

impl Options {
    /// All defaults.
    pub fn defaults(heads: &'static [OptionHead]) -> Options {
        let value = |head: &OptionHead| (head.name, parse(head, head.default).expect("defaults are tested"));
        Options { heads, values: heads.iter().map(value).collect() }
    }

    /// Sets one by what was typed; says what is wrong with it.
    pub fn set(&mut self, name: &str, typed: &str) -> Result<(), String> {
        let Some(head) = self.heads.iter().find(|head| head.name == name) else {
            let names: Vec<&str> = self.heads.iter().map(|head| head.name).collect();
            return Err(format!("there is no option {name:?}; there are {}", names.join(", ")));
        };
        self.values.insert(head.name, parse(head, typed)?);
        Ok(())
    }

    /// All options and their values, in the order of the table.
    pub fn all(&self) -> impl Iterator<Item = (&'static OptionHead, &Value)> {
        self.heads.iter().filter_map(|head| Some((head, self.values.get(head.name)?)))
    }

    /// The value of an option of the workload's own table.
    fn value(&self, name: &str) -> &Value {
        self.values.get(name).expect("a workload asks for its own options")
    }

    /// A size.
    pub fn size(&self, name: &str) -> Bytes {
        match self.value(name) {
            Value::Size(bytes) => *bytes,
            other => unreachable!("{name} is {other:?}"),
        }
    }

    /// A whole number.
    pub fn number(&self, name: &str) -> u64 {
        match self.value(name) {
            Value::Number(number) => *number,
            other => unreachable!("{name} is {other:?}"),
        }
    }

    /// A number in thousandths.
    pub fn thousandths(&self, name: &str) -> u64 {
        match self.value(name) {
            Value::Thousandths(number) => *number,
            other => unreachable!("{name} is {other:?}"),
        }
    }

    /// A word or a path.
    pub fn text(&self, name: &str) -> &str {
        match self.value(name) {
            Value::Text(text) => text,
            other => unreachable!("{name} is {other:?}"),
        }
    }

    /// A switch.
    pub fn is_on(&self, name: &str) -> bool {
        match self.value(name) {
            Value::Switch(is_on) => *is_on,
            other => unreachable!("{name} is {other:?}"),
        }
    }
}

/// For tests: what is typed first, then what is typed over it; all else are defaults.
#[cfg(test)]
pub(crate) fn typed(heads: &'static [OptionHead], small: &[(&str, &str)], set: &[(&str, &str)]) -> Options {
    let mut options = Options::defaults(heads);
    small.iter().chain(set).for_each(|(name, typed)| options.set(name, typed).unwrap());
    options
}

/// The value that was typed for an option.
pub fn parse(head: &OptionHead, typed: &str) -> Result<Value, String> {
    let name = head.name;
    match head.kind {
        Kind::Size => match bytes(typed) {
            Some(bytes) if bytes.0 > 0 => Ok(Value::Size(bytes)),
            _ => Err(format!("{name}: {typed:?} is no size; sizes are such as 64M, 1G, 512K")),
        },
        Kind::Number(least, most) => match whole(typed) {
            Some(number) if (least..=most).contains(&number) => Ok(Value::Number(number)),
            _ if most == u64::MAX => Err(format!("{name}: {typed:?} is no whole number from {least} on")),
            _ => Err(format!("{name}: {typed:?} is no whole number from {least} to {most}")),
        },
        Kind::Thousandths(most) => match typed.parse::<f64>() {
            Ok(number) if (0.0..=most as f64 / 1000.0).contains(&number) => {
                Ok(Value::Thousandths((number * 1000.0).round() as u64))
            }
            _ => Err(format!("{name}: {typed:?} is no number from 0 to {}", most as f64 / 1000.0)),
        },
        Kind::Word(words) if words.contains(&typed) => Ok(Value::Text(typed.to_owned())),
        Kind::Word(words) => Err(format!("{name}: {typed:?} is none of {}", words.join(", "))),
        Kind::Switch => match typed {
            "yes" | "true" => Ok(Value::Switch(true)),
            "no" | "false" => Ok(Value::Switch(false)),
            _ => Err(format!("{name}: {typed:?} is neither yes nor no")),
        },
        Kind::Path => Ok(Value::Text(typed.to_owned())),
    }
}

/// A whole number, decimal or `0x` and hexadecimal: addresses are read and written so.
fn whole(typed: &str) -> Option<u64> {
    match typed.strip_prefix("0x") {
        Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16).ok(),
        Some(_) => None,
        None => typed.parse().ok(),
    }
}

/// Bytes with a binary suffix, of which there may be a fraction: `1.5G`.
fn bytes(typed: &str) -> Option<Bytes> {
    let (digits, shift) = match typed.char_indices().last()? {
        (at, 'K' | 'k') => (&typed[..at], 10),
        (at, 'M' | 'm') => (&typed[..at], 20),
        (at, 'G' | 'g') => (&typed[..at], 30),
        (at, 'T' | 't') => (&typed[..at], 40),
        _ => (typed, 0),
    };
    if let Ok(whole) = digits.parse::<u64>() {
        return whole.checked_mul(1 << shift).map(Bytes);
    }
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let exact = digits.parse::<f64>().ok().filter(|_| is_plain)? * (1u64 << shift) as f64;
    (exact.fract() == 0.0 && exact < u64::MAX as f64).then_some(Bytes(exact as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADS: [OptionHead; 6] = [
        size("64M", "Bytes"),
        SEED,
        OptionHead { name: "share", kind: Kind::Thousandths(1000), default: "0.3", help: "Share" },
        OptionHead { name: "first", kind: Kind::Word(&["read", "write"]), default: "write", help: "First" },
        OptionHead { name: "advise", kind: Kind::Switch, default: "no", help: "Advice" },
        OptionHead { name: "list", kind: Kind::Path, default: "", help: "List" },
    ];

    #[test]
    fn values_are_those_that_were_typed() {
        let mut options = Options::defaults(&HEADS);
        assert_eq!(options.size("size"), Bytes(64 << 20));
        assert_eq!((options.number("seed"), options.thousandths("share")), (1, 300));
        assert_eq!(
            (options.text("first"), options.is_on("advise"), options.text("list")),
            ("write", false, "")
        );
        for (name, typed) in [("size", "1.5G"), ("seed", "7"), ("share", "1"), ("advise", "yes")] {
            options.set(name, typed).unwrap();
        }
        assert_eq!(options.size("size"), Bytes(3 << 29));
        assert_eq!((options.number("seed"), options.thousandths("share")), (7, 1000));
        assert!(options.is_on("advise"));
        options.set("seed", "0x18780000000").unwrap();
        assert_eq!(options.number("seed"), 0x187_8000_0000);
        let names: Vec<&str> = options.all().map(|(head, _)| head.name).collect();
        assert_eq!(names, ["size", "seed", "share", "first", "advise", "list"]);
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        let mut options = Options::defaults(&HEADS);
        let cases = [
            ("size", "0"),
            ("size", ""),
            ("size", "-1"),
            ("size", "1e9"),
            ("size", "99999999999G"),
            ("size", "0.3"),
            ("seed", "-1"),
            ("seed", "0x"),
            ("seed", "0x+1"),
            ("share", "1.01"),
            ("share", "NaN"),
            ("first", "both"),
            ("advise", "maybe"),
            ("nothing", "1"),
        ];
        for (name, typed) in cases {
            let refused = options.set(name, typed).unwrap_err();
            assert!(refused.contains(name), "{refused}");
        }
    }
}
