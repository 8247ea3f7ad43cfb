//! Random bases, overlays and patches: both programs must agree on all of them.

use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::generator::case;
use super::reference::{Files, compare_with, library, reference};

/// Cases of an ordinary run; `PROPTEST_CASES` sets another number.
const CASES: u32 = 1000;

/// Rules: decisions 9
#[test]
fn random_overlays_build_to_the_same_objects() {
    let cases = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(CASES);
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 300,
        ..Config::default()
    };
    // The library answers in a hundredth of the time the command takes to start.
    let kustomize = match std::env::var("STAGESET_RANDOM") {
        Ok(chosen) if chosen == "command" => reference,
        _ => library,
    };
    let mut runner = TestRunner::new(config);
    let entropy = prop::collection::vec(any::<u8>(), 0..600);
    let (seen, built) = (AtomicU32::new(0), AtomicU32::new(0));
    let result = runner.run(&entropy, |bytes| {
        let files = case(&bytes);
        let both = compare_with(kustomize, &files, "overlay")
            .map_err(|difference| TestCaseError::fail(format!("{difference}\n{}", shown(&files))))?;
        seen.fetch_add(1, Ordering::Relaxed);
        built.fetch_add(u32::from(both), Ordering::Relaxed);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let (seen, built) = (seen.into_inner(), built.into_inner());
    println!("{built} of {seen} random cases build, the others are refused by both");
    assert!(built * 4 >= seen, "too few random cases build to say much");
}

fn shown(files: &Files) -> String {
    files
        .iter()
        .map(|(path, content)| format!("--- {path}\n{}\n", String::from_utf8_lossy(content)))
        .collect()
}
