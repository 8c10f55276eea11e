//! Eight tests of kernel operations that every program uses, after AIM9 (Caldera's AIM Independent Resource
//! Benchmark, Suite IX), as Gorman and Whitcroft compared kernels with it (OLS 2006). Each has a rate of its
//! own:
//!
//! | test | an operation |
//! |---|---|
//! | creat_clo | one file created or truncated, and closed |
//! | page_test | the break moved up by a page, and a write every 128 bytes |
//! | brk_test | the break moved up by a page (every sixteenth time down by sixteen) |
//! | jmp_test | `_setjmp`, eleven calls, `longjmp` |
//! | signal_test | a child sends SIGUSR2 to itself and catches it |
//! | exec_test | a child forked that runs a small program, and waited for |
//! | fork_test | a child forked that exits at once, and waited for |
//! | link_test | one of seven links to a file removed and recreated |
//!
//! Break and signals are those of a child: this process has an allocator and threads. A child copies the page
//! tables of this process, so its size affects the figures of forks; `ballast` makes it larger.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use pagelab_model::Bytes;
use pagelab_model::random::SplitMix64;
use pagelab_sys::syscall_loop::{
    LoopResult, StopCondition, fork_and_wait, run_break_loop, run_longjmp_loop, run_signal_loop, run_until,
};

use crate::options::{
    DurationSpec, OptionSpec, SEED_OPTION, ValueKind, WorkloadOptions, choice_option, number_option,
    size_option,
};
use crate::phase::MeasuredPhase;
use crate::private_dir::{FOLDER_OPTION, PrivateDir};
use crate::small_program::{PROGRAM_OPTION, SmallProgram};
use crate::{
    Figure, PhaseResults, Workload, WorkloadError, WorkloadOutcome, WorkloadResult, mapping, mix_checksum,
};

/// The tests as a workload.
pub const WORKLOAD: Workload = Workload {
    name: "aim9",
    description: "Rates of file, page, brk, jump, signal, exec, fork and link operations",
    generator: "eight loops, one after the other in a random order from the seed, each for a fixed count or \
                time; pages are allocated one by one and written at every 128th byte, hence first touched \
                there",
    options: &[
        size_option("1M", "Bytes by which the program break is raised at the start"),
        SEED_OPTION,
        mapping::ADVISE_OPTION,
        choice_option(
            "test",
            &[
                "all",
                "creat_clo",
                "page_test",
                "brk_test",
                "jmp_test",
                "signal_test",
                "exec_test",
                "fork_test",
                "link_test",
            ],
            "all",
            "One of the eight tests, or all",
        ),
        choice_option(
            "until",
            &["count", "time"],
            "count",
            "Whether each test ends after a count of operations or after a time",
        ),
        OptionSpec {
            name: "time",
            kind: ValueKind::Duration(DurationSpec {
                least: Duration::from_millis(1),
                most: Duration::from_secs(86_400),
                bare_unit: Duration::from_millis(1),
                former_name: Some("milliseconds"),
            }),
            default: "200ms",
            help: "Duration of each test, with until time",
        },
        number_option(
            "count",
            0,
            1 << 40,
            "0",
            "Minimum number of operations of each test, with until count; 0: the test's own number",
        ),
        number_option(
            "ballast",
            0,
            1 << 20,
            "0",
            "MiB of memory that this process touches first: each fork copies its page tables",
        ),
        FOLDER_OPTION,
        PROGRAM_OPTION,
    ],
    forks_processes: true,
    guest_parts: &[],
    run: run_tests,
};

/// Links to a file beside its first name, as in AIM9.
const EXTRA_LINKS: usize = 7;

/// A test of AIM9.
struct Aim9Test {
    name: &'static str,
    /// Operations where `count` is 0: about half a second of a guest of 500 million instructions a second.
    count: u64,
    run: fn(&TestSetup, StopCondition) -> Result<LoopResult, WorkloadError>,
}

/// In AIM9's order.
const TESTS: [Aim9Test; 8] = [
    Aim9Test { name: "creat_clo", count: 20_000, run: run_creat_close_test },
    Aim9Test {
        name: "page_test",
        count: 30_000,
        run: |setup, stop| system_error("page_test", run_break_loop(setup.break_size, true, stop)),
    },
    Aim9Test {
        name: "brk_test",
        count: 60_000,
        run: |setup, stop| system_error("brk_test", run_break_loop(setup.break_size, false, stop)),
    },
    Aim9Test {
        name: "jmp_test",
        count: 1_000_000,
        run: |_, stop| system_error("jmp_test", run_longjmp_loop(stop)),
    },
    Aim9Test {
        name: "signal_test",
        count: 60_000,
        run: |_, stop| system_error("signal_test", run_signal_loop(stop)),
    },
    Aim9Test {
        name: "exec_test",
        count: 200,
        run: |setup, stop| {
            system_error("exec_test", run_until(stop, || setup.program.run_once().map(|()| 1)))
        },
    },
    Aim9Test {
        name: "fork_test",
        count: 1_000,
        run: |_, stop| system_error("fork_test", run_until(stop, || fork_and_wait().map(|()| 1))),
    },
    Aim9Test { name: "link_test", count: 15_000, run: run_link_test },
];

