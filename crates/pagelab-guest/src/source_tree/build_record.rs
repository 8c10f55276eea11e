//! Records of kbuild (`.NAME.o.cmd`, written by scripts/basic/fixdep): the command that compiled an object
//! and the files that it depends on; and a Makefile that repeats the commands.

use pagelab_model::source_tree::{COMPILER, is_plain_path};

/// Every object includes it, and fixdep leaves it out of its dependencies (`is_ignored_file`).
const AUTOCONF: &str = "include/generated/autoconf.h";

/// How kbuild compiled an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildRecord {
    /// The object.
    pub object: String,
    /// Command of a shell, with paths relative to the tree.
    pub command: String,
    /// The source, then all files that it includes.
    pub files: Vec<String>,
}

/// Parses the record of an object. A command that does anything else than compile this object with
/// [`COMPILER`] is refused: it would need more than the files that are packed. The name is
/// `cmd_OBJECT` until 6.2, `savedcmd_OBJECT` since 6.3.
pub fn parse(text: &str, object: &str) -> Result<BuildRecord, String> {
    if !is_plain_path(object) {
        return Err(format!("expected the path of an object, found `{object}`"));
    }
    let saved = single_value(text, &format!("savedcmd_{object}"))?;
    let command = saved.map_or_else(|| single_value(text, &format!("cmd_{object}")), |it| Ok(Some(it)))?;
    let command = command.ok_or_else(|| format!("expected a command for {object}, found none"))?;
    let source = single_value(text, &format!("source_{object}"))?
        .ok_or_else(|| format!("expected the source of {object}, found none"))?;
    if !is_plain_path(source) {
        return Err(format!("expected the path of a source, found `{source}`"));
    }
    let command = unescape_make(command)?;
    check_command(&command, object, source)?;
    let mut files = vec![source.to_owned(), AUTOCONF.to_owned()];
    for file in dependencies(text, object)? {
        if !is_plain_path(file) {
            return Err(format!("expected the path of a file, found `{file}`"));
        }
        if !files.iter().any(|known| known == file) {
            files.push(file.to_owned());
        }
    }
    Ok(BuildRecord { object: object.to_owned(), command, files })
}

/// The value of `NAME := VALUE`, which may be there once.
fn single_value<'t>(text: &'t str, name: &str) -> Result<Option<&'t str>, String> {
    let value = |line: &'t str| line.strip_prefix(name)?.strip_prefix(" := ").map(str::trim);
    let mut values = text.lines().filter_map(value);
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        _ => Err(format!("expected one `{name}`, found several")),
    }
}

/// Files of `deps_OBJECT := \`, a list with a file on each line. `$(wildcard …)` names a stamp of an option
/// of the configuration, which no compiler reads.
fn dependencies<'t>(text: &'t str, object: &str) -> Result<Vec<&'t str>, String> {
    let head = format!("deps_{object} := \\");
    let mut lines = text.lines().skip_while(|line| *line != head);
    if lines.next().is_none() {
        return Err(format!("expected the dependencies of {object}, found none"));
    }
    let mut files = Vec::new();
    for line in lines {
        let (file, continues) = match line.strip_suffix('\\') {
            Some(start) => (start.trim(), true),
            None => (line.trim(), false),
        };
        if !(file.is_empty() || file.starts_with("$(wildcard ") && file.ends_with(')')) {
            files.push(file);
        }
        if !continues {
            break;
        }
    }
    Ok(files)
}

/// The command without kbuild's escapes for make (scripts/Kbuild.include, `make-cmd`): `$$` and `$(pound)`.
fn unescape_make(command: &str) -> Result<String, String> {
    let mut rest = command;
    let mut unescaped = String::new();
    while let Some(at) = rest.find('$') {
        unescaped.push_str(&rest[..at]);
        let (escaped, plain) = match &rest[at..] {
            word if word.starts_with("$$") => ("$$", '$'),
            word if word.starts_with("$(pound)") => ("$(pound)", '#'),
            word => {
                let shown: String = word.chars().take(20).collect();
                return Err(format!("expected a command without variables, found `{shown}`"));
            }
        };
        unescaped.push(plain);
        rest = &rest[at + escaped.len()..];
    }
    unescaped.push_str(rest);
    Ok(unescaped)
}

