//! `--unmovable 10%`: pageblocks that compaction cannot empty, for as long as they are held.

use pagelab_contig::fragment::facts::Facts;
use pagelab_contig::spoiled;
use pagelab_contig::unmovable::{Flavour, Limit, Room, Spoiled, Wanted, limits, spoil};
use pagelab_host::root::Root;
use pagelab_model::{Bytes, Snapshot};
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

/// Takes them, and says what came of it.
pub fn take(wanted: &Wanted, facts: &Facts, room: &mut Room<'_>) -> (Spoiled, Vec<String>) {
    let root = Root::live();
    for limit in limits(&root, wanted, facts.page_size).iter().filter(|limit| limit.is_short()) {
        out::complain(&format!("note: {limit}"));
    }
    let mut look = || spoiled::count(&root, facts.page_size, facts.unit).ok();
    let result = spoil(wanted, facts.page_size, &mut look, room);
    let lines = told(&result, wanted);
    (result, lines)
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
        None => lines.push("  what they spoil is not known: counting needs kpageflags (root)".to_owned()),
        Some([before, _, after]) => {
            let grown = after.holding.iter().zip(&before.holding);
            let classes: Vec<String> = grown
                .filter(|((_, after), (_, before))| after > before)
                .map(|((class, after), (_, before))| {
                    format!("{} +{}", class.name(), count((after - before).into()))
                })
                .collect();
            let all = count(after.blocks.into());
            lines.push(format!("  pageblocks of {all} that hold more than before: {}", classes.join(", ")));
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
        Some(looks) => looks.each_ref().map(look),
        None => [Value::Null, Value::Null, Value::Null],
    };
    json!({ "parts": spoiled.parts.iter().map(part).collect::<Value>(),
            "before": before, "with_all_taken": full, "held": after })
}

/// Only these: takes them, holds, gives back.
pub fn alone(args: &Args, snapshot: &Snapshot) -> Result<u8, Failure> {
    let facts = Facts::of(snapshot, None).map_err(|error| failure(&error))?;
    let Some(wanted) = args.unmovable.resolve(&facts)? else { return Ok(Exit::Usage as u8) };
    let reserve = taking::reserve(args.reserve.as_deref(), &facts)?;
    if args.dry_run {
        return random::say(limits_of(&wanted, &facts).iter(), false).map(|()| Exit::Done as u8);
    }
    let mut taking = Taking::begin(&facts, reserve, bytes_of(&wanted, &facts))?;
    let is_quiet = args.json || !args.command.is_empty();
    let mut free = vec![("before", taking.free()?)];
    let (spoiled, lines) = take(&wanted, &facts, &mut |next| taking.room(next));
    random::say(lines.iter(), is_quiet)?;
    free.push(("held", taking.free()?));
    let code = match taking.stop.signal() {
        Some(signal) => Ok(u8::try_from(128 + signal).unwrap_or(Exit::Partial as u8)),
        None => taking.hold(&args.command, &mut None),
    };
    let told = json(&spoiled);
    let is_short = spoiled.parts.iter().any(|part| part.stopped.is_some());
    spoiled.release();
    free.push(("after", taking.free()?));
    let is_clean = taking.finish();
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
    Ok(match code? {
        0 if !is_clean || is_short => Exit::Partial as u8,
        code => code,
    })
}

/// The limits that would be met, for a dry run.
pub fn limits_of(wanted: &Wanted, facts: &Facts) -> Vec<String> {
    let limits = limits(&Root::live(), wanted, facts.page_size);
    let mut lines = vec![format!(
        "  {} pageblocks are spoiled by pages that cannot be moved; {} are taken for a moment",
        count(wanted.blocks.into()),
        bytes(bytes_of(wanted, facts))
    )];
    lines.extend(limits.iter().map(|limit: &Limit| format!("  {limit}")));
    lines
}
