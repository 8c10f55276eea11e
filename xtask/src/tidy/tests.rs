//! Tests of the rules: each finds a planted violation and accepts its correct neighbour; the repository is
//! clean.

use super::*;

/// The rules and lines found in `text` standing at `path`.
fn find_violations(path: &str, text: &str) -> Vec<(&'static str, usize)> {
    many(&[(path, text)]).into_iter().map(|violation| (violation.rule, violation.line)).collect()
}

fn many(texts: &[(&str, &str)]) -> Vec<Violation> {
    let texts = texts.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
    let exists = |path: &str| ["README.md", "docs/json.md", "docs"].contains(&path);
    let files = RepositoryFiles { texts, exists: &exists };
    check_files(&files, &rust_sources(&files.texts))
}

/// Code behind a purpose line, so that the first line of `code` is line 2.
fn rust(path: &str, code: &str) -> Vec<(&'static str, usize)> {
    find_violations(path, &format!("//! Purpose.\n{code}\n"))
}

const HOST: &str = "crates/pagelab-host/src/a.rs";
const SYS: &str = "crates/pagelab-sys/src/a.rs";
const PURE: &str = "crates/pagelab-metrics/src/a.rs";
const TEST: &str = "crates/pagelab-host/tests/a.rs";

#[test]
fn the_repository_is_tidy() {
    let found = check_repository(&tree::root());
    let lines: Vec<String> =
        found.iter().map(|v| format!("{}:{}: {} [{}]", v.file, v.line, v.text, v.rule)).collect();
    assert!(lines.is_empty(), "\n{}", lines.join("\n"));
}

#[test]
fn sizes() {
    let long = |lines: usize| "x\n".repeat(lines);
    assert_eq!(find_violations("a.sh", &long(1001)), [("file-lines", 1001)]);
    assert_eq!(find_violations("a.sh", &long(1000)), []);
    assert_eq!(find_violations("a.txt", &long(1001)), []);
    assert_eq!(find_violations("ARCHITECTURE.md", &long(401)), [("file-lines", 401)]);
    assert_eq!(find_violations(HOST, "// Purpose.\n"), [("purpose", 1)]);

    let function =
        |lines: usize| format!("fn a(b: [u8; {{ 1 }}]) -> u8 {{\n{}}}", "    b();\n".repeat(lines));
    assert_eq!(rust(HOST, &function(69)), [("function-lines", 2)]);
    assert_eq!(rust(HOST, &function(68)), []);
    let data = format!("fn a() {{\n\"{}\"; }}", "\n".repeat(80));
    assert_eq!(rust(HOST, &data), []);
    let signature = format!("trait A {{ fn a();\n{} fn b() {{ }} }}", "\n".repeat(80));
    assert_eq!(rust(HOST, &signature), []);

    let wide = |text: &str| format!("    {text}{}", "é".repeat(110 - 4 - text.len()));
    assert_eq!(rust(HOST, &wide("// ")), []);
    assert_eq!(rust(HOST, &(wide("// ") + "é")), [("columns", 2)]);
    assert_eq!(rust(HOST, &(wide("// https://") + "é")), []);
    assert_eq!(rust(HOST, &(wide("/// | ") + "é")), []);
    assert_eq!(rust(HOST, &(wide("a(\"") + "é\");")), [("columns", 2)]);
    assert_eq!(rust(TEST, &(wide("a(\"") + "é\");")), []);
    assert_eq!(find_violations("a.md", &wide("")), []);
    assert_eq!(find_violations("a.md", &(wide("") + "é")), [("columns", 1)]);
    assert_eq!(find_violations("a.md", &(wide("| ") + "é")), []);
    assert_eq!(find_violations("a.md", &(wide("https://") + "é")), []);
}

