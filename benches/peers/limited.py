#!/usr/bin/env python3
"""Run programs with llama-bench's interface under the same memory limits, and compare them.

  limited.py --of MODEL.nest --limits 25%,50%,2GiB --warmup 128 --tokens 64 [--rounds 3]
             [--json OUT] NAME='COMMAND' NAME='COMMAND' ...

A limit is bytes, or a share of the file that --of names; it is the same number of bytes for every
program. Each run starts in a control group of its own (cgroup v1 or v2, whichever the system has)
with the page cache dropped, so that what it reads into the cache counts too. In a command,
{memory} is the limit less 5 % in bytes, {limit} the limit itself, {run} the --chunk of tokens of one
repetition, {runs} how many repetitions warm up and are counted.

Commands must print llama-bench's JSON (`-o json`, with samples_ns) for one test that generates and,
with `--progress`, a line "generation run I/N" as each repetition begins. The first repetitions
(--warmup tokens) are the cold start and are not counted; llama-bench needs --no-warmup for
that, and -r {runs} -n {run}:

  llama-bench -m M.gguf -p 0 -n {run} -r {runs} -t 2 --no-warmup --repack 0 -o json --progress
  nestling bench -m M.nest -p 0 -n {run} -r {runs} -t 2 --no-warmup --no-bandwidth --memory {memory} \\
    -o json --progress

Repetitions of llama-bench begin with an empty context but keep the page cache, those of nestling
keep the expert cache: both are warm where the counted part begins.

Bytes read are the process's own from /proc/PID/io: what storage delivered, page faults included. The
order of programs flips every round; ratios are taken round by round, then their median. Root is
needed. --readahead 128 (KiB, the default of Linux) is set on the disks of the files in the commands
while it runs and put back afterwards; memory-mapped programs suffer from more.
"""
import argparse
import contextlib
import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time

UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size(text):
    match = re.fullmatch(r"([0-9.]+)([KMG]?)(i?)(B?)", text)
    if not match:
        raise SystemExit(f"{text} is no size; write for example 2GiB, 1500MB or 40%")
    number, unit, binary, byte = match.groups()
    scale = UNITS[unit] if binary or not byte else 1000 ** " KMG".index(unit or " ")
    return int(float(number) * scale)


def limit_of(text, whole):
    return int(whole * float(text[:-1]) / 100) if text.endswith("%") else size(text)


class Group:
    """A control group with a memory limit; files differ between the versions, the rest does not."""

    def __init__(self, limit, root=None):
        self.root, self.version = root or memory_root()
        self.path = os.path.join(self.root, f"peers-{os.getpid()}-{time.monotonic_ns()}")
        os.mkdir(self.path)
        for name, value, is_needed in limit_files(self.version, limit):
            with contextlib.nullcontext() if is_needed else contextlib.suppress(OSError):
                self.write(name, value)

    def write(self, name, value):
        with open(os.path.join(self.path, name), "w") as file:
            file.write(str(value))

    def join(self):
        self.write("cgroup.procs", os.getpid())

    def number(self, *names):
        for name in names:
            with contextlib.suppress(OSError, ValueError):
                with open(os.path.join(self.path, name)) as file:
                    return int(file.read())
        return None

    def peak(self):
        return self.number("memory.max_usage_in_bytes", "memory.peak")

    def killed(self):
        """Processes that the kernel killed for want of memory."""
        for name in ("memory.oom_control", "memory.events"):
            with contextlib.suppress(OSError):
                with open(os.path.join(self.path, name)) as file:
                    found = re.search(r"^oom_kill (\d+)", file.read(), re.M)
                    return int(found.group(1)) if found else 0
        return 0

    def remove(self):
        for _ in range(100):
            try:
                os.rmdir(self.path)
                return
            except OSError:
                time.sleep(0.1)


def limit_files(version, limit):
    """What is written to limit memory: file, value, and whether the limit is none without it."""
    if version == 1:
        return [("memory.limit_in_bytes", limit, True)]
    return [("memory.max", limit, True), ("memory.swap.max", 0, False)]


def mounted_groups(mounts):
    """Where control groups for memory are mounted, and their version."""
    unified = None
    for line in mounts:
        _, place, kind, options = line.split()[:4]
        if kind == "cgroup" and "memory" in options.split(","):
            return place, 1
        if kind == "cgroup2":
            unified = place
    if unified is None:
        raise SystemExit("no control groups for memory are mounted")
    return unified, 2


def memory_root():
    with open("/proc/mounts") as mounts:
        unified, version = mounted_groups(mounts)
    if version == 1:
        return unified, 1
    with open(os.path.join(unified, "cgroup.controllers")) as file:
        if "memory" not in file.read().split():
            raise SystemExit("the control groups of this system have no memory controller")
    with open(os.path.join(unified, "cgroup.subtree_control"), "w") as file:
        file.write("+memory")
    return unified, 2


