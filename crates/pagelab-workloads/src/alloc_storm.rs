//! Eight small tests of what the kernel does for every program: after AIM9 (Caldera's AIM Independent
//! Resource Benchmark), as used to compare kernels by Gorman and Whitcroft (OLS 2006). Each is a rate of its
//! own:
//!
//! | test | an operation |
//! |---|---|
//! | creat_clo | one file created or cut off, and closed |
//! | page_test | the break moved up by a page, and 128 bytes apart written to |
//! | brk_test | the break moved up by a page (every sixteenth time down by sixteen) |
//! | jmp_test | `_setjmp`, ten calls, `longjmp` |
//! | signal_test | SIGUSR2 sent to this thread and caught |
//! | exec_test | a child forked that runs a small program, and waited for |
//! | fork_test | a child forked that leaves at once, and waited for |
//! | link_test | one of seven links to a file taken away and made again |
//!
//! Unlike AIM9, a signal is sent to the thread and not to the process, which has other threads here, and the
//! break is moved in a child, whose allocator never runs. A child copies the page tables of this process, so
//! its size is part of the figures of forks; `ballast` makes it larger.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;

use pagelab_model::Bytes;
use pagelab_model::experiment::Better;
use pagelab_model::seed::SplitMix64;
use pagelab_sys::storm::{Storm, Until, breaks, children, jumps, repeat, signals};

use crate::folder::{FOLDER, OwnFolder};
use crate::options::{Kind, OptionHead, Options, SEED, size};
use crate::phase::Phase;
use crate::program::{PROGRAM, SmallProgram};
use crate::{Done, Failed, Figure, Merit, Workload, memory};

/// The tests as a workload.
pub const WORKLOAD: Workload = Workload {
    name: "alloc-storm",
    about: "Files, pages, breaks, jumps, signals, execs, forks and links, each in operations per second",
    generator: "eight loops, one after the other in an order that the seed draws, each for a fixed time or \
                count; pages are taken one by one and written at every 128th byte, hence touched first",
    options: &[SIZE, SEED, memory::ADVISE, TEST, UNTIL, MILLISECONDS, COUNT, BALLAST, FOLDER, PROGRAM],
    forks: true,
    run,
};

const SIZE: OptionHead = size("1M", "Bytes by which the break is moved up at first");
const TEST: OptionHead = OptionHead {
    name: "test",
    kind: Kind::Word(&[
        "all",
        "creat_clo",
        "page_test",
        "brk_test",
        "jmp_test",
        "signal_test",
        "exec_test",
        "fork_test",
        "link_test",
    ]),
    default: "all",
    help: "One of the eight, or all",
};
const UNTIL: OptionHead = OptionHead {
    name: "until",
    kind: Kind::Word(&["time", "count"]),
    default: "time",
    help: "Whether each test ends after a time or after a count of operations",
};
const MILLISECONDS: OptionHead = OptionHead {
    name: "milliseconds",
    kind: Kind::Number(1, 86_400_000),
    default: "200",
    help: "How long each test takes, with until time",
};
const COUNT: OptionHead = OptionHead {
    name: "count",
    kind: Kind::Number(1, 1 << 40),
    default: "1000",
    help: "How many operations each test does at the least, with until count",
};
const BALLAST: OptionHead = OptionHead {
    name: "ballast",
    kind: Kind::Number(0, 1 << 20),
    default: "0",
    help: "MiB of touched memory that every forked child shares with this process",
};

/// Links to a file beside its first name, as in AIM9.
const LINKS: usize = 7;