/// Common state of all tests.
struct TestSetup {
    break_size: u64,
    dir: PrivateDir,
    program: SmallProgram,
}

fn run_tests(options: &WorkloadOptions, phase: &mut MeasuredPhase<'_>) -> WorkloadOutcome {
    let is_counted = options.get_text("until") == "count";
    let stop_of = |test: &Aim9Test| match (is_counted, options.get_number("count")) {
        (false, _) => StopCondition::Nanoseconds(options.get_duration("time").as_nanos() as u64),
        (true, 0) => StopCondition::Count(test.count),
        (true, count) => StopCondition::Count(count),
    };
    let wanted = options.get_text("test");
    let mut tests: Vec<&Aim9Test> =
        TESTS.iter().filter(|test| wanted == "all" || wanted == test.name).collect();
    let mut random = SplitMix64::new(options.get_number("seed"));
    random.shuffle(&mut tests);
    let ballast = Bytes(options.get_number("ballast") << 20);
    let mut memory = match ballast.0 {
        0 => None,
        _ => Some(mapping::map_anonymous(options, ballast)?),
    };
    if let Some(memory) = &mut memory {
        let all = 0..memory.len().0;
        let failed = |error| WorkloadError::system_error("cannot touch the ballast", error);
        memory.touch_for_writing(all).map_err(failed)?;
    }
    let setup = TestSetup {
        break_size: options.get_size("size").0,
        dir: PrivateDir::new(options, "aim9")?,
        program: SmallProgram::from_options(options)?,
    };
    let (mut figures, mut rate_product, mut checksum) = (Vec::new(), 1.0f64, 0u64);
    for test in &tests {
        let done = phase.measure(|| (test.run)(&setup, stop_of(test)))?;
        let value = done.operation_count as f64 / (done.elapsed_ns.max(1) as f64 / 1e9);
        rate_product *= value.powf(1.0 / tests.len() as f64);
        figures.push(Figure::rate(test.name, value));
        // How many operations fit in a time is the machine's; that they were done right is not.
        let count = if is_counted { done.operation_count } else { 0 };
        for word in [test.name.bytes().fold(0, |sum: u64, byte| sum * 31 + u64::from(byte)), count] {
            checksum = mix_checksum(checksum, word);
        }
    }
    // The order of running is the seed's; that of printing is the table's.
    figures.sort_by_key(|figure| TESTS.iter().position(|test| test.name == figure.name));
    Ok(WorkloadResult {
        figure_of_merit: Figure::rate("mean rate", rate_product),
        working_set: Bytes(setup.break_size + ballast.0),
        checksum,
        latencies: None,
        hot_regions: Vec::new(),
        figures,
        phases: PhaseResults::default(),
        generated_input: format!(
            "{}, break moved up by {} bytes, program {}, seed {}",
            tests.iter().map(|test| describe_work(test, stop_of(test))).collect::<Vec<_>>().join(" "),
            setup.break_size,
            setup.program.command_line(),
            options.get_number("seed")
        ),
    })
}

/// `fork_test:1000` or `fork_test:200ms`
fn describe_work(test: &Aim9Test, stop: StopCondition) -> String {
    match stop {
        StopCondition::Count(count) => format!("{}:{count}", test.name),
        StopCondition::Nanoseconds(ns) => format!("{}:{}ms", test.name, ns / 1_000_000),
    }
}

fn system_error<T>(test: &str, result: io::Result<T>) -> Result<T, WorkloadError> {
    result.map_err(|error| WorkloadError::system_error(test, error))
}

fn run_creat_close_test(setup: &TestSetup, stop: StopCondition) -> Result<LoopResult, WorkloadError> {
    let path = setup.dir.path().join("creat");
    let done = system_error("creat_clo", run_until(stop, || File::create(&path).map(|_| 1)))?;
    system_error("creat_clo", fs::remove_file(&path))?;
    Ok(done)
}

fn run_link_test(setup: &TestSetup, stop: StopCondition) -> Result<LoopResult, WorkloadError> {
    let (done, names) = system_error("link_test", link_and_unlink(setup, stop))?;
    let expected = 1 + EXTRA_LINKS as u64;
    if names != expected {
        let text = format!("link_test: the file has {names} names; expected {expected}");
        return Err(WorkloadError::WrongResult(text));
    }
    Ok(done)
}

