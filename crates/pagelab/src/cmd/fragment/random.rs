//! `pagelab fragment random`: fill memory and give single pages of it back by chance.

use std::ffi::OsString;
use std::io::Write;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use pagelab_contig::fragment::facts::Facts;
use pagelab_contig::random::{self, Order, Plan, Walk};
use pagelab_contig::reserve::Reserve;
use pagelab_contig::unmovable::Wanted;
use pagelab_contig::whole_thp::{self, WholeThps};
use pagelab_host::root::Root;
use pagelab_metrics::frag::kernel_decimal;
use pagelab_metrics::known_scores::scores;
use pagelab_model::{BuddyInfo, Bytes, Snapshot};
use pagelab_report::json::VERSION;
use pagelab_report::style::{bytes, count};
use serde_json::{Value, json};

use super::size::Size;
use super::taking::{self, Taking};
use super::{failure, unmovable};
use crate::cmd::{program, usage};
use crate::exit::{Exit, Failure};
use crate::out;

/// How memory is filled and walked.
#[derive(Debug, clap::Args)]
pub struct Walking {
    /// Fill this much memory: 80%, 4G; the reserve stays free whatever is asked for
    #[arg(long, value_name = "SIZE", default_value = "100%", allow_hyphen_values = true)]
    size: String,

    /// Walk chunks of this size
    #[arg(long, value_name = "SIZE", default_value = "24M", allow_hyphen_values = true)]
    chunk: String,

    /// Pages of a step, drawn evenly from this range
    #[arg(long, value_name = "A..B", default_value = "1..63", allow_hyphen_values = true)]
    step: String,

    /// How probable it is that a page is given back where a step ends
    #[arg(long, value_name = "P", default_value = "0.5", allow_hyphen_values = true)]
    probability: String,

    /// Fill all chunks before the first is walked: what is given back stays free
    #[arg(long)]
    fill_first: bool,

    /// Which pages are given back; the same seed gives back the same
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Leave at least this much available [default: 5 % of memory, 512M at least]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    reserve: Option<String>,
}

/// What `fragment random` was asked for.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    options: Walking,

    /// Ask for huge pages; they are not split, so little comes back
    #[arg(long, conflicts_with = "no_thp")]
    thp: bool,

    /// Refuse huge pages; the default
    #[arg(long)]
    no_thp: bool,

    /// Hold until Ctrl-C; the default where no command is given
    #[arg(long, conflicts_with = "command")]
    hold: bool,

    #[command(flatten)]
    unmovable: unmovable::Unmovable,

    /// Print the plan and take nothing
    #[arg(long)]
    dry_run: bool,

    /// Every number as JSON, once all is given back
    #[arg(long)]
    json: bool,

    /// Record free blocks and use meanwhile in this run file
    #[arg(short = 'o', long = "run", value_name = "FILE")]
    output: Option<PathBuf>,

    /// Run this while memory is fragmented, and end with its exit code
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Walking {
    /// The plan, with or without huge pages, and the reserve.
    pub fn resolve(&self, facts: &Facts, thp: bool) -> Result<(Plan, Reserve), Failure> {
        let page = facts.page_size.bytes();
        let size = Size::parse("--size", &self.size)?.of(facts.mem_total);
        let Size::Amount(chunk) = Size::parse("--chunk", &self.chunk)? else {
            return Err(usage("--chunk: an amount was wanted, such as 24M"));
        };
        if chunk.0 < page || !chunk.0.is_multiple_of(page) {
            return Err(usage(&format!("--chunk {}: whole pages of {page} bytes were wanted", self.chunk)));
        }
        taking::check_size(size, facts)?;
        let walk =
            Walk { chunk, step_pages: steps(&self.step)?, probability: probability(&self.probability)? };
        let order = if self.fill_first { Order::FillFirst } else { Order::ChunkByChunk };
        let huge = facts.unit_bytes();
        facts.check_address_space(size.0.div_ceil(huge.0.max(1))).map_err(|error| failure(&error))?;
        let plan = Plan { size: Bytes(size.0.max(page)), walk, order, thp, huge, seed: self.seed };
        Ok((plan, taking::reserve(self.reserve.as_deref(), facts)?))
    }
}

