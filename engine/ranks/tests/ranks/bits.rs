//! Every family has the bits of one rank over 2, 3, 4 and 8, resident and streamed.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use nestling_convert::convert::ConvertOptions;
use nestling_core::group::{Group, GroupCounters, RankShare};
use nestling_core::runner::ModelRunner;
use nestling_cpu::Cpu;
use nestling_experts::expert::{ExpertSource, HostOptions, Prefetch, StreamOptions};
use nestling_experts::reads::ReadOptions;
use nestling_experts::residency::{ExpertTable, Placement};
use nestling_formats::nested::InputTransform;
use nestling_formats::store::GroupId;
use nestling_formats::{Level, MatrixKind};
use nestling_import::{FeedForward, TokenMixer};
use nestling_runtime::model::RunnerOptions;
use nestling_testkit::runners::{all_logits, checkpoint, data, greedy, runner, some_tokens};

use crate::harness::{Ranks, TIMEOUT, converted, source, store};

pub fn families() -> Vec<PathBuf> {
    let folders = std::fs::read_dir(data("families")).unwrap();
    let folders = folders.map(|entry| entry.unwrap().path());
    let mut families: Vec<PathBuf> =
        folders.filter(|folder| folder.join("config.json").is_file()).collect();
    families.sort();
    assert!(families.len() > 25, "{families:?}");
    families
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// Compares prompts, single rows and greedy tokens of a model over ranks with those of one rank.
pub fn assert_same(
    alone: &mut dyn ModelRunner,
    source: &Arc<dyn ExpertSource>,
    options: &RunnerOptions,
    ranks: usize,
    name: &str,
) {
    let tokens = some_tokens(40, source.config().vocab_size, 5);
    let level = Level::L4;
    let mut group = Ranks::new(source, options, ranks);
    let lead = group.lead();
    for chunk in [32, 1] {
        let (expected, found) =
            (all_logits(alone, &tokens, level, chunk), all_logits(lead, &tokens, level, chunk));
        assert!(bits(&expected) == bits(&found), "{name} over {ranks} ranks, {chunk} rows");
    }
    let expected = greedy(alone, &tokens[..5], level, 12);
    assert_eq!(greedy(lead, &tokens[..5], level, 12), expected, "{name} over {ranks} ranks");
    assert!(group.close().iter().all(Result::is_ok));
}

#[test]
fn checkpoints_of_all_families() {
    for (index, family) in families().iter().enumerate() {
        let source = checkpoint(family);
        let options = RunnerOptions::default();
        let mut alone = runner(Cpu::new(1), &source, &options);
        let ranks = 2 + index % 2;
        assert_same(&mut alone, &source, &options, ranks, &family.display().to_string());
    }
}

#[test]
fn stores_of_all_families_resident_and_streamed() {
    for (index, family) in families().iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let (name, store) = (family.display().to_string(), store(family, folder.path()));
        let source = source(&store);
        let mut alone = runner(Cpu::new(1), &source, &RunnerOptions::default());
        let ranks = [2, 3, 4, 8][index % 4];
        assert_same(&mut alone, &source, &RunnerOptions::default(), ranks, &name);
        if !source.config().has_experts() {
            continue;
        }
        let table = ExpertTable::of_store(&store, store.level()).unwrap();
        for prefetch in [Prefetch::Always, Prefetch::All] {
            let budget_bytes = match prefetch {
                Prefetch::All => table.total_bytes(),
                _ => table.least_bytes().max(table.total_bytes() / 3),
            };
            let (reads, host) = (ReadOptions::default(), HostOptions::default());
            let streaming = Some(StreamOptions { budget_bytes, reads, prefetch, host });
            let options = RunnerOptions { streaming, ..RunnerOptions::default() };
            assert_same(&mut alone, &source, &options, ranks, &name);
        }
    }
}

#[test]
fn stores_with_rotated_inputs_of_down() {
    // A dense part, and shared experts, whose inner widths are whole groups.
    for family in ["qwen3", "deepseek-v3", "qwen3-next"] {
        let folder = tempfile::tempdir().unwrap();
        let rotation = InputTransform::Hadamard;
        let mut options = ConvertOptions::default();
        options.rotation = rotation;
        let store = converted(&data("families").join(family), folder.path(), &options);
        let source = source(&store);
        let (config, mut rotated) = (source.config().clone(), 0);
        for (layer, layer_config) in (0..).zip(&config.layers) {
            let Some(inner) = layer_config.feed_forward.dense_size() else { continue };
            let mut group = source.matrices(&GroupId::Dense { layer }).unwrap();
            let down = group.take(MatrixKind::Down, config.hidden_size, inner).unwrap();
            rotated += usize::from(down.inputs() == rotation);
        }
        assert!(rotated > 0, "{family}");
        let mut alone = runner(Cpu::new(1), &source, &RunnerOptions::default());
        for ranks in [2, 3, 4] {
            assert_same(&mut alone, &source, &RunnerOptions::default(), ranks, family);
        }
    }
}

/// Returns the counters once a rank has ended an exchange, which another rank may end before it.
pub fn settled(group: &dyn Group, exchanges: u64) -> GroupCounters {
    let deadline = Instant::now() + TIMEOUT;
    while group.counters().exchanges < exchanges && Instant::now() < deadline {
        thread::yield_now();
    }
    group.counters()
}

