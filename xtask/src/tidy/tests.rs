//! Each rule finds a planted violation and passes over its good neighbour; the repository itself is clean.

use super::*;

/// The rules and lines found in `text` standing at `path`.
fn found(path: &str, text: &str) -> Vec<(&'static str, usize)> {
    many(&[(path, text)]).into_iter().map(|violation| (violation.rule, violation.line)).collect()
}

fn many(texts: &[(&str, &str)]) -> Vec<Violation> {
    let texts = texts.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
    violations(&Files { texts, exists: &|path| ["README.md", "docs/json.md", "docs"].contains(&path) })
}

/// Code behind a purpose line, so that the first line of `code` is line 2.
fn rust(path: &str, code: &str) -> Vec<(&'static str, usize)> {
    found(path, &format!("//! Purpose.\n{code}\n"))
}

const HOST: &str = "crates/pagelab-host/src/a.rs";
const SYS: &str = "crates/pagelab-sys/src/a.rs";
const PURE: &str = "crates/pagelab-metrics/src/a.rs";
const TEST: &str = "crates/pagelab-host/tests/a.rs";

#[test]
fn the_repository_is_tidy() {
    let found = repository(&tree::root());
    let lines: Vec<String> =
        found.iter().map(|v| format!("{}:{}: {} [{}]", v.file, v.line, v.text, v.rule)).collect();
    assert!(lines.is_empty(), "\n{}", lines.join("\n"));
}

#[test]
fn sizes() {
    let long = |lines: usize| "x\n".repeat(lines);
    assert_eq!(found("a.sh", &long(1001)), [("file-lines", 1001)]);
    assert_eq!(found("a.sh", &long(1000)), []);
    assert_eq!(found("a.txt", &long(1001)), []);
    assert_eq!(found("ARCHITECTURE.md", &long(401)), [("file-lines", 401)]);
    assert_eq!(found(HOST, "// Purpose.\n"), [("purpose", 1)]);

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
        ("crates/pagelab/src/out.rs", "println!(\"\");", &[]),
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
        // Several of one rule may stand on one line, where they are one violation.
        let mut expected = rules.to_vec();
        expected.dedup();
        let mut rules: Vec<_> = rust(path, code).into_iter().map(|(rule, _)| rule).collect();
        rules.dedup();
        assert_eq!(rules, expected, "{path}: {code}");
    }
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
        (SYS, "/// # Safety\npub unsafe fn a() {}\ntype B = unsafe extern \"C\" fn();".to_owned(), &[]),
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
            found(&format!("crates/{folder}/Cargo.toml"), &text),
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
    assert_eq!(found("crates/pagelab-host/Cargo.toml", "[package]\n"), [("edges", 1)]);
    assert_eq!(found("crates/pagelab-sys/Cargo.toml", "[package]\n"), []);
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
        assert_eq!(found(path, line), expected, "{path}: {line}");
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
        assert_eq!(found(path, line), expected, "{path}: {line}");
    }
}

#[test]
fn exit_codes_are_documented_as_they_are() {
    const SOURCE: &str = "//! x\npub const AFTER: [(u8, &str); 1] =\n[(130, \"SIGINT\")];\nenum Exit {\n    Done = 0,\n    No = 1,\n}\n\
        const TABLE: [(Exit, &str); 2] = [(Exit::Done, \"done\"),\n(Exit::No, \"no\")];\n\
        fn a() { Failure::new(Exit::No, \"cannot\") }\n";
    let check = |doc: &str, expected: &[&str]| {
        let found = many(&[("crates/pagelab/src/exit.rs", SOURCE), ("docs/exit-codes.md", doc)]);
        let texts: Vec<_> = found.iter().map(|violation| violation.text.as_str()).collect();
        assert_eq!(texts, expected, "{doc}");
    };
    check("| code | meaning |\n|---|---|\n| 0 | done | x |\n| 1 | no |\n| `130` | SIGINT |\n", &[]);
    check("| 0 | done |\n| 130 | SIGINT |\n", &["1 is missing"]);
    check(
        "| 0 | well |\n| 1 | no |\n| 2 | bad |\n| 130 | SIGINT |\n",
        &["0 is `done` in crates/pagelab/src/exit.rs, `well` here", "2 is not in crates/pagelab/src/exit.rs"],
    );
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
        let table = [Exempt { rule: "function-lines", place, reason: "r" }];
        let found = exempted(vec![long("a/b.rs", "f"), long("a/b.rs", "g"), long("c.rs", "f")], &table);
        let left_over: Vec<_> = found.iter().map(|v| format!("{}:{}", v.file, v.item)).collect();
        assert_eq!(left_over, left, "{place}");
    };
    check("a/b.rs:f", &["a/b.rs:g", "c.rs:f"]);
    check("a/b.rs", &["c.rs:f"]);
    check("a/", &["c.rs:f"]);
    check("d.rs", &["a/b.rs:f", "a/b.rs:g", "c.rs:f", "xtask/src/tidy.rs:"]);
}
