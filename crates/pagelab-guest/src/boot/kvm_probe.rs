//! Choice of the accelerator: a probe boot shows whether KVM works, within a deadline.
//!
//! `/dev/kvm` may exist and be useless: a virtual machine may be refused, a kernel may hang in one, and a
//! host that is a virtual machine itself may not pass on all of the processor. So nothing but a kernel that
//! has booted is taken as proof, and only QEMU opens the device.

use std::time::Duration;

use pagelab_model::{Bytes, Failure, FailureKind};

use super::{GuestObserver, GuestPlan, GuestTimeouts, run_guest};
use crate::accelerator::{Accelerator, AcceleratorChoice};
use crate::config::GuestConfig;
use crate::outcome::{GuestOutcome, LossReason};

/// How long the probe boot may take. With KVM a kernel boots in about a second.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// Most memory of the guest of the probe.
const PROBE_MEMORY_MAX: Bytes = Bytes(1 << 30);

/// What QEMU says of a `/dev/kvm` that this user may not open.
const PERMISSION_DENIED: &str = "Permission denied";

/// An accelerator, and how it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedAccelerator {
    /// What runs the guest.
    pub accelerator: Accelerator,
    /// Why KVM does not run it, if the choice was [`AcceleratorChoice::Auto`].
    pub kvm_failure: Option<String>,
}

/// Accelerator for this plan, after a probe boot unless the choice is TCG. An error means that KVM was
/// requested and does not work, or that the host ended the probe.
pub fn resolve_accelerator(
    choice: AcceleratorChoice,
    plan: &GuestPlan,
    observer: &mut dyn GuestObserver,
) -> Result<ResolvedAccelerator, Failure> {
    let resolved = |accelerator, kvm_failure| ResolvedAccelerator { accelerator, kvm_failure };
    if choice == AcceleratorChoice::Tcg {
        return Ok(resolved(Accelerator::Tcg, None));
    }
    match (probe_kvm(plan, observer)?, choice) {
        (None, _) => Ok(resolved(Accelerator::Kvm, None)),
        (Some(reason), AcceleratorChoice::Kvm) => {
            let hint = match reason.contains(PERMISSION_DENIED) {
                true => "use --accel tcg, run as root, or join the kvm group",
                false => "use --accel tcg",
            };
            let action = format_args!("use KVM with kernel {}", plan.kernel.release);
            Err(Failure::cannot(FailureKind::NotAvailable, action, reason).hint(hint))
        }
        (Some(reason), _) => Ok(resolved(Accelerator::Tcg, Some(reason))),
    }
}

/// Boots the kernel of the plan with KVM and an empty job. Returns why that failed; `None` means that KVM
/// works.
fn probe_kvm(plan: &GuestPlan, observer: &mut dyn GuestObserver) -> Result<Option<String>, Failure> {
    let reason = match run_guest(&probe_plan(plan), observer)? {
        GuestOutcome::Completed(_) => return Ok(None),
        GuestOutcome::Lost(lost) => lost.reason,
    };
    Ok(Some(match reason {
        // Its own text advises a longer --timeout, which the probe does not have.
        LossReason::TimedOut(after) => {
            format!("the guest of a probe boot did not end its empty job within {} s", after.as_secs())
        }
        reason => format!("the guest of a probe boot was lost: {reason}"),
    }))
}

/// The same kernel and QEMU with the smallest machine, and without what else could fail.
fn probe_plan(plan: &GuestPlan) -> GuestPlan {
    GuestPlan {
        accelerator: Accelerator::Kvm,
        config: GuestConfig { memory: plan.config.memory.min(PROBE_MEMORY_MAX), ..GuestConfig::default() },
        steps: Vec::new(),
        module: None,
        module_lines: Vec::new(),
        input_files: Vec::new(),
        output_paths: Vec::new(),
        timeouts: GuestTimeouts { first_line: PROBE_TIMEOUT, total: PROBE_TIMEOUT },
        ..plan.clone()
    }
}
