//! Tests of `pagelab watch` on a terminal: tmux provides it, presses the keys and reads the screen.

#![allow(clippy::unwrap_used, reason = "a test panics to fail")]

#[path = "support/screen.rs"]
mod screen;
mod support;

use std::path::Path;

use screen::Screen;
use support::Lab;
use support::running::wait_until;

#[test]
fn the_live_view_follows_keys_sizes_and_job_control() {
    let Some(screen) = Screen::open(Lab::new()) else { return };
    screen.pagelab("watch --every 200ms");
    // tmux may show a partly drawn screen.
    let mut first = screen.until_shown("live, every 200 ms");
    for part in
        ["memory", "pressure", "THP", "zones", "F_u", "compact", "kswapd", "swap", "extfrag", "q quit"]
    {
        first = screen.until_shown(part);
    }
    screen.until("a second sample", |text| text.contains(" 2 samples") || text.contains(" 3 samples"));
    screen.press(&["?"]);
    screen.until_shown("thp_fault_alloc");
    screen.press(&["Escape"]);
    screen.until_shown("live, every");
    screen.press(&["r"]);
    screen.until_shown("since the start");
    screen.press(&["+"]);
    screen.until_shown("live, every 500 ms");
    screen.press(&["-", "-"]);
    screen.until_shown("live, every 100 ms");
    let chosen = |text: &str| text.lines().find(|line| line.starts_with('›')).map(str::to_owned);
    let zone =
        |text: &str| chosen(text).map(|line| line.split_whitespace().skip(1).take(2).collect::<String>());
    let before = zone(&screen.text());
    assert!(before.is_some());
    let zones = first.lines().skip_while(|line| !line.contains("zones")).skip(1);
    let zones = zones.take_while(|line| line.contains("iB") && !line.contains("KiB ")).count();
    if zones > 1 {
        screen.press(&["Tab"]);
        screen.until("another zone", |text| zone(text) != before);
        screen.press(&["Up"]);
        screen.until("the zone before", |text| zone(text) == before);
    }
    screen.press(&["Space"]);
    let paused = screen.until_shown("PAUSED");
    // Sampling continues: some samples of at least four files later the screen is the same.
    let reads = screen.read_calls();
    screen.until("more samples", |_| screen.read_calls() >= reads + 3 * 4);
    assert_eq!(screen.text(), paused, "the screen stands still");
    screen.resize("40", "10");
    screen.until_shown("80×24 shows all");
    screen.resize("12", "3");
    screen.until_shown("20×5 minimum");
    screen.resize("120", "40");
    screen.until_shown("available memory");
    screen.resize("80", "24");
    screen.press(&["Space"]);
    screen.until_shown("live, every");
    screen.press(&["C-z"]);
    screen.until("the shell", |text| text.contains('$') && !text.contains("live, every"));
    screen.line("clear; fg");
    screen.until_shown("live, every");
    screen.press(&["q"]);
    // The shell's own list ended at the stop, so that the code is requested again.
    screen.until("the shell", |text| !text.contains("live, every"));
    screen.line("echo code $?.");
    screen.until_ended(0);
}

#[test]
fn the_terminal_is_restored_after_signals() {
    use rustix::process::Signal;
    let Some(screen) = Screen::open(Lab::new()) else { return };
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130)] {
        screen.pagelab("watch");
        screen.until_shown("live, every");
        screen.signal(&screen.pid(), signal);
        screen.until_ended(code);
    }
    // Ctrl-C also reaches the shell's list, which it ends.
    screen.pagelab("watch");
    screen.until_shown("live, every");
    screen.press(&["C-c"]);
    screen.until("the shell", |text| !text.contains("live, every"));
    screen.line("echo code $?.");
    screen.until_ended(130);
}

#[test]
fn a_closed_terminal_ends_the_view() {
    let Some(screen) = Screen::open(Lab::new()) else { return };
    screen.pagelab("watch");
    screen.until_shown("live, every");
    let process = Path::new("/proc").join(screen.pid());
    screen.tmux(&["kill-server"]);
    wait_until("the end of pagelab", || !process.exists());
}

