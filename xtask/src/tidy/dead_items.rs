//! Public items of the library crates that only tests use. rustc reports no such item, since another crate
//! might use it.
//!
//! Uses are counted by name: an item is used if its name is anywhere else in code that is no test, with
//! whatever meaning. So the rule misses items, but reports few that are in use.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::Violation;
use super::source::{SourceFile, Token, closing_brace, item_end, split_words};
use crate::crate_graph::{self, CrateKind};

const FUNCTION: &str = "fn";
const TYPES: [&str; 5] = ["struct", "enum", "union", "trait", "type"];
const VALUES: [&str; 2] = ["const", "static"];
/// `write!` and `writeln!` call it without naming it.
const CALLED_BY_MACROS: &str = "write_fmt";

/// A declaration in a library crate, outside of tests.
struct PublicItem<'a> {
    /// Number of its file.
    file: usize,
    keyword: &'a str,
    name: &'a str,
    /// Whether it has a receiver, so that its name follows a dot or a path.
    is_method: bool,
    /// From its keyword to its end.
    range: Range<usize>,
}

/// A place that names an item.
struct NamedUse {
    file: usize,
    offset: usize,
    /// Whether it can mean a method: `.name(`, `.name::<` or `::name`.
    is_call: bool,
}

/// An `impl` block: the name of the type that it is for, and all its code.
struct ImplBlock<'a> {
    file: usize,
    type_name: &'a str,
    range: Range<usize>,
}

