//! `pagelab help TERM` and `pagelab help docs/NAME.md`: the glossary and the documents, from the binary.

use std::ffi::OsString;

use pagelab_command::exit::{Exit, Failure, FailureKind, Outcome};
use pagelab_command::output;
use pagelab_model::names;
use pagelab_report::style::TextStyle;
use pagelab_report::text_report::TextReport;

macro_rules! document {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../docs/", $name)))
    };
}

/// The documents by name. Help texts name them as `docs/NAME`.
const DOCUMENTS: [(&str, &str); 32] = [
    document!("README.md"),
    document!("apply.md"),
    document!("can.md"),
    document!("compare.md"),
    document!("demo.md"),
    document!("exit-codes.md"),
    document!("external.md"),
    document!("fidelity.md"),
    document!("fragment.md"),
    document!("glossary.md"),
    document!("guard.md"),
    document!("guests.md"),
    document!("json.md"),
    document!("kmod.md"),
    document!("loads.md"),
    document!("map.md"),
    document!("memory-size.md"),
    document!("mmap-lab.md"),
    document!("plan.md"),
    document!("policies.md"),
    document!("profile.md"),
    document!("recipes.md"),
    document!("record.md"),
    document!("run.md"),
    document!("runfile.md"),
    document!("sim.md"),
    document!("trace.md"),
    document!("tune.md"),
    document!("usage.md"),
    document!("watch.md"),
    document!("workloads-applications.md"),
    document!("workloads.md"),
];
const GLOSSARY: &str = document!("glossary.md").1;
/// Other names of documents, without `.md`.
const DOCUMENT_ALIASES: [(&str, &str); 2] = [("terms", "glossary"), ("exit-code", "exit-codes")];
/// Terms that only contain the words are listed up to this number.
const NEAR_TERMS_MAX: usize = 12;

/// A row of the glossary.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Term<'a> {
    /// Its names, separated by commas.
    names: &'a str,
    meaning: &'a str,
    source: &'a str,
}

/// The topic of `pagelab help TOPIC`; none if it is a command or an option, which clap describes.
pub fn requested_topic(
    arguments: impl IntoIterator<Item = OsString>,
    is_command: impl Fn(&str) -> bool,
) -> Option<String> {
    let mut words = arguments.into_iter().skip(1).map_while(|word| word.into_string().ok());
    words.next().filter(|word| word == "help")?;
    let first = words.next().filter(|word| !is_command(word) && !word.starts_with('-'))?;
    Some(words.fold(first, |topic, word| topic + " " + &word))
}

/// Prints what the glossary or a document says about the topic.
pub fn print_topic(topic: &str) -> Outcome {
    let text = find_topic(topic, output::stdout_style())?;
    output::print(&text).map(|()| Exit::Success)
}

fn find_topic(topic: &str, style: TextStyle) -> Result<String, Failure> {
    let wanted = topic.trim().to_lowercase();
    let terms: Vec<Term<'_>> = glossary_terms().collect();
    let is_named = |term: &&Term<'_>| split_names(term.names).any(|name| name == wanted);
    if let Some(term) = terms.iter().find(is_named) {
        return Ok(format_terms(&[*term], style));
    }
    let name = wanted.strip_prefix("docs/").unwrap_or(&wanted);
    // `exit codes` names exit-codes.md.
    let name = name.split_whitespace().collect::<Vec<_>>().join("-");
    let file = DOCUMENT_ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name.as_str(), |(_, of)| *of);
    let is_document = |(name, _): &&(&str, &str)| *name == file || name.strip_suffix(".md") == Some(file);
    if let Some((_, text)) = DOCUMENTS.iter().find(is_document) {
        return Ok((*text).to_owned());
    }
    let contains = |term: &&Term<'_>| split_names(term.names).any(|name| name.contains(&wanted));
    let near: Vec<Term<'_>> = terms.iter().filter(contains).copied().take(NEAR_TERMS_MAX).collect();
    if !wanted.is_empty() && !near.is_empty() {
        return Ok(format_terms(&near, style));
    }
    let names: Vec<String> = terms.iter().flat_map(|term| split_names(term.names)).collect();
    let hint = names::suggest(&wanted, &names).unwrap_or_else(|| {
        "`pagelab help glossary` lists all terms, `pagelab --help` all commands".to_owned()
    });
    let message = format!("unknown command or term `{}`", topic.escape_debug());
    Err(Failure::new(FailureKind::Usage, message).hint(hint))
}

