// Curves over updates with hover and zoom.

const SIZE = { height: 240, left: 60, right: 12, top: 10, bottom: 34 };
const NARROWEST = 240; // width of a chart in pixels

/** Call `draw(width)` now and whenever the width of `svg`, in pixels, changes: text keeps its size. */
function fitted(svg, draw) {
  let width = 0;
  new ResizeObserver(([entry]) => {
    const next = Math.max(NARROWEST, Math.round(entry.contentRect.width));
    if (next === width) return;
    width = next;
    svg.setAttribute("viewBox", `0 0 ${width} ${SIZE.height}`);
    svg.setAttribute("height", SIZE.height);
    draw(width);
  }).observe(svg);
}

function shortNumber(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e7 || size < 1e-2) return value.toExponential(1).replace("e+", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(4)));
}

/** Return about five round numbers between `low` and `high`. */
function ticks(low, high) {
  const raw = (high - low) / 5 || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw);
  const first = Math.ceil(low / step);
  const count = Math.floor(high / step + 1e-9) - first + 1;
  return Array.from({ length: Math.max(0, Math.min(count, 12)) }, (_, i) => (first + i) * step);
}

/** Return the ends of an axis and the ticks between them, but for those whose labels would touch an end's. */
function withEnds(low, high, inside, place, room) {
  const near = (tick) => Math.min(Math.abs(place(tick) - place(low)), Math.abs(place(tick) - place(high))) < room;
  return [...new Set([low, ...inside.filter((tick) => tick > low && tick < high && !near(tick)), high])];
}

const scale = (low, high, from, to) => (value) => from + ((value - low) / (high - low || 1)) * (to - from);

function axes(svg, width, x, y, xTicks, yTicks, xTitle) {
  const { height, left, right, top, bottom } = SIZE;
  for (const value of yTicks) {
    svg.append(
      drawing("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      drawing("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, shortNumber(value)),
    );
  }
  for (const value of xTicks) {
    const anchor = x(value) > width - right - 1 ? "end" : "middle";
    svg.append(drawing("text", { x: x(value), y: height - bottom + 16, "text-anchor": anchor }, shortNumber(value)));
  }
  svg.append(drawing("text", { x: (left + width - right) / 2, y: height - 3, "text-anchor": "middle" }, xTitle));
  svg.append(drawing("line", { class: "grid", x1: left, x2: left, y1: top, y2: height - bottom }));
}