/// Public items in `sources`, all Rust files of the repository, that only tests use.
pub fn check(sources: &[SourceFile<'_>], violations: &mut Vec<Violation>) {
    let tokens: Vec<Vec<Token<'_>>> = sources.iter().map(SourceFile::tokens).collect();
    let test_modules: Vec<String> =
        sources.iter().zip(&tokens).flat_map(|(source, tokens)| test_module_paths(source, tokens)).collect();
    let is_test_module =
        |source: &SourceFile<'_>| test_modules.iter().any(|module| source.path.starts_with(module));
    let in_test_module: Vec<bool> = sources.iter().map(is_test_module).collect();
    let is_test = |file: usize, offset: usize| in_test_module[file] || sources[file].is_in_test(offset);
    let (mut items, mut impls) = (Vec::new(), Vec::new());
    for (file, (source, tokens)) in sources.iter().zip(&tokens).enumerate() {
        if is_library(source) {
            let found = public_items(file, tokens);
            items.extend(found.into_iter().filter(|item| !is_test(file, item.range.start)));
            impls.extend(impl_blocks(file, tokens));
        }
    }
    let names: HashSet<&str> = items.iter().map(|item| item.name).collect();
    let mut uses: HashMap<&str, Vec<NamedUse>> = HashMap::new();
    for (file, (source, tokens)) in sources.iter().zip(&tokens).enumerate() {
        for (name, offset, is_call) in named_uses(source, tokens, &names) {
            if is_bench(source) || !is_test(file, offset) {
                uses.entry(name).or_default().push(NamedUse { file, offset, is_call });
            }
        }
    }
    for item in &items {
        let source = &sources[item.file];
        let own = own_ranges(item, source.crate_name(), sources, &impls);
        let is_used = uses.get(item.name).is_some_and(|places| {
            places.iter().any(|place| {
                (place.is_call || !item.is_method)
                    && may_name(&sources[place.file], source.crate_name())
                    && !own.iter().any(|(file, range)| *file == place.file && range.contains(&place.offset))
            })
        });
        if !is_used {
            let line = source.line_of(item.range.start);
            let what = format!("{} {}", item.keyword, item.name);
            let text = format!("only tests use `{what}`: remove it, or compile it for tests");
            let item = item.name.to_owned();
            violations.push(Violation { item, ..Violation::new(source.path, line, "dead-item", text) });
        }
    }
}

/// Sources of a crate that others link. rustc judges the items of a binary.
fn is_library(source: &SourceFile<'_>) -> bool {
    let name = source.crate_name();
    let is_binary = crate_graph::find_crate(name).is_some_and(|known| known.kind == CrateKind::Top);
    source.path.starts_with(&format!("crates/{name}/src/")) && !is_binary
}

/// Benches and fuzz targets use what they name, although other rules take them for tests.
fn is_bench(source: &SourceFile<'_>) -> bool {
    source.path.contains("/benches/") || source.path.starts_with("fuzz/")
}

/// Whether code of this file can mean an item of the crate: its own code, and what may depend on it.
fn may_name(source: &SourceFile<'_>, crate_name: &str) -> bool {
    let user = source.crate_name();
    user == crate_name
        || is_bench(source)
        || crate_graph::find_crate(user).is_none_or(|user| user.may_depend_on(crate_name))
}

/// The code in which an item's name is no use of it: its declaration, and for types also their `impl` blocks.
fn own_ranges(
    item: &PublicItem<'_>,
    crate_name: &str,
    sources: &[SourceFile<'_>],
    impls: &[ImplBlock<'_>],
) -> Vec<(usize, Range<usize>)> {
    let mut own = vec![(item.file, item.range.clone())];
    if TYPES.contains(&item.keyword) {
        let is_own = |block: &&ImplBlock<'_>| {
            block.type_name == item.name && sources[block.file].crate_name() == crate_name
        };
        own.extend(impls.iter().filter(is_own).map(|block| (block.file, block.range.clone())));
    }
    own
}

/// Starts of the paths of modules that are compiled for tests only, whatever their file is called.
fn test_module_paths(source: &SourceFile<'_>, tokens: &[Token<'_>]) -> Vec<String> {
    let (folder, name) = source.path.rsplit_once('/').unwrap_or(("", source.path));
    let folder = match name {
        "lib.rs" | "main.rs" | "mod.rs" => folder,
        _ => source.path.trim_end_matches(".rs"),
    };
    let modules = tokens.windows(3).filter(|words| words[0].text == "mod" && words[2].text == ";");
    modules
        .filter(|words| source.is_in_test(words[0].offset))
        .flat_map(|words| ["/", ".rs"].map(|end| format!("{folder}/{}{end}", words[1].text)))
        .collect()
}

fn is_name(word: &str) -> bool {
    word != "_" && word.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Items that are `pub` without a restriction.
fn public_items<'a>(file: usize, tokens: &[Token<'a>]) -> Vec<PublicItem<'a>> {
    let word = |place: usize| tokens.get(place).map_or("", |token| token.text);
    let mut items = Vec::new();
    for start in (0..tokens.len()).filter(|&place| word(place) == "pub") {
        let mut at = start + 1;
        while matches!(word(at), "unsafe" | "async" | "extern" | "\"")
            || word(at) == "const" && matches!(word(at + 1), FUNCTION | "unsafe" | "async" | "extern")
        {
            at += 1;
        }
        let keyword = word(at);
        let is_item = keyword == FUNCTION || TYPES.contains(&keyword) || VALUES.contains(&keyword);
        let name = if word(at + 1) == "mut" { word(at + 2) } else { word(at + 1) };
        if is_item && is_name(name) && name != CALLED_BY_MACROS {
            let range = tokens[at].offset..item_end(&tokens[at..]);
            let is_method = keyword == FUNCTION && has_receiver(&tokens[at + 2..]);
            items.push(PublicItem { file, keyword, name, is_method, range });
        }
    }
    items
}

