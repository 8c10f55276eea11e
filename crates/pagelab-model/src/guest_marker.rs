//! The word on a kernel's command line by which programs know that they are in a guest of pagelab.

/// Its name.
pub const MARKER_NAME: &str = "pagelab_guest";
/// Its value.
pub const MARKER_VALUE: &str = "1";

/// Whether a kernel's command line is that of a guest.
pub fn is_marked(command_line: &str) -> bool {
    let value =
        |word: &str| word.strip_prefix(MARKER_NAME)?.strip_prefix('=').map(|value| value == MARKER_VALUE);
    command_line.split_ascii_whitespace().any(|word| value(word) == Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_word_marks_a_guest() {
        for (line, expected) in [
            ("console=ttyS0 pagelab_guest=1 quiet\n", true),
            ("pagelab_guest=1", true),
            ("", false),
            ("quiet pagelab_guest=10", false),
            ("pagelab_guest=", false),
            ("pagelab_guest", false),
            ("pagelab_guest=0", false),
            ("xpagelab_guest=1 pagelab_guest=10", false),
            ("x.pagelab_guest=1", false),
            ("init=/bin/sh\"pagelab_guest=1\"", false),
        ] {
            assert_eq!(is_marked(line), expected, "{line}");
        }
    }
}