fn check_command(command: &str, object: &str, source: &str) -> Result<(), String> {
    let words = split_words(command)?;
    let expected =
        |what: &str| Err(format!("expected {what} in the command for {object}, found `{command}`"));
    if words.first().map(String::as_str) != Some(COMPILER) {
        return expected(&format!("{COMPILER} as the first word"));
    }
    if !words.ends_with(&["-c", "-o", object, source].map(str::to_owned)) {
        return expected(&format!("`-c -o {object} {source}` at the end"));
    }
    let leads_out = |word: &&String| {
        let path = ["-I", "-Wp,-MMD,"].iter().find_map(|option| word.strip_prefix(option)).unwrap_or(word);
        path.starts_with(['/', '@']) || path.split('/').any(|part| part == "..")
    };
    match words.iter().find(leads_out) {
        Some(word) => expected(&format!("paths of the tree instead of `{word}`")),
        None => Ok(()),
    }
}

/// Words of a command as a shell has them. Only single quotes are known: of a control character, a variable
/// or an operator outside of them, the command is refused.
fn split_words(command: &str) -> Result<Vec<String>, String> {
    let mut words: Vec<String> = Vec::new();
    let mut word: Option<String> = None;
    let mut is_quoted = false;
    for c in command.chars() {
        match c {
            '\'' => {
                is_quoted = !is_quoted;
                word.get_or_insert_default();
            }
            _ if c.is_control() => return Err("expected one line, found a control character".to_owned()),
            ' ' if !is_quoted => words.extend(word.take()),
            _ if is_quoted || c.is_ascii_alphanumeric() || "-_./=,+:@%".contains(c) => {
                word.get_or_insert_default().push(c);
            }
            _ => return Err(format!("expected a plain command, found `{c}`")),
        }
    }
    words.extend(word);
    match is_quoted {
        true => Err("expected a closing quote, found none".to_owned()),
        false => Ok(words),
    }
}

