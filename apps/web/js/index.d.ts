/** Options of {@link open}. */
export interface OpenOptions {
  /** Highest level to fetch, in bits per weight. The default is the whole store. */
  level?: 2 | 3 | 4 | 6 | 8;
  /** Budget in bytes for weights, KV cache and scratch memory. The default is no limit. */
  memoryBudget?: number;
  /** Maximum number of tokens of a conversation. The default is the model's context length, at most 8192. */
  contextLength?: number;
  /** True to read experts from the device when they are needed, also if all fit the budget. It can then be lowered. */
  streamed?: boolean;
  /**
   * Device that computes. The default, "auto", is a GPU through WebGPU where the browser has one that is no software
   * emulation, or the CPU. "gpu" takes the browser's adapter of any kind, and fails without one.
   */
  device?: "auto" | "cpu" | "gpu";
  /** False to keep fetched bytes in memory only. The default is true: a later visit fetches nothing again. */
  cache?: boolean;
  /**
   * Number of workers that compute, from 1 to 16. The default is 1. A page that is not cross-origin isolated, that keeps
   * bytes in memory or that computes on a GPU has one, and so has a GGUF file. The text does not depend on it.
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
  /** Least probability of a token to sample from, as a share of the likeliest token's. */
  minP?: number;
  /** Seed of the sampler, a safe integer. */
  seed?: number;
  /** Strings that end the answer. */
  stop?: string[];
  /** True to treat the model's end tokens as ordinary tokens. */
  ignoreEnd?: boolean;
  /** True to send an event for each token. */
  tokenEvents?: boolean;
  /** JSON schema that the answer matches. At most one of `jsonSchema`, `regex` and `grammar` may be given. */
  jsonSchema?: object | boolean;
  /** Regular expression that the answer matches. */
  regex?: string;
  /** GBNF grammar that the answer matches. */
  grammar?: string;
  /** Choice among the conversation's tools: "auto" (the default), "none", "required", or the name of one. */
  toolChoice?: string;
  /** Cancels the answer. */
  signal?: AbortSignal;
}

/** State of a model. */
export interface Status {
  /** Level that has arrived, in bits per weight. The next message uses it. 0 for a GGUF file. */
  level: 0 | 2 | 3 | 4 | 6 | 8;
  /** True once a message can be answered. */
  isUsable: boolean;
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
  /** Device that computes: "cpu", or the name of the GPU. */
  device: string;
}

/** Result of an answer. */
export interface Summary {
  /** Reason for the end. */
  reason: "stop" | "length" | "context" | "toolCalls" | "cancelled";
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
 * Kind of an error. "network" and "server" concern requests, "storage" the browser's storage, "device" the GPU.
 * "lost" means that a worker ended or was silent for 10 s; the next answer is computed by one worker.
 */
export type ErrorKind =
  | "network" | "server" | "changed" | "storage" | "damaged" | "memory" | "device" | "cancelled" | "busy" | "invalid"
  | "lost" | "internal" | "closed";

/** An error of a model. */
export class NestlingError extends Error {
  readonly kind: ErrorKind;
}

/** An event of an answer. */
export type AnswerEvent =
  | { type: "text"; text: string }
  | { type: "reasoning"; text: string }
  | { type: "token"; token: number }
  | { type: "toolCallStart"; index: number; id: string; name: string }
  | { type: "toolCallArguments"; index: number; delta: string }
  | { type: "toolCall"; id: string; name: string; arguments: string };

/** A running answer: an async iterable of its text. Leaving the loop early cancels it. */
export interface Answer extends AsyncIterable<string> {
  /** All events, in place of the text alone. */
  events(): AsyncIterableIterator<AnswerEvent>;
  /** Cancels the answer, which then ends with the reason "cancelled". */
  cancel(): void;
  /** Waits for the end, and returns the whole text. */
  text(): Promise<string>;
  /** Result, once the answer has ended. */
  readonly summary: Promise<Summary>;
}

/** A message of the OpenAI API, as the chat template reads it. */
export interface Message {
  role: "system" | "user" | "assistant" | "tool";
  [field: string]: unknown;
}

/** Options of a conversation. */
export interface ChatOptions {
  /** Instructions, the first message. */
  system?: string;
  /** Earlier messages. */
  messages?: Message[];
  /** Tools of the OpenAI API. */
  tools?: object[];
  /** Additional variables of the chat template. */
  templateArguments?: Record<string, unknown>;
}

/** A conversation. */
export interface Chat {
  /** Sends a message and starts the answer. Answers of one model are computed one after another. */
  send(text: string, options?: AnswerOptions): Answer;
  /** Returns the results of the tool calls in the last answer, in their order, and starts the next answer. */
  replyToTools(results: string[], options?: AnswerOptions): Answer;
  /** Returns the messages, once the answers before this call have ended. */
  transcript(): Promise<Message[]>;
  /** Releases the conversation. */
  close(): void;
}

/** A token history that can be continued. */
export interface Session {
  /** Continues by a text or by tokens, without a chat template. */
  generate(prompt: string | number[], options?: AnswerOptions): Answer;
  /** Returns the tokens, once the answers before this call have ended. */
  tokens(): Promise<number[]>;
  /** Returns the tokens and their computed state, for {@link Model.restore} here or in another program. */
  snapshot(): Promise<Uint8Array>;
  /** Copies the session. */
  fork(): Promise<Session>;
  /** Releases the session. */
  close(): void;
}

/** An open model. */
export interface Model {
  /** Creates a conversation. */
  chat(options?: ChatOptions): Chat;
  /** Creates an empty session. */
  session(): Session;
  /** Creates a session from a snapshot of the same model. */
  restore(snapshot: Uint8Array): Promise<Session>;
  /** Changes the memory budget, also during an answer. Rejects with the kind "memory" if the model needs more. */
  setMemoryBudget(bytes: number): Promise<void>;
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
 * Opens a store or a GGUF file at an address. Resolves once a store's first level has arrived; further levels arrive while the model is
 * idle. A GGUF file has no levels, and arrives whole.
 *
 * @throws {NestlingError}
 */
export function open(url: string | URL, options?: OpenOptions): Promise<Model>;
