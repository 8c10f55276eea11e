//! Tables of runs, and the handling of hostile names.

use expect_test::expect;

use super::*;
use crate::run::tests::example::{hostile, probe_run, record};

fn table(run: &Run, file: &str) -> String {
    let all = list_tables(run);
    let files: Vec<String> = all.iter().map(|table| table.file.clone()).collect();
    let found = all.into_iter().find(|table| table.file == file);
    found.unwrap_or_else(|| panic!("no {file} among {files:?}")).into_lines().collect()
}

#[test]
fn a_series_has_units_in_its_head_and_empty_cells_where_a_reading_failed() {
    let text = table(&record(), "series-meminfo.csv");
    expect![[r#"
        at_ns,MemTotal [bytes],MemFree [bytes],Dirty [bytes],HardwareCorrupted [bytes],some avg10 [permille]
        0,25769803776,2147483648,0,,0
        500000000,25769803776,2095054848,9000,,0
        1000000000,25769803776,2042626048,36000,,0
        1500000000,25769803776,1990197248,,,0
    "#]]
    .assert_eq(&text.split_inclusive('\n').take(5).collect::<String>());
    expect![[r#"
        series,source,column,unit,is_counter,is_constant,readings_failed
        meminfo,/proc/meminfo,MemTotal,bytes,false,true,0
        meminfo,/proc/meminfo,MemFree,bytes,false,false,0
        meminfo,/proc/meminfo,Dirty,bytes,false,false,3
        meminfo,/proc/meminfo,HardwareCorrupted,bytes,false,true,20
        meminfo,/proc/meminfo,some avg10,permille,false,false,0
    "#]]
    .assert_eq(&table(&record(), "columns.csv").split_inclusive('\n').take(6).collect::<String>());
}

#[test]
fn samples_and_labels_are_joined_by_the_number_of_their_stream() {
    let run = probe_run();
    expect![[r#"
        stream,name,unit,samples
        1,huge page latency,ns,3
        2,access time,ns,24
        3,access time,ns,24
        4,access time,ns,24
        5,access time,ns,24
    "#]]
    .assert_eq(&table(&run, "streams.csv"));
    expect![[r#"
        stream,label,value
        2,pages,base
        2,bytes,67108864
    "#]]
    .assert_eq(&table(&run, "labels.csv").split_inclusive('\n').take(3).collect::<String>());
    expect![[r#"
        stream,at_ns,value
        1,0,2400000.0
        1,1000000,2500000.0
        1,2000000,4200000.0
        2,0,188.0
    "#]]
    .assert_eq(&table(&run, "samples.csv").split_inclusive('\n').take(5).collect::<String>());
}

#[test]
fn the_manifest_keeps_the_words_of_the_command_line_apart() {
    let text = table(&probe_run(), "manifest.csv");
    let typed = r#"command_line,"[""pagelab"",""checkup"",""--probe"",""--run"",""a b""]""#;
    for line in
        [typed, "seed,7", "started_utc,2026-02-03 14:05:06 UTC", "end_reason,", "vm.min_free_kbytes,67584"]
    {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
}

#[test]
fn cells_are_quoted_spelt_out_and_no_formulas() {
    let cases = [
        ("plain", "plain"),
        ("", "\"\""),
        ("a,b", "\"a,b\""),
        ("say \"hi\"", "\"say \"\"hi\"\"\""),
        (" led", "\" led\""),
        ("two\nlines\r", "two\\nlines\\r"),
        ("\u{1b}[2J\u{202e}\0", "\\u{1b}[2J\\u{202e}\\0"),
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("@SUM(1,2)", "\"'@SUM(1,2)\""),
        ("-5", "-5"),
        ("+1e3", "+1e3"),
        ("-5+cmd", "'-5+cmd"),
    ];
    for (from, cell) in cases {
        assert_eq!(format_line(&[from.into(), Value::Null, 7.into()]), format!("{cell},,7\n"), "{from:?}");
    }
    assert_eq!(
        format_line(&[0.1.into(), f64::MAX.into(), (-0.0).into()]),
        "0.1,1.7976931348623157e308,-0.0\n"
    );
}

#[test]
fn file_names_are_plain_and_differ() {
    let mut taken = BTreeSet::new();
    let names = ["meminfo", "MemInfo", "../../etc/passwd", "..", "", "meminfo", "a b\n=1"];
    let free = names.map(|name| unique_name(name, &mut taken));
    expect![[r#"["meminfo", "MemInfo-2", "_.._etc_passwd", "unnamed", "unnamed-2", "meminfo-3", "a_b__1"]"#]]
        .assert_eq(&format!("{free:?}"));
    for _ in 0..2000 {
        assert!(unique_name(&"x".repeat(500), &mut taken).len() < 100);
    }
    assert_eq!(taken.len(), 2007);
}

#[test]
fn a_hostile_run_gives_as_many_cells_in_each_line() {
    for table in list_tables(&hostile()) {
        assert!(!table.file.contains(['/', '\n', '\x1b']) && table.file.len() < 100, "{:?}", table.file);
        let (file, width) = (table.file.clone(), table.column_names.len());
        for line in table.into_lines() {
            assert_eq!(line.matches('\n').count(), 1, "{file}: {line:?}");
            assert!(!line.trim_end_matches('\n').chars().any(crate::style::is_invisible), "{file}: {line:?}");
            let (mut quoted, mut commas) = (false, 0);
            for sign in line.chars() {
                quoted ^= sign == '"';
                commas += usize::from(sign == ',' && !quoted);
            }
            assert_eq!((commas + 1, quoted), (width, false), "{file}: {line:?}");
        }
    }
}
