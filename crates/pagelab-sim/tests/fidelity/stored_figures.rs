//! The figures of all boots as a file of the repository: its format, and the differences to fresh figures.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::{BOOT_COUNT, boot_fields, name_boot};

/// The file, relative to the root of the repository.
pub const PATH: &str = "crates/pagelab-sim/tests/fidelity/figures.tsv";

/// The command that stores the figures of the simulator as it is.
pub const REFRESH: &str = "UPDATE_FIDELITY=1 cargo test -p pagelab-sim --test fidelity";

const DIGEST_LABEL: &str = "input digest";
const COLUMNS: &str = "machine\tscheme\tload\tseed\tphase\tname\tvalue\tdivisor";

/// Differences that a summary lists; the others are counted.
const LISTED_MAX: usize = 40;

/// One figure of a boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    pub phase: String,
    pub name: String,
    /// Value, or numerator.
    pub value: u64,
    /// Denominator; 1 for a count.
    pub divisor: u64,
}

/// Figures of all boots, in the order of the boots, and the digest of the files they depend on.
#[derive(Debug, PartialEq, Eq)]
pub struct StoredFigures {
    pub digest: u128,
    pub boots: Vec<Vec<Figure>>,
}

/// The text of the file: the digest, the names of the columns, and a line for each figure.
pub fn format_figures(figures: &StoredFigures) -> String {
    let mut text = format!("{DIGEST_LABEL}\t{:032x}\n{COLUMNS}\n", figures.digest);
    for (boot, of_boot) in figures.boots.iter().enumerate() {
        let boot = boot_fields(boot).join("\t");
        for Figure { phase, name, value, divisor } in of_boot {
            let _ = writeln!(text, "{boot}\t{phase}\t{name}\t{value}\t{divisor}");
        }
    }
    text
}

/// Reads the text of the file. An error names file and line.
pub fn parse_figures(text: &str) -> Result<StoredFigures, String> {
    let at = |line: usize| move |message: String| format!("{PATH}:{line}: {message}");
    let mut lines = (1..).zip(text.lines());
    let head = lines.next().map_or("", |(_, line)| line);
    let digest = parse_digest(head).map_err(at(1))?;
    if lines.next().is_none_or(|(_, line)| line != COLUMNS) {
        return Err(at(2)(format!("expected the names of the columns, {}", COLUMNS.replace('\t', ", "))));
    }
    let mut boots = vec![Vec::new(); BOOT_COUNT];
    for (number, line) in lines {
        let (boot, figure) = parse_figure(line).map_err(at(number))?;
        boots[boot].push(figure);
    }
    if let Some(boot) = boots.iter().position(Vec::is_empty) {
        return Err(at(text.lines().count())(format!(
            "the file ends without figures of {}",
            name_boot(boot)
        )));
    }
    Ok(StoredFigures { digest, boots })
}

fn parse_digest(line: &str) -> Result<u128, String> {
    let digits = line.strip_prefix(DIGEST_LABEL).and_then(|rest| rest.strip_prefix('\t'));
    digits
        .filter(|digits| digits.len() == 32)
        .and_then(|digits| u128::from_str_radix(digits, 16).ok())
        .ok_or_else(|| format!("expected `{DIGEST_LABEL}`, a tab and 32 hexadecimal digits"))
}

/// The boot of a line, and its figure.
fn parse_figure(line: &str) -> Result<(usize, Figure), String> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [machine, scheme, load, seed, phase, name, value, divisor] = fields[..] else {
        return Err(format!("expected 8 fields with tabs between, found {}", fields.len()));
    };
    let boot = (0..BOOT_COUNT)
        .find(|boot| boot_fields(*boot) == [machine, scheme, load, seed])
        .ok_or_else(|| format!("no boot is of {machine}, {scheme}, {load}, seed {seed}"))?;
    let value = value.parse().map_err(|error| format!("value `{value}`: {error}"))?;
    let divisor = divisor.parse().map_err(|error| format!("divisor `{divisor}`: {error}"))?;
    Ok((boot, Figure { phase: phase.to_owned(), name: name.to_owned(), value, divisor }))
}

/// What differs between the stored and the fresh figures of a boot, a line each.
pub fn list_differences(boot: usize, stored: &[Figure], fresh: &[Figure]) -> Vec<String> {
    let by_name = |figures: &[Figure]| -> BTreeMap<(String, String), (u64, u64)> {
        let entry =
            |figure: &Figure| ((figure.phase.clone(), figure.name.clone()), (figure.value, figure.divisor));
        figures.iter().map(entry).collect()
    };
    let [before, after] = [by_name(stored), by_name(fresh)];
    let format_value = |figure: Option<&(u64, u64)>| match figure {
        None => "absent".to_owned(),
        Some((value, 1)) => value.to_string(),
        Some((value, divisor)) => format!("{value}/{divisor}"),
    };
    let mut names: Vec<_> = before.keys().chain(after.keys()).collect();
    names.sort();
    names.dedup();
    let mut lines: Vec<String> = names
        .into_iter()
        .filter(|name| before.get(name) != after.get(name))
        .map(|name| {
            let [stored, fresh] = [before.get(name), after.get(name)].map(format_value);
            format!("{}: {}, {}: {stored} stored, {fresh} now", name_boot(boot), name.0, name.1)
        })
        .collect();
    if lines.is_empty() && stored != fresh {
        lines.push(format!("{}: the same figures in another order", name_boot(boot)));
    }
    lines
}

