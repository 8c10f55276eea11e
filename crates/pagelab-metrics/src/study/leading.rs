//! The figure that a study is judged by where nobody says another.

/// What came of attempts at huge pages: got, of how many. A share.
pub const SUCCESS: &str = "success";
/// How F_u of an order begins: `F_u(9)`. A share of free memory.
pub const UNUSABLE: &str = "F_u(";
/// Pageblocks in which a page cannot be moved. A share of all pageblocks.
pub const MIXED: &str = "mixed pageblocks";

/// The place of the name by which a study is judged, of figures in the order of its phases: the last success,
/// else the last F_u; `None` where neither is there.
pub fn leading<'n>(
    names: impl DoubleEndedIterator<Item = &'n str> + ExactSizeIterator + Clone,
) -> Option<usize> {
    let success = names.clone().rposition(|name| name == SUCCESS);
    success.or_else(|| names.clone().rposition(|name| name.starts_with(UNUSABLE)))
}

#[cfg(test)]
mod tests {
    use super::leading;

    #[test]
    fn what_can_be_had_leads_then_f_u_and_the_last_phase_of_either() {
        for (names, place) in [
            (&["pages: kernel", "F_u(9)", "huge pages", "success", "F_u(9)", "success"][..], Some(5)),
            (&["success", "F_u(9)"], Some(0)),
            (&["pages: kernel", "F_u(9)", "pages: free", "F_u(10) at the end", "mixed pageblocks"], Some(3)),
            (&["pages: kernel", "F_i(9)"], None),
            (&[], None),
        ] {
            assert_eq!(leading(names.iter().copied()), place, "{names:?}");
        }
    }
}
