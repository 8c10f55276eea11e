//! Observation for a checkup: files, TLB, census of pageblocks and, on request, the probe.

use std::time::{Duration, Instant};

use pagelab_contig::memory_snapshot::census_options;
use pagelab_host::census::take_census;
use pagelab_host::collect::{CollectOptions, collect, identify};
use pagelab_host::machine::{self, MachineOverrides};
use pagelab_host::paths::PAGETYPEINFO;
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::machine::{CpuidLeaf, Tlb};
use pagelab_model::run::ClockReading;
use pagelab_model::{Machine, PageSize, Reading, Snapshot};

use pagelab_command::atomic_file::NewRunFile;
use pagelab_command::exit::Failure;
use pagelab_command::manifest;

use crate::journalled_probe::{StreamRecorder, run_probe};
use crate::snapshot_recording::Recording;

/// Wall time from the start after which a probe ends, so that a checkup takes at most 10 s.
const PROBE_TIME_LIMIT: Duration = Duration::from_millis(9_500);

/// Subject of the observation, and prior knowledge.
pub struct CheckupSession {
    /// Root of the files.
    pub root: Root,
    /// TLB given by the user.
    pub tlb: Option<Tlb>,
    /// Page size given by the user.
    pub page_size: Option<PageSize>,
    /// CPUID leaves of this processor; empty for a saved tree, which is from another machine.
    pub leaves: Vec<CpuidLeaf>,
    /// When it started.
    pub started: ClockReading,
    /// Seed of samples.
    pub seed: u64,
    /// Whether pagetypeinfo is read, which holds the zone lock.
    pub with_pagetypeinfo: bool,
    /// Whether smaps of all processes are read.
    pub with_smaps: bool,
    /// Whether the memory system is measured.
    pub with_probe: bool,
}

impl CheckupSession {
    /// Creates the run file, with the machine of the snapshot to come.
    pub fn begin_recording(&self, path: &NewRunFile) -> Result<Recording, Failure> {
        let reader = Reader::new(&self.root);
        let (mut machine, settings) = identify(&reader, &self.known_hardware());
        machine.tlb = self.resolve_tlb(&machine);
        let mut known = Snapshot::new_unread(self.root.name(), machine.page_size);
        (known.machine, known.settings) = (machine, settings);
        let manifest = manifest::build_for_process("checkup", Some(self.seed), self.started, &known);
        Recording::create(path, &manifest)
    }

    /// Returns the facts of the machine that do not come from its files.
    fn known_hardware(&self) -> MachineOverrides {
        let page_size = self
            .page_size
            .map(|size| (size, "--page-size".to_owned()))
            .or_else(|| Some((self.root.manifest()?.page_size?, "manifest".to_owned())));
        MachineOverrides { page_size, hypervisor: machine::from_cpuid(&self.leaves) }
    }

    fn resolve_tlb(&self, machine: &Machine) -> Reading<Tlb> {
        match (&machine.cpu, &self.tlb) {
            (Ok(cpu), _) => pagelab_tlb::select_geometry(cpu, &self.leaves, self.tlb.clone()),
            (Err(_), Some(tlb)) => Ok(tlb.clone()),
            (Err(_), None) => machine.tlb.clone(),
        }
    }

    /// Reads all requested data, from the files to the probe.
    pub fn read_snapshot(&self, samples: &StreamRecorder<'_>) -> Snapshot {
        let begun = Instant::now();
        let reader = Reader::new(&self.root);
        // In a saved tree it costs nothing, and `can` also reads it: both predict from the same files.
        let is_saved = !self.root.is_live() && self.root.read(PAGETYPEINFO).is_ok();
        let mut options = CollectOptions {
            pagetypeinfo: self.with_pagetypeinfo || is_saved,
            overrides: self.known_hardware(),
            captured_realtime_ns: self.root.manifest().and_then(|manifest| manifest.realtime_ns),
            ..CollectOptions::default()
        };
        options.processes.with_smaps = self.with_smaps;
        let mut snapshot = collect(&reader, &options);
        snapshot.machine.tlb = self.resolve_tlb(&snapshot.machine);
        snapshot.census = match &snapshot.zoneinfo {
            Ok(zoneinfo) => {
                let options = census_options(&snapshot, self.seed);
                reader.note_malformed(take_census(&self.root, &reader, zoneinfo, &options))
            }
            Err(absence) => Err(absence.clone()),
        };
        if let Some(absence) = self.root.manifest_absence() {
            let _ = reader.note_malformed::<()>(Err(absence.clone()));
        }
        snapshot.problems = reader.problems();
        if self.with_probe {
            if let Some(recording) = samples.recording {
                recording.store_partial(&snapshot);
            }
            let left = PROBE_TIME_LIMIT.saturating_sub(begun.elapsed());
            run_probe(&mut snapshot, self.seed, left, samples);
        }
        snapshot
    }
}
