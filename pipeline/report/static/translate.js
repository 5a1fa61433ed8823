// A box that translates, or parses, with the run's own model, in the page, and shows how the model writes.

const YIELD = 40; // milliseconds of computing after which the page may answer
const PACE = 450; // milliseconds between two subwords as one watches
const UNSEEN = 8; // words without training text that are listed
let unseenIn = () => []; // function(text) that returns its words without training text, where the page knows those
let translateLine = null; // function(text) that fills the box, where the page has one

views.translate = (root, content, blob) => {
  const { languages, subwords, targetSymbols, tokenizer, detokenizer, settings, searching, longest, examples } = content;
  const parses = languages[1] === "tree";
  const model = new Transformer(content, blob);
  const vocabulary = (subwords.kind === "bpe" ? makeBytePairs : makeWordPieces)(subwords);
  const [written, target] = targetSymbols ? [makeSymbols(targetSymbols), targetSymbols] : [vocabulary, subwords];
  const tokenize = parses ? makeWords() : makeTokenizer(tokenizer);
  const detokenize = parses ? makeTrees(tokenizer.tokenizer, targetSymbols?.symbols.slice(0, targetSymbols.usedRows)) : makeDetokenizer(detokenizer);
  const text = (ids, source) => detokenize(written.decode(ids), source);
  const [seen, shortened] = [new Set(content.seen ?? []), new Map(Object.entries(content.abbreviations))];
  unseenIn = (line) => (content.seen ? bareWords(tokenize(line)).filter((word) => !seen.has(word)) : []);
  const sentenceEnd = new RegExp(content.sentenceEnd, "gu");
  const worded = (text) => parses || /[\p{L}\p{M}\p{N}]/u.test(text); // a text without words is its own translation
  const sentencesOf = (line) => (parses ? [line] : splitSentences(line, sentenceEnd, shortened));
  const input = element("textarea", { rows: 2, lang: languageTag(languages[0]), dir: "auto", spellcheck: "false" });
  input.value = examples[0];
  const output = element("div", { class: "translation", lang: languageTag(languages[1]), dir: "auto", "aria-live": "polite", role: "status" });
  const said = element("p", { class: "hint" });
  const button = element("button", { type: "button", class: "main", onclick: () => run() }, parses ? "Parse" : "Translate");
  const looked = element("div", { class: "looked", hidden: true });
  const steps = element("input", { type: "range", min: 1, oninput: () => { pause(); step(); } });
  const play = element("button", { type: "button", onclick: () => (timer ? pause() : watch()) }, "Watch it write");
  const likeliest = element("ol", { class: "likeliest", "aria-label": "likeliest subwords of this step" });
  const show = attentionView(looked, { layers: settings.N, heads: settings.h, languages, pointed: (at) => { steps.value = at + 1; alternatives(); } });
  const tree = element("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "beam search" });
  looked.querySelector(".expert").before(element("div", { class: "controls" }, play, element("label", {}, "step", steps)), likeliest,
    element("details", { class: "expert", hidden: searching.beam === 1 }, element("summary", {}, "the beam as a tree"), tree));
  let watched = null; // {likeliest, ids, beam} of what is shown
  let timer = 0;
  let turn = 0; // a later request ends an earlier one

  const encode = (line) => {
    const ids = split(line).length ? vocabulary.encode(tokenize(line)) : [];
    if (ids.length > longest) throw new Error(`a sentence has ${ids.length} subwords, and at most ${longest} are ${parses ? "parsed" : "translated"}`);
    return ids.length ? [...ids, EOS] : [];
  };

  async function run() {
    const own = ++turn;
    const start = performance.now();
    const lines = input.value.split("\n");
    const done = []; // a text, or what a line's error is
    let rested = start;
    let last = null;
    said.textContent = parses ? "parsing" : "translating";
    output.replaceChildren();
    delete output.dataset.lines;
    output.ariaBusy = "true"; // fragments are not read aloud
    for (const line of lines) {
      if (!worded(line)) {
        done.push(split(line.replace(/[\p{Cc}\p{Cf}]/gu, "")).join(" "));
        continue;
      }
      try {
        const parts = [];
        for (const sentence of sentencesOf(line)) {
          if (!worded(sentence)) {
            parts.push(split(sentence).join(" "));
            continue;
          }
          const source = encode(sentence);
          if (!source.length) continue;
          const trace = [];
          const found = await search(model, source, searching, target.usedRows, async (ids) => {
            if (performance.now() - rested < YIELD) return true;
            output.textContent = [...done, [...parts, text(ids, sentence)].join(content.between)].join("\n");
            await new Promise((resume) => { setTimeout(resume); });
            rested = performance.now();
            return own === turn;
          }, trace);
          if (own !== turn) return;
          parts.push(text(found, sentence));
          if (!parts.at(-1)) throw new Error(`the model writes nothing for \u201c${sentence.slice(0, 40)}\u201d`);
          last = { source, found, line: sentence, trace };
        }
        done.push(parts.join(content.between));
      } catch (error) {
        done.push(element("span", { class: "error" }, `Line ${done.length + 1}: ${error.message}.`));
      }
    }
    output.replaceChildren(...done.flatMap((line, i) => (i ? [element("br"), line] : [line])));
    output.ariaBusy = "false";
    output.dataset.lines = JSON.stringify(done.map((line) => (typeof line === "string" ? line : "")));
    const unseen = [...new Set(lines.flatMap(unseenIn))];
    const seconds = ((performance.now() - start) / 1000).toFixed(2);
    said.textContent = input.value.trim() ? `${seconds} seconds in this page, with 8-bit weights; nothing is sent anywhere.` : "Type a sentence.";
    if (unseen.length) {
      const listed = unseen.slice(0, UNSEEN).flatMap((word) => [", ", element("bdi", {}, word)]).slice(1);
      const known = seen.size < content.most ? "in the training text" : `among the ${seen.size.toLocaleString("en")} most frequent words of the training text`;
      const more = unseen.length > UNSEEN ? `, and ${(unseen.length - UNSEEN).toLocaleString("en")} more` : "";
      said.prepend(element("strong", {}, `Not ${known}: `, ...listed, `${more}. `), "The model guesses such words. ");
    }
    pause();
    looked.hidden = !last;
    if (last) look(last, new Set(unseen));
  }

  function look({ source, found, line, trace }, unseen) {
    const names = (ids, { symbols }) => ids.map((id) => symbols[id]);
    const all = [BOS, ...found];
    const attended = model.attention(source, all, target.usedRows);
    watched = { likeliest: attended.likeliest, ids: [...found, EOS], beam: beamTree(trace, found, target.symbols) };
    tree.replaceChildren(watched.beam.svg);
    steps.max = all.length;
    steps.value = 1;
    show.set([{ title: line, source: names(source, subwords), target: names(all, target), unseen, ...attended }]);
    alternatives();
  }

  function alternatives() {
    const at = steps.value - 1;
    steps.setAttribute("aria-valuetext", target.symbols[watched.ids[at]]);
    likeliest.replaceChildren(...watched.likeliest[at].map(([value, id]) => {
      const bar = element("span", { class: "share" });
      bar.style.width = `${100 * Math.exp(value)}%`;
      return element("li", { class: id === watched.ids[at] ? "taken" : null }, element("span", {}, target.symbols[id]),
        element("span", {}, `${(100 * Math.exp(value)).toFixed(1)}%`), bar);
    }));
  }

  function step() {
    show.write(Number(steps.value));
    watched.beam.show(Number(steps.value));
    alternatives();
  }

  function watch() {
    let at = ["1", steps.max].includes(steps.value) ? 0 : Number(steps.value);
    play.textContent = "Pause";
    timer = setInterval(() => {
      steps.value = at += 1;
      step();
      if (steps.value === steps.max) pause();
    }, PACE);
  }

  function pause() {
    clearInterval(timer);
    timer = 0;
    play.textContent = "Watch it write";
  }

  translateLine = (line) => {
    input.value = line;
    root.scrollIntoView();
    return run();
  };
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
  });
  root.append(element("div", { class: "asked" }, element("label", {}, parses
    ? `${languageName(languages[0])}, one sentence a line, spaces between words and punctuation; Ctrl-Enter parses`
    : `${languageName(languages[0])}; Ctrl-Enter translates`, input), button, output, said,
    ...examples.map((example) => element("button", { type: "button", class: "example", lang: languageTag(languages[0]), onclick: () => translateLine(example) }, example))), looked);
  return run();
};

start();
