//! Asking for huge pages one by one: how many came, and how long each took.

use pagelab_model::probe::HugeProbe;
use pagelab_model::{Absence, AbsentWhy, Bytes, Reading};
use pagelab_sys::clock;
use pagelab_sys::map::{Advice, Mapping};

use super::{Run, stream};

/// The part of the probe's time that asking may take: COLLAPSE can stall for seconds on a busy machine.
const TIME_SHARE: u64 = 5;

/// Maps aligned memory, touches it with base pages, asks MADV_COLLAPSE for each huge page, and reads back
/// what came. Everything is given back when it returns.
///
/// The memory is kept from khugepaged and from THP at page faults by MADV_NOHUGEPAGE, which is lifted for
/// each piece only when its turn comes, because it would refuse COLLAPSE as well. So each huge page that is
/// read back came by its request, in every THP mode, but for khugepaged being faster in the microsecond in
/// between: such a request is answered at once.
pub(super) fn ask(run: &mut Run<'_>, budget: Bytes) -> Reading<HugeProbe> {
    let size = run.huge_size.clone()?;
    // While a piece is collapsed its base pages and the huge page exist together: one more than is kept.
    let count = run.options.huge_pages.min((budget.0 / size.0.max(1)).saturating_sub(1));
    if count == 0 {
        let (one, may) = (size.0 >> 20, budget.0 >> 20);
        let detail =
            format!("a huge page of {one} MiB, twice while it is made, is more than the {may} MiB to take");
        return Err(Absence::new("MADV_COLLAPSE", AbsentWhy::NotPermitted, detail));
    }
    let failed = |what: &str, error: std::io::Error| {
        Absence::new("MADV_COLLAPSE", AbsentWhy::Failed, format!("{what}: {error}"))
    };
    let len = count * size.0;
    let mut map = Mapping::anonymous(Bytes(len), size).map_err(|e| failed("cannot map memory", e))?;
    map.advise(0..len, Advice::NoHugePage).map_err(|e| failed("cannot ask for base pages", e))?;
    map.touch(0..len).map_err(|e| failed("cannot touch the memory", e))?;

    let deadline_ns = clock::monotonic_ns() + run.left_ns() / TIME_SHARE;
    let mut probe = HugeProbe {
        page_size: size,
        asked: 0,
        answered_yes: 0,
        came: 0,
        read_back_by: run.readback.name().to_owned(),
        latency_ns: Vec::new(),
        first_refusal: None,
    };
    let mut samples = Vec::new();
    for index in 0..count {
        let piece = index * size.0..(index + 1) * size.0;
        let before_ns = clock::monotonic_ns();
        if before_ns >= deadline_ns {
            run.notes.push(format!("only {index} of {count} huge pages were asked for in the time allowed"));
            break;
        }
        map.advise(piece.clone(), Advice::HugePage).map_err(|e| failed("cannot lift MADV_NOHUGEPAGE", e))?;
        let asked_ns = clock::monotonic_ns();
        let answer = map.advise(piece, Advice::Collapse);
        let latency_ns = clock::monotonic_ns().saturating_sub(asked_ns);
        probe.latency_ns.push(latency_ns);
        samples.push((clock::boottime_ns(), latency_ns as f64));
        probe.asked += 1;
        match answer {
            Ok(()) => probe.answered_yes += 1,
            Err(error) if index == 0 && error.kind() == std::io::ErrorKind::InvalidInput => {
                let detail = format!("this kernel does not know it or refuses it here: {error}");
                return Err(Absence::new("MADV_COLLAPSE", AbsentWhy::NotThere, detail)
                    .or("Linux 6.1 or later has it"));
            }
            Err(error) => probe.first_refusal = probe.first_refusal.or_else(|| Some(error.to_string())),
        }
    }
    run.samples.take(&stream("huge page latency", &[]), &samples);
    probe.came = run.readback.huge_bytes(map.addresses())?.0 / size.0;
    Ok(probe)
}
