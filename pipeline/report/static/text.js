// Raw lines to subword ids and back, as nmt/text does: Moses' tokenizer and detokenizer, BPE, word pieces.

const SPACES = " \\t\\n\\r\\f\\v\\x1c-\\x1f\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const SPACE_RUN = new RegExp(`[${SPACES}]+`, "gu");
const ENDS = new RegExp(`^[${SPACES}]+|[${SPACES}]+$`, "gu");
const LINE_BREAKERS = /[\x00-\x1f\x7f\x85\u2028\u2029]/gu;
const INSIDE = "\n"; // the end of a piece that is not the last of its word
const END = "</w>";
const UNDERSCORE = "\u2581"; // sentencepiece's symbol for a space

const split = (text) => text.replace(SPACE_RUN, " ").split(" ").filter(Boolean);
/** Return the words of a tokenised line without punctuation at their ends, as nmt/text/words.py does. */
const bareWords = (text) => split(text).map((word) => word.replace(/^[\p{P}\p{S}\p{C}]+|[\p{P}\p{S}\p{C}]+$/gu, "")).filter(Boolean);
const substitute = (rules, text) => rules.reduce((changed, [pattern, replacement]) => changed.replace(pattern, replacement), text);
const escaped = (code) => `\\u{${code.toString(16)}}`;
/** Return the inside of a character class for ranges of code points. */
const inside = (ranges) => ranges.map(([low, high]) => `${escaped(low)}-${escaped(high)}`).join("");

const DOTTED = /^(?:[\p{L}\p{Nl}\p{No}_]{1,4}\.[-/]?)+[\p{L}\p{Nl}\p{No}_]{1,4}$/u;

