// The Transformer of nmt/model.py in float32 on 8-bit weights, and the beam search of nmt/inference/search.py.

const [PAD, BOS, EOS, UNK] = [0, 1, 2, 3];
const LIKELIEST = 4; // subwords of a step that are shown
const EPSILON = 1e-6; // of the layer norms

/** Return name -> {data: Float32Array, shape}: rows of int8 times their scales; vectors are stored as they are. */
function readTensors(list, blob) {
  return Object.fromEntries(list.map(({ name, shape, at }) => {
    const size = shape.reduce((product, length) => product * length, 1);
    if (shape.length < 2) return [name, { shape, data: new Float32Array(blob.buffer, at, size) }];
    const [rows, width] = shape;
    const scales = new Float32Array(blob.buffer, at, rows);
    const steps = new Int8Array(blob.buffer, at + scales.byteLength, size);
    const data = new Float32Array(size);
    for (let row = 0; row < rows; row++) {
      for (let i = row * width; i < (row + 1) * width; i++) data[i] = steps[i] * scales[row];
    }
    return [name, { shape, data }];
  }));
}

/** Return rows of x times the transposed matrix, plus the bias; x is [rows, inputs], the matrix [outputs, inputs]. */
function linear(x, rows, matrix, bias) {
  const [outputs, inputs] = matrix.shape;
  const weights = matrix.data;
  const y = new Float32Array(rows * outputs);
  for (let output = 0; output < outputs; output++) {
    const start = output * inputs;
    const base = bias ? bias.data[output] : 0;
    let row = 0;
    for (; row + 3 < rows; row += 4) { // Four rows at a time read each weight once.
      const first = row * inputs;
      const second = first + inputs;
      const third = second + inputs;
      const fourth = third + inputs;
      let a = base;
      let b = base;
      let c = base;
      let d = base;
      for (let i = 0; i < inputs; i++) {
        const weight = weights[start + i];
        a += weight * x[first + i];
        b += weight * x[second + i];
        c += weight * x[third + i];
        d += weight * x[fourth + i];
      }
      y[row * outputs + output] = a;
      y[(row + 1) * outputs + output] = b;
      y[(row + 2) * outputs + output] = c;
      y[(row + 3) * outputs + output] = d;
    }
    for (; row < rows; row++) {
      let sum = base;
      for (let i = 0; i < inputs; i++) sum += weights[start + i] * x[row * inputs + i];
      y[row * outputs + output] = sum;
    }
  }
  return y;
}

const project = (x, rows, { weight, bias }) => linear(x, rows, weight, bias);

/** LayerNorm(x + sublayer), in place of `sublayer`. */
function addNorm(x, sublayer, rows, { weight, bias }) {
  const width = weight.data.length;
  for (let row = 0; row < rows; row++) {
    const start = row * width;
    let mean = 0;
    for (let i = start; i < start + width; i++) mean += sublayer[i] += x[i];
    mean /= width;
    let variance = 0;
    for (let i = start; i < start + width; i++) variance += (sublayer[i] - mean) ** 2;
    const factor = 1 / Math.sqrt(variance / width + EPSILON);
    for (let i = 0; i < width; i++) sublayer[start + i] = (sublayer[start + i] - mean) * factor * weight.data[i] + bias.data[i];
  }
  return sublayer;
}

class Transformer {
  constructor({ settings, tensors }, blob) {
    this.settings = settings;
    const found = readTensors(tensors, blob);
    const layers = (side, norms, attentions) => Array.from({ length: settings.N }, (_, i) => {
      const get = (name) => found[`${side}.${i}.${name}`];
      const pair = (name) => ({ weight: get(`${name}.weight`), bias: get(`${name}.bias`) });
      const projections = (name) => Object.fromEntries(["W_Q", "W_K", "W_V", "W_O"].map((part) => [part, pair(`${name}.${part}`)]));
      return {
        ...Object.fromEntries(attentions.map((name) => [name, projections(name)])),
        W_1: pair("feed_forward.W_1"), W_2: pair("feed_forward.W_2"),
        norms: Array.from({ length: norms }, (_unused, n) => pair(`add_norms.${n}.norm`)),
      };
    });
    this.encoder = layers("encoder", 2, ["self_attention"]);
    this.decoder = layers("decoder", 3, ["self_attention", "cross_attention"]);
    this.source = { table: found["embedding.table"], learned: found["embedding.learned"] };
    const own = found["own_target_embedding.table"];
    this.target = own ? { table: own, learned: found["own_target_embedding.learned"] } : this.source;
    this.output = found.own_output ?? this.target.table;
  }

  embed({ table, learned }, id, position) {
    const { d_model: width, position_layout: layout } = this.settings;
    const x = new Float32Array(width);
    const scaled = Math.sqrt(width);
    for (let i = 0; i < width; i++) {
      let place;
      if (learned) place = learned.data[position * width + i];
      else {
        const pair = layout === "interleaved" ? i >> 1 : i % (width / 2);
        const angle = position / 10000 ** ((2 * pair) / width);
        place = (layout === "interleaved" ? i % 2 === 0 : i < width / 2) ? Math.sin(angle) : Math.cos(angle);
      }
      x[i] = Math.fround(table.data[id * width + i] * scaled) + Math.fround(place);
    }
    return x;
  }

