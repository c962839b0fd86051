// Calls of the module's tab, one after another. On a GPU the module is suspended while it waits for the device, and messages
// go on arriving. They must not enter the module meanwhile.

/** A tab whose calls return promises. */
export class TabCalls {
  #tab;
  #run;
  #last = Promise.resolve();

  /** `exports` are those of the tab's module, which suspends its stack if `mayWait`. */
  constructor(tab, exports, mayWait) {
    this.#tab = tab;
    this.#run = mayWait ? WebAssembly.promising(exports.nestlingtab_run) : exports.nestlingtab_run;
  }

  /** Calls a function of the tab. Returns its result, or bytes if it has some. */
  call(name, parameters = {}, bytes = undefined) {
    return this.#inTurn(async () => {
      this.#tab.prepare(JSON.stringify({ call: name, ...parameters }), bytes);
      await this.#run(this.#tab.__wbg_ptr);
      const result = JSON.parse(this.#tab.outcome());
      return this.#tab.takeBytes() ?? result;
    });
  }

  /** Cancels the answer once the running call has ended. */
  cancel() {
    return this.#inTurn(() => this.#tab.cancel());
  }

  #inTurn(action) {
    const result = this.#last.then(action);
    this.#last = result.catch(() => {});
    return result;
  }
}