/// The most that is held of a plan, as far as can be seen beforehand.
pub fn most(plan: &Plan, facts: &Facts, reserve: Reserve) -> Bytes {
    let room = reserve.room(facts.mem_available);
    plan.size.min(facts.group_room.map_or(room, |group| room.min(group)))
}

fn steps(text: &str) -> Result<RangeInclusive<u64>, Failure> {
    let range = text.split_once("..").and_then(|(least, most)| {
        let most = most.strip_prefix('=').unwrap_or(most);
        Some((least.parse::<u64>().ok()?, most.parse::<u64>().ok()?))
    });
    range.filter(|(least, most)| (1..=*most).contains(least)).map(|(least, most)| least..=most).ok_or_else(
        || usage(&format!("--step {text}: a range of pages was wanted, both ends in it, such as 1..63")),
    )
}

fn probability(text: &str) -> Result<f64, Failure> {
    let value: Option<f64> = text.parse().ok();
    value
        .filter(|value| (0.0..=1.0).contains(value))
        .ok_or_else(|| usage(&format!("--probability {text}: a number from 0 to 1 was wanted")))
}

/// Fills, walks, holds, gives back.
pub fn run(args: &Args, snapshot: &Snapshot) -> Result<u8, Failure> {
    // Before any memory is taken for it.
    args.command.first().map(|name| program(name)).transpose()?;
    let facts = Facts::of(snapshot, None).map_err(|error| failure(&error))?;
    let (plan, reserve) = args.options.resolve(&facts, args.thp)?;
    check_huge_pages(&facts, args.thp)?;
    let wanted = args.unmovable.resolve(&facts)?;
    let most = most(&plan, &facts, reserve);
    if args.dry_run {
        return show_plan(args, &plan, &facts, reserve, wanted.as_ref()).map(|()| Exit::Done as u8);
    }
    let transient = wanted.as_ref().map_or(Bytes(0), |wanted| unmovable::bytes_of(wanted, &facts));
    let mut taking = Taking::begin(&facts, reserve, Bytes(most.0.saturating_add(transient.0)))?;
    taking.record(args.output.as_deref(), plan.seed, snapshot)?;
    let mut free = vec![("before", taking.free()?)];
    let spoiled = wanted.as_ref().map(|wanted| unmovable::take_within(wanted, &facts, &mut taking));
    let held = fill(&plan, &facts, &mut taking)?;
    free.push(("held", taking.free()?));
    let whole = whole_thp::count(&Root::live(), held.addresses(), facts.page_size, facts.unit);
    let is_quiet = args.json || !args.command.is_empty();
    let lines = filled(&plan, &held, &whole, &facts);
    lines.iter().for_each(|line| taking.event("random", line.trim()));
    let done = filled_json(&held, &whole);
    say(lines.iter().chain(spoiled.iter().flat_map(|(_, lines)| lines)), is_quiet)?;
    let mut held = Some(held);
    // A signal on the way leaves nothing to hold, and no command is begun.
    let code = match taking.stop.signal() {
        Some(signal) => Ok(u8::try_from(128 + signal).unwrap_or(Exit::Partial as u8)),
        None => taking.hold(&args.command, &mut held),
    };
    drop(held);
    let spoiled = spoiled.map(|(spoiled, _)| {
        let value = (unmovable::json(&spoiled), spoiled.is_short());
        spoiled.release();
        value
    });
    free.push(("after", taking.free()?));
    let given_back = taking.given_back;
    let is_clean = taking.finish(code.as_ref().is_ok_and(|&code| code == 0 || !args.command.is_empty()));
    if args.json {
        let mut document = json!({
            "pagelab_json": VERSION,
            "kind": "fragment_random",
            "plan": plan_json(&plan, reserve, most),
            "given_back_for_others_bytes": given_back.0,
            "unmovable": spoiled.as_ref().map(|(value, _)| value),
            "unusable_permille": moments_json(&free),
        });
        if let (Some(document), Value::Object(done)) = (document.as_object_mut(), done) {
            document.extend(done);
        }
        super::show::print_json(&document)?;
    } else {
        say(table(&free).iter(), is_quiet)?;
    }
    let is_short = given_back > Bytes(0) || spoiled.is_some_and(|(_, is_short)| is_short);
    Ok(taking::code(code?, !args.command.is_empty(), is_clean && !is_short))
}

