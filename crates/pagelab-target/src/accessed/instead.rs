//! What else could tell accessed pages, and why it is not used.

use pagelab_host::paths;
use pagelab_host::root::Root;

/// One sentence for the reader of a profile.
pub fn note(root: &Root) -> String {
    let of = |name: &str, path: &str, is_not_used: &str| match root.kind(path).is_ok() {
        true => format!("{name}: not used, because {is_not_used}"),
        false => format!("{name}: not in this kernel"),
    };
    let idle = of(
        "idle page tracking (page_idle)",
        paths::PAGE_IDLE_BITMAP,
        "it goes by frames of the whole machine, needs root, and clears bits of all programs",
    );
    let damon = of(
        "DAMON",
        paths::DAMON_ADMIN,
        "it looks at samples of regions that it chooses, and has one setting for all of the machine",
    );
    format!("split mappings are swept; {idle}; {damon}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_that_is_there_is_told_with_a_reason_and_each_that_is_not_as_missing() {
        let tree = tempfile::tempdir().unwrap();
        let put = |path: &str| {
            let path = tree.path().join(path.trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        };
        let told = || note(&Root::open(tree.path()).unwrap());
        let none = told();
        assert_eq!(none.matches("not in this kernel").count(), 2, "{none}");
        put(paths::PAGE_IDLE_BITMAP);
        let idle = told();
        assert!(idle.contains("page_idle): not used, because"), "{idle}");
        assert!(idle.contains("DAMON: not in this kernel"), "{idle}");
        put(paths::DAMON_KDAMONDS);
        assert!(told().contains("DAMON: not used, because"), "{}", told());
    }
}
