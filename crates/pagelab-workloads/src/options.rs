//! Options of a workload: names, types and defaults as data, so that the command line, recipes and help use
//! one table.

use std::collections::BTreeMap;
use std::time::Duration;

use pagelab_formats::duration;
use pagelab_model::{Bytes, names, size};

/// Definition of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionSpec {
    /// `--size` on the command line is `size` here and in a recipe.
    pub name: &'static str,
    /// Kind of its value.
    pub kind: ValueKind,
    /// Default, as a user would type it.
    pub default: &'static str,
    /// Meaning, in one line without a trailing dot.
    pub help: &'static str,
}

/// Kinds of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// `64M`, `1G`: bytes with a binary suffix.
    Size,
    /// A whole number from the first to the second, decimal or `0x` and hexadecimal.
    Number(u64, u64),
    /// A number with a fraction, from 0 to this many thousandths; up to 1000 it is a share: `0.5` or `50%`.
    Thousandths(u64),
    /// A duration: `20ms`.
    Duration(DurationSpec),
    /// One of these words; the first need not be the default.
    Choice(&'static [&'static str]),
    /// `yes` or `no`.
    Switch,
    /// The name of a file or directory; empty: none.
    Path,
}

/// Limits of a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurationSpec {
    /// The shortest time.
    pub least: Duration,
    /// The longest time.
    pub most: Duration,
    /// The step, and the unit of a bare number, which recipes had before durations had units.
    pub bare_unit: Duration,
    /// Name of the option before it was a duration, if it was another.
    pub former_name: Option<&'static str>,
}

impl OptionSpec {
    /// A former name of the option, which is still read.
    pub fn former_name(&self) -> Option<&'static str> {
        match self.kind {
            ValueKind::Duration(spec) => spec.former_name,
            _ => None,
        }
    }

    fn has_name(&self, name: &str) -> bool {
        self.name == name || self.former_name() == Some(name)
    }
}

impl ValueKind {
    /// Whether this is a share of a whole, which may be given in percent.
    pub fn is_share(self) -> bool {
        matches!(self, ValueKind::Thousandths(most) if most <= 1000)
    }
}

/// A checked value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionValue {
    /// Of [`ValueKind::Size`].
    Size(Bytes),
    /// Of [`ValueKind::Number`].
    Number(u64),
    /// Of [`ValueKind::Thousandths`].
    Thousandths(u64),
    /// Of [`ValueKind::Duration`].
    Duration(Duration),
    /// Of [`ValueKind::Choice`] and [`ValueKind::Path`].
    Text(String),
    /// Of [`ValueKind::Switch`].
    Switch(bool),
}

/// The options of one run: a value for each definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadOptions {
    specs: &'static [OptionSpec],
    values: BTreeMap<&'static str, OptionValue>,
}

/// The first option of every workload.
pub const fn size_option(default: &'static str, help: &'static str) -> OptionSpec {
    OptionSpec { name: "size", kind: ValueKind::Size, default, help }
}

/// An option whose value is a number from `min` to `max`.
pub const fn number_option(
    name: &'static str,
    min: u64,
    max: u64,
    default: &'static str,
    help: &'static str,
) -> OptionSpec {
    OptionSpec { name, kind: ValueKind::Number(min, max), default, help }
}

/// An option whose value is a number with a fraction, at most `max` thousandths.
pub const fn thousandths_option(
    name: &'static str,
    max: u64,
    default: &'static str,
    help: &'static str,
) -> OptionSpec {
    OptionSpec { name, kind: ValueKind::Thousandths(max), default, help }
}

/// An option whose value is one of these words.
pub const fn choice_option(
    name: &'static str,
    words: &'static [&'static str],
    default: &'static str,
    help: &'static str,
) -> OptionSpec {
    OptionSpec { name, kind: ValueKind::Choice(words), default, help }
}

/// An option that names a file or directory; none by default.
pub const fn path_option(name: &'static str, help: &'static str) -> OptionSpec {
    OptionSpec { name, kind: ValueKind::Path, default: "", help }
}

/// The second option of every workload.
pub const SEED_OPTION: OptionSpec = number_option("seed", 0, u64::MAX, "1", "Seed of the random numbers");