/// Whether a function takes `self`; `signature` starts behind its name.
fn has_receiver(signature: &[Token<'_>]) -> bool {
    let mut depth = 0_i64;
    let mut before = "";
    let parameters = signature.iter().position(|token| {
        match token.text {
            "<" => depth += 1,
            ">" if before != "-" => depth -= 1,
            _ => {}
        }
        before = token.text;
        depth == 0 && token.text == "("
    });
    let Some(parameters) = parameters else { return false };
    let first = signature[parameters + 1..].iter().take_while(|token| !matches!(token.text, "," | ":" | ")"));
    first.last().is_some_and(|last| last.text == "self")
}

/// The `impl` blocks of a file, for a trait or not.
fn impl_blocks<'a>(file: usize, tokens: &[Token<'a>]) -> Vec<ImplBlock<'a>> {
    let word = |place: usize| tokens.get(place).map_or("", |token| token.text);
    let mut blocks = Vec::new();
    for start in (0..tokens.len()).filter(|&place| word(place) == "impl") {
        // Elsewhere `impl` is part of a type.
        let before = if start == 0 { ";" } else { word(start - 1) };
        if !matches!(before, ";" | "{" | "}" | "]" | "unsafe") {
            continue;
        }
        let Some(body) = (start..tokens.len()).find(|&place| word(place) == "{") else { continue };
        let Some(end) = closing_brace(&tokens[body..]) else { continue };
        if let Some(type_name) = self_type(&tokens[start + 1..body]) {
            blocks.push(ImplBlock { file, type_name, range: tokens[start].offset..end.offset });
        }
    }
    blocks
}

/// The name of the type in the header of an `impl` block: `C` in `<T> a::B<T> for d::C<T> where T: E`.
fn self_type<'a>(header: &[Token<'a>]) -> Option<&'a str> {
    let mut depth = 0_i64;
    let (mut name, mut before) = (None, "");
    for token in header {
        match token.text {
            "<" => depth += 1,
            // The arrow of a function type closes nothing.
            ">" if before != "-" => depth -= 1,
            "where" if depth == 0 => break,
            "for" if depth == 0 => name = None,
            "dyn" | "mut" => {}
            // The word behind `'` is a lifetime.
            word if depth == 0 && before != "'" && is_name(word) => name = Some(word),
            _ => {}
        }
        before = token.text;
    }
    name
}

