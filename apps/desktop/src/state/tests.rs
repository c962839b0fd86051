use super::*;
use crate::plan::Subject;
use std::path::Path;

fn planned() -> Report {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nestling-storyteller.nest");
    let plan = Subject::read(Path::new(path)).unwrap().plan(Some(40_000_000)).unwrap();
    Report::Planned(Box::new(plan))
}

fn opened() -> Application {
    let mut state = Application::default();
    assert!(matches!(state.choose("a.nest".into(), None), Some(Command::Plan { .. })));
    assert!(state.apply(planned()).is_none());
    let Some(Command::Open { budget, .. }) = state.open() else { panic!("{state:?}") };
    assert_eq!(budget, 40_000_000);
    state.apply(Report::Opening { parts_done: 1, parts_total: 4 });
    assert!(matches!(state.phase, Phase::Opening { parts_done: 1, parts_total: 4, .. }));
    let opened = ModelDescription {
        budget,
        is_streamed: true,
        has_template: true,
        ..ModelDescription::default()
    };
    assert!(state.apply(Report::Opened(opened)).is_none());
    state
}

#[test]
fn a_conversation_grows_by_reports() {
    let mut state = opened();
    state.draft = "  ".into();
    assert!(state.send().is_none(), "an empty message is not sent");
    state.draft = " Hello ".into();
    assert!(matches!(state.send(), Some(Command::Send(text)) if text == "Hello"));
    state.draft = "More".into();
    assert!(state.send().is_none(), "one answer at a time");
    state.apply(Report::Text("Good ".into()));
    state.apply(Report::Text("day".into()));
    state.apply(Report::Finished(AnswerSummary::default()));
    assert!(!state.is_answering && state.stop().is_none());
    assert_eq!((state.lines.len(), state.lines[1].text.as_str()), (2, "Good day"));
    assert_eq!(state.draft, "More");
}

#[test]
fn a_refused_budget_leaves_the_one_in_force() {
    let mut state = opened();
    assert!(matches!(state.set_budget(30_000_000), Some(Command::SetBudget(30_000_000))));
    state.apply(Report::BudgetSet(30_000_000));
    state.set_budget(1);
    state.apply(Report::BudgetRefused { in_force: 30_000_000, reason: "too small".into() });
    assert_eq!((state.budget, state.error.as_deref()), (30_000_000, Some("too small")));
    assert!(matches!(&state.phase, Phase::Open(opened) if opened.budget == 30_000_000));
    assert!(state.budget_range().unwrap().contains(&state.budget));
}

#[test]
fn an_opening_can_be_cancelled() {
    let mut state = Application::default();
    state.choose("a.nest".into(), None);
    state.apply(planned());
    let Some(Command::Open { cancel, .. }) = state.open() else { panic!("{state:?}") };
    state.stop();
    assert!(cancel.is_cancelled());
    state.apply(Report::OpenFailed(None));
    assert!(matches!(state.phase, Phase::Planned) && state.error.is_none());
    assert!(state.open().is_some(), "and can be repeated");
}

#[test]
fn another_file_replaces_the_model() {
    let mut state = opened();
    state.draft = "Hello".into();
    state.send();
    let command = state.choose("b.gguf".into(), None);
    assert!(matches!(command, Some(Command::Plan { path, .. }) if path == Path::new("b.gguf")));
    assert!(state.lines.is_empty() && !state.is_answering && state.plan.is_none());
    // Late reports of the model before it change nothing.
    state.apply(Report::Text("late".into()));
    state.apply(Report::Opening { parts_done: 1, parts_total: 2 });
    assert!(matches!(state.phase, Phase::Planning) && state.lines.is_empty());
    state.apply(Report::PlanFailed("no model".into()));
    assert!(matches!(state.phase, Phase::Empty));
}

#[test]
fn a_message_of_the_arguments_needs_no_click() {
    let mut state = Application { opens_itself: true, ..Application::default() };
    state.first_message = Some("Hello".into());
    state.choose("a.nest".into(), None);
    assert!(matches!(state.apply(planned()), Some(Command::Open { .. })));
    let command = state.apply(Report::Opened(ModelDescription::default()));
    assert!(matches!(command, Some(Command::Send(text)) if text == "Hello"));
    assert!(state.apply(Report::Opened(ModelDescription::default())).is_none(), "once");
}