  /** Attention of one query, [h * d_k], over lists of keys and of values; `weights`, where given, gets [h, keys]. */
  attend(query, keys, values, weights = null) {
    const { h, d_k: width, d_v: depth } = this.settings;
    const out = new Float32Array(h * depth);
    const scores = new Float32Array(keys.length);
    const factor = 1 / Math.sqrt(width);
    for (let head = 0; head < h; head++) {
      let largest = -Infinity;
      keys.forEach((key, at) => {
        let score = 0;
        for (let i = head * width; i < (head + 1) * width; i++) score += query[i] * key[i];
        scores[at] = score * factor;
        if (scores[at] > largest) largest = scores[at];
      });
      let total = 0;
      for (let at = 0; at < keys.length; at++) total += scores[at] = Math.exp(scores[at] - largest);
      values.forEach((value, at) => {
        const share = scores[at] / total;
        if (weights) weights.push(share);
        for (let i = head * depth; i < (head + 1) * depth; i++) out[i] += share * value[i];
      });
    }
    return out;
  }

  /** Multi-head attention of rows of x over keys and values; `trace` gets the weights [row][h * keys]. */
  sublayer(x, rows, block, keysOf, valuesOf, trace) {
    const queries = project(x, rows, block.W_Q);
    const { h, d_k: width, d_v: depth } = this.settings;
    const heads = new Float32Array(rows * h * depth);
    for (let row = 0; row < rows; row++) {
      const weights = trace ? [] : null;
      heads.set(this.attend(queries.subarray(row * h * width, (row + 1) * h * width), keysOf(row), valuesOf(row), weights), row * h * depth);
      if (trace) trace.push(weights);
    }
    return project(heads, rows, block.W_O);
  }

  feedForward(x, rows, layer) {
    const inner = project(x, rows, layer.W_1);
    for (let i = 0; i < inner.length; i++) if (inner[i] < 0) inner[i] = 0;
    return addNorm(x, project(inner, rows, layer.W_2), rows, layer.norms.at(-1));
  }

  rowsOf(x, rows) {
    const width = x.length / rows;
    return Array.from({ length: rows }, (_, row) => x.subarray(row * width, (row + 1) * width));
  }

  /** Return the keys and values of the memory in every decoder layer; `trace` gets the encoder's weights by layer. */
  encode(ids, trace = null) {
    const rows = ids.length;
    let x = new Float32Array(rows * this.settings.d_model);
    ids.forEach((id, position) => x.set(this.embed(this.source, id, position), position * this.settings.d_model));
    for (const layer of this.encoder) {
      const block = layer.self_attention;
      const keys = this.rowsOf(project(x, rows, block.W_K), rows);
      const values = this.rowsOf(project(x, rows, block.W_V), rows);
      const seen = trace ? [] : null;
      x = addNorm(x, this.sublayer(x, rows, block, () => keys, () => values, seen), rows, layer.norms[0]);
      x = this.feedForward(x, rows, layer);
      if (trace) trace.push(seen);
    }
    return this.decoder.map(({ cross_attention: block }) => ({
      keys: this.rowsOf(project(x, rows, block.W_K), rows), values: this.rowsOf(project(x, rows, block.W_V), rows),
    }));
  }

  /**
   * Extend hypotheses by their last subword; each is {ids, keys, values}, keys and values by layer and position, which
   * are extended too. Returns the logits of each hypothesis. `trace` gets {self, cross} of each layer.
   */
  step(memory, hypotheses, trace = null) {
    const rows = hypotheses.length;
    const { d_model: width } = this.settings;
    let x = new Float32Array(rows * width);
    hypotheses.forEach(({ ids }, row) => x.set(this.embed(this.target, ids.at(-1), ids.length - 1), row * width));
    this.decoder.forEach((layer, number) => {
      const block = layer.self_attention;
      this.rowsOf(project(x, rows, block.W_K), rows).forEach((key, row) => hypotheses[row].keys[number].push(key));
      this.rowsOf(project(x, rows, block.W_V), rows).forEach((value, row) => hypotheses[row].values[number].push(value));
      const seen = trace ? { self: [], cross: [] } : null;
      x = addNorm(x, this.sublayer(x, rows, block, (row) => hypotheses[row].keys[number],
        (row) => hypotheses[row].values[number], seen?.self), rows, layer.norms[0]);
      const { keys, values } = memory[number];
      x = addNorm(x, this.sublayer(x, rows, layer.cross_attention, () => keys, () => values, seen?.cross), rows, layer.norms[1]);
      x = this.feedForward(x, rows, layer);
      if (trace) trace.push(seen);
    });
    return this.rowsOf(linear(x, rows, this.output, null), rows);
  }

