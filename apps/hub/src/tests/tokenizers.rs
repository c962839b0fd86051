//! Tests of repositories with `tiktoken.model` instead of `tokenizer.json`.

use super::*;

const RANKS: &str = "tiktoken.model";
const CONFIG_OF_RANKS: &str = "tokenizer_config.json";

/// Returns a repository with ranks and a configuration of this tokenizer class.
fn bench_of_ranks(class: &str) -> Bench {
    let mut bench = bench();
    bench.files.remove("tokenizer.json");
    bench.files.insert(RANKS.into(), noise(7_000, 9));
    let config = format!("{{\"tokenizer_class\": \"{class}\"}}");
    bench.files.insert(CONFIG_OF_RANKS.into(), config.into_bytes());
    bench.serve_anew();
    bench
}

#[test]
fn ranks_arrive_where_there_is_no_tokenizer() {
    let mut bench = bench_of_ranks("TikTokenTokenizer");
    let obtained = bench.obtain().unwrap();
    bench.expect_whole(&obtained);
    bench.options.offline = true;
    assert_eq!(bench.obtain().unwrap().checkpoint, obtained.checkpoint);
    for name in [RANKS, CONFIG_OF_RANKS] {
        std::fs::remove_file(obtained.checkpoint.join(name)).unwrap();
        assert!(bench.obtain().is_err(), "without {name}");
        bench.options.offline = false;
        bench.expect_whole(&bench.obtain().unwrap());
        bench.options.offline = true;
    }
}

#[test]
fn ranks_beside_a_tokenizer_are_left_where_they_are() {
    let mut bench = bench_of_ranks("TikTokenTokenizer");
    bench.files.insert("tokenizer.json".into(), noise(5_000, 1));
    bench.serve_anew();
    let obtained = bench.obtain().unwrap();
    assert!(obtained.checkpoint.join("tokenizer.json").exists());
    assert!(!obtained.checkpoint.join(RANKS).exists());
    assert_eq!(bench.bodies(RANKS), [""; 0]);
}

#[test]
fn a_tokenizer_with_nothing_to_read_it_by_is_refused_before_weights() {
    for (left_out, said) in [(RANKS, "tokenizer.json"), (CONFIG_OF_RANKS, CONFIG_OF_RANKS)] {
        let mut bench = bench_of_ranks("TikTokenTokenizer");
        bench.files.remove(left_out);
        bench.serve_anew();
        let failure = bench.obtain().unwrap_err();
        assert!(failure.to_string().contains(&format!("has no {said}")), "{failure}");
        assert_eq!(bench.bodies(FIRST), [""; 0]);
    }
}

/// The requirements of a model do not depend on its tokenizer.
#[test]
fn a_survey_does_not_read_ranks() {
    let bench = bench_of_ranks("UnknownTokenizer");
    let survey = survey(&bench.repository, None, &bench.options, &NoObserver).unwrap();
    let Survey::Model(_, _, arrival) = survey else { panic!("no model") };
    // Configuration, generation defaults, ranks with their configuration, index and two shards.
    assert_eq!(arrival.files, 7);
    assert_eq!(bench.bodies(RANKS), [""; 0]);
}
