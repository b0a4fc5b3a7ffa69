// What is chosen and what passes the filters. Every change goes through changed().
const START = N ? T.in[0] : 0;
const END = T.out.reduce((most, x) => Math.max(most, x), START + 1);
const state = {camera: -1, identity: null, errors: false, kind: "", selected: -1, error: -1, from: START, span: END - START, matrixAt: 0};
let filtered = [];

function passes(n) {
  return (state.camera < 0 || T.camera[n] === state.camera)
    && (state.identity === null || T.identity[n] === state.identity)
    && (!state.errors || ERRORS_OF[n].length > 0);
}

function applyFilters() {
  filtered = [];
  for (let n = 0; n < N; n++) if (passes(n)) filtered.push(n);
  state.matrixAt = Math.min(state.matrixAt, Math.max(0, filtered.length - 1));
  const identities = new Set(filtered.map((n) => T.identity[n])).size;
  byId("f-count").textContent = `${filtered.length} of ${N} tracklets, ${identities} identities`;
}

function changed(parts = ["timeline", "details", "identities", "errors", "matrix"]) {
  for (const part of parts) DRAW[part]();
}

function resetFilters() {
  state.camera = -1; state.identity = null; state.errors = false;
  byId("f-camera").value = ""; byId("f-identity").value = ""; byId("f-errors").checked = false;
  applyFilters();
}

// Show these tracklets: the filters that hide one of them are taken back, and the timeline moves to them.
function show(tracklets, {error = -1, focus = true} = {}) {
  if (!tracklets.every(passes)) resetFilters();
  const first = Math.min(...tracklets.map((n) => T.in[n])), last = Math.max(...tracklets.map((n) => T.out[n]));
  if (first < state.from || last > state.from + state.span || error >= 0) {
    state.span = Math.min(END - START, Math.max(error >= 0 ? 90 : state.span, 1.5 * (last - first)));
    state.from = (first + last) / 2 - state.span / 2;
  }
  state.selected = tracklets[tracklets.length - 1];
  state.error = error;
  state.matrixAt = Math.max(0, filtered.indexOf(state.selected) - Math.floor(matrixSize() / 2));
  changed();
  if (focus) {
    byId("h-timeline").scrollIntoView();
    byId("details").focus({preventScroll: true});
  }
}

byId("f-camera").append(...CAMERAS.map((name, n) => el("option", {value: n}, name)));
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("f-camera").addEventListener("change", (event) => {
  state.camera = event.target.value === "" ? -1 : Number(event.target.value);
  applyFilters(); changed();
});
byId("f-identity").addEventListener("input", (event) => {
  const wanted = event.target.value === "" ? null : Number(event.target.value);
  state.identity = wanted;
  applyFilters();
  if (MEMBERS.has(wanted)) fit(MEMBERS.get(wanted));
  changed();
});
byId("f-errors").addEventListener("change", (event) => { state.errors = event.target.checked; applyFilters(); changed(); });
byId("f-reset").addEventListener("click", () => { resetFilters(); state.selected = state.error = -1; changed(); });
if (!T.true) byId("f-errors-label").textContent = "Only doubtful joins";
