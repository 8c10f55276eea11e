//! Screens of a synthetic recording at several sizes.

mod hostile;

use expect_test::{Expect, expect};
use pagelab_metrics::standard_series::{BUDDYINFO, MEMINFO, PRESSURE, VMSTAT};
use pagelab_model::run::{
    ClockReading, Column, ColumnHeader, ColumnValues, Manifest, Run, RunEnd, RunEvent, Series,
};
use pagelab_model::{PageSize, Snapshot};

use super::{TerminalCapabilities, labels, render, to_text};
use crate::Source;
use crate::keys::{Key, KeyResponse};
use crate::player::Player;
use crate::replay::Recording;

const LOOK: TerminalCapabilities =
    TerminalCapabilities { has_unicode: true, has_colour: false, has_keyboard: true };
const S: u64 = 1_000_000_000;
const ROWS: u64 = 90;

fn series(name: &str, columns: Vec<(String, &str, Vec<Option<i64>>)>) -> Series {
    let column = |(name, unit, values): (String, &str, Vec<Option<i64>>)| Column {
        header: ColumnHeader { name, unit: unit.into(), is_counter: false },
        values: ColumnValues::Varying(values),
    };
    Series {
        name: name.to_owned(),
        source: "a test".to_owned(),
        at_ns: (0..ROWS).map(|row| row * 5 * S).collect(),
        columns: columns.into_iter().map(column).collect(),
    }
}

fn samples(value: impl Fn(i64) -> i64) -> Vec<Option<i64>> {
    (0..ROWS as i64).map(|row| Some(value(row))).collect()
}

/// A machine whose memory becomes fragmented, with a counter that decreases once.
fn run() -> Run {
    let snapshot = Snapshot::new_unread("a test", PageSize::DEFAULT);
    let mut machine = snapshot.machine;
    machine.host_name = Some("vm-17".to_owned());
    machine.kernel_release = Ok("6.18.0".to_owned());
    let manifest = Manifest {
        kind: "record".to_owned(),
        tool_version: "0".to_owned(),
        command_line: Vec::new(),
        seed: None,
        started: ClockReading { realtime_ns: 1_770_127_506 * S, boottime_ns: 0 },
        machine,
        settings: snapshot.settings,
    };
    // Large blocks disappear.
    let left = |order: i64, row: i64| if order > 6 { (100 - row).pow(2) / 50 } else { 50 + row };
    let blocks =
        |zone: i64, order: i64| samples(move |row| (14 - order) * (40 - zone * 10) * left(order, row) / 50);
    let buddyinfo = (0..3).flat_map(|zone| {
        let name = ["DMA", "DMA32", "Normal"][zone as usize];
        (0..11).map(move |order| (format!("0/{name}/{order}"), "count", blocks(2 - zone, order)))
    });
    let gib = 1 << 30;
    let memory =
        [("MemTotal", 24 * gib), ("MemFree", 8 * gib), ("MemAvailable", 20 * gib), ("AnonPages", gib)];
    let meminfo = memory.map(|(name, bytes)| (name.to_owned(), "bytes", samples(move |row| bytes - row)));
    let stalls = samples(|row| if row < 80 { row * row } else { row });
    let vmstat = vec![
        ("thp_fault_alloc".to_owned(), "count", samples(|row| row * 1234)),
        ("compact_stall".to_owned(), "count", stalls),
        ("pgscan_kswapd".to_owned(), "count", samples(|row| row.pow(3) * 7)),
    ];
    let some = vec![("memory.some.avg10".to_owned(), "centipercent", samples(|row| row * 10))];
    let mut run = Run::new("a.pagelab", manifest, RunEnd::NotClosed);
    run.series = vec![
        series(BUDDYINFO, buddyinfo.collect()),
        series(MEMINFO, meminfo.to_vec()),
        series(VMSTAT, vmstat),
        series(PRESSURE, some),
    ];
    run.events = vec![RunEvent { at_ns: 400 * S, kind: "missed".to_owned(), text: "3 ticks".to_owned() }];
    run
}

fn screen(keys: &[Key], width: u16, height: u16, capabilities: TerminalCapabilities) -> String {
    let run = run();
    let (mut player, mut view) = Player::open(Recording::from_run(&run).unwrap());
    for &key in keys {
        if view.handle_key(key) == KeyResponse::Ignored {
            player.handle_key(key, 0, &mut view);
        }
    }
    to_text(&render(&view, width, height, capabilities))
}