/// The rows of the glossary's table, its head left out.
fn glossary_terms() -> impl Iterator<Item = Term<'static>> {
    let rows = GLOSSARY.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    rows.filter_map(|row| {
        let mut cells = row.strip_prefix('|')?.split('|').map(str::trim);
        Some(Term { names: cells.next()?, meaning: cells.next()?, source: cells.next()? })
    })
}

fn split_names(names: &str) -> impl Iterator<Item = String> {
    names.split(", ").map(|name| name.replace('`', "").to_lowercase())
}

fn format_terms(terms: &[Term<'_>], style: TextStyle) -> String {
    let mut text = TextReport::new(style);
    for (at, term) in terms.iter().enumerate() {
        if at > 0 {
            text.add_gap();
        }
        text.add_bold_text(&term.names.replace('`', ""));
        text.add_paragraph("  ", &unlink(term.meaning));
        text.add_paragraph("  ", &format!("source: {}", unlink(term.source)));
    }
    text.into_text()
}

/// Text without the marks of code, and with the texts of links in place of links.
fn unlink(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        plain.push_str(before);
        let Some((label, after)) = link.split_once("](") else {
            plain.push('[');
            rest = link;
            continue;
        };
        let Some((_, after)) = after.split_once(')') else { break };
        plain.push_str(label);
        rest = after;
    }
    plain.push_str(rest);
    plain.replace('`', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_document_is_in_the_binary() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
        let names =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.ends_with(".md")).collect();
        names.sort();
        assert_eq!(names, DOCUMENTS.map(|(name, _)| name.to_owned()));
    }

    #[test]
    fn a_topic_is_a_term_a_document_or_an_error_with_the_nearest() {
        let found = |topic: &str| find_topic(topic, TextStyle::PLAIN);
        assert!(
            found("polluted")
                .unwrap()
                .starts_with("polluted pageblock\n  A pageblock with at least one page")
        );
        assert!(found("Base Page").unwrap().contains("source: Documentation/admin-guide/mm/concepts.rst"));
        assert!(found("arm").unwrap().contains("source: tune.md"), "{:?}", found("arm"));
        assert!(found("docs/can.md").unwrap().starts_with("# "));
        for topic in ["glossary", "terms"] {
            assert_eq!(found(topic).unwrap(), GLOSSARY, "{topic}");
        }
        for topic in ["exit-codes", "exit codes", "Exit  Codes", "exit code", "docs/exit-codes.md"] {
            assert!(found(topic).unwrap().starts_with("# Exit codes\n"), "{topic}");
        }
        let message = found("polutted pageblock").unwrap_err().to_string();
        assert_eq!(
            message,
            "unknown command or term `polutted pageblock`; hint: did you mean `polluted pageblock`?"
        );
        assert!(found("").is_err() && found("\u{1b}[2J").is_err());
        assert!(glossary_terms().count() > 250);
    }

    #[test]
    fn commands_and_options_stay_with_clap() {
        let topic = |line: &str| requested_topic(line.split(' ').map(OsString::from), |word| word == "can");
        assert_eq!(topic("pagelab help polluted pageblock"), Some("polluted pageblock".to_owned()));
        assert_eq!(topic("pagelab help exit codes"), Some("exit codes".to_owned()));
        for line in ["pagelab help can", "pagelab help --all", "pagelab help", "pagelab can 4", "pagelab"] {
            assert_eq!(topic(line), None, "{line}");
        }
    }
}