#[test]
fn ranks_send_what_the_formula_says() {
    let source = checkpoint(&data("tiny-qwen3-moe"));
    let config = source.config().clone();
    let (hidden, rows) = (config.hidden_size, 24);
    let heads = match &config.layers[0].mixer {
        TokenMixer::Attention(heads) => *heads,
        other => panic!("{other:?}"),
    };
    let qkv = [heads.num_attention_heads, heads.num_key_value_heads, heads.num_key_value_heads];
    // Outputs of matrices with divided rows: queries, keys and values together, and the output projection.
    let mixers = [qkv.map(|heads_of| heads_of * heads.head_dim).to_vec(), vec![hidden]];
    let tokens = some_tokens(rows, config.vocab_size, 5);
    for ranks in [2, 4] {
        let mut group = Ranks::new(&source, &RunnerOptions::default(), ranks);
        // The model is open once it has answered.
        all_logits(group.lead(), &tokens, Level::L8, rows);
        let first = group.groups[0].counters().exchanges;
        let before: Vec<_> = group.groups.iter().map(|rank| settled(&**rank, first)).collect();
        all_logits(group.lead(), &tokens, Level::L8, rows);
        let (mut exchanges, mut sum) = (0, 0);
        let mut floats = vec![0; ranks];
        let mut gather = |outputs: &[usize]| {
            let is_divided = |rows: &&usize| RankShare { rank: 0, ranks }.rows(**rows).is_some();
            let divided: Vec<usize> = outputs.iter().filter(is_divided).copied().collect();
            exchanges += u64::from(!divided.is_empty());
            for (rank, floats) in floats.iter_mut().enumerate() {
                let held =
                    divided.iter().map(|of| RankShare { rank, ranks }.rows(*of).unwrap().len());
                *floats += rows * held.sum::<usize>();
            }
        };
        for layer in &config.layers {
            mixers.iter().for_each(|outputs| gather(outputs));
            if let Some(inner) = layer.feed_forward.dense_size() {
                gather(&[inner]);
                gather(&[hidden]);
            }
            sum += usize::from(matches!(layer.feed_forward, FeedForward::Moe { .. }));
        }
        gather(&[config.vocab_size]);
        // Rows of the embedding go to the ranks that do not hold their tokens.
        exchanges += 1;
        for (rank, floats) in floats.iter_mut().enumerate() {
            let held = RankShare { rank, ranks }.rows(config.vocab_size).unwrap();
            let of_rank = tokens.iter().filter(|token| held.contains(&(**token as usize)));
            *floats += hidden * of_rank.count();
        }
        let per_token = config.layers.iter().find_map(|layer| match layer.feed_forward {
            FeedForward::Moe { num_experts_per_tok, .. } => Some(num_experts_per_tok),
            FeedForward::Absent | FeedForward::Dense { .. } => None,
        });
        let uses = rows * per_token.unwrap() * sum;
        let mut sent = 0;
        for (rank, (group, before)) in group.groups.iter().zip(before).enumerate() {
            let now = settled(&**group, before.exchanges + exchanges + 2 * sum as u64 + 1);
            // Each mixture has two exchanges, and the step ends with a report.
            assert_eq!(now.exchanges - before.exchanges, exchanges + 2 * sum as u64 + 1);
            // The sums of a rank's columns go to all others.
            let own = RankShare { rank, ranks }.columns(hidden).len();
            let gathered = 4 * (floats[rank] + rows * own * sum) * (ranks - 1);
            let bytes = (now.sent_bytes - before.sent_bytes) as usize;
            assert!(bytes > gathered, "rank {rank} of {ranks}");
            sent += bytes - gathered;
        }
        // Each expert row goes to the other ranks by columns, with its number. Orders and reports are short.
        let expert_rows = uses * (4 * hidden * (ranks - 1) / ranks + 4 * (ranks - 1));
        let short = 300 * ranks * ranks;
        assert!((expert_rows..expert_rows + short).contains(&sent), "{sent}, {expert_rows}");
        assert!(group.close().iter().all(Result::is_ok));
    }
}

#[test]
fn each_rank_holds_its_share() {
    let config = checkpoint(&data("tiny-qwen3-moe")).config().clone();
    let experts = config.layers.iter().map(|layer| match layer.feed_forward {
        FeedForward::Moe { num_experts, .. } => num_experts as u32,
        FeedForward::Absent | FeedForward::Dense { .. } => 0,
    });
    let held = |share: RankShare| {
        let of_layer = |(layer, experts)| {
            let placement = Placement::in_turn(share);
            (0..experts).filter(move |expert| placement.holds(layer, *expert)).count()
        };
        (0..).zip(experts.clone()).map(of_layer).sum::<usize>()
    };
    let all = experts.clone().sum::<u32>() as usize;
    for ranks in [2, 3, 4] {
        let each: Vec<usize> = RankShare { rank: 0, ranks }.all().map(held).collect();
        assert_eq!(each.iter().sum::<usize>(), all);
        assert!(each.iter().all(|held| held.abs_diff(all / ranks) <= 2), "{each:?}");
    }
}
