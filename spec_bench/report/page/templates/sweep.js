// Unpacks plotly.js, and draws the figures of the group that is chosen.
(async () => {
  const unpacked = async (id) => {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  };
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const parts = read("data"), titles = read("titles");
  const choice = document.getElementById("part"), place = document.getElementById("figures");
  const missing = document.getElementById("missing");
  const common = {
    margin: { l: 55, r: 15, t: 10, b: 45 }, font: { size: 12, color: "#1b1f24" },
    paper_bgcolor: "#fff", plot_bgcolor: "#fff", hovermode: "closest",
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" }, showlegend: true,
  };
  const options = { responsive: true, displaylogo: false, displayModeBar: false };
  // On a narrow screen a legend has two columns, or one of long names, and the plot keeps its height
  // below it.
  const narrowed = (plot, figure, layout) => {
    if (plot.clientWidth > 460) return layout;
    const columns = figure.data.some((trace) => (trace.name || "").length > 14) ? 1 : 2;
    const rows = Math.ceil(figure.data.length / columns);
    plot.style.height = `${16 + 1.3 * rows}rem`;
    const legend = { ...layout.legend, entrywidth: 1 / columns, entrywidthmode: "fraction", x: -0.1 };
    return { ...layout, legend, font: { ...layout.font, size: 11 } };
  };
  const axis = (own) => ({ gridcolor: "#e6e6e6", zeroline: false, automargin: true, ...own });
  const framed = (around, figure, text) => {
    const frame = document.createElement("figure"), title = document.createElement("h3");
    const plot = document.createElement("div");
    title.textContent = text;
    plot.className = "plot";
    frame.append(...(text ? [title, plot] : [plot]));
    around.append(frame);
    const layout = { ...common, ...figure.layout };
    layout.xaxis = axis(layout.xaxis);
    layout.yaxis = axis(layout.yaxis);
    return () => Plotly.newPlot(plot, figure.data, narrowed(plot, figure, layout), options);
  };
  const show = () => {
    place.querySelectorAll(".plot").forEach((plot) => Plotly.purge(plot));
    place.replaceChildren();
    const part = parts[Number(choice.value)] || { figures: {}, missing: {} };
    const drawings = Object.entries(part.figures).map(([key, figure]) => framed(place, figure, titles[key]));
    drawings.forEach((draw) => draw()); // once all frames stand, and have their widths
    const without = Object.entries(part.missing).map(([key, why]) => `${titles[key]} (${why})`);
    missing.textContent = without.length ? `Not drawn: ${without.join("; ")}.` : "";
  };
  try {
    const script = document.createElement("script");
    script.textContent = await unpacked("plotly");
    document.head.append(script);
  } catch (error) {
    missing.textContent = `No figures: this browser cannot unpack the script that draws them (${error}).`;
    return;
  }
  choice.addEventListener("change", show);
  document.querySelectorAll("tr[data-part]").forEach((row) => row.addEventListener("click", () => {
    choice.value = row.dataset.part;
    show();
    place.scrollIntoView();
  }));
  window.addEventListener("beforeprint", () => {
    document.querySelectorAll(".plot").forEach((plot) => Plotly.Plots.resize(plot));
  });
  show();
  for (const around of document.querySelectorAll("[data-chart]")) {
    const chart = read("charts")[Number(around.dataset.chart)];
    if (chart) framed(around, chart, "")();
  }
})();