#[test]
fn words_that_stand_in_some_files_only() {
    for (path, code, rules) in [
        (HOST, "let a = \"/proc/x\";", &["kernel-path"][..]),
        (HOST, "let a = \"cannot read /sys: x\";", &["kernel-path"]),
        (HOST, "let a = r#\"/sys/kernel\"#;", &["kernel-path"]),
        (HOST, "// /proc/x\nlet a = \"mm/proc/x /system a/sys\";", &[]),
        (HOST, "/// Reads \"/proc/x\".\nstruct A;", &[]),
        (TEST, "let a = \"/proc/x\";", &[]),
        (HOST, "#[cfg(test)] mod tests { const A: &str = \"/proc/x\"; }", &[]),
        ("crates/pagelab-host/src/paths.rs", "const A: &str = \"/proc/x\";", &[]),
        ("crates/pagelab-formats/src/fuzz/a.rs", "const A: &str = \"/proc/x\";", &[]),
        (HOST, "let a = 4096;", &["page-size"]),
        (HOST, "let a = 4_096_u64 + 0x1000;", &["page-size", "page-size"]),
        (HOST, "let a = b << 12; let c = d >> 12_u32; e >>= f;", &["page-size", "page-size"]),
        (HOST, "let a = 40960 + (1 << 16) + 0x10000; // 4096", &[]),
        (TEST, "let a = 4096;", &[]),
        ("crates/pagelab-model/src/a.rs", "let a = 4096;", &[]),
        (HOST, "println!(\"\"); eprint!(\"\"); dbg!(a);", &["print", "print", "print"]),
        (HOST, "writeln!(a, \"println!\"); let print = 1;", &[]),
        ("crates/pagelab-command/src/output.rs", "println!(\"\");", &[]),
        (TEST, "eprintln!(\"\");", &[]),
        ("xtask/src/a.rs", "println!(\"\");", &[]),
        (HOST, "std::process::exit(1);", &["exit"]),
        (TEST, "std::process::exit(1);", &[]),
        (HOST, "// FIXME later", &["unfinished"]),
        (HOST, "fn a() { todo!() }", &["unfinished"]),
        (HOST, "/* XXX */ unimplemented!();", &["unfinished", "unfinished"]),
        (HOST, "// the mask is 0xXXXX, todo lists are fine\nlet a = \"FIXME\";", &[]),
        (HOST, "mod utils;", &["odds-and-ends"]),
        (HOST, "mod units;", &[]),
        ("crates/pagelab/tests/common/mod.rs", "", &["odds-and-ends"]),
        ("crates/pagelab/src/helpers.rs", "", &["odds-and-ends"]),
    ] {
        // Several violations of one rule on one line are one violation.
        let mut expected = rules.to_vec();
        expected.dedup();
        let mut rules: Vec<_> = rust(path, code).into_iter().map(|(rule, _)| rule).collect();
        rules.dedup();
        assert_eq!(rules, expected, "{path}: {code}");
    }
}

#[test]
fn refused_names_and_words_are_found_with_the_word_to_use() {
    const SIM: &str = "crates/pagelab-sim/src/a.rs";
    for (path, code, expected) in [
        (HOST, "struct Told;\nenum What {}\ntype Wrong = u8;", &["refused-name"; 3][..]),
        (HOST, "fn of() {}\nfn take() {}\nfn take_census(of: u8) {}", &["refused-name"; 2]),
        (HOST, "mod words;\nmod asking;\nmod watermarks;", &["refused-name"; 2]),
        (HOST, "let spoiled = 1;\nlet a = page_price;\nlet b = HugePrice;", &["refused-name"; 3]),
        (HOST, "let appraise = Pricey::new(bookshelf);", &[]),
        (SIM, "struct Kind;\nlet height = 1;\nlet marks = 2;", &["refused-name"; 3]),
        (HOST, "let height = 1; let marks = 2; enum Kind {}", &[]),
        (HOST, "// Blocks are spoiled.\nlet a = \"dearest first\";", &["refused-word"; 2]),
        (HOST, "/// Pages that were looked\n/// at by chance.\nstruct A;", &["refused-word"; 2]),
        (HOST, "// it looked. At last\nlet looked = at;", &[]),
        ("docs/a.md", "What came of it\nis to be had by `price`.", &["refused-word"; 4]),
        ("manifests/a.toml", "name = \"the page of zeros\"", &["refused-word"]),
        ("web/src/a.ts", "const spoiledBlocks = 1;", &["refused-name", "refused-word"]),
        ("a.csv", "spoiled", &[]),
    ] {
        let code = if path.ends_with(".rs") { format!("//! Purpose.\n{code}\n") } else { code.to_owned() };
        let rules: Vec<_> = find_violations(path, &code).into_iter().map(|(rule, _)| rule).collect();
        assert_eq!(rules, expected, "{path}: {code}");
    }
    let found = many(&[(HOST, "//! Purpose.\nstruct Wrong;\n")]);
    assert_eq!(found[0].text, "`struct Wrong`: use `Error`, or `…Error`");
}

