//! Memory metrics of a node_exporter scrape, as the kernel's own records.
//!
//! | metric | is |
//! |---|---|
//! | `node_buddyinfo_blocks{node,size,zone}` | `/proc/buddyinfo`; `size` is the order |
//! | `node_memory_NAME_bytes`, `node_memory_NAME` | `/proc/meminfo`; parentheses were written as `_` |
//! | `node_vmstat_NAME` | `/proc/vmstat`, mostly a part of it |
//! | `node_pressure_memory_waiting_seconds_total`, `…_stalled_…` | the totals of `/proc/pressure/memory` |
//! | `node_time_seconds`, `node_boot_time_seconds` | the time of the scrape, and of the boot |
//! | `node_uname_info{nodename,release,machine}` | `uname` |
//!
//! Metrics of one time stamp are one scrape; those without one are one too.

use std::collections::BTreeMap;

use pagelab_model::{BuddyInfo, Counters, FreeAreas, Meminfo, NodeId, ZoneFreeAreas, ZoneKey};

use crate::ParseError;
use crate::exposition::{self, Sample};
use crate::text::{RECORDS_MAX, to_printable};

const FORMAT: &str = "node_exporter scrape";

/// Content of one scrape.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scrape {
    /// Its time stamp in milliseconds since 1970, where its samples have one.
    pub stamp_ms: Option<i64>,
    /// `node_time_seconds`: the machine's clock at the scrape, in seconds since 1970.
    pub time_s: Option<f64>,
    /// `node_boot_time_seconds`: when it was booted, in seconds since 1970.
    pub boot_s: Option<f64>,
    /// The machine.
    pub uname: Uname,
    /// Free blocks.
    pub buddyinfo: Option<BuddyInfo>,
    /// Amounts.
    pub meminfo: Option<Meminfo>,
    /// Counters; node_exporter shows a part of them by default.
    pub vmstat: Option<Counters>,
    /// Microseconds in which some task, and in which all tasks, waited for memory.
    pub pressure_some_us: Option<u64>,
    /// The same of all tasks.
    pub pressure_full_us: Option<u64>,
}

/// Names of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uname {
    /// The host name: `nodename` of uname, or the label `instance` that Prometheus adds.
    pub host_name: Option<String>,
    /// The kernel's release.
    pub release: Option<String>,
    /// The architecture.
    pub machine: Option<String>,
}

#[derive(Default)]
struct ScrapeBuilder {
    scrape: Scrape,
    meminfo: NamedFields,
    vmstat: NamedFields,
    zones: Vec<(ZoneKey, Vec<Option<u64>>)>,
    /// The machine that Prometheus names, which must be one.
    instance: Option<String>,
}

/// Named values in the order of their lines.
#[derive(Default)]
struct NamedFields {
    indices: BTreeMap<Box<str>, usize>,
    values: Vec<(Box<str>, u64, bool)>,
}

impl NamedFields {
    /// Adds a field; `false` if there is one of that name.
    fn push(&mut self, name: &str, value: u64, in_kib: bool) -> bool {
        let is_new = self.indices.insert(name.into(), self.values.len()).is_none();
        if is_new {
            self.values.push((name.into(), value, in_kib));
        }
        is_new
    }

    fn counters(&self) -> Counters {
        self.values.iter().map(|(name, value, _)| (&**name, *value)).collect()
    }
}

const DUPLICATE_SAMPLE: &str =
    "duplicate sample: several scrapes in one file need timestamps; hint: use one file per scrape";

/// All scrapes of a text by time; an empty list where nothing in it is about memory.
pub fn parse(text: &[u8]) -> Result<Vec<Scrape>, ParseError> {
    let mut found: BTreeMap<(u32, Option<i64>), ScrapeBuilder> = BTreeMap::new();
    let mut taken = 0;
    exposition::for_each_sample(text, is_memory_metric, |sample| {
        taken += 1;
        if taken > RECORDS_MAX {
            return Err(sample.error(format!("more than {RECORDS_MAX} values")));
        }
        // Time stamps separate scrapes; without them `# EOF` does.
        let text = if sample.at_ms.is_some() { 0 } else { sample.texts_before };
        add_sample(found.entry((text, sample.at_ms)).or_default(), &sample)
    })?;
    let built = found.into_iter().map(|((_, stamp_ms), building)| build_scrape(stamp_ms, building));
    let mut scrapes: Vec<Scrape> = built.collect::<Result<_, ParseError>>()?;
    scrapes.retain(Scrape::has_memory);
    Ok(scrapes)
}

