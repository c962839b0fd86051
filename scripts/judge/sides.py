"""The two sides: transformers, and Nestling's example `logits`."""
import inspect
import json
import os
import pathlib
import re
import subprocess
import textwrap
import warnings

import numpy
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.lfm2_moe import modeling_lfm2_moe

from checkpoints import fused, mxfp4, rule, tensors_of, write_config, write_weights

ROOT = pathlib.Path(__file__).resolve().parents[2]
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
transformers.logging.set_verbosity(transformers.logging.CRITICAL)
transformers.utils.logging.disable_progress_bar()
warnings.filterwarnings("ignore")
MXFP4 = {
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
    "quant_method": "mxfp4",
}
# Larger models than this are not made: a key that was left out has its published size.
PARAMETERS_MAX = 60_000_000


def leave_out(where, method: str, term: str):
    """Leaves a term out of a method, which Nestling is documented not to have."""
    source = textwrap.dedent(inspect.getsource(getattr(where, method)))
    assert source.count(term) == 1, source
    made = {}
    exec(source.replace(term, ""), vars(inspect.getmodule(where)), made)
    setattr(where, method, made[method])


# formats/import/src/config/lfm2_moe.rs says why.
leave_out(modeling_lfm2_moe.Lfm2MoeTopKRouter, "forward", " + 1e-6")


class Refused(Exception):
    """transformers refuses the configuration, or the weights with it."""


class Misfit(Exception):
    """The weights are not those of the configuration."""


def class_of(config):
    """The class that `architectures` names, or that transformers chooses."""
    names = [name for name in config.architectures or [] if hasattr(transformers, name)]
    return getattr(transformers, names[0]) if names else AutoModelForCausalLM


def maker_of(config):
    kind = class_of(config)
    return getattr(kind, "_from_config", None) or kind.from_config


def size_of(config) -> int:
    """Parameters of a model, which is not made for that."""
    try:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in maker_of(config)(config).parameters())
    except Exception as error:
        raise Refused(first_line(error)) from error


def read_config(directory: pathlib.Path):
    try:
        return AutoConfig.from_pretrained(directory)
    except Exception as error:
        raise Refused(first_line(error)) from error


def first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    return f"{type(error).__name__}: {' '.join(lines)[:300]}"


def load(directory: pathlib.Path):
    """The model in float32, and names of tensors that it has no place for."""
    config = read_config(directory)
    # Nothing of that size is saved here, and transformers would make it before it compares.
    if size_of(config) > PARAMETERS_MAX:
        raise Misfit("the weights are those of a much smaller model")
    try:
        model, info = class_of(config).from_pretrained(
            directory, dtype=torch.float32, output_loading_info=True, **EAGER
        )
    except Exception as error:
        text = str(error)
        if "size mismatch" in text or "ismatch" in text:
            raise Misfit(first_line(error)) from error
        raise Refused(first_line(error)) from error
    lacking = sorted(info["missing_keys"]) + sorted(str(key) for key in info.get("mismatched_keys", []))
    if lacking:
        raise Misfit(f"{len(lacking)} tensors are missing or of another shape, the first is {lacking[0]}")
    return model.eval(), sorted(info["unexpected_keys"])


def logits(model, prompts: list[list[int]]) -> list[numpy.ndarray]:
    """`[T, V]` of each prompt."""
    out = []
    with torch.no_grad():
        for prompt in prompts:
            try:
                found = model(input_ids=torch.tensor([prompt]), use_cache=False)
            except Exception as error:
                raise Refused(first_line(error)) from error
            found = found["logits"] if hasattr(found, "keys") else next(x for x in found if x.dim() == 3)
            out.append(found[0].double().numpy())
    return out


def noise(model, found: list[numpy.ndarray], prompts: list[list[int]]) -> float:
    """The largest difference of a logit between float32 and float64; consumes the model."""
    try:
        exact = logits(model.double(), prompts)
    except Refused:
        return 0.0
    return max(float(numpy.abs(a - b).max()) for a, b in zip(found, exact))


def build(config: dict, directory: pathlib.Path):
    """A model of transformers' own class for a configuration, weights at random."""
    directory.mkdir(parents=True, exist_ok=True)
    write_config(directory, config)
    parsed = read_config(directory)
    size = size_of(parsed)
    if size > PARAMETERS_MAX:
        raise Refused(f"too large to try: {size} parameters")
    try:
        return maker_of(parsed)(parsed, dtype=torch.float32)
    except Exception as error:
        raise Refused(first_line(error)) from error


def make(config: dict, directory: pathlib.Path, seed: int, form: str = "given", layout: str = "saved") -> dict:
    """A checkpoint as `save_pretrained` lays it out: config.json as `form` says, given or saved, and
    the experts as saved, of Qwen3.5 also fused, of gpt-oss also in MXFP4. Returns each tensor's shape, centre and spread."""
    model = build(config, directory)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(False)
        if name.startswith("model.embed_tokens"):
            parameter.normal_()
    model.save_pretrained(directory)
    if form == "given":
        write_config(directory, config)
    tensors = tensors_of(directory)
    if layout == "fused":
        tensors = fused(tensors)
    if layout == "mxfp4":
        tensors = mxfp4(tensors)
        config = json.loads((directory / "config.json").read_text())
        write_config(directory, config | {"quantization_config": MXFP4})
    model_type = config["model_type"]
    rules = {name: rule(name, shape, model_type) for name, shape in tensors.items()}
    text = config.get("text_config", config)
    write_weights(directory, tensors, rules, seed, text.get("dtype") or text.get("torch_dtype") or "float32")
    return {name: (shape, *rules[name]) for name, shape in tensors.items()}


def save_again(source: pathlib.Path, directory: pathlib.Path) -> None:
    """Loads a checkpoint by `AutoModelForCausalLM`, as fine-tuning does, and saves it. Models with images have another class."""
    try:
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, **EAGER)
    except ValueError:
        model, _ = load(source)
    model.save_pretrained(directory)


class Nestling:
    """The example `logits`, started again where it dies."""

    def __init__(self, binary: pathlib.Path, scratch: pathlib.Path):
        self.binary, self.out = binary, scratch / "logits.f32"
        self.process = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [self.binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"RUST_BACKTRACE": "0"},
        )

    def judge(self, directory: pathlib.Path, prompts: list[list[int]]) -> dict:
        """Its answer, with `logits` for each prompt three of `[T, V]`, unless it refused or died."""
        if self.process is None:
            self.start()
        job = json.dumps({"directory": str(directory), "prompts": prompts, "out": str(self.out)})
        self.process.stdin.write(job + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            died = self.process.stderr.read().strip()
            self.process.wait()
            self.process = None
            return {"died": died[-600:]}
        answer = json.loads(line)
        if "refused" in answer:
            answer["refused"] = answer["refused"].replace(str(directory), "DIR")
            return answer
        flat = numpy.fromfile(self.out, dtype="<f4").reshape(-1, answer["vocab_size"]).astype(numpy.float64)
        answer["logits"], at = [], 0
        for prompt in prompts:
            ways = [flat[at + way * len(prompt) : at + (way + 1) * len(prompt)] for way in range(3)]
            answer["logits"].append(ways)
            at += 3 * len(prompt)
        return answer


def build_binary() -> pathlib.Path:
    """The example, built as tests are."""
    command = ["cargo", "build", "--quiet", "-p", "nestling-runtime", "--example", "logits", "--message-format=json"]
    out = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = re.findall(r'"executable":"([^"]*logits[^"]*)"', out)
    return pathlib.Path(found[-1])
