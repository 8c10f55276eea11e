//! `pagelab plan`: from a profile to the huge pages that pay.

pub mod read;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pagelab_formats::{duration, largepages, plan_toml};
use pagelab_model::{Bytes, Profile};
use pagelab_report::json;
use pagelab_report::plan::{PlanReport, render};
use pagelab_report::style::{bytes, count};
use pagelab_tlb::plan::predict::{self, Native};
use pagelab_tlb::plan::{self, Ask, By, Ranking, Size};

use super::{bytes_of, usage};
use crate::exit::{Exit, Failure, Outcome};
use crate::whole_file::{self, Target};
use crate::{out, walk_cost};
use read::Source;

/// What `plan` was asked for.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// What `pagelab profile` wrote, or misses by region as text
    #[arg(value_name = "PROFILE", required_unless_present = "calibrate")]
    file: Option<PathBuf>,
    /// So many huge pages
    #[arg(short = 'n', long, value_name = "N", group = "size")]
    pages: Option<usize>,
    /// As few as have this share of what all bring [default: 0.9]
    #[arg(long, value_name = "SHARE", value_parser = share, group = "size")]
    share: Option<f64>,
    /// As many as fit into so much memory
    #[arg(long, value_name = "SIZE", value_parser = bytes_of, group = "size")]
    budget: Option<Bytes>,
    /// By what regions are ranked; all but cost are controls
    #[arg(long, value_enum, default_value_t)]
    by: Order,
    /// Seed of --by random
    #[arg(long, default_value_t = 1, value_name = "SEED")]
    seed: u64,
    /// The size of the planned pages: a folio smaller than a huge page (mTHP)
    /// [default: the size of a huge page where it was profiled]
    #[arg(long, value_name = "SIZE", value_parser = bytes_of)]
    page: Option<Bytes>,
    /// Plan mappings of files and stacks too
    #[arg(long)]
    files: bool,
    /// The program's time without and with all huge pages, such as 12.4s,9.9s
    #[arg(long, value_name = "TIME,TIME", value_parser = pair, group = "native")]
    pair: Option<(u64, u64)>,
    /// With --pair, the CPU time in the kernel of both, such as 1.2s,0.3s:
    /// page faults are there, and huge pages save them by memory
    #[arg(long, value_name = "TIME,TIME", value_parser = times, requires = "pair")]
    kernel: Option<(u64, u64)>,
    /// The program's time without huge pages
    #[arg(long, value_name = "TIME", value_parser = duration::parse, group = "native")]
    base_time: Option<Duration>,
    /// Measure what a page walk costs here, in two buffers of this size, and
    /// keep it for later plans; some 15 s [default: 1G]
    #[arg(long, value_name = "SIZE", value_parser = bytes_of, num_args = 0..=1,
          default_missing_value = "1G", require_equals = true)]
    calibrate: Option<Bytes>,
    /// Write the plan, for `pagelab apply`; nothing is overwritten
    #[arg(short, long, value_name = "PLAN.toml", requires = "file")]
    output: Option<PathBuf>,
    /// Write the addresses of the regions, one a line, in decimal
    #[arg(long, value_name = "FILE", requires = "file")]
    largepages: Option<PathBuf>,
    /// Everything as one JSON document (docs/json.md)
    #[arg(long)]
    json: bool,
}

/// By what regions are ranked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Order {
    /// What a huge page saves there by the model
    #[default]
    Cost,
    /// Misses
    Misses,
    /// Accesses, where the source counts them
    Accesses,
    /// By chance
    Random,
}

impl Order {
    fn word(self) -> &'static str {
        match self {
            Order::Cost => "cost",
            Order::Misses => "misses",
            Order::Accesses => "accesses",
            Order::Random => "random",
        }
    }
}

const AFTER_HELP: &str = "\
Examples:
  pagelab plan xz.profile.pagelab                  the curve, and nine tenths
  pagelab plan --share 0.8 -o plan.toml xz.profile.pagelab
  pagelab plan --budget 64M --pair 12.4s,9.9s -o plan.toml xz.profile.pagelab
  pagelab plan --pair 12.4s,9.9s --kernel 1.2s,0.3s xz.profile.pagelab
  pagelab plan -n 8 --largepages largepages.txt hot.profile.pagelab
  pagelab plan --calibrate                         the price of a page walk

