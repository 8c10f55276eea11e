//! `--unmovable 10%`: pageblocks that compaction cannot empty, for as long as they are held.

use pagelab_contig::fragment::facts::Facts;
use pagelab_contig::reserve::Reserve;
use pagelab_contig::spoiled;
use pagelab_contig::unmovable::{Flavour, Limit, Spoiled, Wanted, limits, spoil};
use pagelab_host::paths::KPAGEFLAGS;
use pagelab_host::root::Root;
use pagelab_model::{Absence, AbsentWhy, Bytes, Snapshot};
use pagelab_report::json::VERSION;
use pagelab_report::style::{bytes, count};
use serde_json::{Value, json};

use super::taking::{self, Taking};
use super::{Args, failure, random};
use crate::cmd::usage;
use crate::exit::{Exit, Failure};
use crate::out;

/// What unmovable pages are wanted.
#[derive(Debug, Default, clap::Args)]
pub struct Unmovable {
    /// Also spoil this share of all pageblocks with pages that cannot be moved: 10%
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true)]
    unmovable: Option<String>,

    /// Where they come from: pagetables, pipes, sockets, dentries [default: pagetables]
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "unmovable")]
    flavour: Vec<String>,
}

impl Unmovable {
    /// Whether any are wanted.
    pub fn is_given(&self) -> bool {
        self.unmovable.is_some()
    }

    /// What is wanted of this machine; `None` where nothing is.
    pub fn resolve(&self, facts: &Facts) -> Result<Option<Wanted>, Failure> {
        let Some(text) = &self.unmovable else { return Ok(None) };
        let share: Option<f64> = text.strip_suffix('%').and_then(|share| share.trim().parse().ok());
        let Some(share) = share.filter(|share| (0.0..=100.0).contains(share)) else {
            return Err(usage(&format!(
                "--unmovable {text}: a share of the pageblocks was wanted, such as 10%"
            )));
        };
        let mut flavours = Vec::new();
        for name in &self.flavour {
            let flavour = Flavour::from_name(name).ok_or_else(|| {
                let known = Flavour::ALL.map(Flavour::name).join(", ");
                usage(&format!("--flavour {name}: there are {known}"))
            })?;
            if !flavours.contains(&flavour) {
                flavours.push(flavour);
            }
        }
        if flavours.is_empty() {
            flavours.push(Flavour::PageTables);
        }
        let blocks = facts.mem_total.0 as f64 / facts.unit_bytes().0.max(1) as f64 * share / 100.0;
        let block_pages = facts.unit.pages().0;
        Ok(Some(Wanted { blocks: blocks.round() as u64, block_pages, flavours }))
    }
}

/// Memory that is taken for a moment to have it.
pub fn bytes_of(wanted: &Wanted, facts: &Facts) -> Bytes {
    // Heads of messages and rings of pipes come on top.
    let pages = wanted.blocks.saturating_mul(wanted.block_pages);
    Bytes(pages.saturating_mul(facts.page_size.bytes()).saturating_mul(3) / 2)
}

/// Takes them, and says what came of it. `room` is asked before each piece; once `is_stopped`, no census is
/// begun.
pub fn take(
    wanted: &Wanted,
    facts: &Facts,
    is_stopped: &dyn Fn() -> bool,
    room: &mut dyn FnMut(Bytes) -> Result<(), String>,
) -> (Spoiled, Vec<String>) {
    let root = Root::live();
    for limit in limits(&root, wanted, facts.page_size).iter().filter(|limit| limit.is_short()) {
        out::complain(&format!("note: {limit}"));
    }
    out::note("taking unmovable pages");
    let mut look = || match is_stopped() {
        true => Err(Absence::new(KPAGEFLAGS, AbsentWhy::NotAsked, "not counted, since a signal came")),
        false => spoiled::count(&root, facts.page_size, facts.unit),
    };
    let mut within = |next: Bytes, taken: Bytes| {
        taking::within_group(facts, Bytes(taken.0.saturating_add(next.0)))?;
        room(next)
    };
    let result = spoil(wanted, facts.page_size, &mut look, &mut within);
    let lines = told(&result, wanted);
    (result, lines)
}

