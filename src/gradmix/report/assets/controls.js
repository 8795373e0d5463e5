// Controls for data set, methods, rows and tasks. Native inputs work by keyboard.

const MANY_ROWS = 8; // more rows are hard to tell apart

function chip(type, group, label, checked, onChange, mark = null) {
  const outer = document.createElement("label");
  outer.className = "chip";
  const input = document.createElement("input");
  Object.assign(input, { type, name: group, checked });
  input.addEventListener("change", () => onChange(input.checked));
  outer.append(input, ...(mark ? [mark] : []), label);
  return outer;
}

function fill(id, chips, needed = 2) {
  const set = byId(id);
  set.querySelectorAll(".chip").forEach((old) => old.remove());
  set.append(...chips);
  set.hidden = chips.length < needed;
}

function fillSets() {
  const chips = data.sets.map(({ data: name, label }) => {
    return chip("radio", "set", label, name === state.set, () => chooseSet(name));
  });
  fill("choose-set", chips);
}

function chooseSet(name) {
  state.set = name;
  const rows = rowsOfSet();
  const counts = d3.rollup(rows, (found) => found.length, (row) => row.method);
  const most = d3.greatest(counts, ([, count]) => count)[0];
  const tooMany = rows.length > MANY_ROWS;
  state.methods = new Set(tooMany && counts.get(most) > 1 ? [most] : counts.keys());
  state.hidden = new Set(tooMany ? worstRows(rows) : []);
  for (const table of document.querySelectorAll("[data-of]")) table.hidden = table.dataset.of !== name;
  fillMethods();
  fillRows();
  fillTasks();
  fillPairRows();
  drawAll();
}

// The rows of every method except the best few.
function worstRows(rows) {
  const accuracy = (row) => row.metrics.average_accuracy[0];
  const worst = d3.groups(rows, (row) => row.method).flatMap(([, own]) => {
    return d3.sort(own, (row) => -accuracy(row)).slice(MANY_ROWS);
  });
  return worst.map((row) => row.number);
}

function fillMethods() {
  const labels = new Map(rowsOfSet().map((row) => [row.method, row.methodLabel]));
  const chips = Array.from(labels, ([method, label]) => {
    return chip("checkbox", "method", label, state.methods.has(method), (on) => {
      on ? state.methods.add(method) : state.methods.delete(method);
      fillRows();
      drawRows();
    });
  });
  fill("choose-methods", chips);
}

function fillRows() {
  const rows = rowsOfSet().filter((row) => state.methods.has(row.method));
  const chips = rows.map((row) => {
    const onChange = (on) => {
      on ? state.hidden.delete(row.number) : state.hidden.add(row.number);
      drawRows();
    };
    return chip("checkbox", "row", shortLabel(row), !state.hidden.has(row.number), onChange, lineMark(row));
  });
  fill("choose-rows", chips, 1);
}

function fillTasks() {
  const longest = longestRow(rowsOfSet());
  const last = longest.tasks.length - 1;
  Object.assign(byId("class-task"), { max: last + 1, value: last + 1 });
  state.classTask = last;
  state.forgottenTask = 0;
  const options = longest.tasks.map((name, task) => new Option(`task ${task + 1} (${name})`, task));
  byId("forgotten-task").replaceChildren(...options);
  nameClassTask();
}

function nameClassTask() {
  nameTask("class-task", longestRow(rowsOfSet()), state.classTask);
}

function nameTask(id, row, task) {
  byId(`${id}-name`).textContent = taskTitle(row, task);
  byId(id).setAttribute("aria-valuetext", taskTitle(row, task));
}

function fillPairRows() {
  const rows = rowsWithPairs();
  byId("pairs-present").hidden = !rows.length;
  byId("pairs-absent").hidden = rows.length > 0;
  if (!rows.length) return;
  const first = d3.greatest(rows, (row) => row.usesGradients ? row.metrics.average_accuracy[0] + 1 : 0);
  byId("pair-row").replaceChildren(...rows.map((row) => new Option(row.label, row.number)));
  byId("pair-row").value = first.number;
  choosePairRow(first.number);
}

function choosePairRow(number) {
  state.pairRow = number;
  const last = data.rows[number].tasks.length - 1;
  state.pairTask = last;
  Object.assign(byId("pair-task"), { max: last + 1, value: last + 1 });
}

function listen() {
  byId("class-task").addEventListener("input", (event) => {
    state.classTask = Number(event.target.value) - 1;
    nameClassTask();
    drawClasses();
  });
  byId("forgotten-task").addEventListener("change", (event) => {
    state.forgottenTask = Number(event.target.value);
    drawTask();
  });
  byId("pair-row").addEventListener("change", (event) => {
    choosePairRow(Number(event.target.value));
    drawPairSection();
  });
  byId("pair-measure").addEventListener("change", (event) => {
    state.pairMeasure = event.target.value;
    drawPairSection();
  });
  byId("pair-task").addEventListener("input", (event) => {
    state.pairTask = Number(event.target.value) - 1;
    drawPairSection();
  });
  byId("pair-details").addEventListener("toggle", drawPairSection);
  for (const button of document.querySelectorAll("[data-download]")) {
    button.addEventListener("click", () => download(button.dataset.download));
  }
}