def files_of(command):
    return [word for word in shlex.split(command)[1:] if os.path.isfile(word)]


@contextlib.contextmanager
def readahead(paths, kibibytes):
    """The readahead of the disks of those files, until the end of the block."""
    before = {}
    for path in paths if kibibytes else []:
        device = os.stat(path).st_dev
        place = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"
        # A partition has no queue of its own.
        for queue in (f"{place}/queue", f"{place}/../queue"):
            setting = os.path.realpath(os.path.join(queue, "read_ahead_kb"))
            if os.path.exists(setting) and setting not in before:
                with open(setting) as file:
                    before[setting] = file.read().strip()
                break
    try:
        for setting in before:
            with open(setting, "w") as file:
                file.write(str(kibibytes))
        yield before
    finally:
        for setting, value in before.items():
            with open(setting, "w") as file:
                file.write(value)


def drop_cache(paths):
    os.sync()
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


def bytes_read(pid):
    with contextlib.suppress(OSError, AttributeError):
        with open(f"/proc/{pid}/io") as file:
            return int(re.search(r"^read_bytes: (\d+)", file.read(), re.M).group(1))
    return None


def watch(process, marks, errors, started):
    """Notes time and bytes read as each repetition begins."""
    for line in process.stderr:
        errors.append(line)
        found = re.search(r"generation run (\d+)/", line)
        if found:
            marks.append((int(found.group(1)), time.monotonic() - started, bytes_read(process.pid)))


def run(command, limit, args):
    group = Group(limit) if limit else None

    def prepare():
        os.setsid()
        if group:
            group.join()
        if args.high_priority:
            os.nice(-20)
            with open("/proc/self/autogroup", "w") as file:
                file.write("-20")

    marks, errors, started = [], [], time.monotonic()
    process = subprocess.Popen(shlex.split(command), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, preexec_fn=prepare, text=True)
    reader = threading.Thread(target=watch, args=(process, marks, errors, started))
    reader.start()

    def kill():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(args.timeout, kill)
    timer.start()
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - started
    timer.cancel()
    reader.join()
    result = {"seconds": seconds, "peak_rss_bytes": usage.ru_maxrss * 1024,
              "read_bytes": usage.ru_inblock * 512, "major_faults": usage.ru_majflt,
              "user_seconds": usage.ru_utime, "system_seconds": usage.ru_stime,
              "load_average": os.getloadavg()[0]}
    if group:
        result.update(group_peak_bytes=group.peak(), killed=group.killed(),
                      group_version=group.version)
        group.remove()
    if process.returncode != 0:
        return {**result, "error": f"exit {process.returncode}: {''.join(errors)[-400:]}"}
    try:
        return {**result, **measures(json.loads(text)[0], marks, result, args)}
    except (ValueError, LookupError, TypeError) as error:
        return {**result, "error": f"unreadable results ({error!r}): {text[-200:]}"}


def measures(test, marks, result, args):
    """Cold and warm apart, from the times of repetitions and the bytes read as each began."""
    cold_runs, samples = args.cold_runs, test["samples_ns"]
    begun = {number: (seconds, read) for number, seconds, read in marks}
    if len(samples) != args.cold_runs + args.counted_runs:
        raise ValueError(f"{len(samples)} repetitions")
    rate = lambda some: args.chunk * len(some) / (sum(some) / 1e9) if some else None
    out = {"test": test, "cold_tokens_per_s": rate(samples[:cold_runs]),
           "tokens_per_s": rate(samples[cold_runs:])}
    start, warm = begun.get(1), begun.get(cold_runs + 1)
    if start:
        out.update(start_seconds=start[0], start_read_bytes=start[1])
    if start and warm and None not in (start[1], warm[1]):
        tokens = args.chunk * len(samples[cold_runs:])
        out["read_bytes_per_token"] = (result["read_bytes"] - warm[1]) / tokens
        if cold_runs:
            out["cold_read_bytes_per_token"] = (warm[1] - start[1]) / (args.chunk * cold_runs)
    return out


