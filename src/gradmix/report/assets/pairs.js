// The heatmap of class pairs: which classes were mixed, task by task.

const MORE = "var(--more)";
const LESS = "var(--less)";

function rowsWithPairs() {
  return rowsOfSet().filter((row) => row.pairs);
}

function drawPairs() {
  const row = data.rows[state.pairRow];
  const cells = pairCells(row, state.pairTask, state.pairMeasure);
  const names = axisOf(row).names;
  const longest = Math.max(...names.map((name) => name.length));
  const left = nameMargin(names);
  const right = longest > 4 ? 30 : 8; // slanted names need more room
  const width = chartWidth(byId("chart-pairs"));
  const size = Math.max(3, Math.min(46, (width - left - right) / names.length));
  const step = Math.max(1, Math.ceil(13 / size)); // show every n-th name
  const ticks = names.filter((_, place) => place % step === 0);
  const slanted = longest * 7 > size * step;
  const top = slanted ? Math.min(20 + 5.2 * longest, 90) : 36;
  const title = pairTitle(row);
  const chart = draw("chart-pairs", title, {
    width: left + names.length * size + right,
    height: top + names.length * size + 8,
    marginLeft: left,
    marginTop: top,
    marginRight: right,
    marginBottom: 8,
    x: { type: "band", domain: names, axis: null, padding: 0 },
    y: { type: "band", domain: names, axis: null, padding: 0 },
    color: { type: "identity" },
    opacity: { type: "identity" },
    marks: [
      Plot.axisX({ anchor: "top", ticks, tickSize: 0, label: null, tickRotate: slanted ? -45 : 0,
        lineWidth: 9, textOverflow: "ellipsis" }),
      Plot.axisY({ ticks, tickSize: 0, label: null, lineWidth: 9, textOverflow: "ellipsis" }),
      Plot.frame({ stroke: "var(--line)" }),
      Plot.cell(cells, { x: "b", y: "a", fill: "colour", fillOpacity: "strength", inset: size > 12 ? 0.5 : 0 }),
      size < 24 ? null : Plot.text(cells, {
        x: "b", y: "a", text: "short", fontSize: size < 30 ? 10 : 11,
        fill: (cell) => (cell.strength > 0.62 ? "var(--page)" : "var(--ink)"),
      }),
      Plot.tip(cells, Plot.pointer({ x: "b", y: "a", title: "text", ...tipStyle(), maxRadius: size })),
    ],
  });
  chart.addEventListener("input", () => showCell(chart.value));
  walkCells(chart, cells, names, size);
  if (byId("pair-details").open) fillPairTable(cells, names);
}

function pairTitle(row) {
  const task = taskTitle(row, state.pairTask);
  return `${setLabel()}, ${row.label}: classes mixed in task ${task}`;
}

// One cell for every pair of classes learned so far.
function pairCells(row, task, measure) {
  const axis = axisOf(row);
  const seen = axis.seen[task];
  const counts = row.pairs[task];
  const of = d3.range(seen).map((a) => d3.sum(counts.slice(a * seen, (a + 1) * seen)));
  const by = d3.range(seen).map((b) => d3.sum(d3.range(seen), (a) => counts[a * seen + b]));
  const total = d3.sum(of);
  const strongest = d3.max(counts, (count, i) => share(count, of[Math.floor(i / seen)]));
  return counts.map((count, i) => {
    const [a, b] = [Math.floor(i / seen), i % seen];
    const part = share(count, of[a]);
    const chance = of[a] && by[b] ? (count * total) / (of[a] * by[b]) : null;
    return {
      a: axis.names[a],
      b: axis.names[b],
      count,
      part,
      chance,
      ...(measure === "share" ? shadeShare(part, strongest) : shadeChance(chance)),
      text: describePair(axis.names[a], axis.names[b], count, part, chance),
    };
  });
}

function share(count, of) {
  return of ? count / of : 0;
}

function shadeShare(part, strongest) {
  return { colour: MORE, strength: strongest ? part / strongest : 0, short: (100 * part).toFixed(0) };
}

// Full colour at four times, or a quarter of, the count expected by chance.
function shadeChance(chance) {
  if (chance === null) return { colour: MORE, strength: 0, short: "" };
  const doublings = chance > 0 ? Math.log2(chance) : -2;
  const strength = Math.min(1, Math.abs(doublings) / 2);
  return { colour: doublings > 0 ? MORE : LESS, strength, short: chance.toFixed(1) };
}

function describePair(a, b, count, part, chance) {
  const often = `${count.toLocaleString("en")} times`;
  const against = chance === null ? "" : `, ${chance.toFixed(2)} × chance`;
  return `${a} mixed with ${b}\n${(100 * part).toFixed(1)} % of ${a}\n${often}${against}`;
}

function showCell(cell) {
  if (cell) byId("pair-value").textContent = cell.text.replaceAll("\n", " · ");
}

// Arrow keys move a frame between cells.
function walkCells(chart, cells, names, size) {
  const found = new Map(cells.map((cell) => [`${cell.a}\n${cell.b}`, cell]));
  const [x, y] = [chart.scale("x"), chart.scale("y")];
  const frame = d3.select(chart).append("rect").attr("width", size).attr("height", size);
  frame.attr("fill", "none").attr("stroke", "var(--ink)").attr("stroke-width", 2).attr("display", "none");
  const seen = Math.sqrt(cells.length);
  let [a, b] = [0, 0];
  const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  chart.setAttribute("tabindex", "0");
  chart.setAttribute("aria-describedby", "pair-value");
  const show = () => {
    frame.attr("x", x.apply(names[b])).attr("y", y.apply(names[a])).attr("display", null);
    showCell(found.get(`${names[a]}\n${names[b]}`));
  };
  chart.addEventListener("keydown", (event) => {
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    a = Math.max(0, Math.min(seen - 1, a + move[0]));
    b = Math.max(0, Math.min(seen - 1, b + move[1]));
    show();
  });
  chart.addEventListener("focus", () => chart.matches(":focus-visible") && show());
  chart.addEventListener("blur", () => frame.attr("display", "none"));
}

// The heatmap as a table, made when it is opened.
function fillPairTable(cells, names) {
  const seen = names.slice(0, Math.sqrt(cells.length));
  const box = d3.create("div").attr("class", "scroll").attr("tabindex", 0);
  const table = box.append("table");
  table.append("caption").text("Partners of the class on the left, in percent");
  const head = table.append("thead").append("tr");
  head.selectAll("th").data(["class", ...seen]).join("th").attr("scope", "col").text((name) => name);
  const lines = table.append("tbody").selectAll("tr").data(seen).join("tr");
  lines.append("th").attr("scope", "row").text((name) => name);
  const cellsOf = (_, a) => cells.slice(a * seen.length, (a + 1) * seen.length);
  lines.selectAll("td").data(cellsOf).join("td").text((cell) => (100 * cell.part).toFixed(1));
  byId("pair-table").replaceChildren(box.node());
}