fn check(keys: &[Key], width: u16, height: u16, capabilities: TerminalCapabilities, wanted: &Expect) {
    let found = screen(keys, width, height, capabilities);
    let widest = found.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    assert!(widest <= usize::from(width) && found.lines().count() <= usize::from(height));
    // A mark before each line preserves leading blanks.
    wanted.assert_eq(&found.lines().map(|line| format!("|{line}\n")).collect::<String>());
}

#[test]
fn eighty_by_twenty_four_shows_everything_essential() {
    check(
        &[],
        80,
        24,
        LOOK,
        &expect![[r#"
            | pagelab watch  vm-17             replay, stopped (10×)  2026-02-03 14:12:31 UTC
            | memory     total     free    avail programs    cache     slab pgtables  hugetlb
            |         24.0 GiB    8 GiB 20.0 GiB    1 GiB        –        –        –        –
            | pressure  some 8.90 %   full – %      over 10 s █              swap used – of –
            | THP       –  defrag –  in use –  44 free 2 MiB pages
            | zones                    free   2 MiB pages   F_u(9)  F_u(9) over time
            |  0 DMA                273 MiB            10    0.926  ▅▅▅▅▅▆▆▆▆▆▆▆▆▇▇▇▇▇▇▇████
            |  0 DMA32              409 MiB            14    0.931  ▅▅▅▅▅▅▆▆▆▆▆▆▆▇▇▇▇▇▇▇████
            |› 0 Normal             548 MiB            20    0.926  ▅▅▅▅▅▅▆▆▆▆▆▆▆▇▇▇▇▇▇▇████
            | 0 Normal     blocks    F_u  over time    rates                      per second
            |   0    4 KiB  1 556  0.000  ▁▁▁▁▁▁▁▁▁▁▁▁ THP     alloc, fallback       247 / –
            |   1    8 KiB  1 445  0.011  ▁▁▁▁▁▁▁▁▁▁▁▁         collapse, failed        – / –
            |   2   16 KiB  1 334  0.031  ▁▁▁▁▁▁▁▁▁▁▁▁         split page, PMD         – / –
            |   3   32 KiB  1 223  0.069  ▁▁▁▁▁▁▁▁▁▁▁▁ compact stalls                   0.20
            |   4   64 KiB  1 112  0.139  ▁▁▁▁▁▁▁▂▂▂▂▂         success, failed         – / –
            |   5  128 KiB  1 000  0.266  ▂▂▂▂▂▂▂▂▃▃▃▃         scan migr., free        – / –
            |   6  256 KiB    889  0.494  ▃▃▃▄▄▄▄▄▄▄▄▄         moved, failed           – / –
            |   7  512 KiB     11  0.900  ▆▆▆▆▆▇▇▇▇▇██         kcompactd wakes             –
            |   8    1 MiB      9  0.910  ▆▆▆▆▇▇▇▇▇▇██ kswapd  scan, steal         32.9k / –
            |   9    2 MiB      8  0.926  ▆▇▇▇▇▇▇▇████ direct  scan, steal             – / –
            |  10    4 MiB      6  0.956  ▇▇▇▇████████         allocstall                  –
            | reading 90 of 90, at 7 min 25 s          swap    in, out                 – / –
            | 45 s earlier: missed: 3 ticks            extfrag events                no data
            | q quit  ? help  space play  arrows step  PgUp/Dn jump  +/- speed  Tab zone
        "#]],
    );
}

#[test]
fn an_earlier_reading_is_shown_as_it_was() {
    check(
        &[Key::PageUp, Key::Tab, Key::Char('r')],
        80,
        24,
        LOOK,
        &expect![[r#"
            | pagelab watch  vm-17             replay, stopped (10×)  2026-02-03 14:11:41 UTC
            | memory     total     free    avail programs    cache     slab pgtables  hugetlb
            |         24.0 GiB    8 GiB 20.0 GiB    1 GiB        –        –        –        –
            | pressure  some 7.90 %   full – %      over 10 s █              swap used – of –
            | THP       –  defrag –  in use –  184 free 2 MiB pages
            | zones                    free   2 MiB pages   F_u(9)  F_u(9) over time
            |› 0 DMA                339 MiB            40    0.763  ▄▄▄▄▄▄▅▅▅▅▅▅▅▅▅▆▆▆▆▆▆▆▆▇
            |  0 DMA32              512 MiB            62    0.757  ▄▄▄▄▄▄▅▅▅▅▅▅▅▅▅▅▆▆▆▆▆▆▆▇
            |  0 Normal             682 MiB            82    0.759  ▄▄▄▄▄▄▅▅▅▅▅▅▅▅▅▅▆▆▆▆▆▆▆▇
            | 0 DMA        blocks    F_u  over time    rates                 since its start
            |   0    4 KiB    722  0.000  ▁▁▁▁▁▁▁▁▁▁▁▁ THP     alloc, fallback     97.5k / –
            |   1    8 KiB    670  0.008  ▁▁▁▁▁▁▁▁▁▁▁▁         collapse, failed        – / –
            |   2   16 KiB    619  0.023  ▁▁▁▁▁▁▁▁▁▁▁▁         split page, PMD         – / –
            |   3   32 KiB    567  0.052  ▁▁▁▁▁▁▁▁▁▁▁▁ compact stalls                  6.24k
            |   4   64 KiB    516  0.104  ▁▁▁▁▁▁▁▁▁▁▁▁         success, failed         – / –
            |   5  128 KiB    464  0.199  ▂▂▂▂▂▂▂▂▂▂▂▂         scan migr., free        – / –
            |   6  256 KiB    412  0.371  ▂▂▃▃▃▃▃▃▃▃▃▃         moved, failed           – / –
            |   7  512 KiB     22  0.675  ▄▄▄▄▅▅▅▅▅▅▆▆         kcompactd wakes             –
            |   8    1 MiB     19  0.707  ▄▄▅▅▅▅▅▅▆▆▆▆ kswapd  scan, steal         3.45M / –
            |   9    2 MiB     16  0.763  ▅▅▅▆▆▆▆▆▆▆▆▇ direct  scan, steal             – / –
            |  10    4 MiB     12  0.858  ▆▆▇▇▇▇▇▇▇▇▇▇         allocstall                  –
            | reading 80 of 90, at 6 min 35 s          swap    in, out                 – / –
            |                                          extfrag events                no data
            | q quit  ? help  space play  arrows step  PgUp/Dn jump  +/- speed  Tab zone
        "#]],
    );
}

#[test]
fn a_small_screen_says_that_there_is_more() {
    check(
        &[],
        40,
        10,
        LOOK,
        &expect![[r#"
            | vm-17  replay, stopped (10×)
            | F_u(9) 0.926  0 Normal  20 × 2 MiB
            | F_u(j) ▁▁▁▁▂▃▄████
            | F_u(9) over time ▅▅▅▅▆▆▆▆▆▆▆▇▇▇▇▇▇▇████
            | available 20.0 GiB  free 8 GiB
            | pressure  some 8.90 %  full – %
            | THP  –  in use –
            | programs 1 GiB  cache –  slab –
            | 2026-02-03 14:12:31 UTC
            | q quit  ? help          80×24 shows all
        "#]],
    );
    check(
        &[],
        20,
        5,
        LOOK,
        &expect![[r#"
            | vm-17
            | F_u(9) 0.926
            | F_u(j) ▁▁▁▁▂▃▄████
            | F_u(9) over time ██
            | q quit  ? help
        "#]],
    );
    check(
        &[],
        12,
        1,
        LOOK,
        &expect![[r#"
            |20×5 minimum
        "#]],
    );
}

#[test]
fn larger_screens_have_charts() {
    check(
        &[],
        120,
        40,
        LOOK,
        &expect![[r#"
            | pagelab watch  vm-17  Linux 6.18.0                                       replay, stopped (10×)  2026-02-03 14:12:31 UTC
            | memory          total          free         avail      programs         cache          slab      pgtables       hugetlb
            |              24.0 GiB         8 GiB      20.0 GiB         1 GiB             –             –             –             –
            | pressure  some 8.90 %   full – %      over 10 s ▅▅▅▅▅▅▅▆▆▆▆▆▆▆▆▆▆▆▇▇▇▇▇▇▇▇▇▇▇████████████              swap used – of –
            | THP       –  defrag –  in use –  44 free 2 MiB pages
            | zones                    free   2 MiB pages   F_u(9)  F_u(9) over time
            |  0 DMA                273 MiB            10    0.926  ▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▅▅▅▅▅▅▅▅▅▆▆▆▆▆▆▆▆▇▇▇▇▇▇▇████
            |  0 DMA32              409 MiB            14    0.931  ▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▅▅▅▅▅▅▅▅▅▅▆▆▆▆▆▆▆▇▇▇▇▇▇▇████
            |› 0 Normal             548 MiB            20    0.926  ▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▅▅▅▅▅▅▅▅▅▅▆▆▆▆▆▆▆▇▇▇▇▇▇▇████
            | 0 Normal     blocks    F_u  over time                       rates                      per second  first, over time
            |   0    4 KiB  1 556  0.000  ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁ THP     alloc, fallback       247 / –  ███████████████████
            |   1    8 KiB  1 445  0.011  ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁         collapse, failed        – / –
            |   2   16 KiB  1 334  0.031  ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁         split page, PMD         – / –
            |   3   32 KiB  1 223  0.069  ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁ compact stalls                   0.20  █████████ ▂▂▂▂▂▂▂▂▂
            |   4   64 KiB  1 112  0.139  ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▂▂▂▂▂         success, failed         – / –
            |   5  128 KiB  1 000  0.266  ▁▁▁▁▁▁▁▁▁▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▃▃▃▃         scan migr., free        – / –
            |   6  256 KiB    889  0.494  ▂▂▂▂▂▂▂▂▂▂▂▃▃▃▃▃▃▃▃▃▃▃▄▄▄▄▄▄▄▄▄         moved, failed           – / –
            |   7  512 KiB     11  0.900  ▃▃▃▃▃▃▄▄▄▄▄▄▄▅▅▅▅▅▅▆▆▆▆▆▇▇▇▇▇██         kcompactd wakes             –
            |   8    1 MiB      9  0.910  ▃▃▄▄▄▄▄▄▄▄▄▅▅▅▅▅▅▆▆▆▆▆▆▇▇▇▇▇▇██ kswapd  scan, steal         32.9k / –  ▆▆▆▆▆▆▆▇▇▇▇▇▇██████
            |   9    2 MiB      8  0.926  ▄▄▄▅▅▅▅▅▅▅▅▅▅▆▆▆▆▆▆▆▇▇▇▇▇▇▇████ direct  scan, steal             – / –
            |  10    4 MiB      6  0.956  ▆▆▆▆▆▆▆▆▆▆▆▇▇▇▇▇▇▇▇▇▇▇▇████████         allocstall                  –
            |                                                             swap    in, out                 – / –
            | reading 90 of 90, at 7 min 25 s                             extfrag events                no data  not recorded
            | 45 s earlier: missed: 3 ticks                               OOM     kills                       –
            |
            | F_u(9) of 0 Normal  0.926                                   free 2 MiB pages in 0 Normal  20
            |     1.000                                             ⢀⣀⡤⠖         5k
            |                                                 ⢀⣀⡤⠴⠒⠚⠉
            |                                     ⢀⣀⣀⣀⣠⠤⠤⠤⠖⠒⠚⠉⠉                        ⣀⣀
            |              ⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠚⠉⠉⠉⠉⠉⠉⠉                                     ⠈⠉⠉⠉⠓⠒⠒⠲⠤⠤⠤⢤⣀⣀⣀⣀⡀
            |     0.000                                                           0                     ⠉⠉⠉⠉⠉⠓⠒⠒⠒⠒⠒⠦⠤⠤⠤⠤⠤⠤⠤⠤⢤⣀⣀⣀⣀⣀⣀⣀
            |           8 min 0 s ago                                now            8 min 0 s ago                                now
            | available memory  20.0 GiB                                  pressure (some), %  8.90
            |  24.0 GiB    ⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀         10                                             ⣀⣀⣠⠤
            |                                                                                                        ⢀⣀⣀⡤⠤⠤⠖⠒⠚⠉⠉⠁
            |                                                                                              ⣀⣀⣠⠤⠤⠖⠒⠒⠋⠉⠉
            |                                                                                   ⢀⣀⣀⡤⠤⠴⠒⠒⠚⠉⠉⠁
            |       0 B                                                           0    ⣀⣠⠤⠤⠖⠒⠒⠋⠉⠉
            |           8 min 0 s ago                                now            8 min 0 s ago                                now
            | q quit  ? help  space play  arrows step  PgUp/Dn jump  +/- speed  Tab zone  r rates  z zoom  j/k orders
        "#]],
    );
    check(
        &[Key::Char('z')],
        200,
        60,
        LOOK,
        &expect![[r#"
            | pagelab watch  vm-17  Linux 6.18.0                                                                                                                       replay, stopped (10×)  2026-02-03 14:12:31 UTC
            | memory          total          free         avail      programs         cache          slab      pgtables       hugetlb
            |              24.0 GiB         8 GiB      20.0 GiB         1 GiB             –             –             –             –
            | pressure  some 8.90 %   full – %      over 10 s                                                                             ▂▂▂▂▂▂▂▂▂▂▂▃▃▃▃▃▃▄▄▄▄▄▅▅▅▅▅▅▆▆▆▆▆▇▇▇▇▇▇██████              swap used – of –
            | THP       –  defrag –  in use –  44 free 2 MiB pages
            | zones                    free   2 MiB pages   F_u(9)  F_u(9) over time
            |  0 DMA                273 MiB            10    0.926                                                                                                     ▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▄▄▄▄▄▄▄▄▄▄▅▅▅▅▅▆▆▆▇▇▇▇██
            |  0 DMA32              409 MiB            14    0.931                                                                                                     ▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▄▄▄▄▄▄▄▄▄▄▅▅▅▅▅▆▆▆▆▇▇▇██
            |› 0 Normal             548 MiB            20    0.926                                                                                                     ▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▄▄▄▄▄▄▄▄▄▄▅▅▅▅▅▆▆▆▆▇▇▇██
            | 0 Normal     blocks    F_u  over time                                                               rates                      per second  first, over time
            |   0    4 KiB  1 556  0.000                            ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁ THP     alloc, fallback       247 / –                █████████████████████████████████████████████
            |   1    8 KiB  1 445  0.011                            ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁         collapse, failed        – / –
            |   2   16 KiB  1 334  0.031                            ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁         split page, PMD         – / –
            |   3   32 KiB  1 223  0.069                            ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁ compact stalls                   0.20                ▂▂▂▂▂▂▂▂▂▂▃▃▃▃▃▄▄▄▄▄▅▅▅▅▅▆▆▆▆▆▇▇▇▇▇█████ ▂▂▂▂
            |   4   64 KiB  1 112  0.139                            ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▂▂         success, failed         – / –
            |   5  128 KiB  1 000  0.266                            ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▂▂▂▂▂▂▂▂▂▃▃         scan migr., free        – / –
            |   6  256 KiB    889  0.494                            ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▂▂▂▂▂▂▂▂▃▃▃▃▃▄▄▄▄▄         moved, failed           – / –
            |   7  512 KiB     11  0.900                            ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▂▂▂▂▂▂▂▂▂▃▃▃▃▃▄▄▄▅▅▅▆▆▇▇▇█         kcompactd wakes             –
            |   8    1 MiB      9  0.910                            ▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▃▃▃▃▃▃▃▄▄▄▄▄▅▅▅▆▆▆▇▇▇█ kswapd  scan, steal         32.9k / –                ▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▃▃▃▃▃▄▄▄▄▄▅▅▅▆▆▆▆▇▇▇███
            |   9    2 MiB      8  0.926                            ▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▄▄▄▄▄▄▄▄▄▄▅▅▅▅▅▆▆▆▆▇▇▇██ direct  scan, steal             – / –
            |  10    4 MiB      6  0.956                            ▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▆▆▆▆▆▆▆▆▆▆▆▆▇▇▇▇▇▇████         allocstall                  –
            |                                                                                                     swap    in, out                 – / –
            | reading 90 of 90, at 7 min 25 s                                                                     extfrag events                no data  not recorded
            | 45 s earlier: missed: 3 ticks                                                                       OOM     kills                       –
            |
            | F_u(9) of 0 Normal  0.926                                         free 2 MiB pages in 0 Normal  20                                  available memory  20.0 GiB
            |     1.000                                                      ⢀         5k                                                          24.0 GiB
            |                                                               ⡴⠋                                                                                                             ⠠⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤
            |                                                             ⣠⠞⠁
            |                                                           ⣀⡼⠁
            |                                                        ⣀⡤⠞⠁
            |                                                 ⢀⣀⣀⡤⠴⠒⠋⠁                                                   ⠐⠲⢤⣀
            |                                          ⠐⠒⠒⠋⠉⠉⠉⠉                                                             ⠈⠙⠲⢤⣀
            |                                                                                                                   ⠈⠉⠓⠦⢤⣀⣀
            |     0.000                                                                 0                                             ⠈⠉⠓⠒⠲⠤⠤⠤⣄⣀        0 B
            |           18 min 0 s ago                                     now            18 min 0 s ago                                     now            18 min 0 s ago                                     now
            | pressure (some), %  8.90                                          THP fallbacks per second  –                                       pages scanned by the migrate scanner, per second  –
            |        10
            |                                                              ⢀⡴⠚
            |                                                           ⢀⡤⠞⠉
            |                                                        ⢀⣠⠞⠉
            |                                                     ⢀⣠⠖⠋
            |                                                   ⣠⠴⠋
            |                                                ⣠⠴⠋⠁
            |                                             ⣀⡴⠚⠁
            |         0                                ⢀⡴⠚⠁                             0                                                                 0
            |           18 min 0 s ago                                     now            18 min 0 s ago                                     now            18 min 0 s ago                                     now
            | pages scanned by kswapd, per second  32.9k                        direct reclaim stalls per second  –                               pages swapped out per second  –
            |       50k
            |
            |
            |                                                               ⣠⠞
            |                                                             ⣠⠞⠁
            |                                                          ⢀⡴⠚⠁
            |                                                       ⢀⡤⠞⠉
            |                                                   ⢀⣠⠴⠚⠉
            |         0                                ⢀⣀⣀⣀⡤⠤⠴⠒⠋⠉                       0                                                                 0
            |           18 min 0 s ago                                     now            18 min 0 s ago                                     now            18 min 0 s ago                                     now
            |
            | q quit  ? help  space play  arrows step  PgUp/Dn jump  +/- speed  Tab zone  r rates  z zoom  j/k orders
        "#]],
    );
}

#[test]
fn help_explains_every_key_that_the_footer_names() {
    check(
        &[Key::Char('?')],
        80,
        24,
        LOOK,
        &expect![[r#"
            | keys
            |   space       play or stop; at the end, play from the start
            |   left right  previous or next reading
            |   PgUp PgDn   jump back or ahead; Home, End: first and last reading
            |   + -         faster or slower
            |   q Esc       quit
            |   Tab up down select the zone for orders and charts
            |   r           rate over the last interval, or total since the start
            |   z Z         more or fewer samples per point of a curve (1 to 64)
            |   j k         scroll the orders if they do not all fit
            | words
            |   F_u(j)      unusable free space: share of free memory in blocks below order j
            |   programs    AnonPages + Shmem; cache is Buffers + Cached without Shmem
            |   pressure    share of the last 10 s in which some or all tasks stalled (PSI)
            |   THP         thp_fault_alloc, _fallback; thp_collapse_alloc…; thp_split_…
            |   compact     compact_stall, _success, _fail, _migrate_scanned, _free_scanned
            |   moved       pgmigrate_success, pgmigrate_fail, in pages; compact_daemon_wake
            |   reclaim     pgscan_ and pgsteal_kswapd and _direct, in pages; allocstall
            |   swap        pswpin, pswpout, in pages
            |   extfrag     kmem:mm_page_alloc_extfrag: fallbacks to another migratetype
            |   –           absent, unreadable, or a counter that decreased; never 0
            |   not seen    extfrag: not recorded
            |
            | ? or Esc: back
        "#]],
    );
}

#[test]
fn without_unicode_every_sign_is_ascii() {
    let plain = TerminalCapabilities { has_unicode: false, ..LOOK };
    for (width, height) in [(20, 5), (40, 10), (80, 24), (120, 40)] {
        for keys in [&[][..], &[Key::Char('?')], &[Key::Home]] {
            let found = screen(keys, width, height, plain);
            assert!(found.is_ascii(), "{found}");
        }
    }
    check(
        &[],
        80,
        24,
        plain,
        &expect![[r#"
            | pagelab watch  vm-17             replay, stopped (10*)  2026-02-03 14:12:31 UTC
            | memory     total     free    avail programs    cache     slab pgtables  hugetlb
            |         24.0 GiB    8 GiB 20.0 GiB    1 GiB        -        -        -        -
            | pressure  some 8.90 %   full - %      over 10 s @              swap used - of -
            | THP       -  defrag -  in use -  44 free 2 MiB pages
            | zones                    free   2 MiB pages   F_u(9)  F_u(9) over time
            |  0 DMA                273 MiB            10    0.926  +++++********%%%%%%%@@@@
            |  0 DMA32              409 MiB            14    0.931  ++++++*******%%%%%%%@@@@
            |> 0 Normal             548 MiB            20    0.926  ++++++*******%%%%%%%@@@@
            | 0 Normal     blocks    F_u  over time    rates                      per second
            |   0    4 KiB  1 556  0.000  ............ THP     alloc, fallback       247 / -
            |   1    8 KiB  1 445  0.011  ............         collapse, failed        - / -
            |   2   16 KiB  1 334  0.031  ............         split page, PMD         - / -
            |   3   32 KiB  1 223  0.069  ............ compact stalls                   0.20
            |   4   64 KiB  1 112  0.139  .......:::::         success, failed         - / -
            |   5  128 KiB  1 000  0.266  ::::::::----         scan migr., free        - / -
            |   6  256 KiB    889  0.494  ---=========         moved, failed           - / -
            |   7  512 KiB     11  0.900  *****%%%%%@@         kcompactd wakes             -
            |   8    1 MiB      9  0.910  ****%%%%%%@@ kswapd  scan, steal         32.9k / -
            |   9    2 MiB      8  0.926  *%%%%%%%@@@@ direct  scan, steal             - / -
            |  10    4 MiB      6  0.956  %%%%@@@@@@@@         allocstall                  -
            | reading 90 of 90, at 7 min 25 s          swap    in, out                 - / -
            | 45 s earlier: missed: 3 ticks            extfrag events                no data
            | q quit  ? help  space play  arrows step  PgUp/Dn jump  +/- speed  Tab zone
        "#]],
    );
}

#[test]
fn colour_says_nothing_that_the_text_does_not() {
    let colour = TerminalCapabilities { has_colour: true, ..LOOK };
    assert_eq!(screen(&[], 120, 40, colour), screen(&[], 120, 40, LOOK));
}

#[test]
fn many_zones_and_orders_are_scrolled() {
    let mut run = run();
    let zones = (0..12).flat_map(|node| (0..14).map(move |order| (node, order)));
    let column = |(node, order): (i64, i64)| {
        (format!("{node}/Normal/{order}"), "count", samples(move |_| 1 + (node == 6) as i64 + order))
    };
    run.series[0] = series(BUDDYINFO, zones.map(column).collect());
    let (_, mut view) = Player::open(Recording::from_run(&run).unwrap());
    for _ in 0..20 {
        view.handle_key(Key::Char('j'));
    }
    let found = to_text(&render(&view, 80, 24, LOOK));
    for part in ["zones 6 to 8 of 12", "› 6 Normal", "3-13 of 0-13", " 13   32 MiB"] {
        assert!(found.contains(part), "{part}:\n{found}");
    }
    view.handle_key(Key::Char('k'));
    let found = to_text(&render(&view, 80, 24, LOOK));
    assert!(found.contains("2-12 of 0-13"), "one line back from the end:\n{found}");
    view.handle_key(Key::BackTab);
    assert!(to_text(&render(&view, 80, 30, LOOK)).contains("› 5 Normal"));
}

#[test]
fn the_document_names_every_rate_and_key() {
    let document = include_str!("../../../../docs/watch.md");
    for (_, label, _) in labels::RATE_ROWS {
        assert!(document.contains(label), "{label}");
    }
    for (counter, names) in crate::sample::Counter::ALL {
        let is_named = |name: &&str| document.contains(&format!("`{name}`"));
        assert!(names.is_empty() || names.iter().any(is_named) || names[0] == "allocstall", "{counter:?}");
    }
    let run = run();
    let (_, view) = Player::open(Recording::from_run(&run).unwrap());
    for key in labels::key_hints(&view).into_iter().flat_map(|(key, _)| key.split('/')) {
        let written = match key {
            "arrows" => "left, right",
            "space" => "| space |",
            "Dn" => "PgDn",
            _ => key,
        };
        assert!(document.contains(written), "{key}");
    }
}