impl WorkloadOptions {
    /// All defaults.
    pub fn with_defaults(specs: &'static [OptionSpec]) -> WorkloadOptions {
        let value =
            |spec: &OptionSpec| (spec.name, parse_value(spec, spec.default).expect("defaults are tested"));
        WorkloadOptions { specs, values: specs.iter().map(value).collect() }
    }

    /// Sets an option from its text; returns the problem of an invalid one.
    pub fn set_value(&mut self, name: &str, input: &str) -> Result<(), String> {
        let Some(spec) = self.specs.iter().find(|spec| spec.has_name(name)) else {
            let names: Vec<&str> = self.specs.iter().map(|spec| spec.name).collect();
            return Err(names::describe_unknown("option", name, &names));
        };
        self.values.insert(spec.name, parse_value(spec, input)?);
        Ok(())
    }

    /// All options and their values, in the order of the table.
    pub fn iter(&self) -> impl Iterator<Item = (&'static OptionSpec, &OptionValue)> {
        self.specs.iter().filter_map(|spec| Some((spec, self.values.get(spec.name)?)))
    }

    /// The value of an option of the workload's own table.
    fn value(&self, name: &str) -> &OptionValue {
        self.values.get(name).expect("a workload reads its own options")
    }

    /// A size.
    pub fn get_size(&self, name: &str) -> Bytes {
        let OptionValue::Size(bytes) = self.value(name) else { unreachable!("the kind of {name}") };
        *bytes
    }

    /// A whole number.
    pub fn get_number(&self, name: &str) -> u64 {
        let OptionValue::Number(number) = self.value(name) else { unreachable!("the kind of {name}") };
        *number
    }

    /// A number in thousandths.
    pub fn get_thousandths(&self, name: &str) -> u64 {
        let OptionValue::Thousandths(number) = self.value(name) else { unreachable!("the kind of {name}") };
        *number
    }

    /// A duration.
    pub fn get_duration(&self, name: &str) -> Duration {
        let OptionValue::Duration(time) = self.value(name) else { unreachable!("the kind of {name}") };
        *time
    }

    /// Yes or no.
    pub fn get_switch(&self, name: &str) -> bool {
        let OptionValue::Switch(is_on) = self.value(name) else { unreachable!("the kind of {name}") };
        *is_on
    }

    /// A word or a path.
    pub fn get_text(&self, name: &str) -> &str {
        let OptionValue::Text(text) = self.value(name) else { unreachable!("the kind of {name}") };
        text
    }
}

/// For tests: first settings, then overrides; the rest are defaults.
#[cfg(test)]
pub(crate) fn options_with(
    specs: &'static [OptionSpec],
    small: &[(&str, &str)],
    set: &[(&str, &str)],
) -> WorkloadOptions {
    let mut options = WorkloadOptions::with_defaults(specs);
    small.iter().chain(set).for_each(|(name, typed)| options.set_value(name, typed).unwrap());
    options
}

/// Parses the value that a user typed for an option.
pub fn parse_value(spec: &OptionSpec, input: &str) -> Result<OptionValue, String> {
    let name = spec.name;
    let refusal = |why: String| format!("{name}: {why}, found {input:?}");
    match spec.kind {
        ValueKind::Size => size::parse_nonzero(input).map(OptionValue::Size).map_err(refusal),
        ValueKind::Number(least, most) => match parse_whole(input) {
            Some(number) if (least..=most).contains(&number) => Ok(OptionValue::Number(number)),
            _ if most == u64::MAX => Err(refusal(format!("expected an integer of at least {least}"))),
            _ => Err(refusal(format!("expected an integer from {least} to {most}"))),
        },
        ValueKind::Thousandths(most) => {
            let most = most as f64 / 1000.0;
            let number =
                if spec.kind.is_share() { size::parse_share(input).ok() } else { input.parse().ok() };
            let number = number.filter(|number| (0.0..=most).contains(number));
            let value = number.map(|number| OptionValue::Thousandths((number * 1000.0).round() as u64));
            value.ok_or_else(|| refusal(format!("expected a number from 0 to {most}")))
        }
        ValueKind::Duration(spec) => parse_duration(&spec, input).map(OptionValue::Duration).map_err(refusal),
        ValueKind::Choice(words) if words.contains(&input) => Ok(OptionValue::Text(input.to_owned())),
        ValueKind::Choice(words) => {
            Err(format!("{name}: {}", names::describe_unknown("value", input, words)))
        }
        ValueKind::Switch => match input {
            "yes" | "true" => Ok(OptionValue::Switch(true)),
            "no" | "false" => Ok(OptionValue::Switch(false)),
            _ => Err(refusal("expected yes or no".to_owned())),
        },
        ValueKind::Path => Ok(OptionValue::Text(input.to_owned())),
    }
}

