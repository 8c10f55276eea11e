//! Good manifests are what they say; bad ones are refused with file, line and key. Cases are data.

use std::time::Duration;

use super::read::parse;

const GOOD: &str = r#"
name = "mine"
about = "it does"
input = "{keys} keys of {size} bytes"
working_set = "all of it"
space = "1M"
takes = "2s"
packages = ["mine"]
data_options = ["keys"]
prepare = ["sh", "{files}/prepare.sh", "{keys}"]
command = ["mine", "--data", "{data}", "{work}"]
metric_name = "rate"
metric = { pattern = "rate {} 1/s", unit = "1/s", better = "higher" }
checksum = "sum "
quick = { keys = 10 }
environment = { MINE = "{root}/x" }

[[program]]
name = "mine"
least = "1.2"

[[option]]
name = "keys"
kind = "number"
least = 1
most = 1000
default = "100"
help = "How many"

[[option]]
name = "size"
kind = "size"
default = "4K"
help = "Bytes of each"
"#;

#[test]
fn a_good_manifest_is_what_it_says() {
    let manifest = parse("good.toml", "./good.toml", GOOD, Vec::new()).unwrap();
    assert_eq!((manifest.name.as_str(), manifest.asked.as_str()), ("mine", "./good.toml"));
    assert_eq!((manifest.takes, manifest.space.unwrap().0), (Some(Duration::from_secs(2)), 1 << 20));
    let input = |quick, given: &[(String, String)]| {
        super::run::input(&manifest, &manifest.options(quick, given).unwrap())
    };
    assert_eq!(input(false, &[]), "100 keys of 4096 bytes");
    assert_eq!(input(true, &[]), "10 keys of 4096 bytes");
    assert_eq!(input(true, &[("keys".to_owned(), "7".to_owned())]), "7 keys of 4096 bytes");
    assert!(manifest.options(false, &[("keys".to_owned(), "0".to_owned())]).is_err());
    let files = vec![("a.sh".to_owned(), "x".into())];
    let other = parse("good.toml", "good.toml", GOOD, files).unwrap();
    assert_ne!(other.fingerprint, manifest.fingerprint, "a file is part of it");
}

/// Replaces one piece of a good manifest: which, by what, and what is said of it.
const BAD: &[(&str, &str, &str)] = &[
    ("name = \"mine\"\n", "nmae = \"mine\"\n", ":2: nmae is no key that there is; there are metric_name"),
    ("name = \"mine\"\n", "name = \"a/b\"\n", ":2: name: \"a/b\" becomes a folder's name"),
    ("name = \"mine\"\n", "name = \"setup\"\n", ":2: name: \"setup\" is taken"),
    ("name = \"mine\"\n", "name = \"chase\"\n", ":2: name: \"chase\" is taken"),
    ("about = \"it does\"", "about = 7", ":3: about is a number; a text in quotes was wanted"),
    ("{keys} keys", "{kees} keys", "input: {kees} is nothing that there is; there are data, files, keys"),
    ("space = \"1M\"", "space = \"1X\"", ":6: space: \"1X\" is no size"),
    ("takes = \"2s\"", "takes = \"2\"", ":7: takes: `2`: it has no unit"),
    ("packages = [\"mine\"]", "packages = \"mine\"", ":8: packages is a text; a list of texts"),
    ("data_options = [\"keys\"]", "data_options = [\"x\"]", "data_options: \"x\" is no option"),
    ("\"{data}\"", "\"{dat\"", "command: \"{dat\": a { without its }"),
    ("[\"mine\", \"--data\", \"{data}\", \"{work}\"]", "[]", ":1: command is missing"),
    ("metric_name = \"rate\"", "", ":1: metric_name is missing"),
    ("metric = { pattern", "metrik = { pattern", "metric is missing"),
    ("rate {} 1/s", "rate 1/s", "needs exactly one {}"),
    ("quick = { keys = 10 }", "quick = { keys = 0 }", "quick: keys: \"0\" is no whole number from 1"),
    ("quick = { keys = 10 }", "quick = { kees = 10 }", "quick: there is no option \"kees\""),
    ("[[program]]\nname = \"mine\"\nleast = \"1.2\"", "", "no program is given"),
    ("least = \"1.2\"", "lest = \"1.2\"", "program: lest is no key that there is"),
    ("kind = \"number\"", "kind = \"text\"", "kind: \"text\" is none of size, number, word, switch"),
    ("default = \"100\"", "default = \"x\"", "option \"keys\": default: keys: \"x\" is no whole number"),
    ("name = \"keys\"", "name = \"work\"", "option \"work\": the name is taken"),
    ("name = \"size\"", "name = \"keys\"", "option \"keys\": the name is taken, stands twice"),
    ("name = \"size\"", "name = \"Size\"", "or has more than a-z"),
    ("[[program]]", "[[program", "docs/external.md"),
];

#[test]
fn bad_manifests_are_refused_with_file_line_and_key() {
    for (piece, instead, said) in BAD {
        assert!(GOOD.contains(piece), "{piece:?} is a piece of the good one");
        let text = GOOD.replacen(piece, instead, 1);
        let error = parse("bad.toml", "bad.toml", &text, Vec::new()).expect_err(instead).to_string();
        assert!(error.contains(said), "{instead}:\n{error}");
        assert!(error.lines().all(|line| line.starts_with("bad.toml:")), "{error}");
    }
}

#[test]
fn every_key_stands_in_the_documentation() {
    let docs =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/external.md")).unwrap();
    // A key that there is not makes the reader list those that there are.
    let all = |text: &str| {
        let error = parse("x", "x", text, Vec::new()).unwrap_err().to_string();
        let list =
            error.lines().find_map(|line| line.split_once("there are ").filter(|_| line.contains("zz ")));
        list.unwrap_or_else(|| panic!("{error}")).1.split(", ").map(str::to_owned).collect::<Vec<_>>()
    };
    let mut keys = all(&format!("zz = 1\n{GOOD}"));
    keys.extend(all(&GOOD.replace("[[program]]", "[[program]]\nzz = 1")));
    keys.extend(all(&GOOD.replacen("[[option]]", "[[option]]\nzz = 1", 1)));
    keys.extend(all(&format!("{GOOD}\n[user_folder]\nzz = 1")));
    assert!(keys.len() > 30, "{keys:?}");
    for key in keys {
        assert!(docs.contains(&format!("`{key}`")), "{key} is not in docs/external.md");
    }
}