#[test]
fn unsafe_stands_in_one_crate_with_two_sentences() {
    let both = "// SAFETY: a.\n// JUSTIFICATION: b.\n";
    for (path, code, rules) in [
        (HOST, "let a = unsafe { b() };".to_owned(), &["unsafe"][..]),
        (TEST, format!("{both}let a = unsafe {{ b() }};"), &["unsafe"]),
        (HOST, "#![forbid(unsafe_code)] // unsafe".to_owned(), &[]),
        (SYS, "let a = unsafe { b() };".to_owned(), &["unsafe-reason", "unsafe-reason"]),
        (SYS, "// SAFETY: a.\nlet a = unsafe { b() };".to_owned(), &["unsafe-reason"]),
        (SYS, format!("{both}let a = unsafe {{ b() }};"), &[]),
        (SYS, format!("{both}let a =\n    c(d,\n unsafe {{ b() }});"), &[]),
        (SYS, format!("{both}let c = 1;\nlet a = unsafe {{ b() }};"), &["unsafe-reason", "unsafe-reason"]),
        (SYS, format!("{both}unsafe impl Send for A {{}}"), &[]),
        (SYS, "unsafe impl Send for A {}".to_owned(), &["unsafe-reason", "unsafe-reason"]),
        (
            SYS,
            "/// # Safety\npub(crate) unsafe fn a() {}\ntype B = unsafe extern \"C\" fn();".to_owned(),
            &[],
        ),
    ] {
        let rules_found: Vec<_> = rust(path, &code).into_iter().map(|(rule, _)| rule).collect();
        assert_eq!(rules_found, rules, "{path}: {code}");
    }
}