/// The places of `names` in a file that use the item, neither its declaration nor a re-export: the name, the
/// offset, and whether it can mean a method.
fn named_uses<'a>(
    source: &'a SourceFile<'_>,
    tokens: &[Token<'a>],
    names: &HashSet<&str>,
) -> Vec<(&'a str, usize, bool)> {
    let word = |place: usize| tokens.get(place).map_or("", |token| token.text);
    let mut found = Vec::new();
    let mut is_re_export = false;
    for (place, token) in tokens.iter().enumerate() {
        let before = if place == 0 { "" } else { word(place - 1) };
        match token.text {
            "use" => is_re_export = matches!(before, "pub" | ")"),
            ";" => is_re_export = false,
            name if names.contains(name) => {
                let is_typed = word(place + 1) == ":" && word(place + 2) != ":";
                let is_value = VALUES.contains(&before) || before == "mut";
                let is_declared =
                    before == FUNCTION || before == "mod" || TYPES.contains(&before) || is_value && is_typed;
                // A renamed re-export has uses under its other name.
                if !is_declared && (!is_re_export || word(place + 1) == "as") {
                    let is_in_path = before == ":" && place > 1 && word(place - 2) == ":";
                    let is_called = before == "." && matches!(word(place + 1), "(" | ":");
                    found.push((name, token.offset, is_in_path || is_called));
                }
            }
            _ => {}
        }
    }
    // `"{NAME}"` in a format, and the functions that an attribute of serde names.
    for span in &source.lexed.strings {
        let text = &source.text[span.start..span.end];
        let is_path = source.text[..span.start].ends_with("= ")
            && text.trim_matches('"').chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | ':'));
        for (offset, name) in split_words(text, span.start) {
            let in_braces =
                source.text[..offset].ends_with('{') || source.text[offset + name.len()..].starts_with('$');
            if (in_braces || is_path) && names.contains(name) {
                found.push((name, offset, is_path));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "crates/pagelab-host/src/a.rs";
    const USER: &str = "crates/pagelab-watch/src/a.rs";

    /// `names` are the dead items of the files.
    fn check(files: &[(&str, &str)], names: &[&str]) {
        let sources: Vec<_> = files.iter().map(|(path, text)| SourceFile::new(path, text)).collect();
        let mut found = Vec::new();
        super::check(&sources, &mut found);
        let found: Vec<_> = found.iter().map(|violation| violation.item.as_str()).collect();
        assert_eq!(found, names, "{files:?}");
    }

    #[test]
    fn public_items_of_libraries_are_found() {
        for (code, names) in [
            ("pub fn a() {} pub const fn b() {} pub unsafe extern \"C\" fn c() {}", &["a", "b", "c"][..]),
            (
                "pub struct A; pub enum B {} pub union C {} pub trait D {} pub type E = u8;",
                &["A", "B", "C", "D", "E"],
            ),
            ("pub const A: *const u8 = b; pub static mut B: u8 = 1; pub const _: () = ();", &["A", "B"]),
            ("impl A { pub fn a(&self) {} pub fn b() {} } impl B for C { fn c() {} }", &["a", "b"]),
            ("pub(crate) fn a() {} fn b() {} struct C { pub d: u8 }", &[]),
            ("#[cfg(test)] pub fn a() {} #[cfg(doctest)] pub struct B;", &[]),
        ] {
            check(&[(HOST, code)], names);
        }
        for path in ["crates/pagelab/src/a.rs", "crates/pagelab-host/tests/a.rs", "xtask/src/a.rs"] {
            check(&[(path, "pub fn a() {}")], &[]);
        }
    }

    #[test]
    fn a_use_is_no_test_and_can_mean_the_item() {
        let host = (HOST, "pub fn a() {}");
        for (path, code, is_used) in [
            (HOST, "fn b() { a(); }", true),
            (USER, "fn b() { a(); }", true),
            ("crates/pagelab/src/a.rs", "fn b() { a(); }", true),
            ("crates/pagelab-model/src/a.rs", "fn b() { a(); }", false),
            ("crates/pagelab-host/benches/a.rs", "fn b() { a(); }", true),
            ("crates/pagelab-host/build.rs", "fn b() { a(); }", true),
            ("fuzz/fuzz_targets/a.rs", "fn b() { a(); }", true),
            ("plugins/b/src/lib.rs", "fn b() { a(); }", true),
            ("crates/pagelab-host/tests/b.rs", "fn b() { a(); }", false),
            (USER, "#[cfg(test)] mod tests { fn b() { a(); } }", false),
            (USER, "macro_rules! b { () => { $crate::a() } }", true),
            (USER, "#[serde(with = \"host::a\")] struct B;", true),
            (USER, "use host::a;", true),
            (USER, "pub use host::a; pub(crate) use host::{a, b};", false),
            (USER, "pub use host::a as b;", true),
            (USER, "/// [`a`]\nmod a; fn b() { c(\"a b\") }", false),
        ] {
            check(&[host, (path, code)], if is_used { &[] } else { &["a"] });
        }
        let twin = ("crates/pagelab-host/src/twin/b.rs", "fn b() { a(); } pub fn c() {}");
        check(&[host, twin], &["c"]);
        check(&[host, twin, ("crates/pagelab-host/src/lib.rs", "#[cfg(test)]\nmod twin;")], &["a"]);
    }

    #[test]
    fn an_item_does_not_use_itself() {
        for (code, names) in [
            ("pub fn a(b: u8) { a(b - 1) }", &["a"][..]),
            ("pub struct A; impl A { fn b() -> A { A } } impl<T> B<T> for c::A where T: D {}", &["A"]),
            ("pub struct A; impl From<A> for B {}", &[]),
            ("pub struct A; fn b() -> impl C { A }", &[]),
            ("pub trait A {} impl A for B {}", &[]),
            ("pub struct A; fn b() { c(&mut A::d()) }", &[]),
            ("pub const A: u8 = 1; fn b() { c(\"{A}\") }", &[]),
            ("impl A { pub fn b(&'a mut self) {} } fn c() { d.b + e(b) }", &["b"]),
            ("impl A { pub fn b<F: Fn() -> u8>(self) {} } fn c() { d.b() }", &[]),
            ("impl A { pub fn b(self) {} } fn c() { d.map(A::b) }", &[]),
            ("impl A { pub fn b(c: u8) {} } fn c() { d.b }", &[]),
        ] {
            check(&[(HOST, code)], names);
        }
    }
}