  /**
   * Return the attention for a pair as `attentionView` takes it, and for each query the likeliest subwords as
   * [logarithm of the probability, id]; ids of the source end in EOS, the target's begin with BOS.
   */
  attention(source, target, usedRows) {
    const { N, h } = this.settings;
    const [rows, columns] = [target.length, source.length];
    const traced = [];
    const memory = this.encode(source, traced);
    const made = { encoder: new Uint8Array(N * h * columns * columns), decoder: new Uint8Array(N * h * rows * rows),
      cross: new Uint8Array(N * h * rows * columns), likeliest: [] };
    const put = (kind, layer, query, weights, keys, width, height) => weights.forEach((value, i) => {
      const head = Math.floor(i / keys);
      made[kind][((layer * h + head) * height + query) * width + (i % keys)] = Math.round(value * 255);
    });
    traced.forEach((seen, layer) => seen.forEach((weights, query) => put("encoder", layer, query, weights, columns, columns, columns)));
    const hypothesis = this.empty();
    target.forEach((id, query) => {
      hypothesis.ids = target.slice(0, query + 1);
      const steps = [];
      const [logits] = this.step(memory, [hypothesis], steps);
      made.likeliest.push(best(logProbabilities(logits, usedRows, 1, Infinity), LIKELIEST));
      steps.forEach(({ self, cross }, layer) => {
        put("decoder", layer, query, self[0], query + 1, rows, rows);
        put("cross", layer, query, cross[0], columns, columns, rows);
      });
    });
    return made;
  }

  empty() {
    return { ids: [BOS], score: 0, keys: this.decoder.map(() => []), values: this.decoder.map(() => []) };
  }
}

/**
 * Turn logits after `length` ids into log-probabilities. Specials and padding rows are impossible, but EOS after the
 * first; after `limit` ids all but EOS.
 */
function logProbabilities(logits, usedRows, length, limit) {
  let largest = -Infinity;
  for (const value of logits) if (value > largest) largest = value;
  let total = 0;
  for (const value of logits) total += Math.exp(value - largest);
  const normalizer = largest + Math.log(total);
  for (let i = 0; i < logits.length; i++) {
    const possible = length >= limit ? i === EOS : i < usedRows && (i > UNK || (i === EOS && length > 0));
    logits[i] = possible ? logits[i] - normalizer : -Infinity;
  }
  return logits;
}

/** Return the `count` best entries as [value, index], best first. */
function best(values, count) {
  const found = [];
  for (let i = 0; i < values.length; i++) {
    if (found.length === count && !(values[i] > found[count - 1][0])) continue;
    let at = found.length;
    while (at > 0 && values[i] > found[at - 1][0]) at--;
    found.splice(at, 0, [values[i], i]);
    if (found.length > count) found.pop();
  }
  return found;
}

const lengthPenalty = (length, alpha) => ((5 + length) / 6) ** alpha;

/**
 * Return the ids of the best translation of `source`, ids that end in EOS. With a beam of 1 it is greedy search.
 *
 * `progress`, which may be asynchronous, gets the best unfinished ids after each step; where it returns false, the
 * search ends with what it has. `trace` gets the candidates that each step keeps: finished ones and those in the beam,
 * each {token, origin, score}; the origin is the index among those in the beam before.
 */
async function search(model, source, { beam, alpha, max_extra: maxExtra, stop }, usedRows, progress = () => true, trace = []) {
  const limit = source.length - 1 + maxExtra;
  const memory = model.encode(source);
  let alive = [model.empty()];
  let finished = []; // [score, ids], best first
  for (let length = 0; ; length++) {
    const candidates = model.step(memory, alive).flatMap((logits, origin) => (
      best(logProbabilities(logits, usedRows, length, limit), 2 * beam)
        .map(([value, token]) => ({ score: value + alive[origin].score, token, origin }))));
    const top = candidates.filter(({ score }) => score > -Infinity).sort((a, b) => b.score - a.score).slice(0, 2 * beam);
    if (!top.length) throw new Error("the model gives no probabilities: its weights are damaged");
    if (beam === 1) {
      if (top[0].token === EOS) return alive[0].ids.slice(1);
      top.length = 1;
    }
    for (const { score, token, origin } of top) {
      if (token === EOS) finished.push([score / lengthPenalty(length + 1, alpha), alive[origin].ids.slice(1)]);
    }
    finished = finished.sort((a, b) => b[0] - a[0]).slice(0, beam);
    const kept = top.filter(({ token }) => token !== EOS).slice(0, beam);
    trace.push(top.filter((each) => each.token === EOS || kept.includes(each)));
    alive = kept.map(({ score, token, origin }) => ({
      ids: [...alive[origin].ids, token], score,
      keys: alive[origin].keys.map((layer) => [...layer]), values: alive[origin].values.map((layer) => [...layer]),
    }));
    const bound = alive.length ? alive[0].score / ((6 + limit) / 6) ** alpha : -Infinity;
    const reached = stop === "exact" ? finished[0]?.[0] : finished.at(-1)?.[0];
    if (reached >= bound || bound === -Infinity) return finished[0][1];
    if (!(await progress(alive[0].ids.slice(1)))) return (finished[0] ?? [0, alive[0].ids.slice(1)])[1];
  }
}
