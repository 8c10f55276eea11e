//! What the reader of the file did not know and therefore left out.

use pagelab_model::run::Run;

use super::View;
use crate::style::Style;
use crate::text::Page;

pub(super) fn show(run: &Run, _: View, style: Style) -> String {
    let mut page = Page::new(style);
    page.heading("not shown by this version");
    run.not_shown.iter().for_each(|what| page.hanging("  ", what));
    page.finish()
}