impl Scrape {
    fn has_memory(&self) -> bool {
        self.buddyinfo.is_some()
            || self.meminfo.is_some()
            || self.vmstat.is_some()
            || self.pressure_some_us.is_some()
    }
}

fn is_memory_metric(name: &str) -> bool {
    const EXACT_NAMES: [&str; 6] = [
        "node_buddyinfo_blocks",
        "node_time_seconds",
        "node_boot_time_seconds",
        "node_uname_info",
        WAITING,
        STALLED,
    ];
    const PREFIXES: [&str; 2] = ["node_memory_", "node_vmstat_"];
    EXACT_NAMES.contains(&name)
        || PREFIXES.iter().any(|prefix| name.starts_with(prefix)) && !name.starts_with("node_memory_numa_")
}

const WAITING: &str = "node_pressure_memory_waiting_seconds_total";
const STALLED: &str = "node_pressure_memory_stalled_seconds_total";

fn add_sample(builder: &mut ScrapeBuilder, sample: &Sample<'_>) -> Result<(), ParseError> {
    let fail = |problem: &str| sample.error(format!("{}: {problem}", to_printable(sample.name.as_bytes())));
    if let Some(instance) = sample.label("instance") {
        match &builder.instance {
            Some(known) if known != instance => {
                let both = format!(
                    "values of two machines, {} and {}: import one at a time",
                    to_printable(known.as_bytes()),
                    to_printable(instance.as_bytes())
                );
                return Err(sample.error(both));
            }
            Some(_) => {}
            None => builder.instance = Some(instance.to_owned()),
        }
    }
    let count = || sample.count().ok_or_else(|| fail("value is not a count"));
    let microseconds = || to_microseconds(sample).ok_or_else(|| fail("value is not a time"));
    let set_once = |is_new: bool| if is_new { Ok(()) } else { Err(fail(DUPLICATE_SAMPLE)) };
    match &*sample.name {
        "node_buddyinfo_blocks" => add_blocks(&mut builder.zones, sample, count()?),
        "node_time_seconds" => set_once(builder.scrape.time_s.replace(sample.value).is_none()),
        "node_boot_time_seconds" => set_once(builder.scrape.boot_s.replace(sample.value).is_none()),
        "node_uname_info" => {
            let label = |name: &str| sample.label(name).filter(|text| !text.is_empty()).map(str::to_owned);
            let uname = &mut builder.scrape.uname;
            let (host_name, release, machine) = (label("nodename"), label("release"), label("machine"));
            let is_new = *uname == Uname::default();
            *uname = Uname { host_name, release, machine };
            set_once(is_new)
        }
        WAITING => set_once(builder.scrape.pressure_some_us.replace(microseconds()?).is_none()),
        STALLED => set_once(builder.scrape.pressure_full_us.replace(microseconds()?).is_none()),
        name => match (name.strip_prefix("node_memory_"), name.strip_prefix("node_vmstat_")) {
            (Some(field), _) => {
                let (field, in_kib) =
                    field.strip_suffix("_bytes").map_or((field, false), |field| (field, true));
                let value = count()?;
                if in_kib && value % 1024 != 0 {
                    return Err(fail("value is not a whole number of KiB"));
                }
                let value = if in_kib { value / 1024 } else { value };
                set_once(builder.meminfo.push(&to_kernel_name(field), value, in_kib))
            }
            (None, Some(field)) => set_once(builder.vmstat.push(field, count()?, false)),
            (None, None) => Ok(()),
        },
    }
}

