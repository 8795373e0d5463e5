// Downloads, made from the embedded data on demand.

const DOWNLOADS = { results: resultLines, accuracy: accuracyLines, classes: classLines, pairs: pairLines, runs: runLines };

function resultLines() {
  const metrics = Object.keys(data.rows[0].metrics);
  const head = ["data", "method", "mix", "label", "seeds"];
  for (const name of metrics) head.push(name, `${name}_std`);
  head.push("paper_average_accuracy", "paper_std", "difference");
  const lines = data.rows.map((row) => {
    const values = metrics.flatMap((name) => row.metrics[name]);
    const paper = row.paper ?? [null, null];
    const difference = row.paper ? (row.metrics.average_accuracy[0] - paper[0]).toFixed(4) : null;
    return [row.data, row.method, row.mix, row.label, row.seeds.join(" "), ...values, ...paper, difference];
  });
  return [head, ...lines];
}

function accuracyLines() {
  const head = ["data", "method", "mix", "label", "seed", "after_task", "on_task", "accuracy"];
  const lines = data.runs.flatMap((run) => {
    const row = data.rows[run.row];
    return run.accuracy.flatMap((line, after) => {
      const own = [row.data, row.method, row.mix, row.label, run.config.seed];
      return line.map((accuracy, on) => [...own, after + 1, on + 1, accuracy]);
    });
  });
  return [head, ...lines];
}

function classLines() {
  const head = ["data", "method", "mix", "label", "after_task", "class", "accuracy", "std"];
  const lines = data.rows.flatMap((row) => {
    const names = axisOf(row).names;
    return row.classes.flatMap((line, after) => {
      const own = [row.data, row.method, row.mix, row.label, after + 1];
      return line.map((value, part) => [...own, names[part], ...value]);
    });
  });
  return [head, ...lines];
}

function pairLines() {
  const head = ["data", "method", "mix", "label", "task", "class", "partner", "count"];
  const lines = data.rows.filter((row) => row.pairs).flatMap((row) => {
    const axis = axisOf(row);
    return row.pairs.flatMap((counts, task) => {
      const seen = axis.seen[task];
      const own = [row.data, row.method, row.mix, row.label, task + 1];
      return counts.map((count, i) => {
        return [...own, axis.names[Math.floor(i / seen)], axis.names[i % seen], count];
      });
    });
  });
  return [head, ...lines];
}

function runLines() {
  const groups = ["config", "metrics", "seconds", "versions"];
  const columns = groups.flatMap((group) => {
    const names = new Set(data.runs.flatMap((run) => Object.keys(run[group])));
    return Array.from(names, (name) => [group, name]);
  });
  const head = columns.map(([group, name]) => (group === "config" ? name : `${group}.${name}`));
  const lines = data.runs.map((run) => columns.map(([group, name]) => run[group][name]));
  return [head, ...lines];
}

function toCsv(lines) {
  return lines.map((line) => line.map(csvField).join(",") + "\r\n").join("");
}

function csvField(value) {
  if (value === null || value === undefined) return "";
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function download(name) {
  const blob = new Blob([toCsv(DOWNLOADS[name]())], { type: "text/csv" });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `gradmix-${name}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
