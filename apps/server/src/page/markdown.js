"use strict";
// Markdown to DOM nodes. marked splits a text into tokens, and each token becomes an element of a fixed set with its text. No
// HTML is parsed, so HTML in an answer is shown as text, and nothing that a model writes can run or load.
const markdown = (() => {
  const NESTING_MAX = 20, INLINE_MAX = 20_000, CELLS_MAX = 4_000, LIST_MAX = 16_000, TEXT_MAX = 200_000, LANGUAGE_MAX = 24;
  // A later line can change the last block, and rarely the block before it.
  const OPEN_BLOCKS = 2;
  const ENTITIES = {
    amp: "&", lt: "<", gt: ">", quot: "\"", apos: "'", nbsp: "\u00a0", copy: "©", reg: "®", trade: "™", hellip: "…", mdash: "—",
    ndash: "–", larr: "←", rarr: "→", times: "×", deg: "°", bull: "•", middot: "·", le: "≤", ge: "≥", ne: "≠", euro: "€",
  };

  class Tokenizer extends marked.Tokenizer {
    // marked pads each row to the width of the header, so a small text could make millions of cells.
    table(source) {
      return isLargeTable(source) ? asCode(source) : super.table(source);
    }

    // marked needs quadratic time for a list, so a long one becomes several.
    list(source) {
      return super.list(firstLines(source, LIST_MAX));
    }
  }

  // Returns at most `max` characters that end with a line.
  function firstLines(source, max) {
    if (source.length <= max) return source;
    const end = source.lastIndexOf("\n", max - 1) + 1;
    return end > 0 ? source.slice(0, end) : source;
  }

  class Lexer extends marked.Lexer {
    level = 0;

    blockTokens(source, tokens = [], ...more) {
      return this.nested(source, tokens, false, () => super.blockTokens(source, tokens, ...more));
    }

    inlineTokens(source, tokens = [], ...more) {
      return this.nested(source, tokens, source.length > INLINE_MAX, () => super.inlineTokens(source, tokens, ...more));
    }

    // Keeps the source as text if it is too long or nested too deeply.
    nested(source, tokens, isLong, tokenize) {
      if (isLong || this.level >= NESTING_MAX) {
        tokens.push({ type: "text", raw: source, text: source });
        return tokens;
      }
      this.level += 1;
      tokenize();
      this.level -= 1;
      return tokens;
    }
  }

  function isLargeTable(source) {
    const [head, rule] = source.split("\n", 2);
    if (!head.includes("|") || !rule || !/^[ :|-]+$/.test(rule)) return false;
    const columns = head.split("|").length;
    let rows = 0;
    for (let at = source.indexOf("\n") + 1; at > 0 && source[at] !== "\n"; at = source.indexOf("\n", at) + 1) {
      rows += 1;
      if (rows * columns > CELLS_MAX) return true;
    }
    return false;
  }

  function asCode(source) {
    const end = source.indexOf("\n\n");
    const raw = end < 0 ? source : source.slice(0, end);
    return { type: "code", raw, text: raw };
  }

  function lex(text) {
    const whole = [{ type: "plain", raw: text }];
    if (text.length > TEXT_MAX) return whole;
    try {
      return new Lexer({ ...marked.defaults, gfm: true, tokenizer: new Tokenizer() }).lex(text);
    } catch {
      return whole;
    }
  }

  const decode = text => text.replace(/&(?:#(\d{1,7})|#x([\da-f]{1,6})|(\w{2,8}));/gi, (entity, decimal, hex, name) => {
    if (name) return Object.hasOwn(ENTITIES, name) ? ENTITIES[name] : entity;
    const code = decimal ? Number(decimal) : parseInt(hex, 16);
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : entity;
  });

  const text = string => document.createTextNode(string);
  const nodes = tokens => (tokens ?? []).map(node).filter(one => one !== null);

  function element(tag, tokens) {
    const made = document.createElement(tag);
    made.append(...nodes(tokens));
    return made;
  }

  // Returns the address if a link may lead to it.
  function address(href) {
    try {
      const url = new URL(href);
      return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
    } catch {
      return null;
    }
  }

  function link(token, content) {
    const href = address(token.href);
    const made = document.createElement(href ? "a" : "span");
    made.append(...content);
    // An image within a link is text.
    for (const inner of made.querySelectorAll("a")) inner.replaceWith(inner.textContent);
    if (!href) return made;
    made.href = made.title = href;
    made.rel = "noopener noreferrer nofollow";
    made.target = "_blank";
    return made;
  }

  function list(token) {
    const made = document.createElement(token.ordered ? "ol" : "ul");
    if (token.ordered && Number.isInteger(token.start)) made.start = token.start;
    made.append(...token.items.map(item));
    return made;
  }

  function item(token) {
    const made = element("li", token.tokens);
    if (token.task) made.className = "task";
    return made;
  }

  function row(cells, tag) {
    const made = document.createElement("tr");
    for (const cell of cells) {
      const one = element(tag, cell.tokens);
      if (cell.align) one.className = cell.align;
      made.append(one);
    }
    return made;
  }

  function table(token) {
    const frame = document.createElement("div"), made = document.createElement("table");
    const head = document.createElement("thead"), body = document.createElement("tbody");
    head.append(row(token.header, "th"));
    body.append(...token.rows.map(cells => row(cells, "td")));
    made.append(head, body);
    frame.className = "table";
    frame.append(made);
    return frame;
  }

  function code(token) {
    const frame = document.createElement("div"), head = document.createElement("div");
    const language = document.createElement("span"), block = document.createElement("pre"), inside = document.createElement("code");
    language.textContent = (token.lang ?? "").split(/[\s,{]/, 1)[0].slice(0, LANGUAGE_MAX) || "text";
    head.append(language, copyButton(() => token.text));
    inside.textContent = token.text;
    block.append(inside);
    block.tabIndex = 0;
    frame.className = "code";
    frame.append(head, block);
    return frame;
  }

  function plain(string) {
    const made = document.createElement("p");
    made.textContent = string;
    return made;
  }

  function html(token) {
    if (/^<br\s*\/?>$/i.test(token.raw)) return document.createElement("br");
    return token.block ? plain(token.raw.trimEnd()) : text(token.raw);
  }

  const BUILD = {
    blockquote: token => element("blockquote", token.tokens),
    br: () => document.createElement("br"),
    checkbox: token => text(token.checked ? "☑ " : "☐ "),
    code,
    codespan: token => {
      const made = document.createElement("code");
      made.textContent = token.text;
      return made;
    },
    def: () => null,
    del: token => element("del", token.tokens),
    em: token => element("em", token.tokens),
    escape: token => text(decode(token.text)),
    // The page's own heading is the first level.
    heading: token => element("h" + Math.min(token.depth + 1, 6), token.tokens),
    hr: () => document.createElement("hr"),
    html,
    image: token => link(token, [text("Image: " + (token.text || token.href))]),
    link: token => link(token, nodes(token.tokens)),
    list,
    paragraph: token => element("p", token.tokens),
    space: () => null,
    strong: token => element("strong", token.tokens),
    table,
    text: token => {
      if (!token.tokens) return text(decode(token.text));
      const made = document.createDocumentFragment();
      made.append(...nodes(token.tokens));
      return made;
    },
  };

  function node(token) {
    return Object.hasOwn(BUILD, token.type) ? BUILD[token.type](token) : plain(token.raw);
  }

  // Returns the index of the first token that may still change.
  function firstOpen(tokens) {
    let at = tokens.length;
    for (let blocks = 0; at > 0 && blocks < OPEN_BLOCKS; at -= 1) {
      if (tokens[at - 1].type !== "space") blocks += 1;
    }
    return at;
  }

  // Returns a function that shows a growing text in `place`. Complete blocks are not parsed or built again until the text is
  // whole, when references to later definitions are resolved.
  function view(place) {
    let shown = 0, open = [];
    return (grown, isWhole) => {
      if (isWhole) {
        place.replaceChildren();
        shown = 0;
        open = [];
      }
      const source = grown.replaceAll("\r", "");
      const tokens = lex(source.slice(shown));
      for (const one of open) one.remove();
      const first = firstOpen(tokens);
      let complete = 0;
      while (complete < first && source.startsWith(tokens[complete].raw, shown)) {
        shown += tokens[complete].raw.length;
        complete += 1;
      }
      place.append(...nodes(tokens.slice(0, complete)));
      open = nodes(tokens.slice(complete));
      place.append(...open);
    };
  }

  return { view };
})();
