// Rings of bytes between the ranks of a model, in memory that their workers share. Rust decides what the bytes are.
//
// Memory, in words of 4 bytes: for each rank a count of changes, a count of beats and a mark of its end, each on a cache line
// of its own; the first lost rank plus 1; then for each pair of ranks a ring: bytes written, bytes read, data.

const LINE = 16;
const CHANGES = 0;
const BEATS = LINE;
const ENDED = 2 * LINE;
const RANK_WORDS = 3 * LINE;
const READ = LINE;
const HEAD_WORDS = 2 * LINE;
/** Bytes of a ring, a power of two. Longer messages pass through it in turns. */
const RING_BYTES = 1 << 18;
const RING_WORDS = HEAD_WORDS + RING_BYTES / 4;
/** Bounds of the number of looks at the count of changes before a rank sleeps. */
const SPINS_MIN = 500;
const SPINS_MAX = 50_000;
/** Time in milliseconds below which a rank should have looked for longer instead of sleeping. */
const SHORT_SLEEP = 0.3;

/** Returns memory for a group of `ranks` ranks. */
export function sharedMemory(ranks) {
  return new SharedArrayBuffer(4 * (ranks * RANK_WORDS + LINE + ranks * ranks * RING_WORDS));
}

export class Rings {
  #words;
  #bytes;
  #rank;
  #ranks;
  /** Looks before a sleep: more after short sleeps, fewer after long ones, as where other programs use the cores. */
  #spins = SPINS_MIN;

  constructor(memory, rank, ranks) {
    this.#words = new Int32Array(memory);
    this.#bytes = new Uint8Array(memory);
    this.#rank = rank;
    this.#ranks = ranks;
  }

  /** Returns the index of the first word of the ring between two ranks. */
  #ring(from, to) {
    return this.#ranks * RANK_WORDS + LINE + (from * this.#ranks + to) * RING_WORDS;
  }

  /** Tells a rank that a ring has changed. */
  #wake(rank) {
    Atomics.add(this.#words, rank * RANK_WORDS + CHANGES, 1);
    Atomics.notify(this.#words, rank * RANK_WORDS + CHANGES);
  }

  write(to, bytes) {
    const ring = this.#ring(this.#rank, to);
    const written = Atomics.load(this.#words, ring);
    const free = RING_BYTES - ((written - Atomics.load(this.#words, ring + READ)) | 0);
    const count = Math.min(free, bytes.length);
    if (!count) return 0;
    const [data, start] = [4 * (ring + HEAD_WORDS), written & (RING_BYTES - 1)];
    const first = Math.min(count, RING_BYTES - start);
    this.#bytes.set(first < bytes.length ? bytes.subarray(0, first) : bytes, data + start);
    if (first < count) this.#bytes.set(bytes.subarray(first, count), data);
    Atomics.store(this.#words, ring, (written + count) | 0);
    this.#wake(to);
    return count;
  }

  read(from, out) {
    const ring = this.#ring(from, this.#rank);
    const read = Atomics.load(this.#words, ring + READ);
    const count = Math.min((Atomics.load(this.#words, ring) - read) | 0, out.length);
    if (!count) return 0;
    const [data, start] = [4 * (ring + HEAD_WORDS), read & (RING_BYTES - 1)];
    const first = Math.min(count, RING_BYTES - start);
    out.set(this.#bytes.subarray(data + start, data + start + first));
    if (first < count) out.set(this.#bytes.subarray(data, data + count - first), first);
    Atomics.store(this.#words, ring + READ, (read + count) | 0);
    this.#wake(from);
    return count;
  }

  changes() {
    return Atomics.load(this.#words, this.#rank * RANK_WORDS + CHANGES);
  }

  wait(seen, milliseconds) {
    const at = this.#rank * RANK_WORDS + CHANGES;
    for (let spin = 0; spin < this.#spins; spin++) if (Atomics.load(this.#words, at) !== seen) return true;
    const start = performance.now();
    const outcome = Atomics.wait(this.#words, at, seen, milliseconds);
    const wasShort = performance.now() - start < SHORT_SLEEP;
    this.#spins = wasShort ? Math.min(2 * this.#spins, SPINS_MAX) : Math.max(this.#spins / 2, SPINS_MIN);
    return outcome !== "timed-out";
  }

  beat() {
    Atomics.add(this.#words, this.#rank * RANK_WORDS + BEATS, 1);
  }

  beats(rank) {
    return Atomics.load(this.#words, rank * RANK_WORDS + BEATS);
  }

  end() {
    Atomics.store(this.#words, this.#rank * RANK_WORDS + ENDED, 1);
    for (let rank = 0; rank < this.#ranks; rank++) this.#wake(rank);
  }

  hasEnded(rank) {
    return Atomics.load(this.#words, rank * RANK_WORDS + ENDED) === 1;
  }

  lose(rank) {
    Atomics.compareExchange(this.#words, this.#ranks * RANK_WORDS, 0, rank + 1);
    for (let other = 0; other < this.#ranks; other++) this.#wake(other);
  }

  /** Returns the first lost rank; -1 if there is none. */
  lost() {
    return Atomics.load(this.#words, this.#ranks * RANK_WORDS) - 1;
  }
}