/// A Makefile with a rule for each object. It has no prerequisites: what an object depends on never changes,
/// and to check hundreds of files would cost more than a part of the compilations.
pub fn format_makefile(records: &[BuildRecord]) -> String {
    let objects: Vec<&str> = records.iter().map(|record| record.object.as_str()).collect();
    let mut text = format!(
        "# Generated by pagelab: the commands by which kbuild compiled these objects.\n\
         .PHONY: objects\nobjects: {}\n",
        objects.join(" ")
    );
    for record in records {
        let command = record.command.replace('$', "$$");
        text.push_str(&format!("{}:\n\t@{command}\n", record.object));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: &str = "lib/bcd.o";
    const COMMAND: &str = "gcc-12 -Wp,-MMD,lib/.bcd.o.d -nostdinc -I./arch/x86/include -include \
                           ./include/linux/kconfig.h -D__KERNEL__ -fmacro-prefix-map=./= -Os \
                           -DKBUILD_MODFILE='\"lib/bcd\"' -c -o lib/bcd.o lib/bcd.c";

    fn record(name: &str, command: &str, files: &str) -> String {
        format!(
            "{name}_{OBJECT} := {command}\n\nsource_{OBJECT} := lib/bcd.c\n\n\
             deps_{OBJECT} := \\\n{files}\n{OBJECT}: $(deps_{OBJECT})\n\n$(deps_{OBJECT}):\n"
        )
    }

    #[test]
    fn a_record_has_the_command_and_the_files_of_an_object() {
        let files = "    $(wildcard include/config/64BIT) \\\n  include/linux/bcd.h \\\n  \
                     include/linux/compiler.h \\\n    $(wildcard include/config/X) \\\n  include/linux/bcd.h \\\n";
        // 6.1 and 6.3.
        for name in ["cmd", "savedcmd"] {
            let parsed = parse(&record(name, &format!("{COMMAND}  "), files), OBJECT).unwrap();
            assert_eq!((parsed.object.as_str(), parsed.command.as_str()), (OBJECT, COMMAND));
            assert_eq!(
                parsed.files,
                ["lib/bcd.c", AUTOCONF, "include/linux/bcd.h", "include/linux/compiler.h"]
            );
        }
        // kbuild's escapes are undone, and the Makefile's own are made.
        let escaped = COMMAND.replace("-Os", "'-DA=$(pound)1' '-DB=$$x'");
        let parsed = parse(&record("cmd", &escaped, ""), OBJECT).unwrap();
        assert!(parsed.command.contains(" '-DA=#1' '-DB=$x' "), "{}", parsed.command);
        assert_eq!(parsed.files, ["lib/bcd.c", AUTOCONF]);
    }

    #[test]
    fn a_record_that_would_do_anything_else_is_refused() {
        let with = |from: &str, to: &str| record("cmd", &COMMAND.replacen(from, to, 1), "");
        for (text, said) in [
            (String::new(), "expected a command for lib/bcd.o"),
            (record("cmd", "", ""), "expected gcc-12 as the first word"),
            (with("gcc-12", "gcc-11"), "expected gcc-12 as the first word"),
            (with("gcc-12", "./gcc-12"), "expected gcc-12 as the first word"),
            (with("-Os", "; ./tools/objtool/objtool --orc"), "found `;`"),
            (with("-Os", "`id`"), "found ``"),
            (with("-Os", "$(shell id)"), "found `$(shell id)"),
            (with("-Os", "$$(id)"), "found `$`"),
            (with("-Os", "$"), "found `$ "),
            (with("-Os", "a\u{7}b"), "control character"),
            (with("-Os", ">/etc/passwd"), "found `>`"),
            (with("-Os", "\"x\""), "found `\"`"),
            (with("-Os", "é"), "found `é`"),
            (with("lib/bcd.c", "lib/bcd.c '"), "closing quote"),
            (with("-Os", "@/etc/passwd"), "paths of the tree instead of `@/etc/passwd`"),
            (with("-I./arch", "-I/usr"), "paths of the tree instead of `-I/usr/x86/include`"),
            (with("./include/linux", "../include/linux"), "paths of the tree instead of `../include"),
            (with("-MMD,lib/", "-MMD,/etc/"), "instead of `-Wp,-MMD,/etc/.bcd.o.d`"),
            (with("-c -o lib/bcd.o", "-c -o lib/other.o"), "at the end"),
            (with("lib/bcd.c", "lib/bcd.c -S"), "at the end"),
            (record("cmd", COMMAND, "  /etc/passwd \\\n"), "found `/etc/passwd`"),
            (record("cmd", COMMAND, "  ../x.h"), "found `../x.h`"),
            (record("cmd", COMMAND, "  $(shell id) \\\n"), "found `$(shell id)`"),
            (record("cmd", COMMAND, "").repeat(2), "expected one `cmd_lib/bcd.o`"),
            (record("cmd", COMMAND, "").replace("source_", "sauce_"), "expected the source"),
            (record("cmd", COMMAND, "").replace("deps_", "depends_"), "expected the dependencies"),
        ] {
            let error = parse(&text, OBJECT).unwrap_err();
            assert!(error.contains(said), "{said}: {error}");
        }
        assert!(parse("", "lib/../x.o").is_err() && parse("", "a b").is_err());
    }

    #[test]
    fn a_makefile_has_a_rule_for_each_object() {
        let one = BuildRecord { object: "lib/a.o".into(), command: "gcc-12 '-DA=$x#'".into(), files: vec![] };
        let other = BuildRecord { object: "lib/b.o".into(), command: "gcc-12 -Os".into(), files: vec![] };
        let text = format_makefile(&[one, other]);
        let (_, rules) = text.split_once('\n').unwrap();
        assert_eq!(
            rules,
            ".PHONY: objects\nobjects: lib/a.o lib/b.o\nlib/a.o:\n\t@gcc-12 '-DA=$$x#'\nlib/b.o:\n\t@gcc-12 -Os\n"
        );
    }
}
