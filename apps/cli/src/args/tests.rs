use super::model::LoadModeArg;
use super::*;
use crate::settings::Settings;
use nestling::formats::Level;
use nestling::{SamplerKind, SamplingParams};

fn parse(line: &[&str]) -> Result<Cli, clap::Error> {
    Cli::from_command_line(line.iter().map(OsString::from))
}

fn run(line: &[&str]) -> RunArgs {
    match parse(line).unwrap().command {
        Command::Run(args) => args,
        other => panic!("{other:?}"),
    }
}

#[test]
fn definitions_are_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn every_flag_has_an_environment_variable_and_help() {
    fn visit(command: &clap::Command) {
        for argument in command.get_arguments() {
            let name = argument.get_id().as_str();
            if matches!(name, "help" | "version") {
                continue;
            }
            assert!(argument.get_help().is_some(), "{} {name}: no help", command.get_name());
            if !argument.is_positional() {
                let env = argument.get_env().unwrap_or_default().to_string_lossy().into_owned();
                let known = env.starts_with("NESTLING_") || env == "HF_TOKEN";
                assert!(known, "{} --{name}: variable `{env}`", command.get_name());
            }
        }
        command.get_subcommands().for_each(visit);
    }
    let mut command = Cli::command();
    command.build();
    command.get_subcommands().filter(|c| c.get_name() != "help").for_each(visit);
}

#[test]
fn one_name_has_one_meaning() {
    // The same flag must read the same variable in every command.
    let mut seen = std::collections::HashMap::new();
    for command in Cli::command().get_subcommands() {
        for argument in command.get_arguments().filter(|a| a.get_long().is_some()) {
            let env = argument.get_env().map(|e| e.to_owned());
            let long = argument.get_long().unwrap().to_owned();
            let known = seen.entry(long.clone()).or_insert_with(|| env.clone());
            assert_eq!(*known, env, "--{long} of {}", command.get_name());
        }
    }
}

#[test]
fn devices_are_read_from_the_command_line() {
    use nestling::Device;
    use nestling::cuda::CudaDeviceChoice;
    use nestling::wgpu::AdapterChoice;
    let device = |text: &str| run(&["nestling", "run", "--device", text]).resources.device.device;
    assert_eq!(run(&["nestling", "run"]).resources.device.device, Device::Auto);
    assert_eq!(device("cpu"), Device::Cpu);
    assert_eq!(device("wgpu"), Device::Wgpu(AdapterChoice::Auto));
    assert_eq!(device("wgpu:1"), Device::Wgpu(AdapterChoice::Index(1)));
    assert_eq!(device("wgpu:arc"), Device::Wgpu(AdapterChoice::Name("arc".into())));
    assert_eq!(device("cuda:1"), Device::Cuda(CudaDeviceChoice::Index(1)));
    for wrong in ["cuda:", "gpu", "wgpu:"] {
        assert!(parse(&["nestling", "run", "--device", wrong]).is_err(), "{wrong}");
    }
}

#[test]
fn llama_cpp_spellings() {
    let args = run(&[
        "nestling",
        "run",
        "-m",
        "a.nest",
        "-c",
        "256",
        "-n",
        "32",
        "--temp",
        "0",
        "--top-k",
        "5",
        "--top-p",
        "0.9",
        "--min-p",
        "0.1",
        "--repeat-penalty",
        "1.1",
        "-s",
        "7",
        "-p",
        "Once",
        "-sys",
        "Be brief",
        "-t",
        "2",
        "-lm",
        "mmap",
        "-v",
    ]);
    assert_eq!(args.model.given_path(), Some(&PathBuf::from("a.nest")));
    assert_eq!(args.resources.ctx_size, Some(256));
    assert_eq!(args.generation.predict, 32);
    assert_eq!(args.generation.temp, Some(0.0));
    assert_eq!(args.generation.top_k, Some(5));
    assert_eq!(args.generation.seed, Some(7));
    assert_eq!(args.prompt.prompt.as_deref(), Some("Once"));
    assert_eq!(args.prompt.system_prompt.as_deref(), Some("Be brief"));
    assert_eq!(args.resources.threads, Some(2));
    assert_eq!(args.resources.load_mode, LoadModeArg::Mmap);
    assert_eq!(run(&["nestling", "run", "-n", "-1"]).generation.predict, -1);
}

#[test]
fn no_command_is_chat() {
    for line in [&["nestling"][..], &["nestling", "-hf", "a/b"], &["nestling", "-m", "x.nest"]] {
        assert!(matches!(parse(line).unwrap().command, Command::Chat(_)), "{line:?}");
    }
    let Command::Chat(args) = parse(&["nestling", "-hf=a/b", "-st"]).unwrap().command else {
        panic!("not a chat");
    };
    assert_eq!(args.model.hub.hf_repo.as_deref(), Some("a/b"));
    assert!(args.single_turn);
    assert!(parse(&["nestling", "comvert"]).is_err());
    for line in
        [&["nestling", "-v", "verify"][..], &["nestling", "--color", "never", "-q", "verify"]]
    {
        assert!(matches!(parse(line).unwrap().command, Command::Verify(_)), "{line:?}");
    }
    assert!(matches!(parse(&["nestling", "-v"]).unwrap().command, Command::Chat(_)));
}

