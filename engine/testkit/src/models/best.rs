//! Argmax tokens computed on the device, compared with the argmax of the logits.

use nestling_core::batch::StepOutputKind;
use nestling_core::runner::ModelRunner;
use nestling_core::weights::ActivationMode::Int8;
use nestling_formats::Level;

use super::common::{greedy, parts, step_for};
use super::streamed::expert_bytes;
use crate::{ModelsDevice, Test, tests};

/// Returns the argmax continuation chosen by the runner, and the total waits of its steps.
fn chosen(runner: &mut dyn ModelRunner, prompt: &[u32], count: usize) -> (Vec<u32>, u64) {
    let among = runner.limits().vocab_size;
    let (mut piece, mut first, mut tokens, mut waits) = (prompt.to_vec(), 0, Vec::new(), 0);
    while tokens.len() < count {
        let last = piece.len() - 1;
        let wanted = (StepOutputKind::Argmax(among), |at| at == last);
        let output = step_for(runner, (first, &piece), wanted).unwrap();
        assert!(output.logits.is_empty());
        first += piece.len();
        waits += output.stats.device.waits;
        assert_eq!(output.best.len(), 1);
        let token = output.best[0].unwrap();
        tokens.push(token);
        piece = vec![token];
    }
    (tokens, waits)
}

/// Covers resident experts, slots for some experts so that steps miss and resume, and the CPU.
fn tokens_chosen_on_the_device_are_those_of_its_logits<D: ModelsDevice>() {
    let (device, parts) = (D::device(), parts(Some(Level::L3)));
    let prompt = &parts.text[..9];
    let (_, least) = expert_bytes(&parts);
    for budget in [None, Some(least)] {
        let mut runner = parts.runner(D::again(&device), Int8, budget);
        let expected: Vec<u32> =
            greedy(&mut runner, prompt, 4).into_iter().map(|choice| choice.token).collect();
        let (found, waits) = chosen(&mut runner, prompt, 4);
        assert_eq!(found, expected, "{budget:?}");
        assert_eq!(waits > 4, budget.is_some(), "{waits} waits");
    }
    let mut cpu = parts.on_cpu(Int8);
    let expected: Vec<u32> =
        greedy(&mut cpu, prompt, 4).into_iter().map(|choice| choice.token).collect();
    assert_eq!(chosen(&mut cpu, prompt, 4).0, expected);
}

/// Restricts candidates to the first `among` tokens, as for tokenizers with fewer tokens than logits. Each
/// row has its own result.
fn each_row_has_its_best_among_the_first_tokens<D: ModelsDevice>() {
    let (device, parts) = (D::device(), parts(Some(Level::L3)));
    let mut runner = parts.runner(device, Int8, None);
    let rows = (0, &parts.text[..5]);
    let logits = step_for(&mut runner, rows, (StepOutputKind::Logits, |at| at != 1)).unwrap();
    let vocabulary = logits.vocab_size;
    for among in [1, 300, vocabulary] {
        let found =
            step_for(&mut runner, rows, (StepOutputKind::Argmax(among), |at| at != 1)).unwrap();
        let expected = logits
            .logits
            .chunks_exact(vocabulary)
            .map(|row| Some(super::common::best(&row[..among]).token));
        assert_eq!(found.best, expected.collect::<Vec<_>>(), "{among} of {vocabulary}");
    }
}

/// Hidden rows are the same beside logits and alone, with resident experts and with misses.
fn hidden_rows_come_beside_logits_and_alone<D: ModelsDevice>() {
    let (device, parts) = (D::device(), parts(Some(Level::L3)));
    let rows = (0, &parts.text[..7]);
    let wants = |at: usize| at % 3 != 1;
    let (_, least) = expert_bytes(&parts);
    for budget in [None, Some(least)] {
        let mut runner = parts.runner(D::again(&device), Int8, budget);
        let mut of = |kind| step_for(&mut runner, rows, (kind, wants)).unwrap();
        let logits = of(StepOutputKind::Logits);
        let both = of(StepOutputKind::HiddenAndLogits);
        let hidden = of(StepOutputKind::Hidden);
        assert_eq!(both.logits, logits.logits);
        assert_eq!(both.hidden, hidden.hidden);
        assert!(logits.hidden.is_empty() && hidden.logits.is_empty() && hidden.best.is_empty());
        let columns = parts.source.config().hidden_size;
        assert_eq!(hidden.hidden.len(), 5 * columns);
        let rows: Vec<&[f32]> = hidden.hidden.chunks_exact(columns).collect();
        assert!(rows.windows(2).all(|pair| pair[0] != pair[1]), "rows are told apart");
    }
}

pub fn suite<D: ModelsDevice>() -> Vec<Test> {
    tests![
        tokens_chosen_on_the_device_are_those_of_its_logits::<D>,
        each_row_has_its_best_among_the_first_tokens::<D>,
        hidden_rows_come_beside_logits_and_alone::<D>,
    ]
}