/// The first differences of all boots and the number of the rest; `None` if there are none.
pub fn summarize_differences(stored: &[Vec<Figure>], fresh: &[Vec<Figure>]) -> Option<String> {
    let boots = stored.iter().zip(fresh).enumerate();
    let lines: Vec<String> =
        boots.flat_map(|(boot, (stored, fresh))| list_differences(boot, stored, fresh)).collect();
    let listed = &lines[..lines.len().min(LISTED_MAX)];
    let mut text = listed.join("\n");
    if lines.len() > listed.len() {
        let _ = write!(text, "\nand {} further figures", lines.len() - listed.len());
    }
    (!lines.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(phase: &str, name: &str, value: u64, divisor: u64) -> Figure {
        Figure { phase: phase.to_owned(), name: name.to_owned(), value, divisor }
    }

    fn example() -> StoredFigures {
        let of_boot =
            |boot| vec![figure("at rest", "huge pages", boot, 1), figure("at rest", "F_u", boot, 7)];
        StoredFigures { digest: 0xfeed, boots: (0..BOOT_COUNT as u64).map(of_boot).collect() }
    }

    #[test]
    fn figures_are_read_as_they_were_written() {
        assert_eq!(parse_figures(&format_figures(&example())), Ok(example()));
    }

    #[test]
    fn a_damaged_line_is_an_error_with_file_and_line() {
        let text = format_figures(&example());
        let error = |number: usize, line: &str| {
            let mut lines: Vec<&str> = text.lines().collect();
            lines[number - 1] = line;
            parse_figures(&lines.join("\n")).unwrap_err()
        };
        let expect = |number: usize, line: &str, message: &str| {
            assert_eq!(error(number, line), format!("{PATH}:{number}: {message}"), "{line}");
        };
        expect(1, "<<<<<<< ours", "expected `input digest`, a tab and 32 hexadecimal digits");
        expect(1, "input digest\tfeed", "expected `input digest`, a tab and 32 hexadecimal digits");
        expect(5, "x86\tzone", "expected 8 fields with tabs between, found 2");
        expect(5, "", "expected 8 fields with tabs between, found 1");
        let start = "ppc64\tstandard\tpaper\t1\tat rest\tF_u";
        expect(6, &format!("{start}\t-1\t7"), "value `-1`: invalid digit found in string");
        expect(6, &format!("{start}\t1\t7 "), "divisor `7 `: invalid digit found in string");
        let other = start.replace("\t1\t", "\t2\t");
        expect(4, &format!("{other}\t1\t7"), "no boot is of ppc64, standard, paper, seed 2");
        assert!(error(2, start).starts_with(&format!("{PATH}:2: ")));
    }

    #[test]
    fn a_file_that_ends_early_is_an_error() {
        let text = format_figures(&example());
        let lines: Vec<&str> = text.lines().collect();
        let error = parse_figures(&lines[..lines.len() - 2].join("\n")).unwrap_err();
        let line = lines.len() - 2;
        assert_eq!(
            error,
            format!("{PATH}:{line}: the file ends without figures of {}", name_boot(BOOT_COUNT - 1))
        );
        assert!(parse_figures("").is_err());
    }

    #[test]
    fn a_summary_names_boot_and_figure_and_counts_the_rest() {
        let stored = example().boots;
        assert_eq!(summarize_differences(&stored, &stored), None);
        let mut fresh = stored.clone();
        fresh[1][0].value = 9;
        fresh[1][1].name = "F_i".to_owned();
        fresh[2].reverse();
        let boots = [1, 2].map(name_boot);
        let expected = format!(
            "{0}: at rest, F_i: absent stored, 1/7 now\n{0}: at rest, F_u: 1/7 stored, absent now\n\
             {0}: at rest, huge pages: 1 stored, 9 now\n{1}: the same figures in another order",
            boots[0], boots[1]
        );
        assert_eq!(summarize_differences(&stored, &fresh), Some(expected));
        for figures in &mut fresh {
            figures.iter_mut().for_each(|figure| figure.value += 100);
        }
        let summary = summarize_differences(&stored, &fresh).unwrap();
        assert_eq!(summary.lines().count(), LISTED_MAX + 1);
        assert!(summary.ends_with("\nand 27 further figures"), "{summary}");
    }
}
