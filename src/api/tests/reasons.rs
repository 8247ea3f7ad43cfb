//! Reasons as data.

use crate::api::reason::{Class, EventType, OPERATIONAL_RUNBOOKS, Place, Reason};

#[test]
fn words_are_valid_and_unique() {
    let pattern = regex::Regex::new("^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$").unwrap();
    let mut words: Vec<&str> = Reason::ALL.iter().map(|r| r.as_str()).collect();
    for word in &words {
        assert!(pattern.is_match(word), "{word}");
        assert_eq!(Reason::from_word(word).map(Reason::as_str), Some(*word));
    }
    words.sort_unstable();
    words.dedup();
    assert_eq!(words.len(), Reason::ALL.len());
    assert_eq!(Reason::from_word("NoSuchReason"), None);
}

#[test]
fn classes_follow_the_contract() {
    let of_class = |class: Class| -> Vec<&str> {
        Reason::ALL
            .iter()
            .filter(|r| r.class() == Some(class))
            .map(|r| r.as_str())
            .collect()
    };
    assert_eq!(of_class(Class::Healthy), ["Succeeded"]);
    assert_eq!(
        of_class(Class::Transient),
        ["SourceNotReady", "ArtifactNotFound", "DependencyNotReady"]
    );
    assert_eq!(
        of_class(Class::Retrying),
        ["ResolveFailed", "MigrationFailed", "StageFailed"]
    );
    assert!(Reason::InvalidSpec.is_terminal() && Reason::Stalled.is_terminal() && Reason::MigrationDirty.is_terminal());
    assert!(!Reason::UpdateDeferred.is_terminal() && !Reason::DriftCorrected.is_terminal());
}

#[test]
fn every_ready_reason_has_a_runbook_page() {
    for reason in Reason::ALL {
        if matches!(reason.place(), Place::Ready(_)) {
            assert_eq!(reason.runbook(), Some(reason.as_str().to_lowercase()));
        } else {
            assert!(!reason.has_runbook_suffix(), "{reason}");
        }
    }
    assert_eq!(Reason::DriftCorrected.runbook(), None);
    let page = Reason::TeardownForced.runbook().unwrap();
    assert!(OPERATIONAL_RUNBOOKS.contains(&page.as_str()));
}

#[test]
fn healthy_and_quiet_reasons_carry_no_suffix() {
    let without: Vec<&str> = Reason::ALL
        .iter()
        .filter(|r| r.class().is_some() && !r.has_runbook_suffix())
        .map(|r| r.as_str())
        .collect();
    assert_eq!(without, ["Succeeded", "Suspended", "Progressing"]);
}

#[test]
fn deliberate_waits_are_not_warnings() {
    for reason in [
        Reason::Suspended,
        Reason::AwaitingApproval,
        Reason::UpdateDeferred,
        Reason::SourceNotReady,
        Reason::DependencyNotReady,
    ] {
        assert_eq!(reason.event(), Some(EventType::Normal), "{reason}");
    }
    assert_eq!(Reason::InvalidSpec.event(), Some(EventType::Warning));
    assert_eq!(Reason::Progressing.event(), None);
    for reason in Reason::ALL.iter().filter(|r| r.place() == Place::Event) {
        assert!(reason.event().is_some(), "{reason} is an event without a type");
    }
}
