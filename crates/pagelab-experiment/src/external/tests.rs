//! Tests: valid manifests are parsed as written; invalid ones are rejected with file, line and key. Cases are
//! data.

use std::io;
use std::time::Duration;

use expect_test::expect;

use super::ManifestError;
use super::manifest::parse;
use super::run::RunError;

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
    assert_eq!((manifest.name.as_str(), manifest.requested_as.as_str()), ("mine", "./good.toml"));
    assert_eq!((manifest.duration, manifest.disk_space.unwrap().0), (Some(Duration::from_secs(2)), 1 << 20));
    let input = |quick, given: &[(String, String)]| {
        manifest.describe_input(&manifest.resolve_options(quick, given).unwrap())
    };
    assert_eq!(input(false, &[]), "100 keys of 4096 bytes");
    assert_eq!(input(true, &[]), "10 keys of 4096 bytes");
    assert_eq!(input(true, &[("keys".to_owned(), "7".to_owned())]), "7 keys of 4096 bytes");
    assert!(manifest.resolve_options(false, &[("keys".to_owned(), "0".to_owned())]).is_err());
    let files = vec![("a.sh".to_owned(), "x".into())];
    let other = parse("good.toml", "good.toml", GOOD, files).unwrap();
    assert_ne!(other.fingerprint, manifest.fingerprint, "a file is part of it");
}

/// Replaces one part of a valid manifest: the part, its replacement, and the expected error.
const BAD: &[(&str, &str, &str)] = &[
    ("name = \"mine\"\n", "nmae = \"mine\"\n", ":2: unknown key `nmae`; expected one of metric_name"),
    ("name = \"mine\"\n", "name = \"a/b\"\n", ":2: name: \"a/b\": expected letters"),
    ("name = \"mine\"\n", "name = \"setup\"\n", ":2: name: \"setup\" is already used"),
    ("name = \"mine\"\n", "name = \"chase\"\n", ":2: name: \"chase\" is already used"),
    ("about = \"it does\"", "about = 7", ":3: about: expected a quoted string, found a number"),
    ("{keys} keys", "{kees} keys", "input: unknown placeholder `kees`; expected one of data, files, keys"),
    ("space = \"1M\"", "space = \"1X\"", ":6: space: unknown unit; expected a size"),
    ("takes = \"2s\"", "takes = \"2\"", ":7: takes: missing unit"),
    (
        "packages = [\"mine\"]",
        "packages = \"mine\"",
        ":8: packages: expected a list of strings, found a string",
    ),
    ("data_options = [\"keys\"]", "data_options = [\"x\"]", "data_options: unknown option `x`"),
    ("\"{data}\"", "\"{dat\"", "command: \"{dat\": unclosed {"),
    ("[\"mine\", \"--data\", \"{data}\", \"{work}\"]", "[]", ":1: command is missing"),
    ("metric_name = \"rate\"", "", ":1: metric_name is missing"),
    ("metric = { pattern", "metrik = { pattern", "metric is missing"),
    ("rate {} 1/s", "rate 1/s", "expected exactly one {}"),
    ("quick = { keys = 10 }", "quick = { keys = 0 }", "quick: keys: expected an integer from 1"),
    ("quick = { keys = 10 }", "quick = { kees = 10 }", "quick: unknown option `kees`"),
    ("[[program]]\nname = \"mine\"\nleast = \"1.2\"", "", "no program: expected at least one [[program]]"),
    ("least = \"1.2\"", "lest = \"1.2\"", "program: unknown key `lest`"),
    (
        "kind = \"number\"",
        "kind = \"text\"",
        "kind: expected one of size, number, duration, word, switch, found \"text\"",
    ),
    ("default = \"100\"", "default = \"x\"", "option \"keys\": default: keys: expected an integer"),
    ("name = \"keys\"", "name = \"work\"", "option \"work\": the name is already used"),
    ("name = \"size\"", "name = \"keys\"", "option \"keys\": the name is already used"),
    ("name = \"size\"", "name = \"Size\"", "or has characters other than a-z"),
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
    // For an unknown key, the reader lists the known keys.
    let all = |text: &str| {
        let error = parse("x", "x", text, Vec::new()).unwrap_err().to_string();
        let list = error
            .lines()
            .find_map(|line| line.split_once("expected one of ").filter(|_| line.contains("`zz`")));
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

/// The wording of the errors of manifests and runs.
#[test]
fn errors_have_one_grammar() {
    let unknown = ManifestError::Unknown { name: "redi".to_owned(), known: vec!["redis", "xz"] };
    let unread = ManifestError::Io("a.toml".to_owned(), io::Error::from(io::ErrorKind::PermissionDenied));
    let errors = [
        unknown.to_string(),
        unread.to_string(),
        RunError::BadExit("./prog exited with status 1".to_owned()).to_string(),
        RunError::Stopped(2).to_string(),
    ];
    let lines = errors.map(|error| error.replace("; ", ";\n  ") + "\n");
    expect![[r#"
        unknown external workload `redi`;
          expected one of redis, xz, or the path of a manifest (containing a slash or .toml);
          hint: did you mean `redis`?
        cannot read the manifest a.toml: permission denied
        ./prog exited with status 1
        stopped;
          nothing was kept
    "#]]
    .assert_eq(&lines.concat());
}