/// The same, with what else lives while memory is taken.
pub fn take_within(wanted: &Wanted, facts: &Facts, taking: &mut Taking) -> (Spoiled, Vec<String>) {
    let stop = taking.stop.clone();
    let is_stopped = || stop.signal().is_some();
    let (spoiled, lines) = take(wanted, facts, &is_stopped, &mut |next| taking.room(next));
    lines.iter().for_each(|line| taking.event("unmovable", line.trim()));
    (spoiled, lines)
}

fn told(spoiled: &Spoiled, wanted: &Wanted) -> Vec<String> {
    let mut lines = vec![format!("unmovable pages for {} pageblocks", count(wanted.blocks.into()))];
    for part in &spoiled.parts {
        let stopped = part.stopped.as_ref().map(|why| format!("; stopped: {why}")).unwrap_or_default();
        lines.push(format!(
            "  {:<10} {} pages kept of {}{stopped}",
            part.flavour.name(),
            count(part.kept.into()),
            count(part.taken.into())
        ));
    }
    match &spoiled.looks {
        Err(absence) => {
            lines.push(format!("  what they spoil is not known: {}: {}", absence.source, absence.reason()));
        }
        Ok([before, _, after]) => {
            let grown = after.holding.iter().zip(&before.holding);
            let classes: Vec<String> = grown
                .filter(|((_, after), (_, before))| after > before)
                .map(|((class, after), (_, before))| {
                    format!("{} +{}", class.name(), count((after - before).into()))
                })
                .collect();
            let classes = if classes.is_empty() { "none".to_owned() } else { classes.join(", ") };
            let sample = if before.is_whole && after.is_whole { "" } else { ", by a sample" };
            let all = count(after.blocks.into());
            lines.push(format!("  of {all} pageblocks{sample}, more than before hold: {classes}"));
            let more = after.spoiled.saturating_sub(before.spoiled);
            lines.push(format!(
                "  pageblocks that cannot be whole any more: {} → {}, {} more, as `pagelab can` counts them",
                count(before.spoiled.into()),
                count(after.spoiled.into()),
                count(more.into())
            ));
            if more < wanted.blocks {
                lines.push(
                    "  fewer than wanted: several kept pages lie in one block where the kernel gave pages \
                     out of the order of their frames, and some lie in blocks that were spoiled before"
                        .to_owned(),
                );
            }
            lines.push("  what others took or gave back meanwhile is counted too".to_owned());
        }
    }
    lines
}

/// The same for a program.
pub fn json(spoiled: &Spoiled) -> Value {
    let part = |part: &pagelab_contig::unmovable::Part| {
        json!({
            "flavour": part.flavour.name(),
            "pages_taken": part.taken,
            "pages_kept": part.kept,
            "stopped": part.stopped,
        })
    };
    let look = |look: &spoiled::SpoiledBlocks| {
        let holding = look.holding.iter().map(|(class, blocks)| (class.name().to_owned(), json!(blocks)));
        json!({ "blocks": look.blocks, "spoiled": look.spoiled, "is_whole": look.is_whole,
                "holding": Value::Object(holding.collect()) })
    };
    let [before, full, after] = match &spoiled.looks {
        Ok(looks) => looks.each_ref().map(look),
        Err(_) => [Value::Null, Value::Null, Value::Null],
    };
    json!({ "parts": spoiled.parts.iter().map(part).collect::<Value>(),
            "before": before, "with_all_taken": full, "held": after })
}

/// Options that mean nothing without a target.
fn needs_target(args: &Args) -> Option<&'static str> {
    let given = [
        (args.order.is_some(), "--order"),
        (args.size.is_some(), "--size"),
        (args.node.is_some(), "--node"),
        (args.keep_to_target, "--keep-to-target"),
        (args.pause_compaction, "--pause-compaction"),
        (args.allow_thp, "--allow-thp"),
        (args.ask, "--ask"),
    ];
    given.into_iter().find(|(is_given, _)| *is_given).map(|(_, name)| name)
}