/// `Active_anon` as the kernel writes it: `Active(anon)`.
fn to_kernel_name(field: &str) -> String {
    let of = |end: &str| field.strip_suffix(end).filter(|front| matches!(*front, "Active" | "Inactive"));
    match (of("_anon"), of("_file")) {
        (Some(front), _) => format!("{front}(anon)"),
        (None, Some(front)) => format!("{front}(file)"),
        (None, None) => field.to_owned(),
    }
}

/// Seconds as whole microseconds, which is what the kernel counts.
fn to_microseconds(sample: &Sample<'_>) -> Option<u64> {
    let us = (sample.value * 1e6).round();
    (0.0..9.2e18).contains(&us).then_some(us as u64)
}

fn add_blocks(
    zones: &mut Vec<(ZoneKey, Vec<Option<u64>>)>,
    sample: &Sample<'_>,
    count: u64,
) -> Result<(), ParseError> {
    let fail = |problem: &str| sample.error(format!("{}: {problem}", to_printable(sample.name.as_bytes())));
    let label =
        |name: &str| sample.label(name).ok_or_else(|| fail("expected the labels node, size and zone"));
    let node = label("node")?.parse().map_err(|_| fail("`node` is not a number"))?;
    let order = label("size")?.parse().ok().filter(|&order: &usize| order < FreeAreas::ORDERS_MAX);
    let order = order.ok_or_else(|| fail("`size` is not an order"))?;
    let zone = label("zone")?;
    if zone.is_empty()
        || zone.len() > ZoneKey::NAME_MAX
        || !zone.bytes().all(|sign| sign.is_ascii_graphic() && sign != b'/')
    {
        return Err(fail("`zone` is not a zone name"));
    }
    let key = ZoneKey { node: NodeId(node), zone: zone.to_owned() };
    let place = zones.iter().position(|(known, _)| *known == key);
    let place = match place {
        Some(place) => place,
        None if zones.len() == BuddyInfo::ZONES_MAX => return Err(fail("too many zones")),
        None => {
            zones.push((key, Vec::new()));
            zones.len() - 1
        }
    };
    let counts = &mut zones[place].1;
    if counts.len() <= order {
        counts.resize(order + 1, None);
    }
    if counts[order].replace(count).is_some() { Err(fail(DUPLICATE_SAMPLE)) } else { Ok(()) }
}

fn build_scrape(stamp_ms: Option<i64>, builder: ScrapeBuilder) -> Result<Scrape, ParseError> {
    let ScrapeBuilder { mut scrape, meminfo, vmstat, zones, instance } = builder;
    scrape.stamp_ms = stamp_ms;
    scrape.uname.host_name = scrape.uname.host_name.or(instance);
    scrape.buddyinfo = build_buddyinfo(zones)?;
    if !meminfo.values.is_empty() {
        let in_kib = meminfo.values.iter().map(|(.., in_kib)| *in_kib).collect();
        scrape.meminfo = Some(Meminfo { fields: meminfo.counters(), in_kib });
    }
    scrape.vmstat = (!vmstat.values.is_empty()).then(|| vmstat.counters());
    Ok(scrape)
}

