//! Error of the host side of a guest: it was not started, or it was ended before its job was done.

pub use pagelab_packages::error::{Error, ErrorKind};

#[cfg(test)]
mod tests {
    use std::io;

    use expect_test::expect;

    use super::*;

    /// The wording of each constructor; the cause is printed by the caller.
    #[test]
    fn constructors_have_one_grammar() {
        let not_found = || io::Error::from(io::ErrorKind::NotFound);
        let errors = [
            Error::new(ErrorKind::Input, "cannot read a.txt: no such file"),
            Error::system_error("cannot start qemu-system-x86_64", not_found()),
            Error::output_error(not_found()),
            Error::stopped(2),
        ];
        let lines = errors.map(|error| format!("{:?}: {error}\n", error.kind()));
        expect![[r#"
            Input: cannot read a.txt: no such file
            SystemRefused: cannot start qemu-system-x86_64
            Output: cannot write the output
            Stopped(2): stopped by a signal; nothing was kept
        "#]]
        .assert_eq(&lines.concat());
    }
}
