// Attention: two lines of words that light up, and for experts every layer and head, as in the paper's figures 3 to 5.

const KINDS = [
  ["cross", "decoder to encoder: target to source"],
  ["encoder", "encoder: source to source"],
  ["decoder", "decoder: target to target"],
];
const ROW = 25.6; // height of a word in pixels, 1.6rem
const FAINTEST = 0.02; // weights below draw no line
const CELL = 4; // pixels of a weight in a thumbnail

/** Return words as {text, from, to}: their subwords, of BPE or word pieces, are joined. */
function joined(subwords) {
  const pieces = subwords.some((subword) => subword.startsWith(UNDERSCORE));
  const found = [];
  subwords.forEach((subword, i) => {
    const text = subword.replace(/@@$/u, "").replace(UNDERSCORE, "");
    const isEnd = subword === "</s>";
    if (i > 0 && !isEnd && (pieces ? !subword.startsWith(UNDERSCORE) : subwords[i - 1].endsWith("@@"))) {
      found.at(-1).text += text;
      found.at(-1).to = i + 1;
    } else found.push({ text, from: i, to: i + 1 });
  });
  return found;
}

/**
 * Build the words and the drawing of several pairs. `pointed` is called with the first subword of a target's word that
 * is pointed at.
 *
 * pairs: [{title, source, target, unseen, encoder, decoder, cross}], subwords and weights; the target begins with BOS;
 * `unseen`, a set, has the source's words to mark. The weights are uint8 arrays [layer, head, query, key], 255 for 1.
 * Returns `set`, which replaces the pairs, and `write(count)`, which shows the first subwords of the target and where
 * the last of these looks.
 */
