// Nestling in a browser tab. The types are in index.d.ts.

import { canShare, startWorkers } from "./team.js";

/** Maximum number of workers that compute. */
const THREADS_MAX = 16;

export class NestlingError extends Error {
  constructor({ kind, message }) {
    super(message);
    this.name = "NestlingError";
    this.kind = kind;
  }
}

const closed = () => new NestlingError({ kind: "closed", message: "the model is closed" });
const cancelled = () => new NestlingError({ kind: "cancelled", message: "cancelled" });

function refuseUnknown(options) {
  const [name] = Object.keys(options);
  if (name !== undefined) throw new NestlingError({ kind: "invalid", message: `unknown option: ${name}` });
}

/** A promise with its functions. A rejection that nobody awaits is no error of the page. */
function deferred() {
  const parts = Promise.withResolvers();
  parts.promise.catch(() => {});
  return parts;
}

/** Returns the number of workers for a page. A page that cannot share memory has one. */
function workerCount(threads, useCache) {
  if (!Number.isInteger(threads) || threads < 1) {
    throw new NestlingError({ kind: "invalid", message: `invalid threads: ${threads} is no positive integer` });
  }
  return canShare() && useCache ? Math.min(threads, THREADS_MAX) : 1;
}

class Answer {
  #worker;
  #id;
  #events = [];
  #end = deferred();
  #wake = () => {};
  #hasEnded = false;

  constructor(worker, id, signal) {
    this.#worker = worker;
    this.#id = id;
    signal?.addEventListener("abort", () => this.cancel());
    if (signal?.aborted) this.cancel();
  }

  get summary() {
    return this.#end.promise;
  }