/// Operations performed, and the number of the file's names at the end.
fn link_and_unlink(setup: &TestSetup, stop: StopCondition) -> io::Result<(LoopResult, u64)> {
    let path = |at: usize| setup.dir.path().join(format!("link{at}"));
    let (first, links) = (path(0), (1..=EXTRA_LINKS).map(path).collect::<Vec<_>>());
    File::create(&first)?;
    links.iter().try_for_each(|link| fs::hard_link(&first, link))?;
    let mut turn = 0;
    let done = run_until(stop, || {
        let link = &links[turn % EXTRA_LINKS];
        turn += 1;
        fs::remove_file(link)?;
        fs::hard_link(&first, link).map(|()| 1)
    })?;
    let names = fs::metadata(&first)?.nlink();
    links.iter().chain([&first]).try_for_each(fs::remove_file)?;
    Ok((done, names))
}

#[cfg(test)]
mod tests {
    // Forks write-protect the pages of all tests of this process, some of which count faults: few here.
    use super::*;

    fn small_options(changes: &[(&str, &str)]) -> WorkloadOptions {
        let mut options = WorkloadOptions::with_defaults(WORKLOAD.options);
        for (name, typed) in [("until", "count"), ("count", "20")].iter().chain(changes) {
            options.set_value(name, typed).unwrap();
        }
        options
    }

    #[test]
    fn each_test_has_its_rate() {
        let done = run_tests(&small_options(&[]), &mut MeasuredPhase::without_observer()).unwrap();
        let names: Vec<&str> = done.figures.iter().map(|figure| figure.name).collect();
        assert_eq!(names, TESTS.map(|test| test.name));
        assert!(done.figures.iter().all(|figure| figure.value > 0.0), "{:?}", done.figures);
        let rate_product: f64 = done.figures.iter().map(|figure| figure.value.ln()).sum::<f64>() / 8.0;
        assert!(
            (done.figure_of_merit.value / rate_product.exp() - 1.0).abs() < 1e-9,
            "the geometric mean of all"
        );
        assert_eq!(
            run_tests(&small_options(&[]), &mut MeasuredPhase::without_observer()).unwrap().checksum,
            done.checksum
        );
        assert_ne!(
            run_tests(&small_options(&[("count", "40")]), &mut MeasuredPhase::without_observer())
                .unwrap()
                .checksum,
            done.checksum
        );
    }

    #[test]
    fn one_test_may_be_chosen_and_time_may_end_it() {
        for test in TESTS.map(|test| test.name) {
            let done = run_tests(
                &small_options(&[("test", test), ("until", "time"), ("time", "2ms")]),
                &mut MeasuredPhase::without_observer(),
            )
            .unwrap();
            assert_eq!(done.figures.iter().map(|figure| figure.name).collect::<Vec<_>>(), [test]);
        }
        let ballast = run_tests(
            &small_options(&[("test", "fork_test"), ("ballast", "8")]),
            &mut MeasuredPhase::without_observer(),
        )
        .unwrap();
        assert!(ballast.working_set.0 > 8 << 20);
    }

    #[test]
    fn the_work_is_fixed_and_each_test_has_a_number_of_its_own() {
        let options = WorkloadOptions::with_defaults(WORKLOAD.options);
        assert_eq!((options.get_text("until"), options.get_number("count")), ("count", 0));
        let run = || {
            let options = small_options(&[("test", "jmp_test"), ("count", "0")]);
            run_tests(&options, &mut MeasuredPhase::without_observer()).unwrap()
        };
        let done = run();
        assert!(done.generated_input.starts_with("jmp_test:1000000, break"), "{}", done.generated_input);
        assert_eq!(done.checksum, run().checksum);
    }

    #[test]
    fn files_have_the_names_that_the_tests_give_them_and_are_gone_afterwards() {
        let options = small_options(&[]);
        let setup = TestSetup {
            break_size: 0,
            dir: PrivateDir::new(&options, "aim9").unwrap(),
            program: SmallProgram::from_options(&options).unwrap(),
        };
        let (done, names) = link_and_unlink(&setup, StopCondition::Count(20)).unwrap();
        assert_eq!((done.operation_count, names), (20, 8));
        assert_eq!(run_creat_close_test(&setup, StopCondition::Count(20)).unwrap().operation_count, 20);
        assert_eq!(fs::read_dir(setup.dir.path()).unwrap().count(), 0);
        // A file that cannot be created is an error, not an operation.
        fs::create_dir(setup.dir.path().join("creat")).unwrap();
        assert!(run_creat_close_test(&setup, StopCondition::Count(1)).is_err());
    }

    #[test]
    fn a_program_that_fails_is_an_error() {
        let script = std::env::temp_dir().join(format!("pagelab-no-program-{}", std::process::id()));
        fs::write(&script, "text").unwrap();
        let refused = run_tests(
            &small_options(&[("test", "exec_test"), ("program", script.to_str().unwrap())]),
            &mut MeasuredPhase::without_observer(),
        );
        fs::remove_file(&script).unwrap();
        assert!(matches!(refused, Err(WorkloadError::SystemError(_))), "{refused:?}");
    }
}