docs/plan.md says how costs and gains are modelled, and lists the keys of a \
plan.";

/// Shows the curve, and writes the plan.
pub fn run(args: &Args) -> Outcome {
    let target = |path: &Option<PathBuf>, option| {
        path.as_deref().map(|path| whole_file::new_target(path, option)).transpose()
    };
    let (output, list) = (target(&args.output, "--output")?, target(&args.largepages, "--largepages")?);
    let source = args.file.as_deref().map(read::read).transpose()?;
    let look = read::look();
    let measured = match args.calibrate {
        Some(largest) => {
            out::note("pagelab: measuring what a page walk costs, some 15 s");
            Some(walk_cost::measure(&look, largest)?)
        }
        None => None,
    };
    let Some(source) = source else {
        let price = measured.ok_or_else(|| usage("give a profile, or --calibrate"))?;
        return show_price(&price, args.json);
    };
    let Source { mut profile, machine } = source;
    if measured.is_some() {
        profile.walk_cost = measured;
    } else if profile.walk_cost.is_none() && machine.is_none_or(|of| of == walk_cost::machine(&look.machine))
    {
        profile.walk_cost = walk_cost::known(&look.machine);
    }
    let page = page(args, &profile)?;
    let ranking = plan::rank(&profile, Ask { page, by: args.order(), files: args.files });
    worth_planning(&profile, &ranking, page)?;
    let chosen = ranking.count(args.size(), page);
    if chosen == 0 {
        return Err(usage(&format!("a plan of no huge page: give room for one of {}", bytes(page))));
    }
    let native = args.native();
    let report =
        PlanReport { profile: &profile, ranking: &ranking, page, chosen, by: args.order_word(), native };
    let lost = native.filter(|_| report.speedup(chosen).is_none());
    lost.iter().for_each(|_| out::complain(NO_SPEEDUP));
    write(output.as_ref(), list.as_ref(), &report)?;
    let mut out = out::stdout();
    let text = match args.json {
        true => json::to_text(&json::plan::document(&report))
            .map_err(|error| Failure::new(Exit::Bug, "JSON").because(error))?,
        false => render(&report, out::style()) + &next(output.as_ref(), &profile),
    };
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(Exit::Done)
}

const NO_SPEEDUP: &str = "pagelab: no speed-up is predicted: the walks have no price, or cost more than the \
                          time that was given; --pair scales them to the program";

impl Args {
    /// Whether standard input would be read.
    pub fn reads_stdin(&self) -> bool {
        self.file
            .as_deref()
            .is_some_and(|file| ["-", "/dev/stdin"].iter().any(|name| file == Path::new(name)))
    }

    fn size(&self) -> Size {
        match (self.pages, self.budget) {
            (Some(pages), _) => Size::Pages(pages),
            (_, Some(budget)) => Size::Budget(budget),
            _ => Size::Share(self.share.unwrap_or(0.9)),
        }
    }

    fn order(&self) -> By {
        match self.by {
            Order::Cost => By::Cost,
            Order::Misses => By::Misses,
            Order::Accesses => By::Accesses,
            Order::Random => By::Random(self.seed),
        }
    }

    fn order_word(&self) -> &'static str {
        self.by.word()
    }

    fn native(&self) -> Option<Native> {
        let base = |time: Duration| Native::Base(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let kernel_ns = self.kernel;
        let pair = self.pair.map(|(base_ns, huge_ns)| Native::Pair { base_ns, huge_ns, kernel_ns });
        pair.or(self.base_time.map(base))
    }
}

/// The size of the planned pages.
fn page(args: &Args, profile: &Profile) -> Result<Bytes, Failure> {
    let page = args.page.unwrap_or(profile.huge);
    if page.0.is_power_of_two() && page.0 > profile.page_size.bytes() && page <= profile.huge {
        return Ok(page);
    }
    let (base, huge) = (bytes(Bytes(profile.page_size.bytes())), bytes(profile.huge));
    Err(usage(&format!("--page {}: a power of two above {base} and up to {huge} was wanted", bytes(page))))
}