/// Only these: takes them, holds, gives back.
pub fn alone(args: &Args, snapshot: &Snapshot) -> Result<u8, Failure> {
    if let Some(name) = needs_target(args) {
        return Err(usage(&format!("{name} goes with --target alone: give one, or leave {name} out")));
    }
    let facts = Facts::of(snapshot, None).map_err(|error| failure(&error))?;
    let Some(wanted) = args.unmovable.resolve(&facts)? else { return Ok(Exit::Usage as u8) };
    let reserve = taking::reserve(args.reserve.as_deref(), &facts)?;
    if args.dry_run {
        return show_plan(&wanted, &facts, reserve, args.json).map(|()| Exit::Done as u8);
    }
    let mut taking = Taking::begin(&facts, reserve, bytes_of(&wanted, &facts))?;
    taking.record(args.output.as_deref(), args.seed, snapshot)?;
    let is_quiet = args.json || !args.command.is_empty();
    let mut free = vec![("before", taking.free()?)];
    let (spoiled, lines) = take_within(&wanted, &facts, &mut taking);
    random::say(lines.iter(), is_quiet)?;
    free.push(("held", taking.free()?));
    let code = match taking.stop.signal() {
        Some(signal) => Ok(u8::try_from(128 + signal).unwrap_or(Exit::Partial as u8)),
        None => taking.hold(&args.command, &mut None),
    };
    let told = json(&spoiled);
    let is_short = spoiled.is_short();
    spoiled.release();
    free.push(("after", taking.free()?));
    let is_clean = taking.finish(code.as_ref().is_ok_and(|&code| code == 0 || !args.command.is_empty()));
    if args.json {
        let document = json!({
            "pagelab_json": VERSION,
            "kind": "fragment_unmovable",
            "blocks_wanted": wanted.blocks,
            "unmovable": told,
            "unusable_permille": random::moments_json(&free),
        });
        super::show::print_json(&document)?;
    } else {
        random::say(random::table(&free).iter(), is_quiet)?;
    }
    Ok(taking::code(code?, !args.command.is_empty(), is_clean && !is_short))
}

fn show_plan(wanted: &Wanted, facts: &Facts, reserve: Reserve, as_json: bool) -> Result<(), Failure> {
    if as_json {
        let document = json!({
            "pagelab_json": VERSION,
            "kind": "fragment_unmovable_plan",
            "reserve_bytes": reserve.0.0,
            "available_bytes": facts.mem_available.0,
            "unmovable": plan_json(wanted, facts),
        });
        return super::show::print_json(&document);
    }
    let mut lines = plan_lines(wanted, facts);
    let (available, kept) = (bytes(facts.mem_available), bytes(reserve.0));
    lines.push(format!("  {available} are available, {kept} stay in reserve"));
    random::say(lines.iter(), false)
}

/// What would be taken, and the limits of it, for a dry run.
pub fn plan_lines(wanted: &Wanted, facts: &Facts) -> Vec<String> {
    let mut lines = vec![format!(
        "would spoil {} pageblocks by pages that cannot be moved; {} are taken for a moment",
        count(wanted.blocks.into()),
        bytes(bytes_of(wanted, facts))
    )];
    let limits = limits(&Root::live(), wanted, facts.page_size);
    lines.extend(limits.iter().map(|limit| {
        let short = if limit.is_short() { ": too little" } else { "" };
        format!("  {limit}{short}")
    }));
    lines
}

/// The same for a program.
pub fn plan_json(wanted: &Wanted, facts: &Facts) -> Value {
    let limit = |limit: Limit| {
        let Limit { flavour, name, needs, has } = limit;
        json!({ "flavour": flavour.name(), "name": name, "needs": needs, "has": has })
    };
    let limits = limits(&Root::live(), wanted, facts.page_size);
    json!({
        "blocks_wanted": wanted.blocks,
        "flavours": wanted.flavours.iter().map(|flavour| flavour.name()).collect::<Vec<_>>(),
        "taken_for_a_moment_bytes": bytes_of(wanted, facts).0,
        "limits": limits.into_iter().map(limit).collect::<Value>(),
    })
}
