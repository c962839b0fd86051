//! Property tests of sessions: for any sequence of operations, output depends only on the history.
//!
//! Pages and recurrent states are never leaked.

use super::fake::*;
use nestling_runtime::{Engine, GenerateOptions, Generation, Input, Session, SnapshotContents};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Act {
    Start { session: usize, prompt: Vec<u32>, tokens: usize },
    Read { session: usize, tokens: usize },
    Drop { session: usize },
    Truncate { session: usize, length: usize },
    Shift { session: usize, keep: usize, discard: usize },
    Fork { from: usize, to: usize },
    Restore { from: usize, to: usize, pages: bool },
}

const SESSIONS: usize = 4;

fn act() -> impl Strategy<Value = Act> {
    let session = 0..SESSIONS;
    let prompt = prop::collection::vec(0..POISON, 0..90);
    prop_oneof![
        4 => (session.clone(), prompt, 0usize..60)
            .prop_map(|(session, prompt, tokens)| Act::Start { session, prompt, tokens }),
        2 => (session.clone(), 1usize..20)
            .prop_map(|(session, tokens)| Act::Read { session, tokens }),
        1 => session.clone().prop_map(|session| Act::Drop { session }),
        1 => (session.clone(), 0usize..200)
            .prop_map(|(session, length)| Act::Truncate { session, length }),
        1 => (session.clone(), 0usize..80, 0usize..80)
            .prop_map(|(session, keep, discard)| Act::Shift { session, keep, discard }),
        1 => (session.clone(), session.clone()).prop_map(|(from, to)| Act::Fork { from, to }),
        1 => (session.clone(), session, any::<bool>())
            .prop_map(|(from, to, pages)| Act::Restore { from, to, pages }),
    ]
}

/// A session with its running generation and the remaining expected tokens.
struct Player {
    session: Session,
    running: Option<(Generation, Vec<u32>)>,
}

impl Player {
    /// Reads `count` tokens, or all remaining ones.
    fn read(&mut self, count: usize) {
        let Some((generation, left)) = &mut self.running else { return };
        for _ in 0..count {
            let Some(event) = generation.next() else { break };
            if let nestling_runtime::Event::Token(token) = event.unwrap() {
                assert_eq!(token.token, left.remove(0));
            }
        }
        if count == usize::MAX {
            assert!(left.is_empty(), "{} tokens were not said", left.len());
        }
    }

    fn finish(&mut self) {
        self.read(usize::MAX);
        self.running = None;
    }
}

fn play(engine: &Engine, runner: FakeRunner, acts: &[Act]) {
    let states = runner.limits.states;
    let model = model(engine, runner);
    let new = || Player { session: model.session(), running: None };
    let mut players: Vec<Player> = (0..SESSIONS).map(|_| new()).collect();
    for act in acts {
        match act.clone() {
            Act::Start { session, prompt, tokens } => {
                let player = &mut players[session];
                player.finish();
                let mut history = player.session.tokens().unwrap();
                history.extend(&prompt);
                let options = GenerateOptions { events_max: 8, ..greedy(tokens) };
                match player.session.generate(Input::Tokens(prompt), &options) {
                    Ok(generation) => {
                        let said = tokens.min(256 - history.len());
                        player.running = Some((generation, expected(&history, said)));
                    }
                    Err(error) => {
                        let too_long = history.len() + usize::from(tokens > 0) > 256;
                        assert!(too_long || history.is_empty(), "{error}");
                    }
                }
            }
            Act::Read { session, tokens } => players[session].read(tokens),
            Act::Drop { session } => players[session].running = None,
            Act::Truncate { session, length } => {
                players[session].finish();
                players[session].session.truncate(length).unwrap();
            }
            Act::Shift { session, keep, discard } => {
                players[session].finish();
                players[session].session.shift(keep, discard).unwrap();
            }
            Act::Fork { from, to } => {
                players[from].finish();
                let session = players[from].session.fork().unwrap();
                players[to] = Player { session, running: None };
            }
            Act::Restore { from, to, pages } => {
                players[from].finish();
                let contents =
                    if pages { SnapshotContents::TokensAndPages } else { SnapshotContents::Tokens };
                let bytes = players[from].session.snapshot(contents).unwrap();
                let session = model.restore(&bytes).unwrap();
                players[to] = Player { session, running: None };
            }
        }
    }
    for player in &mut players {
        player.finish();
    }
    drop(players);
    // Generations with dropped handles stop at the loop's next turn.
    eventually("everything is free", || (model.free_pages(), model.free_states()) == (7, states));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn what_is_said_depends_on_the_history_alone(acts in prop::collection::vec(act(), 1..30)) {
        play(&engine(), FakeRunner::new(256, 24, 7), &acts);
        play(&caller_engine(), FakeRunner::new(256, 24, 7), &acts);
    }

    #[test]
    fn recurrent_models_say_the_same(
        acts in prop::collection::vec(act(), 1..30),
        states in 4usize..20,
    ) {
        play(&engine(), FakeRunner::recurrent(256, 24, 7, states), &acts);
        play(&caller_engine(), FakeRunner::recurrent(256, 24, 7, states), &acts);
    }
}