/** Return the sentences of a line, as nmt/text/sentences.py does, with its expression and its `abbreviations`. */
function splitSentences(line, expression, abbreviations) {
  const isShort = (word, next) => (abbreviations.has(word) && (!abbreviations.get(word) || /\p{Nd}/u.test(next))) || DOTTED.test(word);
  const found = [];
  let start = 0;
  for (const end of line.matchAll(expression)) {
    const word = (end[1] ?? "").replace(/^["'(\u201c\u201e\u00ab[]+/u, "");
    const isDot = line[end.index + (end[1] ?? "").length] === ".";
    if (end[1] !== undefined && (/^\p{Ll}/u.test(end[2]) || (isDot && isShort(word, end[2])))) continue;
    found.push(line.slice(start, end.index + end[0].length).trim());
    start = end.index + end[0].length;
  }
  return [...found, line.slice(start).trim()].filter(Boolean);
}

/** Return `tokenize` of the source's language. settings: tokenizer, hyphens, normalizing rules, classes, prefixes. */
function makeTokenizer({ tokenizer, language, normalizing, aggressiveHyphens, classes, prefixes, numericPrefixes, compose }) {
  const normalize = normalizing.map(([pattern, replacement]) => [new RegExp(pattern, "gu"), replacement]);
  const normalized = (line) => {
    const text = compose ? line.normalize("NFC") : line;
    return normalize.length ? substitute(normalize, `${text}\n`).replace(ENDS, "") : text;
  };
  if (tokenizer === "none") return (line) => normalized(line).replace(LINE_BREAKERS, " ").replace(ENDS, "");
  const [alnum, alpha, number] = ["alnum", "alpha", "number"].map((name) => inside(classes[name]));
  const rule = (pattern, replacement) => [new RegExp(pattern, "gu"), replacement];
  const before = [rule(`([^${alnum}${SPACES}.'\`,\\-])`, " $1 ")];
  if (aggressiveHyphens) before.push(rule(`([${alnum}])-(?=[${alnum}])`, "$1 @-@ "));
  const after = [rule(`([^${number}]),`, "$1 , "), rule(`,([^${number}])`, " , $1"), rule(`([${number}]),$`, "$1 , ")];
  if (language === "en") {
    after.push(
      rule(`([^${alpha}])'([^${alpha}])`, "$1 ' $2"), rule(`([^${alpha}${number}])'([${alpha}])`, "$1 ' $2"),
      rule(`([${alpha}])'([^${alpha}])`, "$1 ' $2"), rule(`([${alpha}])'([${alpha}])`, "$1 '$2"),
      rule(`([${number}])'(s)`, "$1 '$2"),
    );
  } else if (language === "fr" || language === "it") {
    after.push(
      rule(`([^${alpha}])'([^${alpha}])`, "$1 ' $2"), rule(`([^${alpha}])'([${alpha}])`, "$1 ' $2"),
      rule(`([${alpha}])'([^${alpha}])`, "$1 ' $2"), rule(`([${alpha}])'([${alpha}])`, "$1' $2"),
    );
  } else after.push(rule("'", " ' "));
  const [hasAlpha, startsLower] = [new RegExp(`[${alpha}]`, "u"), new RegExp(`^[${inside(classes.lower)}]`, "u")];
  const numeric = new Set(numericPrefixes);
  const abbreviations = new Set(prefixes.filter((prefix) => !numeric.has(prefix)));

  function stays(prefix, next) {
    return (prefix.includes(".") && hasAlpha.test(prefix)) || abbreviations.has(prefix) || startsLower.test(next)
      || (numeric.has(prefix) && /^[0-9]/u.test(next));
  }

  function fullStops(tokens) {
    return tokens.flatMap((token, i) => {
      const prefix = /^(.+)\.$/su.exec(token)?.[1];
      return prefix === undefined || stays(prefix, tokens[i + 1] ?? "") ? [token] : [prefix, "."];
    });
  }

  return (line) => {
    let text = normalized(line);
    text = split(text.replace(SPACE_RUN, " ").replace(/[\x00-\x1f]/gu, "")).join(" ");
    text = substitute(before, text).replace(/\.{2,}/gu, (dots, at, whole) => (
      ` ${"DOT".repeat(dots.length)}MULTI${at + dots.length < whole.length ? " " : ""}`));
    text = fullStops(split(substitute(after, text))).join(" ").replace(/\.' ?$/u, " . ' ");
    return split(text.replace(/(?:DOT)+MULTI/gu, (mark) => ".".repeat((mark.length - 5) / 3))).join(" ");
  };
}

/** Return `detokenize` of the target's language: Moses' rules for English, French, Italian and languages without own ones. */
function makeDetokenizer({ tokenizer, language, classes, cjk }) {
  if (tokenizer === "none") return (line) => line;
  const alpha = inside(classes.alpha);
  const isCurrency = new RegExp(`^[${inside(classes.currency)}\\(\\[\\{¿¡]+$`, "u");
  const isContraction = new RegExp(`^'[${alpha}]`, "u");
  const endsContraction = new RegExp(`[${alpha}]'$`, "u");
  const startsAlpha = new RegExp(`^[${alpha}]`, "u");
  const isCJK = (character) => cjk.some(([low, high]) => low <= character.codePointAt(0) && character.codePointAt(0) <= high);
  const last = (word) => Array.from(word).at(-1);
  return (line) => {
    const tokens = split(` ${line} `.replaceAll(" @-@ ", "-"));
    const quotes = {};
    let text = "";
    let space = " ";
    const shiftLeft = (token) => { text += token; space = " "; };
    const shiftRight = (token) => { text += space + token; space = ""; };
    tokens.forEach((token, i) => {
      const previous = tokens[i - 1];
      if (isCJK(token)) {
        text += i > 0 && isCJK(last(previous)) ? token : space + token;
        space = " ";
      } else if (isCurrency.test(token)) shiftRight(token);
      else if (/^[,.?!:;\\%}\])]+$/u.test(token)) {
        if (language === "fr" && /^[?!:;\\%]$/u.test(token)) text += " ";
        shiftLeft(token);
      } else if (language === "en" && i > 0 && isContraction.test(token)) shiftLeft(token);
      else if (["fr", "it"].includes(language) && i <= tokens.length - 2 && endsContraction.test(token) && startsAlpha.test(tokens[i + 1])) {
        shiftRight(token);
      } else if (/^['"„“`]+$/u.test(token)) {
        const kind = /^[„“”]+$/u.test(token) ? '"' : token;
        const open = (quotes[kind] ?? 0) % 2 === 0;
        if (open && language === "en" && token === "'" && i > 0 && previous.endsWith("s")) shiftLeft(token);
        else {
          (open ? shiftRight : shiftLeft)(token);
          quotes[kind] = (quotes[kind] ?? 0) + 1;
        }
      } else {
        text += space + token;
        space = " ";
      }
    });
    return split(text.replace(/ {2,}/gu, " ")).length ? text.replace(/ {2,}/gu, " ").replace(new RegExp(`^[${SPACES}]+|[${SPACES}]+$`, "gu"), "") : "";
  };
}

/** Byte-pair encoding as by subword-nmt. Returns {encode(line) -> ids, decode(ids) -> line}. */
function makeBytePairs({ codes, symbols, usedRows }) {
  const ranks = new Map();
  const parts = new Map();
  codes.forEach((code, rank) => {
    const [first, second] = code.split(" ");
    if (!ranks.has(code)) ranks.set(code, rank);
    if (!parts.has(first + second)) parts.set(first + second, [first, second]);
  });
  const pieceOf = (symbol) => (symbol.endsWith("@@") ? symbol.slice(0, -2) + INSIDE : symbol);
  const ids = new Map();
  for (let row = 4; row < usedRows; row++) ids.set(pieceOf(symbols[row]), row);

  function merged(word) {
    let pieces = Array.from(word);
    pieces[pieces.length - 1] += END;
    for (;;) {
      let best = null;
      for (let i = 0; i + 1 < pieces.length; i++) {
        const rank = ranks.get(`${pieces[i]} ${pieces[i + 1]}`);
        if (rank !== undefined && (best === null || rank < best)) best = rank;
      }
      if (best === null) return pieces;
      const [first, second] = codes[best].split(" ");
      const next = [];
      for (let i = 0; i < pieces.length; i++) {
        if (pieces[i] === first && pieces[i + 1] === second) next.push(first + second), i++;
        else next.push(pieces[i]);
      }
      pieces = next;
    }
  }

  /** Undo merges of a piece that has no row, down to single characters. */
  function known(piece, final) {
    if (ids.has(final ? piece : piece + INSIDE)) return [piece];
    const halves = parts.get(final ? piece + END : piece);
    if (halves === undefined) return [piece];
    return [...known(halves[0], false), ...known(final ? halves[1].slice(0, -END.length) : halves[1], final)];
  }

  function encodeWord(word) {
    let pieces = merged(word).map((piece, i, all) => (i === all.length - 1 ? piece.slice(0, -END.length) : piece));
    if (Array.from(word).length > 1) pieces = pieces.flatMap((piece, i) => known(piece, i === pieces.length - 1));
    return pieces.map((piece, i) => ids.get(i === pieces.length - 1 ? piece : piece + INSIDE) ?? 3);
  }

  const texts = symbols.map((symbol, row) => {
    if (row < 4 || row >= usedRows) return "";
    return symbol.endsWith("@@") ? symbol.slice(0, -2) : `${symbol} `;
  });
  return {
    encode: (line) => line.split(" ").filter(Boolean).flatMap(encodeWord),
    decode: (tokens) => tokens.map((token) => texts[token]).join("").replace(/ $/u, ""),
  };
}

/** Return UTF-8 as text, with U+FFFD for every byte that is not part of a character. */
function bytesAsText(bytes) {
  const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  let text = "";
  for (let at = 0; at < bytes.length;) {
    const size = [0x80, 0xe0, 0xf0].filter((lead) => bytes[at] >= lead).length + 1;
    try {
      text += decoder.decode(new Uint8Array(bytes.slice(at, at + size)));
      at += size;
    } catch {
      text += "\ufffd";
      at += 1;
    }
  }
  return text;
}

/** Word pieces as by sentencepiece's BPE with bytes for unseen characters. Returns {encode, decode}. */
function makeWordPieces({ symbols, scores, whole, usedRows }) {
  const ids = new Map(symbols.slice(0, usedRows).map((symbol, row) => [symbol, row]));
  const byteName = (byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;
  const bytes = new Map(Array.from({ length: 256 }, (_, byte) => [ids.get(byteName(byte)), byte]));

  const parts = new RegExp([...whole.map((symbol) => symbol.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")), "."].join("|"), "gsu");

  function encode(line) {
    if (!line) return [];
    const pieces = (UNDERSCORE + line.replaceAll(" ", UNDERSCORE)).match(parts);
    for (;;) {
      let best = -1;
      let score = -Infinity;
      for (let i = 0; i + 1 < pieces.length; i++) {
        const row = ids.get(pieces[i] + pieces[i + 1]);
        if (row !== undefined && row >= 4 && !bytes.has(row) && scores[row] > score) [best, score] = [i, scores[row]];
      }
      if (best < 0) break;
      pieces.splice(best, 2, pieces[best] + pieces[best + 1]);
    }
    return pieces.flatMap((piece) => {
      const row = ids.get(piece);
      if (row !== undefined && row >= 4) return [row];
      return Array.from(new TextEncoder().encode(piece), (byte) => ids.get(byteName(byte)));
    });
  }

  function decode(tokens) {
    let text = "";
    let pending = [];
    const first = tokens.find((token) => token >= 4 && token < usedRows);
    const flush = () => { text += bytesAsText(pending); pending = []; };
    for (const token of tokens) {
      if (token < 4 || token >= usedRows) continue;
      if (bytes.has(token)) pending.push(bytes.get(token));
      else {
        flush();
        text += symbols[token].replaceAll(UNDERSCORE, " ");
      }
    }
    flush();
    // A space that a byte stands for is text.
    return (symbols[first]?.startsWith(UNDERSCORE) ? text.slice(1) : text).replaceAll("\n", " ");
  }
  return { encode, decode };
}
