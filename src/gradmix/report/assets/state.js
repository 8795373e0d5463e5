"use strict";

// What the page shows. gradmix/report/data.py describes `data`. In [mean, deviation] pairs, null is
// a missing value: the deviation of a single run, or a quantity that no run measured.

const data = JSON.parse(document.getElementById("data").textContent);

const state = {
  set: data.sets[0].data,
  methods: new Set(), // shown methods of the data set
  hidden: new Set(), // numbers of hidden rows
  classTask: 0,
  forgottenTask: 0,
  pairRow: null,
  pairTask: 0,
  pairMeasure: "share",
};

const SYMBOLS = {
  none: "circle",
  mixup: "square",
  "manifold-mixup": "diamond",
  cutmix: "triangle",
  remix: "plus",
  "balanced-mixup": "times",
  "balanced-remix": "asterisk",
  gradmix: "wye",
  "gradmix+": "star",
};
const OTHER_SYMBOLS = ["cross", "square2", "diamond2", "triangle2"]; // of other mixes
const SHAPES = {
  circle: d3.symbolCircle,
  square: d3.symbolSquare,
  diamond: d3.symbolDiamond,
  triangle: d3.symbolTriangle,
  plus: d3.symbolPlus,
  times: d3.symbolTimes,
  wye: d3.symbolWye,
  star: d3.symbolStar,
  asterisk: d3.symbolAsterisk,
  cross: d3.symbolCross,
  square2: d3.symbolSquare2,
  diamond2: d3.symbolDiamond2,
  triangle2: d3.symbolTriangle2,
};
const DASHES = ["none", "7 3", "2 3", "9 3 2 3", "4 2", "1 4"];

data.rows.forEach((row, number) => {
  row.number = number;
  const other = OTHER_SYMBOLS[row.otherMix % OTHER_SYMBOLS.length];
  row.symbol = Object.hasOwn(SYMBOLS, row.mix) ? SYMBOLS[row.mix] : other;
  row.dash = DASHES[row.style % DASHES.length];
});

function byId(id) {
  return document.getElementById(id);
}

function rowsOfSet() {
  return data.rows.filter((row) => row.data === state.set);
}

function visibleRows() {
  return rowsOfSet().filter((row) => state.methods.has(row.method) && !state.hidden.has(row.number));
}

function setLabel() {
  return data.sets.find((set) => set.data === state.set).label;
}

function axisOf(row) {
  return data.axes[row.axis];
}

// The label of a row, without the method if all rows have the same.
function shortLabel(row) {
  return state.methods.size > 1 ? row.label : row.name;
}

function showSpread([mean, deviation], digits = 3) {
  if (mean === null) return "–";
  const text = mean.toFixed(digits);
  return deviation === null ? text : `${text} ± ${deviation.toFixed(digits)}`;
}

function taskTitle(row, task) {
  return `${task + 1} of ${row.tasks.length} (${row.tasks[task]})`;
}

// The row with most tasks. Axes and sliders show its tasks.
function longestRow(rows) {
  return rows.reduce((best, row) => (row.tasks.length > best.tasks.length ? row : best), rows[0]);
}
