//! The part of a failed step's output that explains the failure.

/// Lines before an error that are shown with it. A program that ends by a signal prints no error,
/// but the names of its tests show how far it came.
const BEFORE: usize = 12;
/// Lines after an error: a compiler's explanation, or cargo's report about the end of a program.
const BEHIND: usize = 12;

/// The errors with the lines around them, and the whole output of failing tests.
pub fn of(lines: &[String]) -> Vec<&str> {
    let mut shown = vec![false; lines.len()];
    let mut in_failures = false;
    for (i, line) in lines.iter().enumerate() {
        if line.trim() == "failures:" {
            in_failures = true;
        }
        shown[i] |= in_failures;
        if line.starts_with("test result:") {
            in_failures = false;
        }
        let is_error = ["error:", "error[", "Diff in "]
            .iter()
            .any(|start| line.starts_with(start))
            || line.starts_with("test ") && line.ends_with("FAILED");
        if is_error {
            let end = lines.len().min(i + BEHIND + 1);
            shown[i.saturating_sub(BEFORE)..end].fill(true);
        }
    }
    let mut kept = Vec::new();
    for (i, line) in lines.iter().enumerate() {
        if shown[i] {
            if i > 0 && !shown[i - 1] {
                kept.push("…");
            }
            kept.push(line);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::of;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn what_failing_tests_print_is_shown_whole() {
        let noise = "test fine ... ok\n".repeat(100);
        let report = "failures:\n\n---- sums stdout ----\nleft: 1\n".to_owned()
            + &"a line of it\n".repeat(50)
            + "failures:\n    sums\n\ntest result: FAILED. 1 passed; 1 failed\n";
        let log = lines(&format!("{noise}{report}{noise}"));
        let digest = of(&log);
        assert_eq!(digest[0], "…");
        assert_eq!(digest[1..].join("\n"), report.trim_end());
    }

    #[test]
    fn a_program_that_a_signal_ends_is_shown_with_what_it_did_last() {
        let noise = "test fine ... ok\n".repeat(100);
        let log = lines(&format!(
            "{noise}     Running tests/streams.rs\ntest the_last ... \nerror: test failed, to rerun pass `--test streams`\n\n\
             Caused by:\n  process didn't exit successfully: `streams` (signal: 11, SIGSEGV)\n{noise}"
        ));
        let digest = of(&log);
        assert!(digest.contains(&"test the_last ... "));
        assert!(digest.iter().any(|line| line.contains("SIGSEGV")));
        assert!(digest.len() < 40, "{}", digest.len());
    }

    #[test]
    fn the_first_line_and_the_last_can_be_errors() {
        let log = lines("error: a\nerror: b");
        assert_eq!(of(&log), ["error: a", "error: b"]);
    }
}
