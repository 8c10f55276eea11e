//! What exactly is asked for: sizes and ways that this machine has.

use pagelab_guest::shape::{parse_size, show};
use pagelab_metrics::can::{Ask, How};
use pagelab_model::{Bytes, NodeId, Order, Snapshot};

use super::{Args, Way, word};
use crate::cmd::usage;
use crate::exit::{Exit, Failure};

/// The request, checked against the machine.
pub(super) fn ask(args: &Args, snapshot: &Snapshot) -> Result<Ask, Failure> {
    let page_size = snapshot.machine.page_size;
    let pmd_size = page_size.block(snapshot.pmd_order);
    let size = match &args.size {
        Some(text) => parse_size(text).map_err(|why| usage(&format!("--size {why}")))?,
        None => pmd_size,
    };
    let text = args.size.as_deref().unwrap_or_default();
    let wrong = |why: &str| Err(usage(&format!("--size {text}: {why}")));
    let memory = snapshot.meminfo.as_ref().ok().and_then(|info| info.bytes("MemTotal"));
    let Some(order) = page_size.order_of(size) else {
        if !size.0.is_power_of_two() {
            return wrong("a power of two was wanted, such as 64K, 2M, 1G");
        }
        let page = show(Bytes(page_size.bytes()));
        return wrong(&format!("it is less than a page of this machine, {page}"));
    };
    if order == Order(0) {
        return wrong("that is one page, which every allocation is; ask for 2 pages or more in one piece");
    }
    if let Some(memory) = memory.filter(|&memory| size > memory) {
        return wrong(&format!("this machine has {} of memory", show(memory)));
    }
    let how = way(args, snapshot, size)?;
    let has_node = |node: u32| {
        let zones = snapshot.buddyinfo.as_ref().map_or(&[][..], |buddy| &buddy.zones);
        zones.is_empty() || zones.iter().any(|zone| zone.key.node == NodeId(node))
    };
    if let Some(node) = args.node.filter(|&node| !has_node(node)) {
        return Err(usage(&format!(
            "--node {node}: there is no such node; `pagelab frag` lists those that there are"
        )));
    }
    Ok(Ask { count: args.count, order, how, node: args.node.map(NodeId), cpu: None })
}

/// The way that was named, or the first that has the size.
fn way(args: &Args, snapshot: &Snapshot, size: Bytes) -> Result<How, Failure> {
    let thp = snapshot.settings.thp.as_ref();
    let pmd_size = snapshot.machine.page_size.block(snapshot.pmd_order);
    let mut thp_sizes: Vec<Bytes> =
        thp.map_or(&[][..], |thp| &thp.sizes).iter().map(|size| size.size).collect();
    if thp.is_ok() && !thp_sizes.contains(&pmd_size) {
        thp_sizes.push(pmd_size);
    }
    let pools = snapshot.settings.hugetlb.as_ref().map_or(&[][..], |pools| pools);
    let pool_sizes: Vec<Bytes> = pools.iter().map(|pool| pool.page_size).collect();
    let list = |sizes: &[Bytes]| sizes.iter().map(|&size| show(size)).collect::<Vec<_>>().join(", ");
    let (how, sizes, absence) = match args.how {
        None if thp_sizes.contains(&size) => return Ok(How::Thp),
        None if pool_sizes.contains(&size) => return Ok(How::Hugetlb),
        None | Some(Way::Contig) => return Ok(How::Contig),
        Some(Way::Thp) => (How::Thp, &thp_sizes, thp.err()),
        Some(Way::Hugetlb) => (How::Hugetlb, &pool_sizes, snapshot.settings.hugetlb.as_ref().err()),
    };
    if let Some(absence) = absence {
        let message = format!(
            "--how {}: this kernel has none: {}: {}; a way out: --how contig",
            word(how),
            absence.source,
            absence.reason()
        );
        return Err(Failure::new(Exit::NotAvailable, message));
    }
    if sizes.contains(&size) {
        return Ok(how);
    }
    let message = format!(
        "--how {} --size {}: this kernel has {}; a way out: one of these sizes, or --how contig",
        word(how),
        show(size),
        if sizes.is_empty() { "none".to_owned() } else { list(sizes) }
    );
    Err(usage(&message))
}