/** A chart of several series. Hover, or focus and arrow keys, read values; dragging or + and - zoom, 0 or Escape reset. */
function curves({ title, x: xTitle, series, logarithmic }) {
  const { height, left, right, top, bottom } = SIZE;
  const all = series.flatMap((one) => one.points.map(([x]) => x));
  const steps = [...new Set(all)].sort((a, b) => a - b);
  const full = [steps[0] ?? 0, steps.at(-1) ?? 1];
  const finest = Math.min(...steps.slice(1).map((step, i) => step - steps[i]), full[1] - full[0]);
  let range = full;
  let cursor = null;
  let width = NARROWEST;
  const svg = drawing("svg", {
    role: "application", tabindex: 0, "aria-roledescription": "chart",
    "aria-label": `${title}, over ${xTitle}s. Arrow keys read values, plus and minus zoom.`,
  });
  const legend = element("div", { class: "legend", "aria-live": "polite" });
  const reset = element("button", { type: "button", hidden: true, onclick: () => zoom(full) }, "Whole range");

  function nearest(points, x) {
    return points.reduce((best, point) => (Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best), points[0]);
  }

  function describe() {
    legend.replaceChildren(cursor === null ? "" : `${xTitle} ${cursor.toLocaleString("en")}`);
    series.forEach(({ name, points }, index) => {
      if (!points.length) return;
      const swatch = element("span", { class: "swatch" });
      swatch.style.background = colour(index);
      const value = cursor === null ? "" : ` ${shortNumber(nearest(points, cursor)[1])}`;
      if (name || value) legend.append(element("span", {}, swatch, name + value));
    });
  }

  function draw() {
    const inside = series.flatMap(({ points }) => points.filter(([x]) => x >= range[0] && x <= range[1]));
    const values = inside.map(([, y]) => y);
    const [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
    const place = logarithmic ? Math.log10 : Number;
    const margin = (place(high) - place(low)) * 0.04 || Math.abs(place(high)) * 0.1 || 1;
    const x = scale(...range, left, width - right);
    const linear = scale(place(low) - margin, place(high) + margin, height - bottom, top);
    const y = (value) => linear(place(value));
    const powers = () => Array.from({ length: 40 }, (_, i) => [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3));
    svg.replaceChildren();
    axes(svg, width, x, y, withEnds(...range, ticks(...range), x, 32), withEnds(low, high, logarithmic ? powers() : ticks(low, high), y, 14), xTitle);
    series.forEach(({ points }, index) => {
      const shown = points.filter(([at], i) => (points[i + 1]?.[0] ?? at) >= range[0] && (points[i - 1]?.[0] ?? at) <= range[1]);
      const path = shown.map(([at, value], i) => `${i ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
      const line = drawing("path", { class: "series", d: path });
      line.style.stroke = colour(index);
      svg.append(line);
      if (shown.length === 1) {
        const dot = drawing("circle", { cx: x(shown[0][0]), cy: y(shown[0][1]), r: 4 });
        dot.style.fill = colour(index);
        svg.append(dot);
      }
    });
    if (cursor !== null) {
      svg.append(drawing("line", { class: "cursor", x1: x(cursor), x2: x(cursor), y1: top, y2: height - bottom }));
    }
    describe();
  }

  function zoom(to) {
    if (to !== full && to[1] - to[0] < finest) return;
    range = to;
    reset.hidden = to === full;
    draw();
  }

  const at = (event) => {
    const box = svg.getBoundingClientRect();
    const position = ((event.clientX - box.left) / box.width) * width;
    return range[0] + ((position - left) / (width - left - right)) * (range[1] - range[0]);
  };
  const snapped = (value) => steps.reduce((best, step) => (Math.abs(step - value) < Math.abs(best - value) ? step : best), steps[0]);
  let dragged = null;
  svg.addEventListener("pointerdown", (event) => { dragged = at(event); svg.setPointerCapture(event.pointerId); });
  svg.addEventListener("pointermove", (event) => {
    if (!steps.length) return;
    cursor = snapped(Math.min(range[1], Math.max(range[0], at(event))));
    draw();
    if (dragged === null) return;
    const x = scale(...range, left, width - right);
    const [from, to] = [x(dragged), x(at(event))].sort((a, b) => a - b);
    svg.append(drawing("rect", { class: "zoom", x: from, width: to - from, y: top, height: height - top - bottom }));
  });
  svg.addEventListener("pointerup", (event) => {
    const [from, to] = [dragged, at(event)].sort((a, b) => a - b);
    if (dragged !== null && to - from > (range[1] - range[0]) / 40) zoom([Math.max(from, full[0]), Math.min(to, full[1])]);
    dragged = null;
  });
  // The browser took the gesture, as to scroll.
  svg.addEventListener("pointercancel", () => { dragged = null; cursor = null; draw(); });
  svg.addEventListener("pointerleave", () => { if (dragged === null) { cursor = null; draw(); } });
  svg.addEventListener("dblclick", () => zoom(full));
  svg.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const visible = steps.filter((step) => step >= range[0] && step <= range[1]);
    const index = visible.findLastIndex((step) => cursor !== null && step <= cursor);
    const middle = cursor ?? (range[0] + range[1]) / 2;
    const span = range[1] - range[0];
    const keys = {
      ArrowRight: () => { cursor = visible[Math.min(visible.length - 1, index + 1)]; },
      ArrowLeft: () => { cursor = visible[Math.max(0, index < 0 ? visible.length - 1 : index - 1)]; },
      "+": () => zoom([Math.max(full[0], middle - span / 4), Math.min(full[1], middle + span / 4)]),
      "-": () => zoom([Math.max(full[0], middle - span), Math.min(full[1], middle + span)]),
      0: () => zoom(full),
      Escape: () => zoom(full),
    };
    if (!(event.key in keys) || !visible.length) return;
    event.preventDefault();
    keys[event.key]();
    draw();
  });
  fitted(svg, (next) => { width = next; draw(); });
  const made = element("div", { class: "chart" }, element("p", { class: "title" }, title), svg, legend, reset);
  made.read = (value) => { cursor = value; draw(); };
  return made;
}

views.chart = (root, { panels }) => root.append(element("div", { class: "charts" }, ...panels.map(curves)));
