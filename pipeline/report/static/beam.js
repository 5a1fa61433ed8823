// The beam search of a sentence as a tree: a column for each step, the chosen hypothesis marked.

const [BRANCH, CHARACTER, GAP] = [22, 8, 26]; // pixels: height of a hypothesis, width of a character, between columns

/** Return a drawing of what `search` recorded, and `show(count)`, which shows the first steps alone. */
function beamTree(trace, ids, symbols) {
  const svg = drawing("svg", { class: "beam", role: "img", "aria-label": `beam search in ${trace.length} steps` });
  let parents = [{ right: 0, row: 0, chosen: true }];
  let left = GAP;
  let most = 1;
  const ends = []; // right edges of the columns
  const middle = ({ row }) => (row + 0.5) * BRANCH;
  const columns = trace.map((candidates, step) => {
    const nodes = candidates.map(({ token, origin, score }) => (
      { token, score, parent: parents[origin], chosen: parents[origin].chosen && token === (ids[step] ?? EOS) }));
    const longest = Math.max(...nodes.map(({ token }) => symbols[token].length));
    // In the order of their parents: no two branches cross.
    const column = [...nodes].sort((a, b) => a.parent.row - b.parent.row || b.score - a.score).flatMap((node, row) => {
      Object.assign(node, { row, right: left + longest * CHARACTER });
      const { chosen, token, parent, score } = node;
      const [from, to] = [middle(parent), middle(node)];
      return [
        drawing("path", { class: chosen ? "chosen" : "", d: `M${parent.right + 2} ${from}C${left - 10} ${from} ${left - 16} ${to} ${left - 3} ${to}` }),
        drawing("text", { class: chosen ? "chosen" : "", x: left, y: to + 4 }, symbols[token], drawing("title", {}, `log-probability ${score.toFixed(2)}`)),
      ];
    });
    parents = nodes.filter(({ token }) => token !== EOS);
    left += longest * CHARACTER + GAP;
    ends.push(left);
    most = Math.max(most, nodes.length);
    return drawing("g", {}, ...column);
  });
  svg.append(...columns);
  svg.setAttribute("width", left);
  svg.setAttribute("height", most * BRANCH);
  const show = (count) => {
    columns.forEach((column, step) => column.classList.toggle("later", step >= count));
    svg.parentElement.scrollLeft = ends[count - 1] - svg.parentElement.clientWidth;
  };
  return { svg, show };
}