function attentionView(root, { layers, heads, languages, pointed = () => {} }) {
  let pairs = [];
  const chosen = { pair: 0, kind: "cross", layer: 0, head: 0 };
  let active = null; // {side, index} of the word that is pointed at, focused or pinned
  let pinned = false;
  let queries = [];
  let keys = [];
  let count = Infinity; // subwords of the target that are shown
  const sentence = choice("Sentence", [], (value) => { chosen.pair = Number(value); sharpest(); });
  const kind = choice("Attention", KINDS, (value) => { chosen.kind = value; sharpest(); });
  const words = element("div", { class: "aligned", role: "group", "aria-label": "words and what they attend to" });
  const said = element("p", { class: "hint", "aria-live": "polite" });
  const thumbnails = element("div", { class: "thumbnails", role: "group", "aria-label": "layers and heads" });
  thumbnails.style.gridTemplateColumns = `repeat(${heads}, max-content)`;
  const area = element("div", { class: "attention", "aria-hidden": "true" });
  const pair = () => pairs[chosen.pair];
  // A query of the decoder has the word that it writes, at last EOS, which ends the source too.
  const written = () => [...pair().target.slice(1), pair().source.at(-1)];
  const sizes = () => [chosen.kind === "encoder" ? pair().source.length : pair().target.length,
    chosen.kind === "decoder" ? pair().target.length : pair().source.length];
  const subwordWeight = (layer, head, query, key) => {
    const [rows, columns] = sizes();
    return pair()[chosen.kind][((layer * heads + head) * rows + query) * columns + key] / 255;
  };

  /** The weight between two words: the mean over the query's subwords of the sum over the key's. */
  function weight(query, key) {
    let sum = 0;
    for (let i = query.from; i < query.to; i++) {
      for (let j = key.from; j < key.to; j++) sum += subwordWeight(chosen.layer, chosen.head, i, j);
    }
    return sum / (query.to - query.from);
  }

  /** Choose the head that tells words apart best: each key, but EOS, has a query that looks at it. */
  function sharpest() {
    const [rows, columns] = sizes();
    let most = -1;
    for (let layer = 0; layer < layers; layer++) {
      for (let head = 0; head < heads; head++) {
        let sum = 0;
        for (let key = 0; key + 1 < columns; key++) {
          sum += Math.max(...Array.from({ length: rows }, (_, query) => subwordWeight(layer, head, query, key)));
        }
        if (sum > most) [most, chosen.layer, chosen.head] = [sum, layer, head];
      }
    }
    [active, pinned, count] = [{ side: "queries", index: 0 }, false, Infinity];
    draw();
  }

  function thumbnail(layer, head) {
    const [rows, columns] = sizes();
    const canvas = element("canvas", { width: columns * CELL, height: rows * CELL });
    const context = canvas.getContext("2d");
    context.fillStyle = getComputedStyle(root).color;
    for (let query = 0; query < rows; query++) {
      for (let key = 0; key < columns; key++) {
        context.globalAlpha = subwordWeight(layer, head, query, key);
        context.fillRect(key * CELL, query * CELL, CELL, CELL);
      }
    }
    const isChosen = layer === chosen.layer && head === chosen.head;
    return element("button", { type: "button", "aria-pressed": String(isChosen), "aria-label": `layer ${layer + 1}, head ${head + 1}`,
      onclick: () => { Object.assign(chosen, { layer, head }); draw(); thumbnails.children[layer * heads + head].focus(); } }, canvas);
  }

  function line(side, list, language) {
    return element("p", { class: side, lang: languageTag(language), dir: "auto" }, ...list.flatMap(({ text }, index) => {
      const point = () => { if (!pinned) activate({ side, index }); };
      const pin = () => {
        pinned = !(pinned && active.side === side && active.index === index);
        activate({ side, index });
      };
      const unseen = bareWords(text).some((word) => pair().unseen?.has(word)) && (side === "keys" ? chosen.kind !== "decoder" : chosen.kind === "encoder");
      return [element("button", { type: "button", class: unseen ? "word unseen" : "word", onpointerenter: point, onfocus: point, onclick: pin }, text), " "];
    }));
  }

  function activate(word) {
    active = word;
    light();
    if (word?.side === "queries" && chosen.kind === "cross") pointed(queries[word.index].from);
  }

  /** Light up what the active word looks at, or what looks at it, and draw the lines, of that word alone where there is one. */
  function light() {
    const between = (side, index) => (side === "keys" ? weight(queries[active.index], keys[index]) : weight(queries[index], keys[active.index]));
    for (const side of ["queries", "keys"]) {
      words.querySelectorAll(`.${side} .word`).forEach((button, index) => {
        const value = active && side !== active.side ? between(side, index) : 0;
        button.classList.toggle("active", Boolean(active) && side === active.side && index === active.index);
        button.setAttribute("aria-pressed", pinned && button.classList.contains("active"));
        button.style.background = value > 0.01 ? `color-mix(in srgb, var(--accent) ${Math.round(value * 45)}%, transparent)` : "";
      });
    }
    said.textContent = active ? sentenceOf(active, between) : "Point at a word to see what it looks at; a click pins it.";
    const svg = area.querySelector("svg");
    svg.replaceChildren();
    queries.forEach((query, row) => keys.forEach((key, column) => {
      const value = weight(query, key);
      if (value < FAINTEST || (active && (active.side === "queries" ? row : column) !== active.index)) return;
      const drawn = drawing("line", { x1: 0, x2: 100, y1: (row + 0.5) * ROW, y2: (column + 0.5) * ROW, "stroke-width": 2, opacity: value });
      drawn.setAttribute("vector-effect", "non-scaling-stroke");
      svg.append(drawn);
    }));
  }

  function sentenceOf({ side, index }, between) {
    const [own, others, other] = side === "queries" ? [queries, keys, "keys"] : [keys, queries, "queries"];
    const values = others.map(({ text }, i) => [text, between(other, i)]).sort((a, b) => b[1] - a[1]).slice(0, 3);
    const list = values.filter(([, value]) => value >= 0.01).map(([text, value]) => `${text} ${value.toFixed(2)}`).join(", ");
    return `${own[index].text} ${side === "queries" ? "looks at" : "is looked at by"} ${list || "nothing"} (layer ${chosen.layer + 1}, head ${chosen.head + 1})`;
  }

  function draw() {
    queries = joined(chosen.kind === "encoder" ? pair().source : written().slice(0, count));
    keys = joined(chosen.kind === "decoder" ? pair().target : pair().source);
    words.replaceChildren(line("keys", keys, languages[chosen.kind === "decoder" ? 1 : 0]), line("queries", queries, languages[chosen.kind === "encoder" ? 0 : 1]));
    thumbnails.replaceChildren(...Array.from({ length: layers * heads }, (_, i) => thumbnail(Math.floor(i / heads), i % heads)));
    const rows = Math.max(queries.length, keys.length);
    const svg = drawing("svg", { viewBox: `0 0 100 ${rows * ROW}`, height: rows * ROW, preserveAspectRatio: "none" });
    const column = (side, list) => element("ol", { class: side }, ...list.map(({ text }) => element("li", {}, text)));
    area.replaceChildren(column("queries", queries), svg, column("keys", keys));
    light();
  }

  words.addEventListener("pointerleave", () => { if (!pinned) activate(null); });
  const why = element("p", { class: "hint" }, "The head shown first aligns best: every word is looked at by some word. The others are under \u201cevery layer and head\u201d.");
  root.append(words, said, why, element("details", { class: "expert" }, element("summary", {}, "every layer and head"),
    element("div", { class: "controls" }, kind.label), thumbnails, area));
  root.prepend(element("div", { class: "controls" }, sentence.label));
  return {
    set(next) {
      pairs = next;
      chosen.pair = 0;
      sentence.select.replaceChildren(...pairs.map((one, i) => element("option", { value: i }, one.title)));
      sentence.label.hidden = pairs.length < 2;
      sharpest();
    },
    write(subwords) {
      [chosen.kind, kind.select.value, count, pinned] = ["cross", "cross", subwords, false];
      draw();
      active = { side: "queries", index: queries.length - 1 };
      light();
    },
  };
}

views.attention = (root, { layers, heads, languages, pairs }, blob) => {
  let at = 0;
  const take = (count) => blob.subarray(at, at += count);
  const size = layers * heads;
  attentionView(root, { layers, heads, languages }).set(pairs.map(({ source, target }) => ({
    title: joined(source).slice(0, -1).map(({ text }) => text).join(" "), source, target,
    encoder: take(size * source.length * source.length),
    decoder: take(size * target.length * target.length),
    cross: take(size * target.length * source.length),
  })));
};
