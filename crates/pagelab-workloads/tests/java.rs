//! The Java twin of the garbage benchmark against the native one: both compute the same lists.

use pagelab_workloads::options::Options;
use pagelab_workloads::phase::Phase;
use pagelab_workloads::{Failed, gc};

#[test]
fn java_builds_the_lists_that_we_build() {
    let run = |runtime: &str| {
        let mut options = Options::defaults(gc::WORKLOAD.options);
        for (name, typed) in [("runtime", runtime), ("size", "64M"), ("rounds", "2"), ("live", "0.02")] {
            options.set(name, typed).unwrap();
        }
        (gc::WORKLOAD.run)(&options, &mut Phase::unwatched())
    };
    let java = match run("java") {
        Err(Failed::Missing(why)) => {
            println!("skipped: java-absent: {why}");
            return;
        }
        java => java.unwrap(),
    };
    let native = run("native").unwrap();
    assert_eq!(java.checksum, native.checksum);
    let count = |done: &pagelab_workloads::Done| done.latencies.as_ref().unwrap().count();
    assert_eq!(count(&java), count(&native));
    assert!(java.merit.value > 0.0);
}