/// Zones whose orders are all there, and as many as the others'. The kernel's order of zones is not in a
/// scrape: they come sorted by name, and stay so.
fn build_buddyinfo(zones: Vec<(ZoneKey, Vec<Option<u64>>)>) -> Result<Option<BuddyInfo>, ParseError> {
    let Some(orders) = zones.iter().map(|(_, counts)| counts.len()).max() else { return Ok(None) };
    let whole = |(key, counts): (ZoneKey, Vec<Option<u64>>)| {
        let areas = counts.into_iter().collect::<Option<Vec<u64>>>().filter(|counts| counts.len() == orders);
        let areas = areas.and_then(FreeAreas::new).ok_or_else(|| {
            let problem = format!(
                "zone {} of node {} lacks counts for some of the {orders} orders",
                key.zone, key.node.0
            );
            ParseError::for_input(FORMAT, problem)
        })?;
        Ok(ZoneFreeAreas { key, areas })
    };
    let zones = zones.into_iter().map(whole).collect::<Result<Vec<ZoneFreeAreas>, ParseError>>()?;
    Ok(Some(BuddyInfo { zones }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# HELP node_buddyinfo_blocks Count of free blocks according to size.
# TYPE node_buddyinfo_blocks gauge
node_buddyinfo_blocks{node="0",size="0",zone="DMA"} 1
node_buddyinfo_blocks{node="0",size="0",zone="Normal"} 4381
node_buddyinfo_blocks{node="0",size="1",zone="DMA"} 0
node_buddyinfo_blocks{node="0",size="1",zone="Normal"} 1093
node_memory_Active_anon_bytes 2.068484096e+09
node_memory_HugePages_Total 3
node_memory_MemTotal_bytes 3.831959552e+09
node_memory_numa_MemFree{node="0"} 77
node_pressure_memory_waiting_seconds_total 0.262
node_uname_info{domainname="(none)",machine="x86_64",nodename="vm-17",release="6.12.1",sysname="Linux",version="x"} 1
node_time_seconds 1.7701275065e+09
node_vmstat_pgfault 2.320168809e+09
go_goroutines 7
"#;

    #[test]
    fn a_scrape_is_the_kernels_records() {
        let [scrape] = &parse(TEXT.as_bytes()).unwrap()[..] else { panic!("one scrape") };
        let buddyinfo = scrape.buddyinfo.as_ref().unwrap();
        assert_eq!(buddyinfo.zones[1].key.zone, "Normal");
        assert_eq!(buddyinfo.zones[1].areas.counts(), [4381, 1093]);
        let meminfo = scrape.meminfo.as_ref().unwrap();
        assert_eq!(meminfo.bytes("Active(anon)").unwrap().0, 2_068_484_096);
        assert_eq!(meminfo.count("HugePages_Total"), Some(3));
        assert_eq!(meminfo.fields.len(), 3, "a node's part is not the machine's");
        assert_eq!(scrape.vmstat.as_ref().unwrap().get("pgfault"), Some(2_320_168_809));
        assert_eq!((scrape.pressure_some_us, scrape.time_s), (Some(262_000), Some(1_770_127_506.5)));
        assert_eq!(scrape.uname.release.as_deref(), Some("6.12.1"));
    }

    #[test]
    fn time_stamps_tell_scrapes_apart_and_come_sorted() {
        let text = "node_vmstat_a 2 2000\nnode_vmstat_a 1 1000\nnode_memory_X 5 2000\n";
        let scrapes = parse(text.as_bytes()).unwrap();
        let stamps: Vec<_> =
            scrapes.iter().map(|scrape| (scrape.stamp_ms, scrape.meminfo.is_some())).collect();
        assert_eq!(stamps, [(Some(1000), false), (Some(2000), true)]);
        assert_eq!(parse(b"go_goroutines 7\n").unwrap(), []);
    }

    #[test]
    fn what_is_not_one_whole_scrape_of_one_machine_is_refused() {
        let twice = format!("{TEXT}{TEXT}");
        let cut = TEXT.replace("node_buddyinfo_blocks{node=\"0\",size=\"1\",zone=\"DMA\"} 0\n", "");
        for (text, problem) in [
            (&*twice, "duplicate sample: several scrapes in one file need timestamps"),
            (&cut, "zone DMA of node 0 lacks counts for some of the 2 orders"),
            ("node_vmstat_a{instance=\"x\"} 1\nnode_vmstat_b{instance=\"y\"} 1\n", "two machines, x and y"),
            ("node_vmstat_a 0.5\n", "is not a count"),
            ("node_memory_A_bytes 1000\n", "not a whole number of KiB"),
            ("node_buddyinfo_blocks{size=\"1\",zone=\"DMA\"} 0\n", "expected the labels"),
            ("node_buddyinfo_blocks{node=\"0\",size=\"64\",zone=\"DMA\"} 0\n", "is not an order"),
            ("node_buddyinfo_blocks{node=\"0\",size=\"1\",zone=\"a/b\"} 0\n", "is not a zone name"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err().message_in_file("f");
            assert!(error.contains(problem), "{error}");
        }
    }
}
