const specs = JSON.parse(document.getElementById("specs").textContent);
const night = window.matchMedia("(prefers-color-scheme: dark)");
let printing = false;

function config(dark) {
  const ink = dark ? "#d6d9dc" : "#33383d", faint = dark ? "#3b4147" : "#e3e6e8";
  const text = { labelColor: ink, titleColor: ink, labelFontSize: 11, titleFontSize: 12, titleFontWeight: "normal" };
  return {
    background: "transparent",
    font: "system-ui, sans-serif",
    view: { stroke: null },
    axis: { ...text, gridColor: faint, domainColor: faint, tickColor: faint },
    legend: text,
    text: { color: ink, fontSize: 11 },
  };
}

function draw() {
  const dark = night.matches && !printing;
  const jobs = Object.entries(specs).map(([id, spec]) =>
    vegaEmbed("#" + id, spec, { actions: false, renderer: "svg", config: config(dark), tooltip: { theme: dark ? "dark" : "light" } }));
  return Promise.all(jobs).then(() => { document.documentElement.dataset.drawn = "yes"; });
}

night.addEventListener("change", draw);
window.addEventListener("beforeprint", () => { printing = true; draw(); });
window.addEventListener("afterprint", () => { printing = false; draw(); });
draw();