#[test]
fn a_literal_after_two_dashes_is_left_alone() {
    let Command::Verify(args) = parse(&["nestling", "verify", "--", "-hf"]).unwrap().command else {
        panic!("not verify");
    };
    assert_eq!(args.path, Some(PathBuf::from("-hf")));
}

#[test]
fn wrong_values_are_refused_with_a_reason() {
    for (line, words) in [
        (&["nestling", "run", "--level", "5"][..], "levels are 2, 3, 4, 6 and 8"),
        (&["nestling", "run", "--memory", "much"], "not a size"),
        (&["nestling", "run", "--top-p", "1.5"], "not from 0 to 1"),
        (&["nestling", "run", "--temp", "nan"], "not from 0 to 100"),
        (&["nestling", "run", "-t", "0"], "1..=1024"),
        (&["nestling", "run", "-l", "x+1"], "not a token id and a bias"),
        (&["nestling", "run", "a.nest", "-m", "b.nest"], "cannot be used with"),
        (&["nestling", "run", "-p", "x", "-f", "y"], "cannot be used with"),
    ] {
        let error = parse(line).unwrap_err().to_string();
        assert!(error.contains(words), "{line:?}: {error}");
    }
}

#[test]
fn levels_and_biases_are_lists() {
    let Command::Perplexity(args) =
        parse(&["nestling", "perplexity", "--reference", "hf", "-f", "t.txt", "--levels", "2,8"])
            .unwrap()
            .command
    else {
        panic!("not perplexity");
    };
    assert_eq!(args.levels, [LevelArg(Level::L2), LevelArg(Level::L8)]);
    let args = run(&["nestling", "run", "-l", "3+1.5", "-l", "4-inf"]);
    assert_eq!(args.generation.logit_bias[0].bias, 1.5);
    assert_eq!(args.generation.logit_bias[1].bias, f32::NEG_INFINITY);
}

#[test]
fn samplers_have_the_flags_of_llama_cpp() {
    let defaults = SamplingParams::default;
    let of = |line: &[&str]| {
        let flags = [&["nestling", "run", "-m", "m.nest"], line].concat();
        Settings::new(&run(&flags).generation, &defaults()).sampling
    };
    let order = vec![SamplerKind::TopK, SamplerKind::Temperature];
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).into()).collect();
    let cases: [(&[&str], SamplingParams); 19] = [
        (&["--typical", "0.9"], SamplingParams { typical_p: 0.9, ..defaults() }),
        (&["--top-nsigma", "1.5"], SamplingParams { top_n_sigma: 1.5, ..defaults() }),
        (&["--top-n-sigma", "-1"], SamplingParams { top_n_sigma: -1.0, ..defaults() }),
        (&["--xtc-probability", "0.5"], SamplingParams { xtc_probability: 0.5, ..defaults() }),
        (&["--xtc-threshold", "0.2"], SamplingParams { xtc_threshold: 0.2, ..defaults() }),
        (&["--dry-multiplier", "0.8"], SamplingParams { dry_multiplier: 0.8, ..defaults() }),
        (&["--dry-base", "2"], SamplingParams { dry_base: 2.0, ..defaults() }),
        (&["--dry-allowed-length", "3"], SamplingParams { dry_allowed_length: 3, ..defaults() }),
        (&["--dry-penalty-last-n", "64"], SamplingParams { dry_penalty_last_n: 64, ..defaults() }),
        (
            &["--dry-sequence-breaker", "a", "--dry-sequence-breaker", "b"],
            SamplingParams { dry_sequence_breakers: texts(&["a", "b"]), ..defaults() },
        ),
        (
            &["--dry-sequence-breaker", "none"],
            SamplingParams { dry_sequence_breakers: vec![], ..defaults() },
        ),
        (&["--mirostat", "2"], SamplingParams { mirostat: 2, ..defaults() }),
        (&["--mirostat-lr", "0.3"], SamplingParams { mirostat_eta: 0.3, ..defaults() }),
        (&["--mirostat-ent", "4"], SamplingParams { mirostat_tau: 4.0, ..defaults() }),
        (&["--dynatemp-range", "0.5"], SamplingParams { dynatemp_range: 0.5, ..defaults() }),
        (&["--dynatemp-exp", "2"], SamplingParams { dynatemp_exponent: 2.0, ..defaults() }),
        (&["--repeat-last-n", "64"], SamplingParams { repeat_last_n: 64, ..defaults() }),
        (&["--repeat-last-n", "-1"], defaults()),
        (&["--samplers", "top_k;temperature"], SamplingParams { samplers: order, ..defaults() }),
    ];
    for (line, expected) in cases {
        assert_eq!(of(line), expected, "{line:?}");
    }
    for (flag, value, reason) in [
        ("--mirostat", "1", "mirostat 1 is not supported"),
        ("--samplers", "top_k;infill", "unknown name \"infill\""),
        ("--repeat-last-n", "-2", "is not -1 or a count"),
    ] {
        let error = parse(&["nestling", "chat", flag, value]).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}
