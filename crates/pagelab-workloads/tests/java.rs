//! Test of the Java twin of the gc benchmark: both compute the same lists.

use pagelab_workloads::options::WorkloadOptions;
use pagelab_workloads::phase::MeasuredPhase;
use pagelab_workloads::{WorkloadError, gc};

#[test]
fn java_builds_the_lists_that_we_build() {
    let run = |runtime: &str| {
        let mut options = WorkloadOptions::with_defaults(gc::WORKLOAD.options);
        for (name, typed) in [("runtime", runtime), ("size", "64M"), ("rounds", "2"), ("live", "0.02")] {
            options.set_value(name, typed).unwrap();
        }
        (gc::WORKLOAD.run)(&options, &mut MeasuredPhase::without_observer())
    };
    let java = match run("java") {
        Err(WorkloadError::NotAvailable(why)) => {
            println!("skipped: java-absent: {why}");
            return;
        }
        java => java.unwrap(),
    };
    let native = run("native").unwrap();
    assert_eq!(java.checksum, native.checksum);
    let count = |done: &pagelab_workloads::WorkloadResult| done.latencies.as_ref().unwrap().count();
    assert_eq!(count(&java), count(&native));
    assert!(java.figure_of_merit.value > 0.0);
}
