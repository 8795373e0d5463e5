// Draw the charts at the start and whenever the state or the width changes.

function drawRows() {
  drawAccuracy();
  drawClasses();
  drawForgetting();
  drawTask();
  drawCost();
}

function drawPairSection() {
  if (!rowsWithPairs().length) return;
  nameTask("pair-task", data.rows[state.pairRow], state.pairTask);
  drawPairs();
}

function drawAll() {
  drawRows();
  drawPairSection();
}

function drawOnResize() {
  const main = document.querySelector("main");
  let width = main.clientWidth;
  new ResizeObserver(() => {
    if (main.clientWidth === width) return;
    width = main.clientWidth;
    requestAnimationFrame(drawAll);
  }).observe(main);
}

function drawForPrint(on) {
  printing = on;
  drawAll();
}

document.querySelector(".controls").hidden = false;
listen();
fillSets();
chooseSet(state.set);
drawOnResize();
addEventListener("beforeprint", () => drawForPrint(true));
addEventListener("afterprint", () => drawForPrint(false));
document.documentElement.dataset.ready = "yes";
