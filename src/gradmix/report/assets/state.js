"use strict";

// What the page shows. `data` is described in gradmix/report/data.py; [mean, deviation] pairs have
// null for the deviation of a single run.

const data = JSON.parse(document.getElementById("data").textContent);

const state = {
  set: data.sets[0].data,
  methods: new Set(), // shown, of the data set
  hidden: new Set(), // rows switched off, by number
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
  gradmix: "wye",
  "gradmix+": "star",
};
const OTHER_SYMBOL = "asterisk";
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
};
const DASHES = ["none", "7 3", "2 3", "9 3 2 3", "4 2", "1 4"];

data.rows.forEach((row, number) => {
  row.number = number;
  row.symbol = SYMBOLS[row.mix] ?? OTHER_SYMBOL;
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

function partsOf(row) {
  return data.parts[row.parts];
}

// Rows of one method need not say which.
function shortLabel(row) {
  return state.methods.size > 1 ? row.label : row.name;
}

function showSpread([mean, deviation], digits = 3) {
  const text = mean.toFixed(digits);
  return deviation === null ? text : `${text} ± ${deviation.toFixed(digits)}`;
}

function taskTitle(row, task) {
  return `${task + 1} of ${row.tasks.length} (${row.tasks[task]})`;
}

// The row with most tasks: its tasks are those of the axes and sliders.
function longestRow(rows) {
  return rows.reduce((best, row) => (row.tasks.length > best.tasks.length ? row : best), rows[0]);
}
