//! What each part allows and the whole does not: names that stand twice, variants that no workload can take,
//! settings that cancel each other.

use pagelab_workloads::options::Options;

use super::variant::{HogKind, Thp, Variant};
use super::workload::{Runs, Workload};
use super::{Problems, Recipe};

/// Checks the whole.
pub(super) fn check(recipe: &Recipe, problems: &mut Problems) {
    names(recipe, problems);
    for (place, variant) in recipe.variants.iter().enumerate() {
        cancelling(variant, problems);
        let crossed = |(at, _): &(usize, &Workload)| recipe.crosses(*at, place);
        let workloads: Vec<&Workload> =
            recipe.workloads.iter().enumerate().filter(crossed).map(|(_, workload)| workload).collect();
        over(variant, &workloads, problems);
    }
    if let Some(baseline) = recipe.variants.get(recipe.baseline)
        && baseline.only.is_some()
    {
        let text = format!(
            "variant {:?}: it is the baseline, which every workload is compared with: without `workloads`",
            baseline.name
        );
        problems.say(baseline.line, text);
    }
    quick(recipe, problems);
}

fn names(recipe: &Recipe, problems: &mut Problems) {
    let workloads = recipe.workloads.iter().map(|workload| ("workload", &workload.name, workload.line));
    let variants = recipe.variants.iter().map(|variant| ("variant", &variant.name, variant.line));
    let all: Vec<_> = workloads.chain(variants).collect();
    for (at, (what, name, line)) in all.iter().enumerate() {
        if all[..at].iter().any(|(other, known, _)| other == what && known == name) {
            problems.say(*line, format!("{what} {name:?} stands twice; give the second another name"));
        }
    }
    for variant in &recipe.variants {
        for name in variant.only.iter().flatten() {
            if !recipe.workloads.iter().any(|workload| workload.name == *name) {
                let text = format!("variant {:?}: workloads: {name:?} is no workload", variant.name);
                problems.say(variant.line, text);
            }
        }
    }
}

/// Settings of one variant that cannot hold together.
fn cancelling(variant: &Variant, problems: &mut Problems) {
    let asks = variant.advise.as_deref() == Some("huge")
        || variant.options.iter().any(|(name, value)| name == "advise" && value == "huge");
    let off = matches!(variant.thp, Some(Thp::NeverPrctl | Thp::Never));
    if let (true, true, Some(thp)) = (asks, off, variant.thp)
        && (thp == Thp::NeverPrctl || variant.mthp.is_empty())
    {
        let text = format!(
            "variant {:?}: thp = {:?} switches huge pages off, also where a program asks, so advise = \
             \"huge\" can get none; thp = \"madvise\" or \"advised-only\" gives them to who asks",
            variant.name,
            thp.word()
        );
        problems.say(variant.line, text);
    }
    if variant.thp == Some(Thp::NeverPrctl) && variant.mthp.iter().any(|(_, mode)| mode != "never") {
        let text = format!(
            "variant {:?}: thp = \"never-prctl\" switches off every size for the process, so mthp can give \
             none; leave thp away or say thp = \"never\"",
            variant.name
        );
        problems.say(variant.line, text);
    }
    supervised(variant, problems);
    let twice = variant.options.iter().any(|(name, _)| name == "advise") && variant.advise.is_some();
    if twice {
        let text = format!("variant {:?}: advise stands twice, once in options", variant.name);
        problems.say(variant.line, text);
    }
    if variant.swap.is_some() && variant.memory_limit.is_none() {
        let text = format!(
            "variant {:?}: swap without memory_limit: nothing would be swapped while the machine has memory; \
             give the limit under which it is to swap",
            variant.name
        );
        problems.say(variant.line, text);
    }
    if let (Some(hog), Some(limit)) = (variant.hog, variant.memory_limit)
        && hog.how == HogKind::Thread
        && hog.size >= limit
    {
        let text = format!(
            "variant {:?}: the hog is a thread of the workload, so its memory counts against memory_limit, \
             which is not larger; a hog of how = \"process\" is outside of it",
            variant.name
        );
        problems.say(variant.line, text);
    }
}

