# Template of a Homebrew formula, filled in by packaging/fill.sh. Ruby has parsed it; Homebrew has not run it.
class Nestling < Formula
  desc "Runs Mixture-of-Experts language models larger than memory"
  homepage "https://github.com/nestling-engine/nestling"
  version "@VERSION@"
  license any_of: ["MIT", "Apache-2.0"]

  # Releases have no archives for macOS, which builds the source.
  on_macos do
    url "https://github.com/nestling-engine/nestling.git",
        tag:      "v@VERSION@",
        revision: "@COMMIT@"
    depends_on "rust" => :build
  end

  on_linux do
    on_intel do
      url "https://github.com/nestling-engine/nestling/releases/download/v@VERSION@/nestling-@VERSION@-x86_64-unknown-linux-gnu.tar.gz"
      sha256 "@SHA256:nestling-@VERSION@-x86_64-unknown-linux-gnu.tar.gz@"
    end
    on_arm do
      url "https://github.com/nestling-engine/nestling/releases/download/v@VERSION@/nestling-@VERSION@-aarch64-unknown-linux-gnu.tar.gz"
      sha256 "@SHA256:nestling-@VERSION@-aarch64-unknown-linux-gnu.tar.gz@"
    end
  end

  def install
    if OS.mac?
      system "cargo", "install", *std_cargo_args(path: "apps/cli")
      # The program searches its model in share/nestling of its prefix.
      (share/"nestling").install "models/nestling-storyteller.nest"
      man1.mkpath
      system bin/"nestling", "man", man1
      generate_completions_from_executable(bin/"nestling", "completions", shells: [:bash, :zsh, :fish])
    else
      bin.install "nestling"
      (share/"nestling").install "nestling-storyteller.nest"
      man1.install Dir["man/*.1"]
      bash_completion.install "completions/nestling.bash" => "nestling"
      zsh_completion.install "completions/nestling.zsh" => "_nestling"
      fish_completion.install "completions/nestling.fish"
      doc.install "THIRD-PARTY.txt"
    end
  end

  test do
    story = shell_output("#{bin}/nestling run --quiet --prompt 'The ship left' --predict 24 --temp 0 --device cpu")
    assert_operator story.length, :>, 40
  end
end