/// A test: its name, and how it is run.
type Test = (&'static str, fn(&Setting) -> Result<Storm, Failed>);

const TESTS: [Test; 8] = [
    ("creat_clo", creat_clo),
    ("page_test", |setting| break_test(setting, true)),
    ("brk_test", |setting| break_test(setting, false)),
    ("jmp_test", |setting| system("jmp_test", jumps::jumps(setting.until))),
    ("signal_test", |setting| system("signal_test", signals::signals(setting.until))),
    ("exec_test", exec_test),
    ("fork_test", |setting| {
        system("fork_test", repeat(setting.until, || children::fork_and_wait().map(|()| 1)))
    }),
    ("link_test", link_test),
];

/// What all tests need.
struct Setting {
    until: Until,
    break_size: u64,
    folder: OwnFolder,
    program: SmallProgram,
}

fn run(options: &Options, phase: &mut Phase<'_>) -> Result<Done, Failed> {
    let until = match options.text("until") {
        "count" => Until::Count(options.number("count")),
        _ => Until::Nanoseconds(options.number("milliseconds") * 1_000_000),
    };
    let wanted = options.text("test");
    let mut tests: Vec<Test> =
        TESTS.into_iter().filter(|(name, _)| wanted == "all" || wanted == *name).collect();
    let mut random = SplitMix64::new(options.number("seed"));
    for at in (1..tests.len()).rev() {
        tests.swap(at, random.below(at as u64 + 1) as usize);
    }
    let ballast = Bytes(options.number("ballast") << 20);
    let mut memory = match ballast.0 {
        0 => None,
        _ => Some(memory::map(options, ballast)?),
    };
    if let Some(memory) = &mut memory {
        let all = 0..memory.len().0;
        memory.touch(all).map_err(|error| Failed::system("cannot touch the ballast", error))?;
    }
    let setting = Setting {
        until,
        break_size: options.size("size").0,
        folder: OwnFolder::new(options, "alloc-storm")?,
        program: SmallProgram::of(options)?,
    };
    let (mut figures, mut product, mut checksum) = (Vec::new(), 1.0f64, 0u64);
    for (name, test) in &tests {
        let storm = phase.of(|| test(&setting))?;
        let value = storm.operations as f64 / (storm.took_ns.max(1) as f64 / 1e9);
        product *= value.powf(1.0 / tests.len() as f64);
        figures.push(Figure::new(name, "1/s", Better::Higher, value));
        // How many operations fit in a time is the machine's; that they were done right is not.
        let count = if options.text("until") == "count" { storm.operations } else { 0 };
        for word in [name.bytes().fold(0, |sum: u64, byte| sum * 31 + u64::from(byte)), count] {
            checksum = (checksum ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    // The order of running is the seed's; that of printing is the table's.
    figures.sort_by_key(|figure| TESTS.iter().position(|(name, _)| *name == figure.name));
    Ok(Done {
        merit: Merit { name: "mean rate", unit: "1/s", better: Better::Higher, value: product },
        working_set: Bytes(setting.break_size + ballast.0),
        checksum,
        latencies: None,
        hot_regions: Vec::new(),
        figures,
        generated: format!(
            "{}, {}, break moved up by {} bytes, program {}, seed {}",
            tests.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" "),
            match until {
                Until::Count(count) => format!("{count} operations or more each"),
                Until::Nanoseconds(ns) => format!("{} ms each", ns / 1_000_000),
            },
            setting.break_size,
            setting.program.name(),
            options.number("seed")
        ),
    })
}

fn system<T>(test: &str, result: io::Result<T>) -> Result<T, Failed> {
    result.map_err(|error| Failed::system(test, error))
}

fn break_test(setting: &Setting, is_touched: bool) -> Result<Storm, Failed> {
    let name = if is_touched { "page_test" } else { "brk_test" };
    system(name, breaks::breaks(setting.break_size, is_touched, setting.until))
}

fn creat_clo(setting: &Setting) -> Result<Storm, Failed> {
    let path = setting.folder.path().join("creat");
    let storm = system("creat_clo", repeat(setting.until, || File::create(&path).map(|_| 1)))?;
    system("creat_clo", fs::remove_file(&path))?;
    Ok(storm)
}

fn exec_test(setting: &Setting) -> Result<Storm, Failed> {
    system("exec_test", repeat(setting.until, || setting.program.run().map(|()| 1)))
}

fn link_test(setting: &Setting) -> Result<Storm, Failed> {
    let (storm, names) = system("link_test", link_and_unlink(setting))?;
    match names == 1 + LINKS as u64 {
        true => Ok(storm),
        false => Err(Failed::Wrong(format!("link_test: the file has {names} names, not {}", 1 + LINKS))),
    }
}

/// What was done, and how many names the file had at the end.
fn link_and_unlink(setting: &Setting) -> io::Result<(Storm, u64)> {
    let path = |at: usize| setting.folder.path().join(format!("link{at}"));
    let (first, links) = (path(0), (1..=LINKS).map(path).collect::<Vec<_>>());
    File::create(&first)?;
    links.iter().try_for_each(|link| fs::hard_link(&first, link))?;
    let mut turn = 0;
    let storm = repeat(setting.until, || {
        let link = &links[turn % LINKS];
        turn += 1;
        fs::remove_file(link)?;
        fs::hard_link(&first, link)?;
        Ok(1)
    })?;
    let names = fs::metadata(&first)?.nlink();
    links.iter().chain([&first]).try_for_each(fs::remove_file)?;
    Ok((storm, names))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(changes: &[(&str, &str)]) -> Options {
        let mut options = Options::defaults(WORKLOAD.options);
        for (name, typed) in [("until", "count"), ("count", "20")].iter().chain(changes) {
            options.set(name, typed).unwrap();
        }
        options
    }

    #[test]
    fn each_test_has_its_rate() {
        let done = run(&small(&[]), &mut Phase::unwatched()).unwrap();
        let names: Vec<&str> = done.figures.iter().map(|figure| figure.name).collect();
        assert_eq!(names, TESTS.map(|(name, _)| name));
        assert!(done.figures.iter().all(|figure| figure.value > 0.0), "{:?}", done.figures);
        let product: f64 = done.figures.iter().map(|figure| figure.value.ln()).sum::<f64>() / 8.0;
        assert!((done.merit.value / product.exp() - 1.0).abs() < 1e-9, "the geometric mean of all");
        assert_eq!(run(&small(&[]), &mut Phase::unwatched()).unwrap().checksum, done.checksum);
        assert_ne!(run(&small(&[("count", "40")]), &mut Phase::unwatched()).unwrap().checksum, done.checksum);
    }

    #[test]
    fn one_test_may_be_chosen_and_time_may_end_it() {
        for (test, _) in TESTS {
            let done = run(
                &small(&[("test", test), ("until", "time"), ("milliseconds", "2")]),
                &mut Phase::unwatched(),
            )
            .unwrap();
            assert_eq!(done.figures.iter().map(|figure| figure.name).collect::<Vec<_>>(), [test]);
        }
        let ballast =
            run(&small(&[("test", "fork_test"), ("ballast", "8")]), &mut Phase::unwatched()).unwrap();
        assert!(ballast.working_set.0 > 8 << 20);
    }

    #[test]
    fn a_program_that_fails_is_an_error() {
        let script = std::env::temp_dir().join(format!("pagelab-no-program-{}", std::process::id()));
        fs::write(&script, "text").unwrap();
        let refused = run(
            &small(&[("test", "exec_test"), ("program", script.to_str().unwrap())]),
            &mut Phase::unwatched(),
        );
        fs::remove_file(&script).unwrap();
        assert!(matches!(refused, Err(Failed::System(_))), "{refused:?}");
    }
}
