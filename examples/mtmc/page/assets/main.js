// Draw everything once, and again where the colours or the width of the page change.
const DRAW = {timeline: drawTimeline, details: drawDetails, identities: drawIdentities, errors: drawErrors, matrix: drawMatrix,
  map: drawMap, transits: drawTransits, reliability: drawReliability};

const truths = T.true ? new Set(T.true.filter((who) => who >= 0)).size : null;
const FIGURES = [["cameras", CAMERAS.length], ["tracklets", N], ["identities", MEMBERS.size], ...(truths === null ? [] : [["true identities", truths]]),
  ["candidates", P.source.length + P.left_out],
  ...(truths === null ? [] : ["wrong", "missed"].map((kind) => [`${kind} joins`, D.errors.filter((error) => error.kind === kind).length]))];
byId("figures").append(...FIGURES.map(([name, value]) => el("li", {}, el("b", {}, value.toLocaleString("en")), name)));

// At first so much time that one or two hundred tracklets show.
const FEW = NARROW.matches ? 60 : 200;
if (N > FEW) { state.span = (END - START) * FEW / N; state.from = (START + END) / 2 - state.span / 2; }
applyFilters();
state.matrixAt = Math.max(0, filtered.findIndex((n) => T.in[n] >= state.from));
changed(Object.keys(DRAW));
byId("timeline").on("plotly_click", (event) => {
  const n = event.points[0].customdata;
  if (n !== undefined) show([n], {focus: false});
});
byId("matrix").on("plotly_click", (event) => {
  const pair = event.points[0].customdata;
  if (pair >= 0) show([P.source[pair], P.target[pair]]);
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => changed(Object.keys(DRAW)));
NARROW.addEventListener("change", () => changed(["timeline", "matrix", "map"]));
document.documentElement.dataset.drawn = "true";
