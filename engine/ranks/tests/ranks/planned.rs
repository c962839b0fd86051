//! Planned exchanges beside the counters of the groups.

use std::sync::Arc;

use nestling_core::group::{ExpertDivision, GroupCounters};
use nestling_core::kv_heads::KvDivision;
use nestling_experts::expert::ExpertSource;
use nestling_formats::Level;
use nestling_formats::store::Store;
use nestling_plan::ranks::{RankDivision, Traffic};
use nestling_runtime::model::RunnerOptions;
use nestling_testkit::runners::{all_logits, some_tokens};

use crate::bits::{families, settled};
use crate::harness::{Ranks, source, store};
use crate::heads::layers;
use crate::wide::wide;

/// Rows of a step. All of their logits are requested.
const ROWS: usize = 9;

#[test]
fn all_families_exchange_what_a_plan_says() {
    for (index, family) in families().iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let (name, store) = (family.display().to_string(), store(family, folder.path()));
        let source = source(&store);
        let config = source.config().clone();
        let ranks = [2, 4, 3][index % 3];
        for division in [ExpertDivision::Whole, ExpertDivision::Sliced] {
            if division == ExpertDivision::Whole || config.has_experts() {
                assert_planned(&store, &source, ranks, division.into(), &name);
            }
        }
        if layers(&*source, ranks).divided > 0 {
            let division = RankDivision { kv: KvDivision::ByHeads, ..RankDivision::default() };
            assert_planned(&store, &source, ranks, division, &name);
        }
    }
}

#[test]
fn divided_heads_exchange_what_a_plan_says() {
    // Gates of elements belong to a rank's heads, and gates of heads are gathered.
    for (family, ranks) in [("qwen3-next", 4), ("laguna", 2)] {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&wide(family, folder.path()), folder.path());
        let division = RankDivision { kv: KvDivision::ByHeads, ..RankDivision::default() };
        assert_planned(&store, &source(&store), ranks, division, family);
        let share = |kv| {
            let division = RankDivision { kv, ..RankDivision::default() };
            Traffic::of_index(store.index(), source(&store).config(), ranks, division)
        };
        let (divided, whole) = (share(KvDivision::ByHeads), share(KvDivision::Replicated));
        assert!(divided.row_bytes() < whole.row_bytes(), "{family}");
    }
}

fn assert_planned(
    store: &Store,
    source: &Arc<dyn ExpertSource>,
    ranks: usize,
    division: RankDivision,
    name: &str,
) {
    let name = format!("{name}, {division:?}");
    let config = source.config();
    let planned = Traffic::of_index(store.index(), config, ranks, division);
    let RankDivision { experts: expert_division, kv: kv_division } = division;
    let options = RunnerOptions { expert_division, kv_division, ..RunnerOptions::default() };
    let tokens = some_tokens(ROWS, config.vocab_size, 5);
    let mut group = Ranks::new(source, &options, ranks);
    // The model is open once it has answered.
    all_logits(group.lead(), &tokens, Level::L4, ROWS);
    let first = group.groups[0].counters().exchanges;
    let before: Vec<_> = group.groups.iter().map(|rank| settled(&**rank, first)).collect();
    all_logits(group.lead(), &tokens, Level::L4, ROWS);
    let (mut received, mut messages) = (0, 0);
    for (rank, before) in group.groups.iter().zip(&before) {
        let expected = before.exchanges + planned.exchanges() as u64;
        let now: GroupCounters = settled(&**rank, expected);
        assert_eq!(now.exchanges, expected, "{name} over {ranks} ranks");
        received += now.received_bytes - before.received_bytes;
        messages += now.messages - before.messages;
    }
    // Rank 0 alone sends the order.
    let expected = planned.messages() * ranks + (ranks - 1);
    assert_eq!(messages as usize, expected, "{name} over {ranks} ranks");
    // Orders and reports are short, and columns of an odd width are not the same for all ranks.
    let expected = planned.row_bytes() * (ROWS * ranks) as f64;
    let found = received as f64;
    let short = 400.0 * (ranks * ranks) as f64;
    assert!(
        found > 0.97 * expected && found < 1.03 * expected + short,
        "{name} over {ranks} ranks: {found} bytes, planned {expected}"
    );
    assert!(group.close().iter().all(Result::is_ok));
}
