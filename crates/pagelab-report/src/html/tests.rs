//! The page as text: its places are filled once, and no text of a machine becomes markup.

use super::*;

#[test]
fn each_place_is_filled_once_and_what_is_put_in_is_not_searched() {
    for place in [TITLE_MARKER, TEXT_MARKER, DATA_MARKER] {
        assert_eq!(TEMPLATE.matches(place).count(), 1, "{place}");
    }
    let template = format!("a{TITLE_MARKER}b{TEXT_MARKER}c{DATA_MARKER}d");
    assert_eq!(
        fill_template(&template, TEXT_MARKER, DATA_MARKER, TITLE_MARKER),
        format!("a{TEXT_MARKER}b{DATA_MARKER}c{TITLE_MARKER}d")
    );
}

#[test]
fn nothing_that_is_said_becomes_markup() {
    let hostile = "</noscript><script>alert(1)</script><img src=x onerror='a'>\"&\u{1b}[2J\0\u{202e}";
    let harmless = escape_html(hostile);
    assert!(!harmless.contains(['<', '>', '"', '\'', '\0', '\u{1b}', '\u{202e}']), "{harmless}");
    assert!(harmless.starts_with("&lt;/noscript&gt;"), "{harmless}");
}

/// A page shows the judgement that it is given, in its text and in its data, and does not judge again.
#[test]
fn a_given_judgement_is_shown_and_no_other_is_made() {
    let run = Run {
        snapshot: Some(Box::new(crate::checkup::tests::example::example())),
        ..run::tests::example::probe_run()
    };
    let snapshot = run.snapshot.as_deref().unwrap();
    let own = Checkup::from_snapshot(snapshot);
    let mut altered = own.clone();
    altered.zones.clear();
    altered.findings.clear();
    let text = report_text(&run, Some(&altered));
    assert_ne!(text, report_text(&run, Some(&own)));
    let page = render_judged_page(&run, &altered).unwrap();
    assert!(page.contains(&escape_html(&text)));
    let data = page_run_json((&run, Some(&altered)), &[], &text, 1, &mut DataBlocks::default());
    assert_eq!(Value::from(data)["checkup"], json::checkup::to_document(snapshot, &altered));
    assert_eq!(
        render_page(std::slice::from_ref(&run), &[]).unwrap(),
        render_judged_page(&run, &own).unwrap()
    );
}

#[test]
fn base64_of_the_rfc() {
    for (plain, coded) in [
        ("", ""),
        ("f", "Zg=="),
        ("fo", "Zm8="),
        ("foo", "Zm9v"),
        ("foob", "Zm9vYg=="),
        ("fooba", "Zm9vYmE="),
        ("foobar", "Zm9vYmFy"),
    ] {
        let mut output = String::new();
        push_base64(plain.as_bytes(), &mut output);
        assert_eq!(output, coded);
    }
    let mut all = String::new();
    push_base64(&[0xff, 0xef, 0xbe, 0xfb], &mut all);
    assert_eq!(all, "/++++w==");
}

#[test]
fn numbers_take_the_smallest_type_and_their_bytes_lie_in_planes() {
    let mut blocks = DataBlocks::default();
    let kind = |object: JsonObject| Value::from(object)["type"].as_str().map(str::to_owned);
    assert_eq!(kind(blocks.push_integers(&[])).as_deref(), Some("u8"));
    assert_eq!(kind(blocks.push_integers(&[255])).as_deref(), Some("u8"));
    assert_eq!(kind(blocks.push_integers(&[256])).as_deref(), Some("u16"));
    assert_eq!(kind(blocks.push_integers(&[1 << 16])).as_deref(), Some("u32"));
    assert_eq!(kind(blocks.push_integers(&[1 << 32])).as_deref(), Some("f64"));
    assert_eq!(split_byte_planes(&[1, 2, 3, 4, 5, 6], 2), [1, 3, 5, 2, 4, 6]);
}