/// Parses a duration, or a bare number of its former unit.
fn parse_duration(spec: &DurationSpec, input: &str) -> Result<Duration, String> {
    let bare = input.parse().ok().and_then(|number| spec.bare_unit.checked_mul(number));
    let time = bare.map_or_else(|| duration::parse(input), Ok)?;
    if (spec.least..=spec.most).contains(&time) && time.as_nanos().is_multiple_of(spec.bare_unit.as_nanos()) {
        return Ok(time);
    }
    let [least, most, step] = [spec.least, spec.most, spec.bare_unit].map(duration::format_argument);
    Err(format!("expected {least} to {most} in steps of {step}"))
}

/// Parses a whole number, decimal or hexadecimal with `0x`, as addresses are.
fn parse_whole(input: &str) -> Option<u64> {
    match input.strip_prefix("0x") {
        Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16).ok(),
        Some(_) => None,
        None => size::strip_grouping(input).parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPECS: [OptionSpec; 7] = [
        size_option("64M", "Bytes"),
        SEED_OPTION,
        OptionSpec { name: "share", kind: ValueKind::Thousandths(1000), default: "0.3", help: "Share" },
        OptionSpec {
            name: "first",
            kind: ValueKind::Choice(&["read", "write"]),
            default: "write",
            help: "First",
        },
        OptionSpec {
            name: "time",
            kind: ValueKind::Duration(DurationSpec {
                least: Duration::from_millis(1),
                most: Duration::from_secs(60),
                bare_unit: Duration::from_millis(1),
                former_name: Some("milliseconds"),
            }),
            default: "200ms",
            help: "Time",
        },
        OptionSpec { name: "advise", kind: ValueKind::Switch, default: "no", help: "Advice" },
        OptionSpec { name: "list", kind: ValueKind::Path, default: "", help: "List" },
    ];

    #[test]
    fn typed_values_replace_defaults() {
        let mut options = WorkloadOptions::with_defaults(&SPECS);
        assert_eq!(options.get_size("size"), Bytes(64 << 20));
        assert_eq!((options.get_number("seed"), options.get_thousandths("share")), (1, 300));
        assert_eq!(
            (options.get_text("first"), options.value("advise"), options.get_text("list")),
            ("write", &OptionValue::Switch(false), "")
        );
        for (name, typed) in [("size", "1.5G"), ("seed", "7"), ("share", "100%"), ("advise", "yes")] {
            options.set_value(name, typed).unwrap();
        }
        assert_eq!(options.get_size("size"), Bytes(3 << 29));
        assert_eq!((options.get_number("seed"), options.get_thousandths("share")), (7, 1000));
        assert_eq!(options.value("advise"), &OptionValue::Switch(true));
        options.set_value("seed", "0x18780000000").unwrap();
        assert_eq!(options.get_number("seed"), 0x187_8000_0000);
        options.set_value("seed", "20_000").unwrap();
        assert_eq!(options.get_number("seed"), 20_000);
        for (name, typed, ms) in [("time", "1.5s", 1500), ("time", "20", 20), ("milliseconds", "7", 7)] {
            options.set_value(name, typed).unwrap();
            assert_eq!(options.get_duration("time"), Duration::from_millis(ms), "{name} {typed}");
        }
        let names: Vec<&str> = options.iter().map(|(spec, _)| spec.name).collect();
        assert_eq!(names, ["size", "seed", "share", "first", "time", "advise", "list"]);
    }

    #[test]
    fn invalid_values_are_rejected_with_the_name_of_the_option() {
        let mut options = WorkloadOptions::with_defaults(&SPECS);
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
            ("time", "0"),
            ("time", "2m"),
            ("time", "1.5us"),
            ("time", "soon"),
            ("first", "both"),
            ("advise", "maybe"),
            ("nothing", "1"),
        ];
        for (name, typed) in cases {
            let message = options.set_value(name, typed).unwrap_err();
            assert!(message.contains(name), "{message}");
        }
    }
}