  cancel() {
    if (!this.#hasEnded) this.#worker.postMessage({ type: "cancel", id: this.#id });
  }

  /** Takes a message of the worker. Returns true after the last one. */
  take({ type, value }) {
    if (type === "event") this.#events.push(value);
    else if (type === "finished") this.#end.resolve(value);
    else this.#end.reject(new NestlingError(value));
    this.#hasEnded = type !== "event";
    this.#wake();
    return this.#hasEnded;
  }

  async *events() {
    try {
      for (;;) {
        while (this.#events.length) yield this.#events.shift();
        if (this.#hasEnded) break;
        await new Promise((resolve) => (this.#wake = resolve));
      }
      await this.#end.promise;
    } finally {
      this.cancel();
    }
  }

  async *[Symbol.asyncIterator]() {
    for await (const event of this.events()) if (event.type === "text") yield event.text;
  }

  async text() {
    let text = "";
    for await (const part of this) text += part;
    return text;
  }
}

class Chat {
  #model;
  #id;
  #conversation;

  constructor(model, id, { system, messages = [], tools, templateArguments, ...unknown }) {
    refuseUnknown(unknown);
    this.#model = model;
    this.#id = id;
    this.#conversation = {
      messages: system ? [{ role: "system", content: system }, ...messages] : messages,
      tools,
      chat_template_kwargs: templateArguments,
      now: Math.floor(Date.now() / 1000),
    };
  }

  get #place() {
    return { chat: this.#id, conversation: this.#conversation };
  }

  send(text, options = {}) {
    return this.#model.ask({ ...this.#place, text }, options);
  }

  replyToTools(results, options = {}) {
    return this.#model.ask({ ...this.#place, results }, options);
  }

  transcript() {
    return this.#model.call("transcript", this.#place);
  }

  close() {
    this.#model.call("closeChat", { chat: this.#id }).catch(() => {});
  }
}

class Session {
  #model;
  #id;

  constructor(model, id) {
    this.#model = model;
    this.#id = id;
  }

  generate(prompt, options = {}) {
    const asked = typeof prompt === "string" ? { text: prompt } : { tokens: prompt };
    return this.#model.ask({ session: this.#id, ...asked }, options);
  }

  tokens() {
    return this.#model.call("tokens", { session: this.#id });
  }

  snapshot() {
    return this.#model.call("snapshot", { session: this.#id });
  }

  async fork() {
    const other = this.#model.nextId();
    await this.#model.call("fork", { session: this.#id, other });
    return new Session(this.#model, other);
  }

  close() {
    this.#model.call("closeSession", { session: this.#id }).catch(() => {});
  }
}

class Model {
  #worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  /** Workers that compute with the first one. */
  #further;
  #answers = new Map();
  #calls = new Map();
  #nextId = 0;
  #isClosed = false;
  #arrived = deferred();
  #onProgress;
  /** Settles once a message can be answered. */
  #ready = deferred();

  constructor(url, { onProgress, signal, cache = true, threads = 1, ...options }) {
    const { workers, ports } = startWorkers(workerCount(threads, cache) - 1);
    this.#further = workers;
    this.#onProgress = onProgress;
    this.#worker.onmessage = ({ data }) => this.#take(data);
    this.#worker.onerror = (event) => {
      this.#fail({ kind: "internal", message: event.message ?? "the worker cannot be loaded" });
    };
    const abort = () => {
      this.#ready.reject(cancelled());
      this.close();
    };
    signal?.addEventListener("abort", abort);
    if (signal?.aborted) abort();
    this.#ready.promise.finally(() => signal?.removeEventListener("abort", abort)).catch(() => {});
    const address = new URL(url, document.baseURI).href;
    this.#worker.postMessage({ type: "open", url: address, options, useCache: cache, ports }, ports);
  }

  get ready() {
    return this.#ready.promise;
  }

  get arrived() {
    return this.#arrived.promise;
  }

  nextId() {
    return this.#nextId++;
  }

  chat(options = {}) {
    return new Chat(this, this.nextId(), options);
  }

  session() {
    return new Session(this, this.nextId());
  }

  async restore(bytes) {
    const other = this.nextId();
    await this.call("restore", { other, bytes });
    return new Session(this, other);
  }

  complete(text, options = {}) {
    const session = this.session();
    const answer = session.generate(text, options);
    answer.summary.finally(() => session.close()).catch(() => {});
    return answer;
  }

  status() {
    return this.call("status");
  }

  setMemoryBudget(bytes) {
    return this.call("setMemoryBudget", { bytes });
  }

  close() {
    [this.#worker, ...this.#further].forEach((worker) => worker.terminate());
    this.#fail(closed());
  }

  /** Starts an answer. */
  ask(question, { signal, ...options }) {
    if (this.#isClosed) throw closed();
    const id = this.nextId();
    this.#worker.postMessage({ type: "ask", id, ...question, options });
    const answer = new Answer(this.#worker, id, signal);
    this.#answers.set(id, answer);
    return answer;
  }

  /** Calls a function of the worker. */
  call(name, task = {}) {
    if (this.#isClosed) return Promise.reject(closed());
    const [id, result] = [this.nextId(), deferred()];
    this.#calls.set(id, result);
    this.#worker.postMessage({ type: "call", id, name, ...task });
    return result.promise;
  }

  #take(message) {
    const result = this.#calls.get(message.id);
    if (result) {
      this.#calls.delete(message.id);
      if (message.type === "returned") result.resolve(message.value);
      else result.reject(new NestlingError(message.value));
      return;
    }
    switch (message.type) {
      case "status": return this.#onProgress?.(message.status);
      case "ready": return this.#ready.resolve();
      case "arrived": return this.#arrived.resolve();
      case "broken":
        // A model whose further levels failed continues with the level that it has.
        this.#arrived.reject(new NestlingError(message.value));
        this.#ready.reject(new NestlingError(message.value));
        return;
      default:
        if (this.#answers.get(message.id)?.take(message)) this.#answers.delete(message.id);
    }
  }

  #fail(error) {
    this.#isClosed = true;
    const value = { kind: error.kind, message: error.message };
    for (const answer of this.#answers.values()) answer.take({ type: "failed", value });
    for (const part of [this.#ready, this.#arrived, ...this.#calls.values()]) {
      part.reject(new NestlingError(value));
    }
    this.#answers.clear();
    this.#calls.clear();
  }
}

export async function open(url, options = {}) {
  const model = new Model(url, options);
  try {
    await model.ready;
    return model;
  } catch (error) {
    model.close();
    throw error;
  }
}
