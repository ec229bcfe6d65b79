// Draws each figure from the data beside it, in the colours of the page.
(function () {
  "use strict";
  var dark = window.matchMedia("(prefers-color-scheme: dark)");
  function draw() {
    var style = getComputedStyle(document.body);
    var line = style.getPropertyValue("--line");
    document.querySelectorAll(".plot").forEach(function (place) {
      var plot = JSON.parse(place.nextElementSibling.textContent);
      var axis = { gridcolor: line, zerolinecolor: line, automargin: true };
      var layout = Object.assign({}, plot.layout, {
        font: { color: style.color, family: style.fontFamily },
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        margin: { t: 24, r: 16 },
        legend: { orientation: "h", y: 1.12 },
        xaxis: Object.assign({}, axis, plot.layout.xaxis),
        yaxis: Object.assign({}, axis, plot.layout.yaxis)
      });
      Plotly.react(place, plot.data, layout, { displayModeBar: false, responsive: true });
    });
  }
  draw();
  dark.addEventListener("change", draw);
})();
