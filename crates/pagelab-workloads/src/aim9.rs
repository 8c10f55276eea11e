//! Eight small tests of kernel operations that every program uses, after AIM9 (Caldera's AIM Independent
//! Resource Benchmark), as used to compare kernels by Gorman and Whitcroft (OLS 2006). Each has a separate
//! rate:
//!
//! | test | an operation |
//! |---|---|
//! | creat_clo | one file created or truncated, and closed |
//! | page_test | the break moved up by a page, and a write every 128 bytes |
//! | brk_test | the break moved up by a page (every sixteenth time down by sixteen) |
//! | jmp_test | `_setjmp`, ten calls, `longjmp` |
//! | signal_test | SIGUSR2 sent to this thread and caught |
//! | exec_test | a child forked that runs a small program, and waited for |
//! | fork_test | a child forked that exits at once, and waited for |
//! | link_test | one of seven links to a file removed and recreated |
//!
//! Unlike AIM9, a signal is sent to the thread and not to the process, which has other threads here, and the
//! break is moved in a child, whose allocator never runs. A child copies the page tables of this process, so
//! its size affects the figures of forks; `ballast` makes it larger.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use pagelab_model::Bytes;
use pagelab_model::random::SplitMix64;
use pagelab_sys::syscall_loop::{self, LoopResult, StopCondition, run_until};

use crate::options::{
    DurationSpec, OptionSpec, SEED_OPTION, ValueKind, WorkloadOptions, choice_option, number_option,
    size_option,
};
use crate::phase::MeasuredPhase;
use crate::private_dir::{FOLDER_OPTION, PrivateDir};
use crate::small_program::{PROGRAM_OPTION, SmallProgram};
use crate::{Figure, Workload, WorkloadError, WorkloadOutcome, WorkloadResult, mapping, mix_checksum};

/// The tests as a workload.
pub const WORKLOAD: Workload = Workload {
    name: "aim9",
    description: "Rates of file, page, brk, jump, signal, exec, fork and link operations",
    generator: "eight loops, one after the other in a random order from the seed, each for a fixed time or \
                count; pages are allocated one by one and written at every 128th byte, hence first touched \
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
            &["time", "count"],
            "time",
            "Whether each test ends after a time or after a count of operations",
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
            1,
            1 << 40,
            "1000",
            "Minimum number of operations of each test, with until count",
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
    run: run_tests,
};

/// Links to a file beside its first name, as in AIM9.
const EXTRA_LINKS: usize = 7;

/// A test: its name, and how it is run.
type Aim9Test = (&'static str, fn(&TestSetup) -> Result<LoopResult, WorkloadError>);

const TESTS: [Aim9Test; 8] = [
    ("creat_clo", run_creat_close_test),
    ("page_test", |setting| run_brk_test(setting, true)),
    ("brk_test", |setting| run_brk_test(setting, false)),
    ("jmp_test", |setting| system_error("jmp_test", syscall_loop::run_longjmp_loop(setting.limit))),
    ("signal_test", |setting| system_error("signal_test", syscall_loop::run_signal_loop(setting.limit))),
    ("exec_test", |setting| {
        system_error("exec_test", run_until(setting.limit, || setting.program.run_once().map(|()| 1)))
    }),
    ("fork_test", |setting| {
        system_error("fork_test", run_until(setting.limit, || syscall_loop::fork_and_wait().map(|()| 1)))
    }),
    ("link_test", run_link_test),
];

/// Common state of all tests.
struct TestSetup {
    limit: StopCondition,
    break_size: u64,
    dir: PrivateDir,
    program: SmallProgram,
}

fn run_tests(options: &WorkloadOptions, phase: &mut MeasuredPhase<'_>) -> WorkloadOutcome {
    let until = match options.get_text("until") {
        "count" => StopCondition::Count(options.get_number("count")),
        _ => StopCondition::Nanoseconds(options.get_duration("time").as_nanos() as u64),
    };
    let wanted = options.get_text("test");
    let mut tests: Vec<Aim9Test> =
        TESTS.into_iter().filter(|(name, _)| wanted == "all" || wanted == *name).collect();
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
    let config = TestSetup {
        limit: until,
        break_size: options.get_size("size").0,
        dir: PrivateDir::new(options, "aim9")?,
        program: SmallProgram::from_options(options)?,
    };
    let (mut figures, mut rate_product, mut checksum) = (Vec::new(), 1.0f64, 0u64);
    for (name, test) in &tests {
        let done = phase.measure(|| test(&config))?;
        let value = done.operation_count as f64 / (done.elapsed_ns.max(1) as f64 / 1e9);
        rate_product *= value.powf(1.0 / tests.len() as f64);
        figures.push(Figure::rate(name, value));
        // How many operations fit in a time is the machine's; that they were done right is not.
        let count = if options.get_text("until") == "count" { done.operation_count } else { 0 };
        for word in [name.bytes().fold(0, |sum: u64, byte| sum * 31 + u64::from(byte)), count] {
            checksum = mix_checksum(checksum, word);
        }
    }
    // The order of running is the seed's; that of printing is the table's.
    figures.sort_by_key(|figure| TESTS.iter().position(|(name, _)| *name == figure.name));
    Ok(WorkloadResult {
        figure_of_merit: Figure::rate("mean rate", rate_product),
        working_set: Bytes(config.break_size + ballast.0),
        checksum,
        latencies: None,
        hot_regions: Vec::new(),
        figures,
        generated_input: format!(
            "{}, {}, break moved up by {} bytes, program {}, seed {}",
            tests.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" "),
            match until {
                StopCondition::Count(count) => format!("{count} operations or more each"),
                StopCondition::Nanoseconds(ns) => format!("{} ms each", ns / 1_000_000),
            },
            config.break_size,
            config.program.command_line(),
            options.get_number("seed")
        ),
    })
}

fn system_error<T>(test: &str, result: io::Result<T>) -> Result<T, WorkloadError> {
    result.map_err(|error| WorkloadError::system_error(test, error))
}

fn run_brk_test(config: &TestSetup, is_touched: bool) -> Result<LoopResult, WorkloadError> {
    let name = if is_touched { "page_test" } else { "brk_test" };
    system_error(name, syscall_loop::run_break_loop(config.break_size, is_touched, config.limit))
}

fn run_creat_close_test(config: &TestSetup) -> Result<LoopResult, WorkloadError> {
    let path = config.dir.path().join("creat");
    let done = system_error("creat_clo", run_until(config.limit, || File::create(&path).map(|_| 1)))?;
    system_error("creat_clo", fs::remove_file(&path))?;
    Ok(done)
}

fn run_link_test(config: &TestSetup) -> Result<LoopResult, WorkloadError> {
    let (done, names) = system_error("link_test", link_and_unlink(config))?;
    let expected = 1 + EXTRA_LINKS as u64;
    if names != expected {
        let text = format!("link_test: the file has {names} names; expected {expected}");
        return Err(WorkloadError::WrongResult(text));
    }
    Ok(done)
}

/// Operations performed, and the number of the file's names at the end.
fn link_and_unlink(config: &TestSetup) -> io::Result<(LoopResult, u64)> {
    let path = |at: usize| config.dir.path().join(format!("link{at}"));
    let (first, links) = (path(0), (1..=EXTRA_LINKS).map(path).collect::<Vec<_>>());
    File::create(&first)?;
    links.iter().try_for_each(|link| fs::hard_link(&first, link))?;
    let mut turn = 0;
    let done = run_until(config.limit, || {
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
        assert_eq!(names, TESTS.map(|(name, _)| name));
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
        for (test, _) in TESTS {
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