#[test]
fn keys_navigate_a_recording() {
    let lab = Lab::new();
    let recorded = lab.run(&["record", "-o", "a.pagelab", "--every", "100ms", "--for", "2s"]);
    assert_eq!(recorded.code, Some(0), "{}", recorded.err);
    let Some(screen) = Screen::open(lab) else { return };
    screen.pagelab("watch a.pagelab");
    fn reading(text: &str) -> Option<(String, String)> {
        let of = text.lines().find_map(|line| line.split_once("reading ")?.1.split_once(','))?.0;
        of.split_once(" of ").map(|(at, count)| (at.to_owned(), count.to_owned()))
    }
    // The screen may be read while it is drawn.
    let last =
        screen.until("its last reading", |text| text.contains("replay, stopped") && reading(text).is_some());
    let (at, count) = reading(&last).unwrap();
    assert_eq!(at, count, "it begins at the end");
    let shown = |at: usize| format!("reading {at} of {count},");
    screen.press(&["Home"]);
    screen.until_shown(&shown(1));
    screen.press(&["Right", "Right", "Left"]);
    screen.until_shown(&shown(2));
    screen.press(&["PageDown"]);
    screen.until_shown(&shown(12));
    screen.press(&["PageUp"]);
    screen.until_shown(&shown(2));
    screen.press(&["Home", "-", "Space"]);
    screen.until_shown("replay, 1×");
    screen.press(&["+"]);
    screen.until_shown("replay, 2×");
    screen.until("the end", |text| {
        text.contains("replay, stopped") && text.contains(&format!("reading {count} of"))
    });
    screen.press(&["Escape"]);
    screen.until_ended(0);
}

#[test]
fn a_plain_terminal_gets_plain_signs_and_no_colour() {
    let Some(screen) = Screen::open(Lab::new()) else { return };
    let colours = |screen: &Screen| screen.tmux(&["capture-pane", "-p", "-e", "-t", "s"]);
    screen.pagelab("watch --every 100ms");
    screen.until_shown("live, every");
    screen.until("a curve in colour", |_| colours(&screen).contains("\u{1b}[36m"));
    screen.press(&["q"]);
    screen.until_ended(0);
    screen.line("export NO_COLOR=1 LC_ALL=C");
    screen.pagelab("watch --every 100ms");
    let text = screen.until_shown("live, every");
    assert!(text.is_ascii(), "{text}");
    screen.until("a curve", |text| text.contains(".."));
    assert!(!colours(&screen).contains("\u{1b}[36m"));
    screen.press(&["q"]);
    screen.until_ended(0);
    screen.line("export TERM=dumb");
    screen.pagelab("watch");
    let text = screen.until_shown("code 4.");
    assert!(text.contains("the terminal cannot move its cursor") && text.contains("--once"), "{text}");
}

#[test]
fn without_a_terminal_watch_prints_an_alternative() {
    let lab = Lab::new();
    let ran = lab.run(&["watch"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(4), ""));
    assert!(ran.err.contains("watch --once") && ran.err.contains("pagelab record"), "{}", ran.err);
    for (arguments, said) in [
        (&["watch", "--every", "1ms"][..], "expected 100ms to 1h"),
        (&["watch", "--every", "soon"], "soon"),
        (&["watch", "--once", "--width", "19"], "an integer from 20 to 1000"),
        (&["watch", "--width", "100"], "--once"),
        (&["watch", "--every", "1s", "a.pagelab"], "cannot be used with"),
    ] {
        let ran = lab.run(arguments);
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(ran.err.contains(said), "{arguments:?}: {}", ran.err);
    }
}

#[test]
fn one_screen_keeps_to_its_size() {
    let lab = Lab::new();
    for (width, height) in [(20, 5), (40, 10), (80, 24), (120, 40), (200, 60)] {
        let (columns, rows) = (width.to_string(), height.to_string());
        let ran = lab.run(&["watch", "--once", "--every", "100ms", "--width", &columns, "--height", &rows]);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
        let widest = ran.out.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= width && ran.out.lines().count() <= height, "{}", ran.out);
        assert!(ran.out.contains("F_u"), "{}", ran.out);
    }
}

#[test]
fn a_run_without_series_is_refused_with_a_hint() {
    let lab = Lab::new();
    assert_eq!(lab.run(&["checkup", "-o", "a.pagelab"]).code, Some(0));
    lab.write("b.pagelab", "not a run file");
    for (file, said) in [("a.pagelab", "pagelab record"), ("b.pagelab", "b.pagelab"), ("none", "none")] {
        let ran = lab.run(&["watch", "--once", file]);
        assert_eq!((ran.code, ran.out.as_str()), (Some(3), ""), "{file}");
        assert!(ran.err.contains(said), "{file}: {}", ran.err);
    }
}