#[test]
fn edges_between_crates() {
    let check = |folder: &str, dependencies: &str, expected: &[(&'static str, usize)]| {
        let text = format!("[lints]\nworkspace = true\n{dependencies}");
        assert_eq!(
            find_violations(&format!("crates/{folder}/Cargo.toml"), &text),
            expected,
            "{folder}: {dependencies}"
        );
    };
    let model = "[dependencies]\npagelab-model.workspace = true\n";
    check("pagelab-metrics", model, &[]);
    check("pagelab-model", model, &[("edges", 4)]);
    check("pagelab-formats", "[dependencies]\npagelab-metrics = { path = \"x\" }\n", &[("edges", 4)]);
    check("pagelab-formats", "[dependencies.pagelab-metrics]\nworkspace = true\n", &[("edges", 3)]);
    check("pagelab-formats", "[target.'cfg(a.b)'.dependencies]\nlibc = \"1\"\n", &[("edges", 4)]);
    check("pagelab-formats", "[dev-dependencies]\ntempfile = \"1\"\npagelab-metrics = \"1\"\n", &[]);
    check(
        "pagelab-formats",
        "[dependencies]\n# libc = 1\nrustix = { features = [\n\"libc\",\n] }\n",
        &[("edges", 5)],
    );
    check("pagelab-report", "[dependencies]\nserde = \"1\"\nserde_json = \"1\"\n", &[]);
    check("pagelab-host", "[dependencies]\nrustix = \"1\"\npagelab-metrics = \"1\"\n", &[("edges", 5)]);
    check("pagelab", "[dependencies]\npagelab-metrics = \"1\"\nclap = \"1\"\n", &[]);
    check("pagelab-new", "", &[("edges", 1)]);
    assert_eq!(find_violations("crates/pagelab-host/Cargo.toml", "[package]\n"), [("edges", 1)]);
    assert_eq!(find_violations("crates/pagelab-sys/Cargo.toml", "[package]\n"), []);
}

#[test]
fn pure_crates_ask_the_machine_nothing() {
    for (path, code, expected) in [
        (PURE, "use std::fs::File;", &[("pure", 2)][..]),
        (PURE, "use std::{fmt, env};", &[("pure", 2)]),
        (PURE, "use std::time::{Duration, Instant};", &[("pure", 2)]),
        (PURE, "use std::{fmt, io::{self, Write}};\nuse std::time::Duration; use self::fs;", &[]),
        (PURE, "#[cfg(test)] mod tests { use std::fs; }", &[]),
        (HOST, "use std::fs::File;", &[]),
    ] {
        assert_eq!(rust(path, code), expected, "{path}: {code}");
    }
}

#[test]
fn places_of_one_machine() {
    for (path, line, expected) in [
        ("a.md", "see /home/me/x", &[("machine-path", 1)][..]),
        ("a.md", "see \"/work/x\" and /home/you/a", &[("machine-path", 1), ("machine-path", 1)]),
        ("a.md", "../root/x $root/root/ crates/work/x ~/home/", &[]),
        ("a.yml", "https://static.crates.io/x", &[("machine-path", 1)]),
        ("Cargo.lock", "source = \"registry+https://mirror.example/index\"", &[("machine-path", 1)]),
        ("Cargo.lock", "source = \"registry+https://github.com/rust-lang/crates.io-index\"", &[]),
    ] {
        assert_eq!(find_violations(path, line), expected, "{path}: {line}");
    }
}

#[test]
fn links_lead_somewhere() {
    for (path, line, expected) in [
        ("docs/a.md", "[x](../README.md) [y](json.md#z \"t\") [z](/docs)", &[][..]),
        ("docs/a.md", "[x](README.md)", &[("link", 1)]),
        ("a.md", "a\n[x]: docs/none.md", &[("link", 2)]),
        ("a.md", "[x](../out.md)", &[("link", 1)]),
        ("a.md", "`[x](none.md)` [a](https://x.y/z) [b](#c)\n```\n[x](none.md)\n```", &[]),
    ] {
        assert_eq!(find_violations(path, line), expected, "{path}: {line}");
    }
}

#[test]
fn skip_ids_are_listed_and_listed_ones_are_used() {
    let test = "//! x\nfn a() { eprintln!(\"skipped: a-b: {why}\"); }\n";
    let check = |list: &str, expected: &[(&str, usize)]| {
        let found = many(&[(TEST, test), ("xtask/skips.txt", list)]);
        let places: Vec<_> =
            found.iter().map(|violation| (violation.file.as_str(), violation.line)).collect();
        assert_eq!(places, expected, "{list}");
    };
    check("a-b | may | w\n", &[]);
    check("", &[(TEST, 2)]);
    check("a-b | may | w\nd-e | may | w\n", &[("xtask/skips.txt", 2)]);
    check("nonsense\n", &[("xtask/skips.txt", 1)]);
}

#[test]
fn an_exemption_covers_its_place_alone_and_goes_when_nothing_needs_it() {
    let long = |file: &str, item: &str| Violation {
        item: item.to_owned(),
        ..Violation::new(file, 3, "function-lines", "long")
    };
    let check = |place: &'static str, left: &[&str]| {
        let table = [Exemption { rule: "function-lines", scope: place, reason: "r" }];
        let found =
            apply_exemptions(vec![long("a/b.rs", "f"), long("a/b.rs", "g"), long("c.rs", "f")], &table);
        let left_over: Vec<_> = found.iter().map(|v| format!("{}:{}", v.file, v.item)).collect();
        assert_eq!(left_over, left, "{place}");
    };
    check("a/b.rs:f", &["a/b.rs:g", "c.rs:f"]);
    check("a/b.rs", &["c.rs:f"]);
    check("a/", &["c.rs:f"]);
    check("a/:g", &["a/b.rs:f", "c.rs:f"]);
    check("d.rs", &["a/b.rs:f", "a/b.rs:g", "c.rs:f", "xtask/src/tidy.rs:"]);
}
