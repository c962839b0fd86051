/** Options of {@link open}. */
export interface OpenOptions {
  /** Highest level to fetch, in bits per weight. The default is the whole store. */
  level?: 2 | 3 | 4 | 6 | 8;
  /** Budget in bytes for weights, KV cache and scratch memory. The default is no limit. */
  memoryBudget?: number;
  /** Maximum number of tokens of a conversation. The default is the model's context length, at most 8192. */
  contextLength?: number;
  /** False to keep fetched bytes in memory only. The default is true: a later visit fetches nothing again. */
  cache?: boolean;
  /**
   * Number of workers that compute, from 1 to 16. The default is 1. A page that is not cross-origin isolated, or that keeps
   * bytes in memory, has one. The text does not depend on it.
   */
  threads?: number;
  /** Called after each fetched part. */
  onProgress?: (status: Status) => void;
  /** Ends the opening. An open model is not affected. */
  signal?: AbortSignal;
}

/** Options of one answer. Unset options are the model's own. */
export interface AnswerOptions {
  /** Maximum number of tokens. */
  maxTokens?: number;
  /** Sampling temperature; 0 chooses the likeliest token. */
  temperature?: number;
  /** Number of likeliest tokens to sample from. */
  topK?: number;
  /** Probability mass of the likeliest tokens to sample from. */
  topP?: number;
  /** Seed of the sampler, a safe integer. */
  seed?: number;
  /** Strings that end the answer. */
  stop?: string[];
  /** Cancels the answer. */
  signal?: AbortSignal;
}

/** State of a model. */
export interface Status {
  /** Level that has arrived, in bits per weight. The next message uses it. */
  level: 0 | 2 | 3 | 4 | 6 | 8;
  /** True once all requested levels have arrived. */
  isComplete: boolean;
  /** Bytes fetched since the page was opened. */
  fetchedBytes: number;
  /** Bytes stored on this device, from this visit and earlier ones. */
  storedBytes: number;
  /** Bytes of all requested levels. */
  wantedBytes: number;
  /** Number of requests for bytes since the page was opened. */
  requests: number;
  /** Bytes of memory that the model uses, in all workers. */
  memoryBytes: number;
  /** Number of workers that compute. */
  threads: number;
  /** Place of fetched bytes: "memory" if the browser has no storage or another tab uses it. */
  cache: "device" | "memory";
}

/** Result of an answer. */
export interface Summary {
  /** Reason for the end. */
  reason: "stop" | "length" | "context" | "cancelled";
  /** Level that computed the answer, in bits per weight. */
  level: number;
  /** Number of tokens of the prompt. */
  promptTokens: number;
  /** Number of tokens of the answer. */
  answerTokens: number;
  /** Tokens per second after the first one. */
  tokensPerSecond: number;
}

/**
 * Kind of an error. "network" and "server" concern requests, "storage" the browser's storage.
 * "lost" means that a worker ended or was silent for 10 s; the next answer is computed by one worker.
 */
export type ErrorKind =
  | "network" | "server" | "changed" | "storage" | "damaged" | "memory" | "cancelled" | "busy" | "invalid"
  | "lost" | "internal" | "closed";

/** An error of a model. */
export class NestlingError extends Error {
  readonly kind: ErrorKind;
}

/** A running answer: an async iterable of its text. Leaving the loop early cancels it. */
export interface Answer extends AsyncIterable<string> {
  /** Cancels the answer, which then ends with the reason "cancelled". */
  cancel(): void;
  /** Waits for the end, and returns the whole text. */
  text(): Promise<string>;
  /** Result, once the answer has ended. */
  readonly summary: Promise<Summary>;
}

/** A conversation. */
export interface Chat {
  /** Sends a message and starts the answer. Answers of one model are computed one after another. */
  send(text: string, options?: AnswerOptions): Answer;
  /** Releases the conversation. */
  close(): void;
}

/** An open model. */
export interface Model {
  /** Creates a conversation. */
  chat(options?: { system?: string }): Chat;
  /** Starts the completion of raw text. */
  complete(text: string, options?: AnswerOptions): Answer;
  /** Returns the state. */
  status(): Promise<Status>;
  /** Settles once all requested levels have arrived; rejects if fetching them failed. */
  readonly arrived: Promise<void>;
  /** Ends the worker and releases all memory. */
  close(): void;
}

/**
 * Opens a store at an address. Resolves once its first level has arrived; further levels arrive while the model is idle.
 *
 * @throws {NestlingError}
 */
export function open(url: string | URL, options?: OpenOptions): Promise<Model>;
