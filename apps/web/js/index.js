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
  #parts = [];
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
    if (type === "text") this.#parts.push(value);
    else if (type === "finished") this.#end.resolve(value);
    else this.#end.reject(new NestlingError(value));
    this.#hasEnded = type !== "text";
    this.#wake();
    return this.#hasEnded;
  }

  async *[Symbol.asyncIterator]() {
    try {
      for (;;) {
        while (this.#parts.length) yield this.#parts.shift();
        if (this.#hasEnded) break;
        await new Promise((resolve) => (this.#wake = resolve));
      }
      await this.#end.promise;
    } finally {
      this.cancel();
    }
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
  #system;

  constructor(model, id, system) {
    this.#model = model;
    this.#id = id;
    this.#system = system;
  }

  send(text, options = {}) {
    return this.#model.ask({ chat: this.#id, system: this.#system, text }, options);
  }

  close() {
    this.#model.post({ type: "closeChat", chat: this.#id });
  }
}

class Model {
  #worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  /** Workers that compute with the first one. */
  #further;
  #answers = new Map();
  #statuses = new Map();
  #nextId = 0;
  #isClosed = false;
  #arrived = deferred();
  #onProgress;
  /** Settles once the first level has arrived. */
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

  chat({ system = "" } = {}) {
    return new Chat(this, this.#nextId++, system);
  }

  complete(text, options = {}) {
    return this.ask({ text }, options);
  }

  status() {
    if (this.#isClosed) return Promise.reject(closed());
    const [id, status] = [this.#nextId++, deferred()];
    this.#statuses.set(id, status);
    this.post({ type: "status", id });
    return status.promise;
  }

  close() {
    [this.#worker, ...this.#further].forEach((worker) => worker.terminate());
    this.#fail(closed());
  }

  /** Starts an answer. */
  ask(question, { signal, ...options }) {
    if (this.#isClosed) throw closed();
    const id = this.#nextId++;
    this.post({ type: "ask", id, ...question, options });
    const answer = new Answer(this.#worker, id, signal);
    this.#answers.set(id, answer);
    return answer;
  }

  post(message) {
    if (!this.#isClosed) this.#worker.postMessage(message);
  }

  #take(message) {
    switch (message.type) {
      case "status":
        if (message.id === undefined) return this.#onProgress?.(message.status);
        this.#statuses.get(message.id)?.resolve(message.status);
        this.#statuses.delete(message.id);
        return;
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
    for (const part of [this.#ready, this.#arrived, ...this.#statuses.values()]) {
      part.reject(new NestlingError(value));
    }
    this.#answers.clear();
    this.#statuses.clear();
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
