//! The page as text: its places are filled once, and nothing that a machine says becomes markup.

use super::*;

#[test]
fn each_place_is_filled_once_and_what_is_put_in_is_not_searched() {
    for place in [TITLE, TEXT, DATA] {
        assert_eq!(TEMPLATE.matches(place).count(), 1, "{place}");
    }
    let template = format!("a{TITLE}b{TEXT}c{DATA}d");
    assert_eq!(fill(&template, TEXT, DATA, TITLE), format!("a{TEXT}b{DATA}c{TITLE}d"));
}

#[test]
fn nothing_that_is_said_becomes_markup() {
    let hostile = "</noscript><script>alert(1)</script><img src=x onerror='a'>\"&\u{1b}[2J\0\u{202e}";
    let harmless = escaped(hostile);
    assert!(!harmless.contains(['<', '>', '"', '\'', '\0', '\u{1b}', '\u{202e}']), "{harmless}");
    assert!(harmless.starts_with("&lt;/noscript&gt;"), "{harmless}");
}
