//! Accelerators: what runs the CPUs of a guest.

/// What runs the CPUs of a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accelerator {
    /// QEMU's emulation by translated code. It works on every host.
    #[default]
    Tcg,
    /// The processor, through `/dev/kvm`.
    Kvm,
}

impl Accelerator {
    /// Its name in QEMU, in options and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Accelerator::Tcg => "tcg",
            Accelerator::Kvm => "kvm",
        }
    }
}

/// The accelerator that a user requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AcceleratorChoice {
    /// TCG, and `/dev/kvm` is never opened.
    #[default]
    Tcg,
    /// KVM or nothing.
    Kvm,
    /// KVM if it works, otherwise TCG.
    Auto,
}

impl AcceleratorChoice {
    /// Its name in options and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            AcceleratorChoice::Tcg => Accelerator::Tcg.name(),
            AcceleratorChoice::Kvm => Accelerator::Kvm.name(),
            AcceleratorChoice::Auto => "auto",
        }
    }

    /// What is tried first.
    pub fn first(self) -> Accelerator {
        match self {
            AcceleratorChoice::Tcg => Accelerator::Tcg,
            AcceleratorChoice::Kvm | AcceleratorChoice::Auto => Accelerator::Kvm,
        }
    }
}
