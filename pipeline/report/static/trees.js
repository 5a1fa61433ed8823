// A parser's symbols to a tree in Penn bracketing, as nmt/parsing/delinearisation.py has it but for the
// alignment by attention, and the words that it is over.

const TAG = "XX"; // the tag of a word where the output has none

/** Return the words between a treebank's spaces, with round brackets as -LRB- and -RRB-. */
function wordsOf(line) {
  const words = line.split(/[ \t\r\n]+/u).filter(Boolean);
  return words.map((word) => word.replaceAll("(", "-LRB-").replaceAll(")", "-RRB-"));
}

/** Return `tokenize` of sentences whose words are separated by spaces. */
function makeWords() {
  return (line) => wordsOf(line).join(" ");
}

/** Return what a symbol does and its label: "(" opens a constituent, ")" closes one, "word" is a tag, "" is unknown. */
function readSymbol(symbol, linearisation, known) {
  if (linearisation === "tensor2tensor") {
    if (/[()]/u.test(symbol)) return ["", symbol];
    if (symbol.startsWith("/") && symbol.length > 1) return [")", symbol.slice(1)];
    return [known.has(`/${symbol}`) ? "(" : "word", symbol];
  }
  if (/^[()]./su.test(symbol)) return [symbol[0], symbol.slice(1)];
  return [symbol === TAG ? "word" : "", symbol];
}

function bracketed({ label, word, children }) {
  return `(${label} ${children ? children.map(bracketed).join(" ") : word})`;
}

/**
 * Return `detokenize(symbols, source)`: any output becomes a tree over the words of `source`. `vocabulary`: the symbols of
 * a closed one; without it an output's own symbols tell constituents from tags.
 */
function makeTrees(linearisation, vocabulary) {
  return (line, source) => {
    const words = wordsOf(source);
    if (!words.length) return "";
    const symbols = split(line);
    const known = new Set(vocabulary ?? symbols);
    const levels = [{ label: "", children: [] }]; // The first has the trees themselves and is never closed.
    const trees = levels[0].children;
    let used = 0;
    const close = () => {
      const constituent = levels.pop();
      if (constituent.children.length) levels.at(-1).children.push(constituent);
    };
    const closeTo = (label) => {
      if (!levels.slice(1).some((level) => level.label === label)) return;
      while (levels.at(-1).label !== label) close();
      close();
    };
    const addWord = (label) => {
      if (used < words.length) levels.at(-1).children.push({ label, word: words[used++] });
    };
    for (const symbol of symbols) {
      const [action, label] = readSymbol(symbol, linearisation, known);
      if (action === "(") levels.push({ label, children: [] });
      else if (action === ")") closeTo(label);
      else if (action === "word") addWord(label);
    }
    if (used < words.length) {
      // Missing words join the outermost open constituent, or a single finished tree, which is reopened for them.
      if (levels.length === 1 && trees.length === 1 && trees[0].children) levels.push(trees.pop());
      while (levels.length > 2) close();
      while (used < words.length) addWord(TAG);
    }
    while (levels.length > 1) close();
    return bracketed(trees.length === 1 ? trees[0] : { label: "TOP", children: trees });
  };
}

/** A closed vocabulary of symbols, for decoding alone. */
function makeSymbols({ symbols, usedRows }) {
  return { decode: (tokens) => tokens.filter((token) => token >= 4 && token < usedRows).map((token) => symbols[token]).join(" ") };
}
