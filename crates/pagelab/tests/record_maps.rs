//! Tests of `pagelab record --maps`, and of the recorded maps.
#![allow(clippy::unwrap_used, clippy::print_stderr, missing_docs)]

mod support;

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::Lab;

/// Root's own file; elsewhere `record --maps` says why it has none, which is tested below.
fn may_scan() -> bool {
    let may = std::fs::File::open("/proc/kpageflags").is_ok();
    if !may {
        eprintln!("skipped: kpageflags-unreadable: /proc/kpageflags cannot be read here");
    }
    may
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Whether the file has so many maps within two minutes.
fn has_maps(lab: &Lab, count: usize) -> bool {
    let until = Instant::now() + Duration::from_secs(120);
    let maps =
        || pagelab_runfile::read_run_file(&lab.path().join("m.pagelab")).map_or(0, |run| run.maps.len());
    while maps() < count {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    true
}

#[test]
fn recorded_maps_are_in_reports() {
    if !may_scan() {
        return;
    }
    let lab = Lab::new();
    let asked = ["record", "-o", "m.pagelab", "--every", "500ms", "--for", "10min", "--maps", "1s"];
    let child = lab.command(&asked).spawn().unwrap();
    assert!(has_maps(&lab, 3), "three maps come within two minutes");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{}", String::from_utf8_lossy(&ended.stderr));
    let report = lab.run(&["report", "m.pagelab"]);
    assert!(report.out.contains("pagelab map --diff m.pagelab@first m.pagelab@last"), "{}", report.out);
    let page = lab.run(&["report", "--html", "m.html", "m.pagelab"]);
    assert_eq!(page.code, Some(0), "{}", page.err);
    let recorded = json(&lab.run(&["report", "--json", "m.pagelab"]).out);
    let recorded = recorded["runs"][0]["maps"].as_array().map_or(0, Vec::len);
    let blocks = std::fs::read_to_string(lab.path().join("m.html")).unwrap();
    assert!(recorded > 1 && blocks.matches("application/octet-stream").count() > recorded, "{recorded} maps");
    // A map that was taken out: the ones before it are shown, and the rest of the report.
    std::fs::copy(lab.path().join("m.pagelab"), lab.path().join("cut.pagelab")).unwrap();
    let sql = "DELETE FROM blob WHERE id = (SELECT max(id) - 1 FROM blob WHERE kind = 'page_map')";
    let cut = std::process::Command::new("sqlite3").arg(lab.path().join("cut.pagelab")).arg(sql).status();
    if cut.is_ok_and(|status| status.success()) {
        let page = lab.run(&["report", "--html", "cut.html", "cut.pagelab"]);
        assert!(
            page.code == Some(3) && page.err.contains("its reference map is not the previous map"),
            "{}",
            page.err
        );
        assert!(page.out.contains("→ cut.html"), "{}", page.out);
        let map = lab.run(&["map", "cut.pagelab"]);
        assert!(
            map.code == Some(3) && map.err.contains("its reference map is not the previous map"),
            "{}",
            map.err
        );
    }
    let one = |moment: &str| json(&lab.run(&["map", moment, "--json"]).out);
    let (first, last) = (one("m.pagelab@first"), one("m.pagelab"));
    let pages = |map: &Value| -> u64 {
        map["classes"].as_array().unwrap().iter().map(|class| class["pages"].as_u64().unwrap()).sum()
    };
    assert_eq!(pages(&first), pages(&last), "no memory was plugged meanwhile");
    let difference = lab.run(&["map", "--diff", "m.pagelab@first", "m.pagelab@last", "--json"]);
    assert_eq!(difference.code, Some(0), "{}", difference.err);
    // Free pages of the first map and what became free and used make the free pages of the last.
    let free = |map: &Value| -> i64 {
        let classes = map["classes"].as_array().unwrap();
        classes
            .iter()
            .filter(|class| class["class"] == "free")
            .map(|class| class["pages"].as_i64().unwrap())
            .sum()
    };
    let difference = json(&difference.out);
    let moved = |from: bool| -> i64 {
        let all = difference["transitions"].as_array().unwrap();
        let (here, there) =
            if from { ("class_before", "class_after") } else { ("class_after", "class_before") };
        let of = all.iter().filter(|pair| pair[here] == "free" && pair[there] != "free");
        of.map(|pair| pair["pages"].as_i64().unwrap()).sum()
    };
    assert_eq!(free(&last) - free(&first), moved(false) - moved(true));
}

/// Maps do not wait for a tick that is far away.
#[test]
fn maps_are_written_between_ticks() {
    if !may_scan() {
        return;
    }
    let lab = Lab::new();
    let asked = ["record", "-o", "m.pagelab", "--metrics", "meminfo", "--every", "1h", "--maps", "1s"];
    let mut child = lab.command(&asked).spawn().unwrap();
    let seen = has_maps(&lab, 2);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(seen, "two maps come while the first tick is the only one");
}

#[test]
fn missing_moments_are_reported() {
    let lab = Lab::new();
    assert_eq!(
        lab.run(&["record", "-o", "none.pagelab", "--every", "100ms", "--for", "200ms"]).code,
        Some(0)
    );
    for (moment, code, said) in [
        ("none.pagelab", 3, "it contains no maps\nhint: record them with `pagelab record --maps 1m`"),
        ("none.pagelab@soon", 2, "expected"),
        ("gone.pagelab@last", 3, "gone.pagelab"),
    ] {
        let ran = lab.run(&["map", moment]);
        assert_eq!(ran.code, Some(code), "{moment}: {}", ran.err);
        assert!(ran.err.contains(said), "{moment}: {}", ran.err);
    }
    let ran = lab.run(&["map", "--check", "none.pagelab"]);
    assert!(
        ran.code == Some(2) && ran.err.contains("a recorded map has no buddyinfo from the same time"),
        "{}",
        ran.err
    );
    let ran = lab.run(&["record", "-o", "x.pagelab", "--maps", "1ms"]);
    assert!(ran.code == Some(2) && ran.err.contains("--maps <TIME>': expected 1s to 1d"), "{}", ran.err);
}
