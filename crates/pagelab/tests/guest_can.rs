//! Tests of `can --really` on a real kernel: the result is within the printed bounds, on memory as booted and
//! fragmented on purpose.
#![allow(clippy::unwrap_used, clippy::print_stderr)] // a test's helpers may fail where they stand, and say so

#[path = "guest/trial.rs"]
#[allow(dead_code, reason = "the other tests use more of it")]
mod trial;

use pagelab_guest::job::JobStep;
use pagelab_guest::message::StepExit;
use pagelab_guest::outcome::{CompletedJob, GuestOutcome, GuestReport, LossReason, LostGuest, StepEnd};
use pagelab_model::size;
use serde_json::Value;
use trial::{each_step, finished, pagelab, plan};

/// The document of a command among what else was printed.
fn document(kind: &str, text: &str) -> Value {
    let kind = text.find(&format!("\"kind\": \"{kind}\"")).unwrap_or_else(|| panic!("no document in {text}"));
    let from = text[..kind].rfind('{').unwrap();
    serde_json::Deserializer::from_str(&text[from..]).into_iter().next().unwrap().unwrap()
}

/// Boots with so many steps done before the guest is lost, `None` for none lost.
#[test]
fn the_step_of_a_lost_guest_is_repeated_and_then_reported_lost() {
    let check = |boots: &[Option<usize>], expected: &[bool], sizes: &[usize]| {
        let steps: Vec<JobStep> = (0..5).map(|at| pagelab(&at.to_string())).collect();
        let (mut at, mut seen) = (0, Vec::new());
        let ended = each_step(&steps, 3, &mut |next| {
            seen.push(next.len());
            let done = boots.get(at).copied().flatten();
            at += 1;
            let end = StepEnd {
                end: StepExit::Code(0),
                stdout: Vec::new(),
                stderr: Vec::new(),
                is_truncated: false,
            };
            let ends = vec![end; done.unwrap_or(next.len())];
            let about = GuestReport::default();
            match done {
                Some(_) => GuestOutcome::Lost(LostGuest {
                    reason: LossReason::PoweredOff,
                    steps: ends,
                    report: about,
                }),
                None => {
                    let (files, not_taken) = (Vec::new(), Vec::new());
                    GuestOutcome::Completed(CompletedJob {
                        steps: ends,
                        files,
                        missing_files: not_taken,
                        report: about,
                    })
                }
            }
        });
        let found: Vec<bool> = ended.iter().map(Result::is_ok).collect();
        assert_eq!((found.as_slice(), seen.as_slice()), (expected, sizes), "{boots:?}");
    };
    check(&[None, None], &[true; 5], &[3, 2]);
    check(&[Some(1), None, None], &[true; 5], &[3, 3, 1]);
    check(&[Some(1), Some(0), None], &[true, false, true, true, true], &[3, 3, 3]);
    check(&[Some(1), Some(1), Some(1), None], &[true; 5], &[3, 3, 3, 2]);
    check(&[Some(0), Some(0), Some(0), None, None], &[false, true, true, true, true], &[3, 3, 3, 3, 1]);
    check(&[Some(3), Some(0), None], &[true; 5], &[3, 2, 2]);
}

/// Boots in one of which all predictions must hold.
const BOOTS: u32 = 3;

/// The steps of which more or less came than is allowed.
fn predictions_off(steps: &[StepEnd]) -> Vec<String> {
    let mut off = Vec::new();
    for step in steps {
        let (out, err) = (String::from_utf8_lossy(&step.stdout), String::from_utf8_lossy(&step.stderr));
        assert!(matches!(step.end, StepExit::Code(0 | 1)), "{:?} {out}{err}", step.end);
        let document = document("can", &out);
        let really = document["really"].as_array().unwrap();
        assert_eq!(really.len(), 3, "{document}");
        // All requested pages may be allocated before page cache would be dropped: then none is dropped.
        for step in really.iter().filter(|step| !step["allocated"].is_null()) {
            let number = |name: &str| step[name].as_f64().unwrap_or_else(|| panic!("{name} in {step}"));
            let error = (number("predicted") - number("allocated")).abs();
            let text =
                format!("can: {}: predicted {}, got {}", step["after"], step["predicted"], step["allocated"]);
            eprintln!("{text}");
            off.extend((error > number("error_allowed")).then_some(text));
        }
    }
    off
}

#[test]
fn allocations_match_the_prediction() {
    const CAN: &str = "can 400 --really --json";
    let fragmented =
        |target: &str| pagelab(&format!("fragment --target {target} --seed 7 -- /bin/pagelab {CAN}"));
    let both = "fragment --target 0.9 --seed 7 -- /bin/pagelab compact --how both --deadline 100s --json";
    let steps = vec![pagelab(CAN), fragmented("0.5"), fragmented("0.9"), pagelab("restore"), pagelab(both)];
    let Some(mut plan) = plan("6.12", steps) else { return };
    plan.config.memory = size::parse("1536M").unwrap();
    plan.config.cpus = 2;
    // Else kcompactd makes huge pages of its own accord between the prediction and the request.
    plan.config.append = "sysctl.vm.compaction_proactiveness=0".to_owned();
    // A guest that is slow beside other work frees and takes pages between the prediction and the request.
    let mut off = Vec::new();
    let ended = (0..BOOTS).find_map(|_| {
        let ended = finished(&plan);
        off = predictions_off(&ended.steps[..3]);
        off.is_empty().then_some(ended)
    });
    let ended = ended.unwrap_or_else(|| panic!("off in {BOOTS} boots: {off:?}"));
    assert_eq!(ended.steps[3].end, StepExit::Code(0));
    let text = String::from_utf8_lossy(&ended.steps[4].stdout).into_owned();
    let compact = &document("compact", &text);
    let scanners = compact["kernel"]["scanners"].as_array().unwrap_or_else(|| panic!("{compact}"));
    assert!(scanners.iter().any(|run| run["migrate_pfn"].as_u64() > run["first_pfn"].as_u64()), "{compact}");
    let number =
        |name: &str| compact["thp_requests"][name].as_u64().unwrap_or_else(|| panic!("{name} in {compact}"));
    assert!(number("huge_pages") > 0 && number("elapsed_ns") > 0, "{compact}");
    assert_eq!(number("allocated_bytes"), number("huge_pages") << 21, "{compact}");
    let huge = |look: &str| compact[look]["huge_pages_now"].as_u64().unwrap();
    assert!(huge("after") > huge("before"), "{compact}");
}
