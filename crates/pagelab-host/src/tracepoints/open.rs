//! Opening tracepoints on every online CPU, or saying why not and what to do about it.

use std::io;

use pagelab_formats::cpu_list;
use pagelab_formats::perf_record::{Layout, sample_type};
use pagelab_model::{Absence, AbsentWhy, Reading};
use pagelab_sys::perf_ring::{PerfEvent, Ring, Sampling};
use rustix::io::Errno;

use super::drain::State;
use super::{Kind, Options, StackDepth, Tracefs, Tracepoints, Wanted};
use crate::paths;
use crate::reader::Reader;

/// Frames of a call chain, at most: the allocator's own dozen, and enough to see who asked.
const FRAMES_MAX: u16 = 48;

/// The inode of the first PID namespace (include/linux/proc_ns.h, `PROC_PID_INIT_INO`).
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

impl Tracepoints {
    /// Opens what is wanted on every CPU that is online, not enabled yet. What this kernel does not have is
    /// told beside the rest; if nothing can be opened, the absence says why.
    pub fn open(
        reader: &Reader<'_>,
        wanted: &[Wanted<'_>],
        options: &Options,
    ) -> Reading<(Tracepoints, Vec<Absence>)> {
        let tracefs = Tracefs::find(reader)?;
        let (mut found, mut absent) = (Vec::new(), Vec::new());
        for wanted in wanted {
            match tracefs.format(wanted.system, wanted.name) {
                Ok(format) => found.push((*wanted, Kind { system: wanted.system.to_owned(), format })),
                Err(absence) => absent.push(absence),
            }
        }
        if found.is_empty() {
            let none = || Absence::new(tracefs.place(), AbsentWhy::NotAsked, "no tracepoint was asked for");
            return Err(absent.into_iter().next().unwrap_or_else(none));
        }
        let cpus = reader.parse(paths::CPU_ONLINE, cpu_list::parse)?;
        let opening = Opening { reader, options, with_stacks: found.iter().any(|(w, _)| has_stacks(w)) };
        let tracepoints = opening.all(found, &cpus)?;
        Ok((tracepoints, absent))
    }
}

/// Whether numbers of threads are here what they are in the kernel.
pub(super) fn knows_itself(reader: &Reader<'_>) -> bool {
    let namespace = reader.root().link(paths::SELF_PID_NAMESPACE);
    namespace.is_ok_and(|link| link == FIRST_PID_NAMESPACE)
}

impl Tracepoints {
    /// Has the kernel leave out all threads that this process has now, where it knows them by their numbers
    /// here; `false` where it does not, and the reader alone leaves them out. For tracepoints that were
    /// opened with [`Options::own_threads_later`], once: a filter that is set cannot be changed.
    pub fn leave_out_threads(&self, reader: &Reader<'_>) -> Reading<bool> {
        if !knows_itself(reader) {
            return Ok(false);
        }
        let threads = own_threads(reader)?;
        let not: Vec<String> = threads.iter().map(|thread| format!("common_pid != {thread}")).collect();
        let expression = not.join(" && ");
        self.events().try_for_each(|(kind, event)| {
            event.filter(&expression).map_err(|error| {
                let detail = format!("the kernel does not take the filter `{expression}`: {error}");
                let name = self.kinds.get(kind).map_or_else(String::new, Kind::full_name);
                Absence::new(name, AbsentWhy::Failed, detail)
            })
        })?;
        Ok(true)
    }
}

/// The threads that this process has now.
pub(super) fn own_threads(reader: &Reader<'_>) -> Reading<Vec<u32>> {
    let threads = reader.root().list(paths::SELF_TASK)?;
    Ok(threads.iter().filter_map(|thread| thread.parse().ok()).collect())
}

fn has_stacks(wanted: &Wanted<'_>) -> bool {
    wanted.stacks != StackDepth::None
}

struct Opening<'a, 'r> {
    reader: &'a Reader<'r>,
    options: &'a Options,
    /// Whether any event has a call chain. All events of a ring must have the same layout, so that those
    /// without one have an empty one then.
    with_stacks: bool,
}

impl Opening<'_, '_> {
    fn all(&self, found: Vec<(Wanted<'_>, Kind)>, cpus: &[u32]) -> Reading<Tracepoints> {
        let (mut rings, mut others, mut watched): (Vec<Ring>, _, _) = (Vec::new(), Vec::new(), Vec::new());
        for &cpu in cpus {
            let mut ring: Option<Ring> = None;
            for (place, (wanted, kind)) in found.iter().enumerate() {
                let event = match PerfEvent::tracepoint(kind.format.id, cpu, &self.sampling(wanted)) {
                    Ok(event) => event,
                    // The CPU went offline since the list was read.
                    Err(error) if Errno::from_io_error(&error) == Some(Errno::NODEV) => break,
                    Err(error) => return Err(self.refused(&error, found.len() * cpus.len())),
                };
                self.filter(&event, wanted, kind)?;
                match &ring {
                    None => {
                        let new = Ring::new(event, self.options.ring_bytes.0);
                        ring = Some(new.map_err(|error| self.no_room(&error))?);
                    }
                    Some(ring) => {
                        event
                            .send_to(ring)
                            .map_err(|error| self.refused(&error, found.len() * cpus.len()))?;
                        others.push((place, event));
                    }
                }
            }
            if let Some(ring) = ring {
                rings.push(ring);
                watched.push(cpu);
            }
        }
        let kinds: Vec<Kind> = found.into_iter().map(|(_, kind)| kind).collect();
        let layout = Layout::new(self.sample_type())
            .ok_or_else(|| Absence::new(PERF, AbsentWhy::Failed, "a sample type that cannot be read"))?;
        let own = (!self.options.own_events).then(std::process::id);
        let state = State::new(kinds.iter().map(|kind| kind.format.id), own);
        Ok(Tracepoints { kinds, cpus: watched, rings, others, layout, state })
    }

    fn sample_type(&self) -> u64 {
        use sample_type::{CALLCHAIN, CPU, RAW, TID, TIME};
        TIME | TID | CPU | RAW | if self.with_stacks { CALLCHAIN } else { 0 }
    }

    fn sampling(&self, wanted: &Wanted<'_>) -> Sampling {
        let quarter = u32::try_from(self.options.ring_bytes.0 / 4).unwrap_or(u32::MAX);
        let wakeup_bytes = if self.options.wakeup_bytes == 0 { quarter } else { self.options.wakeup_bytes };
        Sampling {
            sample_type: self.sample_type(),
            wakeup_bytes,
            frames_max: if self.with_stacks { FRAMES_MAX } else { 0 },
            kernel_frames: has_stacks(wanted),
            user_frames: wanted.stacks == StackDepth::KernelAndUser,
        }
    }

    /// Sets the filter that is wanted, and leaves the thread that reads out, where the kernel can. It knows
    /// threads by their numbers in the first PID namespace; in another one the reader alone leaves them out.
    fn filter(&self, event: &PerfEvent, wanted: &Wanted<'_>, kind: &Kind) -> Reading<()> {
        let knows_itself = knows_itself(self.reader);
        let is_now = !self.options.own_events && !self.options.own_threads_later;
        let own = match is_now && knows_itself {
            true => format!("common_pid != {}", rustix::thread::gettid().as_raw_nonzero()),
            false => String::new(),
        };
        let expression = match (wanted.filter, own.as_str()) {
            ("", "") => return Ok(()),
            ("", own) => own.to_owned(),
            (filter, "") => filter.to_owned(),
            (filter, own) => format!("({filter}) && {own}"),
        };
        event.filter(&expression).map_err(|error| {
            let detail = format!("the kernel does not take the filter `{expression}`: {error}");
            Absence::new(kind.full_name(), AbsentWhy::Failed, detail)
                .or("use names of fields that the event's format has")
        })
    }

    /// Why an event could not be opened.
    fn refused(&self, error: &io::Error, events: usize) -> Absence {
        match Errno::from_io_error(error) {
            Some(Errno::ACCESS | Errno::PERM) => {
                let level = self.reader.line(paths::PERF_EVENT_PARANOID).unwrap_or_else(|_| "unknown".into());
                let detail = match rustix::process::geteuid().is_root() {
                    true => "not permitted even to root: a container, seccomp or lockdown".to_owned(),
                    false => format!(
                        "tracepoints of all processes are for the privileged \
                         (kernel.perf_event_paranoid is {level})"
                    ),
                };
                Absence::new(PERF, AbsentWhy::NotPermitted, detail).or("run as root, or give the program \
                     CAP_PERFMON (5.8 and later), or sysctl kernel.perf_event_paranoid=-1; in a container, \
                     run on \
                     the host")
            }
            Some(Errno::MFILE | Errno::NFILE) => {
                let detail =
                    format!("{events} events want as many open files, more than this process may have");
                Absence::new(PERF, AbsentWhy::NotPermitted, detail).or(format!("ulimit -n {}", events + 256))
            }
            Some(Errno::NOSYS) => Absence::new(PERF, AbsentWhy::NotThere, "no perf events in this kernel")
                .or("boot a kernel built with CONFIG_PERF_EVENTS=y"),
            _ => Absence::new(PERF, AbsentWhy::Failed, error.to_string()),
        }
    }

    /// Why a ring could not be mapped.
    fn no_room(&self, error: &io::Error) -> Absence {
        match Errno::from_io_error(error) {
            Some(Errno::PERM) => {
                let detail = format!(
                    "rings of {} KiB a CPU are more than kernel.perf_event_mlock_kb allows",
                    self.options.ring_bytes.0 >> 10
                );
                Absence::new(PERF, AbsentWhy::NotPermitted, detail)
                    .or("run as root, or ask for smaller rings, or raise kernel.perf_event_mlock_kb")
            }
            _ => Absence::new(PERF, AbsentWhy::Failed, format!("the ring cannot be mapped: {error}")),
        }
    }
}

const PERF: &str = "perf_event_open";