/// What cannot be under the supervisor of `plan`.
fn supervised(variant: &Variant, problems: &mut Problems) {
    let Some(plan) = &variant.plan else { return };
    if let Some(thp @ (Thp::NeverPrctl | Thp::AdvisedOnly)) = variant.thp {
        let text = format!(
            "variant {:?}: plan = {:?} switches huge pages off for the program by itself, but where it is \
             advised, so thp = {:?} stands in its way; leave thp away",
            variant.name,
            plan.word(),
            thp.word()
        );
        problems.say(variant.line, text);
    }
    if variant.hog.is_some_and(|hog| hog.how == HogKind::Thread) {
        let text = format!(
            "variant {:?}: with a plan the workload is a process of its own under a supervisor, and a hog \
             cannot be a thread of it; how = \"process\" does",
            variant.name
        );
        problems.say(variant.line, text);
    }
}

/// A variant over the workloads that it is tried with.
fn over(variant: &Variant, workloads: &[&Workload], problems: &mut Problems) {
    let advised = |workload: &&&Workload| workload.takes_option("advise");
    if variant.advise.is_some() && !workloads.iter().any(|workload| advised(&workload)) {
        let text = format!(
            "variant {:?}: advise: no workload of this recipe takes advice; built-in ones with an option \
             `advise` do, any other program asks by itself or not",
            variant.name
        );
        problems.say(variant.line, text);
    }
    for workload in workloads {
        let Some(heads) = workload.option_heads() else {
            foreign(variant, workload, problems);
            continue;
        };
        if let Runs::External { .. } = workload.runs {
            no_thread(variant, workload, problems);
        }
        if let Some(first) = variant.arguments.first() {
            let text = format!(
                "variant {:?} over workload {:?}: arguments ({first:?} …) are for commands; a built-in \
                 workload has `options`",
                variant.name, workload.name
            );
            problems.say(variant.line, text);
        }
        let mut all = Options::defaults(heads);
        for (name, value) in workload.options().iter().chain(&variant.options) {
            if let Err(why) = all.set(name, value) {
                let text = format!("variant {:?} over workload {:?}: {why}", variant.name, workload.name);
                problems.say(variant.line, text);
            }
        }
    }
}

/// What cannot be done to a program that is not ours.
fn foreign(variant: &Variant, workload: &Workload, problems: &mut Problems) {
    let (variant_name, name) = (&variant.name, &workload.name);
    if let Some((option, _)) = variant.options.first() {
        let text = format!(
            "variant {variant_name:?} over workload {name:?}: options.{option} is for built-in workloads; \
             a command has its words in `command`, and `workloads = […]` names those a variant is for"
        );
        problems.say(variant.line, text);
    }
    no_thread(variant, workload, problems);
}

/// A thread can be beside our own code alone.
fn no_thread(variant: &Variant, workload: &Workload, problems: &mut Problems) {
    let (variant_name, name) = (&variant.name, &workload.name);
    if variant.hog.is_some_and(|hog| hog.how == HogKind::Thread) {
        let text = format!(
            "variant {variant_name:?} over workload {name:?}: a hog can be a thread of a built-in workload \
             only; for a command it is how = \"process\""
        );
        problems.say(variant.line, text);
    }
}

fn quick(recipe: &Recipe, problems: &mut Problems) {
    let lists = [
        ("workloads", &recipe.quick.workloads, recipe.workloads.iter().map(|w| &w.name).collect::<Vec<_>>()),
        ("variants", &recipe.quick.variants, recipe.variants.iter().map(|v| &v.name).collect()),
    ];
    for (key, names, known) in lists {
        let Some(names) = names else { continue };
        for name in names.iter().filter(|name| !known.contains(name)) {
            problems.say(1, format!("quick: {key}: {name:?} is none of the recipe's"));
        }
        if names.is_empty() {
            problems.say(1, format!("quick: {key} is empty: nothing would run"));
        }
    }
    if let (Some(names), Some(baseline)) = (&recipe.quick.variants, recipe.variants.get(recipe.baseline))
        && !names.contains(&baseline.name)
    {
        problems.say(1, format!("quick: variants: the baseline {:?} must be among them", baseline.name));
    }
}
