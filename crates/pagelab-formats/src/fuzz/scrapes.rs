//! Fuzz targets of the texts of Prometheus exporters.

use super::{Target, checked, filled};
use crate::{exposition, node_exporter};

pub(super) const EXPOSITION: Target =
    Target { name: "exposition", run: run_exposition, seeds: &[PLAIN, OPEN_METRICS] };
pub(super) const NODE_EXPORTER: Target =
    Target { name: "node_exporter", run: run_node_exporter, seeds: &[SCRAPE, STAMPED] };

const PLAIN: &[u8] =
    b"# TYPE a gauge\na 1\nb{x=\"1\",y=\"a\\\"b\\\\\\n\",} -2.5e+3 1770127506000\n{\"c.d\",e=\"f\"} NaN\n";

const OPEN_METRICS: &[u8] = b"a_total 3 1770127506.25\nb_bucket{le=\"1\"} 17 # {id=\"x\"} 0.67\n# EOF\n";

const SCRAPE: &[u8] = b"node_buddyinfo_blocks{node=\"0\",size=\"0\",zone=\"DMA\"} 1\n\
node_buddyinfo_blocks{node=\"0\",size=\"1\",zone=\"DMA\"} 9\nnode_memory_Active_anon_bytes 2.068484096e+09\n\
node_memory_HugePages_Total 3\nnode_uname_info{machine=\"x\",nodename=\"vm-17\",release=\"6.1\"} 1\n\
node_pressure_memory_waiting_seconds_total 0.262\nnode_time_seconds 1.7e+09\nnode_vmstat_pgfault 2.3e+09\n";

const STAMPED: &[u8] = b"node_vmstat_pgfault{instance=\"a:9100\"} 2 2000\nnode_vmstat_pgfault 1 1000\n";

fn run_exposition(input: &[u8]) {
    let mut samples = 0;
    let parsed = exposition::each(
        input,
        |_| true,
        |sample| {
            samples += 1;
            assert!(!sample.name.is_empty() && sample.labels.iter().all(|(label, _)| !label.is_empty()));
            assert!(
                sample
                    .count()
                    .is_none_or(|count| count as f64 == sample.value && i64::try_from(count).is_ok())
            );
            Ok(())
        },
    );
    assert!(samples <= filled(input));
    checked(input, parsed);
}

fn run_node_exporter(input: &[u8]) {
    let Some(scrapes) = checked(input, node_exporter::parse(input)) else { return };
    assert!(scrapes.len() <= filled(input));
    for scrape in &scrapes {
        if let Some(buddyinfo) = &scrape.buddyinfo {
            let orders = buddyinfo.zones.first().map(|zone| zone.areas.orders());
            assert!(
                orders.is_some() && buddyinfo.zones.iter().all(|zone| Some(zone.areas.orders()) == orders)
            );
        }
        if let Some(meminfo) = &scrape.meminfo {
            assert_eq!(meminfo.fields.len(), meminfo.in_kib.len());
        }
    }
}
