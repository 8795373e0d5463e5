// The charts that compare rows. Colours are CSS variables, so dark mode and print need no redraw.

function drawAccuracy() {
  const series = visibleRows().map((row) => ({
    row,
    points: row.after.map(([mean, deviation], task) => ({ task, mean, deviation })),
  }));
  drawLines("chart-accuracy", series, `${setLabel()}: mean accuracy on the tasks seen, after each task`);
}

function drawTask() {
  const task = state.forgottenTask;
  const series = visibleRows()
    .filter((row) => row.tasks.length > task)
    .map((row) => ({
      row,
      points: row.matrix.slice(task).map((line, later) => {
        return { task: task + later, mean: line[task][0], deviation: line[task][1] };
      }),
    }));
  const name = longestRow(rowsOfSet()).tasks[task];
  const title = `${setLabel()}: accuracy on task ${task + 1} (${name}) as later tasks are learned`;
  drawLines("chart-task", series, title);
}

function drawLines(id, series, title) {
  if (!series.length) return showNothing(id);
  const marks = [];
  for (const { row, points } of series) {
    const band = points.map((p) => ({ ...p, low: p.mean - p.deviation, high: p.mean + p.deviation }));
    marks.push(
      Plot.areaY(band, { x: "task", y1: "low", y2: "high", fill: row.colour, fillOpacity: 0.13 }),
    );
  }
  for (const { row, points } of series) {
    const place = { x: "task", y: "mean" };
    const line = { stroke: row.colour, strokeWidth: 2, strokeDasharray: row.dash };
    marks.push(
      Plot.lineY(points, { ...place, ...line }),
      Plot.dot(points, { ...place, ...paint(row), symbol: row.symbol, r: 4 }),
    );
  }
  const rows = series.map(({ row }) => row);
  const tasks = longestRow(rows).tasks;
  const all = series.flatMap(({ row, points }) => points.map((point) => ({ row, ...point })));
  const tips = tipsBy("task", all, (task) => `After task ${task + 1} (${tasks[task]})`);
  const first = Math.min(...tips.map((tip) => tip.task));
  draw(id, title, {
    height: 350,
    marginLeft: 48,
    marginRight: 16,
    marginTop: 30,
    x: {
      type: "point",
      domain: d3.range(first, tasks.length),
      tickFormat: (task) => task + 1,
      label: "tasks learned →",
    },
    y: { label: "↑ accuracy", grid: true, nice: true, tickFormat: ".2f", zero: false },
    marks: [
      ...marks,
      Plot.ruleX(tips, Plot.pointerX({ x: "task", stroke: "var(--quiet)", strokeDasharray: "2 3" })),
      Plot.tip(tips, Plot.pointerX({ x: "task", y: "top", title: "text", ...tipStyle() })),
    ],
  }, rows);
}

// For every task or class (the key of the points): the values of all rows, one per line, best first.
function tipsBy(key, points, titleOf) {
  return d3.groups(points, (point) => point[key]).map(([value, found]) => {
    const ordered = d3.sort(found, (point) => -point.mean);
    const lines = ordered.map((point) => {
      return `${showSpread([point.mean, point.deviation])}  ${shortLabel(point.row)}`;
    });
    return { [key]: value, top: ordered[0].mean, text: [titleOf(value), ...lines].join("\n") };
  });
}

function drawClasses() {
  const rows = visibleRows();
  if (!rows.length) return showNothing("chart-classes");
  const points = rows.flatMap((row) => classPoints(row));
  const names = [...new Set(points.map((point) => point.name))];
  const tips = tipsBy("name", points, (name) => name);
  const apart = names.length > 25 ? 0 : rows.length > 6 ? 5 : 7;
  const marks = rows.flatMap((row, place) => {
    const own = points.filter((point) => point.row === row);
    const dy = (place - (rows.length - 1) / 2) * apart;
    return [
      Plot.ruleY(own, { x1: "low", x2: "high", y: "name", stroke: row.colour, strokeOpacity: 0.55, dy }),
      Plot.dot(own, { x: "mean", y: "name", symbol: row.symbol, r: 3.6, dy, ...paint(row) }),
    ];
  });
  const step = names.length > 25 ? 15 : Math.max(20, rows.length * apart + 12);
  const after = taskTitle(longestRow(rowsOfSet()), state.classTask);
  const title = `${setLabel()}: accuracy on every class after task ${after}`;
  draw("chart-classes", title, {
    height: names.length * step + 54,
    marginLeft: nameMargin(names),
    marginRight: 16,
    marginTop: 8,
    x: { label: "accuracy →", domain: [0, 1], grid: true, ticks: 5, tickFormat: ".1f" },
    y: { type: "band", domain: names, axis: null, padding: 0.1 },
    marks: [
      Plot.axisY({ label: null, tickSize: 0, lineWidth: 11, textOverflow: "ellipsis" }),
      Plot.ruleY(names, { stroke: "var(--line)", strokeOpacity: 0.7 }),
      ...marks,
      Plot.tip(tips, Plot.pointerY({ x: "top", y: "name", title: "text", ...tipStyle() })),
    ],
  }, rows);
}

