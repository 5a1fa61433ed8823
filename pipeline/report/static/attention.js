// Attention as in the paper's figures 3 to 5: queries left, keys right, a line for each weight, a colour for each head.

const KINDS = [
  ["encoder", "encoder: source to source"],
  ["decoder", "decoder: target to target"],
  ["cross", "decoder to encoder: target to source"],
];
const ROW = 25.6; // height of a word in pixels, 1.6rem
const FAINTEST = 0.02; // weights below draw no line

/**
 * Build the controls and the drawing of several pairs.
 *
 * pairs: [{title, source, target, encoder, decoder, cross}], words and weights; the target begins with BOS. The weights are uint8 arrays
 * [layer, head, query, key], 255 for 1. Returns a function that replaces the pairs.
 */
function attentionView(root, pairs, { layers, heads }) {
  const chosen = { pair: 0, kind: "cross", layer: layers - 1, heads: new Set(Array.from({ length: heads }, (_, i) => i)) };
  let active = null; // {side, index} of the word under the pointer or with the focus
  const sentence = choice("Sentence", [], (value) => { chosen.pair = Number(value); active = null; draw(); });
  const kind = choice("Attention", KINDS, (value) => { chosen.kind = value; active = null; draw(); });
  const layer = choice("Layer", Array.from({ length: layers }, (_, i) => [i, `${i + 1} of ${layers}`]), (value) => {
    chosen.layer = Number(value);
    draw();
  });
  kind.select.value = chosen.kind;
  layer.select.value = chosen.layer;
  const buttons = Array.from({ length: heads }, (_, head) => {
    const swatch = element("span", { class: "swatch" });
    swatch.style.background = colour(head);
    return element("button", { type: "button", "aria-pressed": "true", "aria-label": `head ${head + 1}`, onclick: () => toggle(head) }, swatch, String(head + 1));
  });
  const every = element("button", { type: "button", onclick: () => setHeads(chosen.heads.size < heads ? buttons.keys() : []) }, "all or none");
  const area = element("div", { class: "attention", role: "group", "aria-label": "attention weights" });
  const said = element("p", { class: "hint", "aria-live": "polite" });

  function setHeads(which) {
    chosen.heads = new Set(which);
    buttons.forEach((button, head) => button.setAttribute("aria-pressed", chosen.heads.has(head)));
    draw();
  }

  function toggle(head) {
    const next = new Set(chosen.heads);
    if (!next.delete(head)) next.add(head);
    setHeads(next);
  }

  const pair = () => pairs[chosen.pair];
  // A query of the decoder has the word that it writes, at last EOS, which ends the source too.
  const queries = () => (chosen.kind === "encoder" ? pair().source : [...pair().target.slice(1), pair().source.at(-1)]);
  const keys = () => (chosen.kind === "decoder" ? pair().target : pair().source);
  const weight = (head, query, key) => {
    const [rows, columns] = [queries().length, keys().length];
    return pair()[chosen.kind][((chosen.layer * heads + head) * rows + query) * columns + key] / 255;
  };
  /** The mean over the chosen heads. */
  const mean = (query, key) => [...chosen.heads].reduce((sum, head) => sum + weight(head, query, key), 0) / (chosen.heads.size || 1);

  function column(side, list) {
    return element("ol", { class: side }, ...list.map((word, index) => {
      const point = () => activate({ side, index });
      const button = element("button", { type: "button", class: "word", "data-side": side, "data-index": index,
        onpointerenter: point, onfocus: point, onclick: point }, word);
      const number = element("span", { class: "weight" });
      return element("li", {}, ...(side === "queries" ? [number, button] : [button, number]));
    }));
  }

  function activate(word) {
    active = word;
    lines();
  }

  /** Draw the lines, of the active word alone where there is one, and its weights beside the words of the other side. */
  function lines() {
    const [rows, columns] = [queries().length, keys().length];
    const svg = area.querySelector("svg");
    svg.replaceChildren();
    for (const head of chosen.heads) {
      for (let query = 0; query < rows; query++) {
        for (let key = 0; key < columns; key++) {
          if (active && (active.side === "queries" ? query : key) !== active.index) continue;
          const value = weight(head, query, key);
          if (value < FAINTEST) continue;
          const line = drawing("line", { x1: 0, x2: 100, y1: (query + 0.5) * ROW, y2: (key + 0.5) * ROW, "stroke-width": 2, opacity: value });
          line.setAttribute("vector-effect", "non-scaling-stroke");
          line.style.stroke = colour(head);
          svg.append(line);
        }
      }
    }
    for (const button of area.querySelectorAll(".word")) {
      const index = Number(button.dataset.index);
      const other = active && button.dataset.side !== active.side;
      const value = other ? (active.side === "queries" ? mean(active.index, index) : mean(index, active.index)) : 0;
      button.classList.toggle("active", Boolean(active) && !other && index === active.index);
      button.style.background = value > 0.01 ? `color-mix(in srgb, var(--accent) ${Math.round(value * 45)}%, transparent)` : "";
      button.parentNode.querySelector(".weight").textContent = other && value >= 0.01 ? value.toFixed(2) : "";
    }
    said.textContent = active ? sentenceOf(active) : "Point at a word, or move the focus to it, to see where it looks.";
  }

  function sentenceOf({ side, index }) {
    const others = side === "queries" ? keys() : queries();
    const values = others.map((word, i) => [word, side === "queries" ? mean(index, i) : mean(i, index)]);
    const best = values.sort((a, b) => b[1] - a[1]).slice(0, 3).filter(([, value]) => value >= 0.01);
    const list = best.map(([word, value]) => `${word} ${value.toFixed(2)}`).join(", ");
    const own = (side === "queries" ? queries() : keys())[index];
    return `${own} ${side === "queries" ? "looks at" : "is looked at by"} ${list || "nothing"} (mean of the chosen heads)`;
  }

  function draw() {
    const rows = Math.max(queries().length, keys().length);
    const svg = drawing("svg", { viewBox: `0 0 100 ${rows * ROW}`, height: rows * ROW, preserveAspectRatio: "none", "aria-hidden": "true" });
    area.replaceChildren(column("queries", queries()), svg, column("keys", keys()));
    lines();
  }

  area.addEventListener("pointerleave", () => activate(null));
  root.append(
    element("div", { class: "controls" }, sentence.label, kind.label, layer.label,
      element("fieldset", {}, element("legend", {}, "Heads"), ...buttons, every)),
    said, area,
  );
  return (next) => {
    pairs = next;
    chosen.pair = 0;
    active = null;
    sentence.select.replaceChildren(...pairs.map((one, i) => element("option", { value: i }, one.title)));
    sentence.label.hidden = pairs.length < 2;
    draw();
  };
}

views.attention = (root, { layers, heads, pairs }, blob) => {
  let at = 0;
  const take = (count) => blob.subarray(at, at += count);
  const size = layers * heads;
  const set = attentionView(root, [], { layers, heads });
  set(pairs.map(({ title, source, target }) => ({
    title, source, target,
    encoder: take(size * source.length * source.length),
    decoder: take(size * target.length * target.length),
    cross: take(size * target.length * source.length),
  })));
};