/// Refuses a profile from which nothing can be planned, with the reason.
fn worth_planning(profile: &Profile, ranking: &Ranking, page: Bytes) -> Result<(), Failure> {
    let refused =
        |why: String| Err(Failure::new(Exit::No, format!("there is nothing to plan in this profile: {why}")));
    if profile.misses().is_none() {
        let text = "there is nothing to plan in this profile: neither a sweep of accessed bits nor a scan of \
                    the zero page saw the program, so its misses are unknown: a longer run, or --source \
                    exact, which sees every access";
        return Err(Failure::new(Exit::BadInput, text));
    }
    let unseen = ranking.mappings.iter().any(|mapping| !mapping.unseen.is_empty());
    let misses: u128 = profile.images.iter().map(|image| u128::from(image.misses)).sum();
    if ranking.total <= 0.0 && unseen {
        return refused(
            "no miss was seen, and the source could not see some of its memory (`pagelab profile show` names \
             it): --source exact sees all of it"
                .to_owned(),
        );
    }
    if ranking.total <= 0.0 {
        return refused(format!(
            "of {} misses none lies in a known mapping: page walks cost this program nothing that huge pages \
             could save",
            count(misses)
        ));
    }
    if ranking.regions.is_empty() && ranking.beyond.files > ranking.beyond.ends {
        return refused("all misses lie in files and stacks: --files plans these too".to_owned());
    }
    if ranking.regions.is_empty() {
        let page = bytes(page);
        return refused(format!(
            "no mapping with misses has room for a whole page of {page}: try --page 64K"
        ));
    }
    if ranking.attainable() <= 0.0 {
        return refused("huge pages would cost as much as they save by the model".to_owned());
    }
    Ok(())
}

fn write(output: Option<&Target>, list: Option<&Target>, report: &PlanReport<'_>) -> Result<(), Failure> {
    let PlanReport { profile, ranking, page, chosen, native, .. } = *report;
    let gain = native.and_then(|native| predict::gain(ranking, chosen, native));
    let made = plan::plan(profile, ranking, chosen, page, gain);
    if let Some(output) = output {
        let share = ranking.share(chosen).unwrap_or(0.0);
        let remark = format!(
            "{} of {} touched regions, {} of what all bring by the model; ranked by {}. docs/plan.md",
            count(chosen as u128),
            count(ranking.regions.len() as u128),
            pagelab_report::style::percent(share),
            report.by
        );
        output.write(plan_toml::write(&made, &[remark]).as_bytes())?;
    }
    let Some(list) = list else { return Ok(()) };
    let mut addresses = Vec::new();
    for region in &ranking.regions[..chosen] {
        let of = ranking.mappings.get(region.mapping);
        let base = of.map_or(0, |of| pagelab_tlb::grid::base(&of.key, of.start));
        addresses.push(base.saturating_add(region.offset));
    }
    list.write(largepages::write(&addresses).as_bytes())
}

/// What to do with it.
fn next(output: Option<&Target>, profile: &Profile) -> String {
    let Some(output) = output else { return String::new() };
    let style = out::style();
    let command = if profile.command.is_empty() { "COMMAND".to_owned() } else { profile.command.join(" ") };
    let line = format!("→ pagelab apply {} -- {command}", output.name());
    style.one_line(&line) + "\n"
}

fn show_price(price: &pagelab_model::profile::WalkCost, as_json: bool) -> Outcome {
    let mut out = out::stdout();
    let text = match as_json {
        true => json::to_text(&json::plan::price(price))
            .map_err(|error| Failure::new(Exit::Bug, "JSON").because(error))?,
        false => pagelab_report::plan::price(price, out::style()),
    };
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(Exit::Done)
}

fn share(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    let share = percent.map(|percent| percent / 100.0).or_else(|| text.parse().ok());
    share.filter(|share| *share > 0.0 && *share <= 1.0).ok_or_else(|| "a share such as 0.9 or 90%".to_owned())
}

/// Two times, ns.
fn times(text: &str) -> Result<(u64, u64), String> {
    let (base, huge) = text.split_once(',').ok_or("two times such as 12.4s,9.9s were wanted")?;
    let ns = |text: &str| {
        let time = duration::parse(text.trim())?;
        u64::try_from(time.as_nanos()).map_err(|_| "a shorter time was wanted".to_owned())
    };
    Ok((ns(base)?, ns(huge)?))
}

/// The same, none of which is zero.
fn pair(text: &str) -> Result<(u64, u64), String> {
    match times(text)? {
        (base, huge) if base > 0 && huge > 0 => Ok((base, huge)),
        _ => Err("times above zero were wanted".to_owned()),
    }
}