function classPoints(row) {
  const task = Math.min(state.classTask, row.tasks.length - 1);
  return row.classes[task].map(([mean, deviation], part) => {
    const name = axisOf(row).names[part];
    const [low, high] = [Math.max(0, mean - deviation), Math.min(1, mean + deviation)];
    return { row, name, mean, deviation, low, high };
  });
}

function drawForgetting() {
  const valueOf = (row) => row.metrics.forgetting_from_best;
  drawBars("chart-forgetting", "forgetting", "forgetting →", valueOf, 3, "");
}

function drawCost() {
  const valueOf = (row) => row.criterionShare;
  drawBars("chart-cost", "share of the criterion in the time of a run", "% of the run →", valueOf, 2, " %");
}

// Horizontal bars with the name above each bar, so long names need no margin on a phone.
function drawBars(id, title, label, valueOf, digits, unit) {
  const bars = visibleRows().filter((row) => valueOf(row)[0] !== null).map((row) => {
    const [mean, deviation] = valueOf(row);
    const text = showSpread([mean, deviation], digits) + unit;
    return { row, mean, deviation, low: mean - deviation, high: mean + deviation, text };
  });
  if (!bars.length) return showNothing(id);
  const y = (bar) => bar.row.number;
  const name = (bar) => shortLabel(bar.row);
  draw(id, `${setLabel()}: ${title}`, {
    height: bars.length * 42 + 52,
    marginLeft: 16,
    marginRight: 118,
    marginTop: 6,
    x: { label, grid: true, ticks: 5, zero: true },
    y: { type: "band", domain: bars.map(y), axis: null, padding: 0 },
    color: { type: "identity" },
    marks: [
      Plot.barX(bars, { x: "mean", y, fill: (bar) => bar.row.colour, insetTop: 22, insetBottom: 4 }),
      Plot.ruleY(bars.filter((bar) => bar.deviation), {
        x1: "low", x2: "high", y, dy: 9, stroke: "var(--ink)", strokeWidth: 1.5,
      }),
      Plot.text(bars, { text: name, y, frameAnchor: "left", textAnchor: "start", dy: -10, dx: 1, fontSize: 13 }),
      Plot.text(bars, {
        text: "text", x: (bar) => Math.max(bar.deviation ? bar.high : bar.mean, 0), y, dy: 9, dx: 6,
        textAnchor: "start", fontSize: 12, fill: "var(--quiet)",
      }),
      Plot.ruleX([0], { stroke: "var(--quiet)" }),
    ],
  });
}

function legendOf(rows) {
  const list = document.createElement("ul");
  list.className = "legend";
  for (const row of rows) {
    const item = document.createElement("li");
    item.append(lineMark(row), shortLabel(row));
    list.append(item);
  }
  return list;
}

// A short line with the symbol of a row.
function lineMark(row) {
  const svg = d3.create("svg").attr("width", 26).attr("height", 12).attr("aria-hidden", "true");
  const line = svg.append("path").attr("d", "M0,6H26").attr("stroke-dasharray", row.dash);
  line.attr("stroke", row.colour).attr("stroke-width", 2);
  const symbol = svg.append("path").attr("transform", "translate(13,6)");
  symbol.attr("d", d3.symbol(SHAPES[row.symbol], 60)());
  for (const [name, value] of Object.entries(paint(row))) symbol.attr(name, value);
  return svg.node();
}

// Crosses have only a stroke, the other symbols only a fill.
function paint(row) {
  const crossed = ["plus", "times", "asterisk", "square2", "diamond2", "triangle2"].includes(row.symbol);
  if (crossed) return { stroke: row.colour, "stroke-width": 2, strokeWidth: 2, fill: "none" };
  return { fill: row.colour, stroke: "none" };
}

function nameMargin(names) {
  const longest = Math.max(...names.map((name) => name.length));
  return Math.min(14 + 7.2 * longest, 110);
}

function tipStyle() {
  return { fontSize: 12, lineHeight: 1.35, lineWidth: 30, stroke: "var(--line)", maxRadius: 60 };
}

function showNothing(id) {
  byId(id).replaceChildren("Nothing to show.");
}

// Put a chart into its figure. The legend is visible where the controls are not beside the chart:
// on narrow screens and on paper.
function draw(id, title, options, legend = null) {
  const figure = byId(id);
  const chart = Plot.plot({
    width: chartWidth(figure),
    marginBottom: 44,
    style: { fontSize: "12px" },
    ariaLabel: title,
    ...options,
  });
  chart.setAttribute("role", "img");
  for (const mark of chart.querySelectorAll("[aria-label]")) {
    mark.dataset.mark = mark.getAttribute("aria-label"); // screen readers skip labels inside an image
    mark.removeAttribute("aria-label");
  }
  const caption = document.createElement("figcaption");
  caption.textContent = title;
  figure.replaceChildren(caption, ...(legend ? [legendOf(legend)] : []), chart);
  return chart;
}

let printing = false;
const PRINT_WIDTH = 660;

function chartWidth(figure) {
  return printing ? PRINT_WIDTH : Math.max(260, figure.clientWidth);
}