/// An error where huge pages are asked for and cannot be had.
pub fn check_huge_pages(facts: &Facts, is_asked: bool) -> Result<(), Failure> {
    match &facts.no_huge_pages {
        Some(no) if is_asked => Err(usage(&format!("huge pages cannot be had: {}\n  use --no-thp", no.why))),
        _ => Ok(()),
    }
}

/// Fills and walks what the plan says, within the room.
pub fn fill(plan: &Plan, facts: &Facts, taking: &mut Taking) -> Result<random::Held, Failure> {
    let mut said = 0;
    random::fragment(plan, facts.page_size, &mut |next, filled| {
        let tenth = filled.0.saturating_mul(10) / plan.size.0.max(1);
        if tenth > said {
            said = tenth;
            out::note(&format!("filled {} of {}", bytes(filled), bytes(plan.size)));
        }
        taking::within_group(facts, Bytes(filled.0.saturating_add(next.0)))?;
        taking.room(next)
    })
    .map_err(|error| Failure::new(Exit::Partial, "fragmenting failed, and all is given back").because(error))
}

/// What was done, for a program.
fn filled_json(held: &random::Held, whole: &WholeThps) -> Value {
    json!({
        "filled_bytes": held.filled.0,
        "chunks": held.chunks,
        "pages_given_back": held.pages_given_back,
        "stopped": held.stopped,
        "huge_pages_mapped_whole": whole.mapped.as_ref().ok(),
        "huge_pages_whole_in_memory": whole.in_memory.as_ref().ok(),
    })
}

/// What was done, for a person.
pub fn filled(plan: &Plan, held: &random::Held, whole: &WholeThps, facts: &Facts) -> Vec<String> {
    let back = Bytes(held.pages_given_back.saturating_mul(facts.page_size.bytes()));
    let stopped = held.stopped.as_ref().map(|why| format!(", stopped: {why}")).unwrap_or_default();
    let mut lines = vec![
        format!("filled {} of {}{stopped}", bytes(held.filled), bytes(plan.size)),
        format!(
            "  {} chunks of {} walked, {} pages given back ({}); seed {}",
            count(held.chunks.into()),
            bytes(plan.walk.chunk),
            count(held.pages_given_back.into()),
            bytes(back),
            plan.seed
        ),
    ];
    if plan.thp {
        let there = count(u128::from(held.filled.0 / plan.huge.0.max(1)));
        let number = |reading: &pagelab_model::Reading<u64>| match reading {
            Ok(number) => count(u128::from(*number)),
            Err(absence) => format!("not known ({})", absence.reason()),
        };
        lines.push(format!(
            "  huge pages: {} of {there} whole in memory, {} mapped whole; a page given back out of one that \
             is whole stays in it",
            number(&whole.in_memory),
            number(&whole.mapped)
        ));
    }
    lines
}

fn show_plan(
    args: &Args,
    plan: &Plan,
    facts: &Facts,
    reserve: Reserve,
    wanted: Option<&Wanted>,
) -> Result<(), Failure> {
    let most = most(plan, facts, reserve);
    if args.json {
        let document = json!({
            "pagelab_json": VERSION,
            "kind": "fragment_random_plan",
            "plan": plan_json(plan, reserve, most),
            "unmovable": wanted.map(|wanted| unmovable::plan_json(wanted, facts)),
        });
        return super::show::print_json(&document);
    }
    let (least, last) = (plan.walk.step_pages.start(), plan.walk.step_pages.end());
    let lines = [
        format!("would fill {} in chunks of {}", bytes(plan.size), bytes(plan.walk.chunk)),
        format!(
            "  in each, steps of {least} to {last} pages; at each, a page is given back with probability {}",
            plan.walk.probability
        ),
        format!(
            "  {} are available, {} stay in reserve: {} at most are filled",
            bytes(facts.mem_available),
            bytes(reserve.0),
            bytes(most)
        ),
        format!("  huge pages are {}; seed {}", if plan.thp { "asked for" } else { "refused" }, plan.seed),
    ];
    let unmovable = wanted.map(|wanted| unmovable::plan_lines(wanted, facts)).unwrap_or_default();
    say(lines.iter().chain(&unmovable), false)
}

