// All lines of the test set with search, order, filter and marked differences; of one system, or of two side by side.

const PAGE = 40; // lines that are added at a time, as one scrolls
const LARGEST_TABLE = 4e6; // cells of the table that finds common words; longer lines are not marked

/** Return for each word of both sides whether it is in their longest common subsequence. */
function common(ours, theirs) {
  const marks = [new Uint8Array(ours.length), new Uint8Array(theirs.length)];
  const width = theirs.length + 1;
  if ((ours.length + 1) * width > LARGEST_TABLE) return marks.map((side) => side.fill(1));
  const lengths = new Uint16Array((ours.length + 1) * width);
  for (let i = ours.length - 1; i >= 0; i--) {
    for (let j = theirs.length - 1; j >= 0; j--) {
      lengths[i * width + j] = ours[i] === theirs[j]
        ? lengths[(i + 1) * width + j + 1] + 1
        : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
    }
  }
  for (let i = 0, j = 0; i < ours.length && j < theirs.length;) {
    if (ours[i] === theirs[j]) {
      marks[0][i++] = marks[1][j++] = 1;
    } else if (lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]) i++;
    else j++;
  }
  return marks;
}

const words = (text) => text.split(/\s+/u).filter(Boolean);

/** Return words as text, those that are not in both sides inside an element `make` returns, neighbours together. */
function marked(all, inBoth, make) {
  const parts = [];
  for (let i = 0; i < all.length;) {
    let end = i;
    while (end < all.length && inBoth[end] === inBoth[i]) end++;
    const text = all.slice(i, end).join(" ");
    if (parts.length) parts.push(" ");
    parts.push(inBoth[i] ? text : make(text));
    i = end;
  }
  return parts;
}

/** Return the words of `after`: new ones as insertions, and those of `before` that it lacks as deletions. */
function changes(before, after) {
  const [kept, known] = common(before, after);
  const parts = [];
  for (let i = 0, j = 0; i < before.length || j < after.length;) {
    const [gone, come, same] = [[], [], []];
    while (i < before.length && !(kept[i] && j < after.length)) gone.push(before[i++]);
    while (j < after.length && !(known[j] && i < before.length)) come.push(after[j++]);
    for (; kept[i] && known[j]; i++, j++) same.push(after[j]);
    if (gone.length) parts.push(element("del", {}, gone.join(" ")), " ");
    if (come.length) parts.push(element("ins", {}, come.join(" ")), " ");
    if (same.length) parts.push(same.join(" "), " ");
  }
  return parts;
}

views.translations = (root, { languages, metric, systems, lines }) => {
  const folded = lines.map((line) => [line.source, line.reference, ...line.outputs].join("\n").toLowerCase());
  const paired = systems.length > 1;
  const gain = (line) => line.scores[1] - line.scores[0];
  const orders = paired
    ? [["gain", `${systems[1]} better first`], ["loss", `${systems[1]} worse first`], ["set", "order of the set"]]
    : [["worst", `lowest ${metric} first`], ["best", `highest ${metric} first`], ["set", "order of the set"]];
  orders.push(["long", "longest first"]);
  const compare = {
    gain: (a, b) => gain(b) - gain(a), loss: (a, b) => gain(a) - gain(b), set: (a, b) => a.number - b.number,
    worst: (a, b) => a.scores[0] - b.scores[0], best: (a, b) => b.scores[0] - a.scores[0],
    long: (a, b) => b.source.length - a.source.length,
  };
  const kinds = paired
    ? [["all", "all"], ["differ", "that differ"]]
    : [["all", "all"], ["wrong", "unlike the reference"], ["exact", "equal to the reference"]];
  const isExact = (line) => line.outputs[0].trim() === line.reference.trim(); // the reference may end in \r
  const keep = {
    all: () => true, differ: (line) => line.outputs[0] !== line.outputs[1],
    wrong: (line) => !isExact(line), exact: isExact,
  };
  lines.forEach((line, index) => { line.number = index + 1; });
  const state = { order: orders[0][0], kind: "all" };
  const search = element("input", { type: "search", spellcheck: "false", autocomplete: "off" });
  const order = choice("Order", orders, (value) => { state.order = value; show(); });
  const kind = choice("Lines", kinds, (value) => { state.kind = value; show(); });
  const count = element("p", { class: "hint", "aria-live": "polite" });
  const list = element("ol", { class: "lines" });
  const end = element("div");
  const listing = element("div", { class: "listing", tabindex: 0, role: "region", "aria-label": "lines" }, list, end);
  let found = [];
  let shown = 0;

  function row(line) {
    const reference = words(line.reference);
    const cells = [element("dt", {}, "source"), element("dd", { dir: "auto", lang: languageTag(languages[0]) }, line.source)];
    const missed = new Uint8Array(reference.length);
    const outputs = line.outputs.map((output) => {
      const own = words(output);
      const [inReference, inOutput] = common(own, reference);
      inOutput.forEach((mark, i) => { missed[i] |= mark; });
      return marked(own, inReference, (text) => element("mark", {}, text));
    });
    const shownReference = marked(reference, missed, (text) => element("span", { class: "missed" }, text));
    cells.push(element("dt", {}, "reference"), element("dd", { dir: "auto", lang: languageTag(languages[1]) }, ...shownReference));
    outputs.forEach((output, i) => {
      cells.push(element("dt", {}, systems[i]), element("dd", { dir: "auto", lang: languageTag(languages[1]) }, ...output));
    });
    if (paired && keep.differ(line)) {
      cells.push(element("dt", {}, "change"), element("dd", { dir: "auto", lang: languageTag(languages[1]) }, ...changes(...line.outputs.map(words))));
    }
    const scores = line.scores.map((score) => (score === null ? "not scored" : score.toFixed(1))).join(" and ");
    const meta = element("div", { class: "meta" }, element("a", { href: `#line=${line.number}` }, `line ${line.number}`), `, ${metric} ${scores} `);
    if (translateLine) meta.append(element("button", { type: "button", onclick: () => translateLine(line.source) }, "run it again, with attention"));
    return element("li", {}, meta, element("dl", {}, ...cells));
  }

  const watcher = new IntersectionObserver((entries) => { if (entries.at(-1).isIntersecting && shown < found.length) more(); },
    { root: listing, rootMargin: "600px" });

  function more() {
    const next = found.slice(shown, shown + PAGE);
    list.append(...next.map(row));
    shown += next.length;
    // An observer reports changes: an end that one scrolls back to before the next frame has not changed. Begin anew.
    watcher.unobserve(end);
    watcher.observe(end);
  }

  function show(number = 0) {
    const text = search.value.trim().toLowerCase();
    const wanted = (line, index) => (number ? line.number === number : keep[state.kind](line) && folded[index].includes(text));
    found = lines.filter(wanted).sort(compare[state.order]);
    count.textContent = number && !found.length ? `The set has no line ${number}: it has ${lines.length.toLocaleString("en")}.` : `${found.length.toLocaleString("en")} of ${lines.length.toLocaleString("en")} lines`;
    list.replaceChildren();
    listing.scrollTop = 0;
    shown = 0;
    more();
  }

  root.find = show;
  search.addEventListener("input", settled(() => show()));
  root.append(
    element("div", { class: "controls" }, element("label", {}, "Search", search), order.label, kind.label), count,
    element("p", { class: "hint" }, element("mark", {}, "wavy"), ": not in the reference; ",
      element("span", { class: "missed" }, "dotted"), `: missing in the ${languages[1] === "tree" ? "parse" : "translation"}`),
    listing,
  );
  show();
};