def show(row):
    if "error" in row:
        return f"{row['error']}"
    megabytes = lambda name: f"{row[name] / 1e6:.1f}" if row.get(name) is not None else "?"
    cold = row["cold_tokens_per_s"]
    return (f"{row['tokens_per_s']:.2f} t/s, {megabytes('read_bytes_per_token')} MB/token; "
            f"cold {cold and round(cold, 2)} t/s, {megabytes('cold_read_bytes_per_token')} MB/token, "
            f"start {row.get('start_seconds', 0):.1f} s; peak {megabytes('peak_rss_bytes')} MB, "
            f"group {megabytes('group_peak_bytes')} MB; load {row['load_average']:.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", help="file that limits in per cent are shares of")
    parser.add_argument("--limits", default="50%", help="list of 25%%, 2GiB or none")
    parser.add_argument("--warmup", type=int, default=128, help="tokens that are not counted")
    parser.add_argument("--tokens", type=int, default=64, help="tokens that are counted")
    parser.add_argument("--chunk", type=int, help="tokens of one repetition [as many as go into both]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--readahead", type=int, default=128, help="KiB; 0 leaves it alone")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds of one run")
    parser.add_argument("--high-priority", action="store_true")
    parser.add_argument("--json", help="file for all results")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and stop")
    parser.add_argument("engines", nargs="+", metavar="NAME=COMMAND")
    args = parser.parse_args()
    args.chunk = args.chunk or greatest_common(args.warmup, args.tokens)
    if args.warmup % args.chunk or args.tokens % args.chunk:
        parser.error("--chunk must divide --warmup and --tokens")
    args.cold_runs, args.counted_runs = args.warmup // args.chunk, args.tokens // args.chunk
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    engines = [engine.split("=", 1) for engine in args.engines]
    whole = os.path.getsize(args.of) if args.of else 0
    if not whole and "%" in args.limits:
        parser.error("limits in per cent need --of")
    limits = [(text, None if text == "none" else limit_of(text, whole))
              for text in args.limits.split(",")]
    paths = sorted({path for _, command in engines for path in files_of(command)})
    if args.dry_run:
        return dry_run(engines, limits, paths, args)
    with readahead(paths, args.readahead) as before:
        settings = {"readahead_kib": args.readahead, "readahead_before": before,
                    "warmup_tokens": args.warmup, "tokens": args.tokens, "chunk": args.chunk}
        rows = measure(engines, limits, paths, settings, args)
    report(engines, limits, rows)


def dry_run(engines, limits, paths, args):
    with open("/proc/mounts") as mounts:
        place, version = mounted_groups(mounts)
    print(f"control groups of version {version} at {place}; page cache of {', '.join(paths) or 'nothing'}")
    for text, limit in limits:
        for name, value, _ in limit_files(version, limit) if limit else []:
            print(f"{text}: {name} = {value}")
        for name, command in engines:
            print(f"{text} {name}: {filled_in(command, limit, args)}")


def filled_in(command, limit, args):
    return command.format(limit=limit, memory=limit and int(limit * 0.95), run=args.chunk,
                          runs=args.cold_runs + args.counted_runs)


def greatest_common(one, other):
    while other:
        one, other = other, one % other
    return max(one, 1)


def measure(engines, limits, paths, settings, args):
    rows = []
    for round_number in range(args.rounds):
        for text, limit in limits:
            for name, command in engines if round_number % 2 == 0 else engines[::-1]:
                filled = filled_in(command, limit, args)
                drop_cache(paths)
                row = {"engine": name, "round": round_number, "limit": text, "limit_bytes": limit,
                       "command": filled, **settings, **run(filled, limit, args)}
                rows.append(row)
                print(f"round {round_number} {text:>6} {name:<12} {show(row)}", file=sys.stderr,
                      flush=True)
                if args.json:
                    with open(args.json, "w") as file:
                        json.dump(rows, file, indent=1)
    return rows


def report(engines, limits, rows):
    print("| limit | program | t/s | lowest | highest | ratio | MB/token | cold t/s | cold MB/token | "
          "start s | peak RSS MB | group MB |")
    print("|---|---|" + "---:|" * 10)
    for text, limit in limits:
        good = [row for row in rows if row["limit"] == text and "error" not in row]
        first = {row["round"]: row["tokens_per_s"] for row in good if row["engine"] == engines[0][0]}
        shown = f"{text} = {limit / 1e6:.0f} MB" if limit else text
        for name, _ in engines:
            mine = [row for row in good if row["engine"] == name]
            if not mine:
                print(f"| {shown} | {name} | failed |" + " |" * 9)
                continue
            rates = [row["tokens_per_s"] for row in mine]
            ratios = [row["tokens_per_s"] / first[row["round"]] for row in mine
                      if row["round"] in first]

            def median(key, scale=1.0, digits=1):
                values = [row[key] / scale for row in mine if row.get(key) is not None]
                return f"{statistics.median(values):.{digits}f}" if values else ""

            ratio = f"{statistics.median(ratios):.2f}" if ratios else ""
            print(f"| {shown} | {name} | {statistics.median(rates):.2f} | {min(rates):.2f} | "
                  f"{max(rates):.2f} | {ratio} | {median('read_bytes_per_token', 1e6)} | "
                  f"{median('cold_tokens_per_s', 1, 2)} | "
                  f"{median('cold_read_bytes_per_token', 1e6)} | {median('start_seconds')} | "
                  f"{median('peak_rss_bytes', 1e6, 0)} | {median('group_peak_bytes', 1e6, 0)} |")


if __name__ == "__main__":
    main()