fn plan_json(plan: &Plan, reserve: Reserve, most: Bytes) -> Value {
    json!({
        "size_bytes": plan.size.0,
        "at_most_bytes": most.0,
        "reserve_bytes": reserve.0.0,
        "chunk_bytes": plan.walk.chunk.0,
        "step_pages": [plan.walk.step_pages.start(), plan.walk.step_pages.end()],
        "probability": plan.walk.probability,
        "fill_first": plan.order == Order::FillFirst,
        "thp": plan.thp,
        "seed": plan.seed,
    })
}

/// F_u of each zone at each moment.
pub fn moments_json(free: &[(&str, BuddyInfo)]) -> Value {
    free.iter().map(|(when, free)| zones_json(when, free)).collect()
}

fn zones_json(when: &str, free: &BuddyInfo) -> Value {
    let zone = |zone: &pagelab_model::ZoneFree| {
        let permille = scores(&zone.areas);
        json!({ "node": zone.key.node.0, "zone": zone.key.zone, "permille": permille })
    };
    json!({ "when": when, "zones": free.zones.iter().map(zone).collect::<Value>() })
}

/// F_u of each zone by order, at each moment.
pub fn table(free: &[(&str, BuddyInfo)]) -> Vec<String> {
    let Some((_, first)) = free.first() else { return Vec::new() };
    let orders = first.zones.iter().map(|zone| zone.areas.orders()).max().unwrap_or(0);
    let head: String = (0..orders).map(|order| format!("{order:>6}")).collect();
    let mut lines = vec![format!("F_u by order        {head}")];
    for zone in &first.zones {
        for (number, (when, free)) in free.iter().enumerate() {
            let Some(areas) = free.zone(&zone.key) else { continue };
            let name =
                if number == 0 { format!("{} {}", zone.key.node.0, zone.key.zone) } else { String::new() };
            lines.push(format!("{name:<13}{when:<7}{}", cells(&scores(areas))));
        }
    }
    lines
}

/// Thousandths as decimals in columns of six.
pub fn cells(permille: &[u16]) -> String {
    permille.iter().map(|&value| format!(" {}", kernel_decimal(i64::from(value)))).collect()
}

/// Prints lines, on standard error where standard output is somebody else's.
pub fn say<'a>(lines: impl Iterator<Item = &'a String>, on_stderr: bool) -> Result<(), Failure> {
    if on_stderr {
        lines.for_each(|line| out::complain(line));
        return Ok(());
    }
    let mut out = out::stdout();
    for line in lines {
        writeln!(out, "{line}")?;
    }
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_probabilities_are_read_and_refused() {
        for (text, range) in [
            ("1..63", Some(1..=63)),
            ("5..=5", Some(5..=5)),
            ("0..63", None),
            ("9..3", None),
            ("3", None),
            ("..", None),
            ("-1..3", None),
        ] {
            assert_eq!(steps(text).ok(), range, "{text}");
        }
        for (text, value) in
            [("0.5", Some(0.5)), ("1", Some(1.0)), ("1.5", None), ("-1", None), ("nan", None)]
        {
            assert_eq!(probability(text).ok(), value, "{text}");
        }
    }

    #[test]
    fn cells_are_as_the_kernel_prints_them() {
        assert_eq!(cells(&[0, 7, 1000]), " 0.000 0.007 1.000");
    }
}
