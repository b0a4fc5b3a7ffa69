// Swim lanes by camera over time, coloured by identity. Only the window that is shown is drawn, so hours stay quick.
const MOST_BARS = 1500, LANE = 20;

function fit(tracklets) {
  const first = Math.min(...tracklets.map((n) => T.in[n])), last = Math.max(...tracklets.map((n) => T.out[n]));
  state.span = Math.min(END - START, Math.max(30, 1.2 * (last - first)));
  state.from = (first + last) / 2 - state.span / 2;
}

// Rows: within a camera, tracklets that are there at once lie beneath one another.
function lanesOf(tracklets) {
  const ends = CAMERAS.map(() => []), lane = new Map();
  for (const n of tracklets) {
    const own = ends[T.camera[n]];
    let free = own.findIndex((end) => end <= T.in[n]);
    if (free < 0) free = own.push(0) - 1;
    own[free] = T.out[n];
    lane.set(n, free);
  }
  const top = [], shown = [];
  let rows = 0;
  ends.forEach((own, c) => {
    top.push(rows);
    if (own.length || state.camera < 0) { shown.push(c); rows += Math.max(1, own.length); }
  });
  return {row: (n) => top[T.camera[n]] + lane.get(n), top, height: ends.map((own) => Math.max(1, own.length)), shown, rows};
}

function timeTicks(from, span) {
  const most = NARROW.matches ? 3 : 8;
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];
  const step = steps.find((s) => span / s <= most) || Math.ceil(span / most / 86400) * 86400;
  const at = [];
  for (let t = Math.ceil(from / step) * step; t <= from + span; t += step) at.push(t);
  return at;
}

function hoverOf(n) {
  const lines = [`<b>${plain(short(title(n), 60))}</b>`, `identity ${T.identity[n]}`];
  if (T.true) lines.push(T.true[n] < 0 ? "truly nobody (false detections)" : `truly ${T.true[n]}`);
  lines.push(`${clock(T.in[n])} to ${clock(T.out[n])}, ${T.boxes[n]} boxes`);
  if (BEFORE[n] >= 0) {
    const pair = pairOf(BEFORE[n], n);
    lines.push(`after ${plain(short(title(BEFORE[n]), 60))}${pair === undefined ? "" : ", score " + signed(P.gain[pair])}`);
  }
  for (const error of ERRORS_OF[n]) lines.push(`error ${error + 1}: ${KINDS[D.errors[error].kind]}`);
  return lines.join("<br>");
}

// Lines between the ends of tracklets, as one trace.
function connectors(pairs, row, style) {
  const x = [], y = [];
  for (const [a, b] of pairs) { x.push(T.out[a], T.in[b], null); y.push(row(a), row(b), null); }
  return {type: "scatter", mode: "lines", x, y, line: {width: 2, ...style}, hoverinfo: "skip"};
}

function drawTimeline() {
  state.span = Math.max(5, Math.min(state.span, END - START));
  state.from = Math.max(START, Math.min(state.from, END - state.span));
  const end = state.from + state.span;
  const inside = filtered.filter((n) => T.out[n] >= state.from && T.in[n] <= end);
  const bars = inside.slice(0, MOST_BARS);
  const lanes = lanesOf(inside), row = lanes.row, drawn = new Set(bars);
  const error = state.error >= 0 ? D.errors[state.error] : null;
  const marked = new Set(error ? [error.earlier, error.later] : state.selected >= 0 ? [state.selected] : []);
  const chosen = state.selected >= 0 ? T.identity[state.selected] : null;
  const bright = (n) => chosen === null || T.identity[n] === chosen || marked.has(n);
  const joinedWrongly = (n) => BEFORE[n] >= 0 && isWrong(BEFORE[n], n);
  const start = (n) => Math.max(T.in[n], state.from);
  const length = (n) => Math.max(Math.min(T.out[n], end) - start(n), state.span * 0.003);
  const pixels = (byId("lanes").clientWidth - 80) / state.span;
  const label = (n) => (length(n) * pixels > 8 * String(T.identity[n]).length + 6 ? String(T.identity[n]) : "");
  const traces = [{
    type: "bar", orientation: "h", y: bars.map(row), base: bars.map(start), width: 0.8,
    x: bars.map(length),
    text: bars.map(label), textposition: "inside", insidetextanchor: "start", textangle: 0, constraintext: "none",
    insidetextfont: {color: bars.map((n) => (bright(n) ? "#fff" : colour("ink"))), size: 11}, hovertext: bars.map(hoverOf), hovertemplate: "%{hovertext}<extra></extra>",
    customdata: bars,
    marker: {
      color: bars.map((n) => COLOURS[T.identity[n] % COLOURS.length]),
      opacity: bars.map((n) => (bright(n) ? 1 : 0.3)),
      line: {
        color: bars.map((n) => (marked.has(n) ? colour("ink") : joinedWrongly(n) ? colour("bad") : "rgba(0,0,0,0)")),
        width: bars.map((n) => (marked.has(n) ? 3 : joinedWrongly(n) ? 2 : 0)),
      },
    },
  }];
  const both = ([a, b]) => drawn.has(a) && drawn.has(b);
  if (chosen !== null) {
    const own = MEMBERS.get(chosen).slice(1).map((n) => [BEFORE[n], n]).filter(both);
    traces.push(connectors(own.filter(([a, b]) => !isWrong(a, b)), row, {color: colour("ink")}));
    traces.push(connectors(own.filter(([a, b]) => isWrong(a, b)), row, {color: colour("bad"), width: 3}));
  }
  const shownErrors = error ? [error] : state.errors ? D.errors : [];
  const ends = (kind) => shownErrors.filter((e) => (e.kind === "missed") === kind).map((e) => [e.earlier, e.later]).filter(both);
  traces.push(connectors(ends(true), row, {color: colour("bad"), width: 3, dash: "dot"}));
  traces.push(connectors(ends(false), row, {color: colour("bad"), width: 3}));
  const edges = lanes.shown.slice(1).map((c) => lanes.top[c] - 0.5);
  traces.push({
    type: "scatter", mode: "lines", x: edges.flatMap(() => [state.from, end, null]), y: edges.flatMap((y) => [y, y, null]),
    line: {color: colour("line"), width: 1}, hoverinfo: "skip",
  });
  const longest = NARROW.matches ? 9 : 22, names = lanes.shown.map((c) => plain(short(CAMERAS[c], longest)));
  const at = timeTicks(state.from, state.span);
  draw("timeline", traces, {
    height: 60 + LANE * Math.max(lanes.rows, 3), barmode: "overlay",
    margin: {l: 14 + 7.5 * Math.min(longest, Math.max(4, ...lanes.shown.map((c) => CAMERAS[c].length))), r: 12, t: 32, b: 12},
    xaxis: {side: "top", range: [state.from, end], tickvals: at, ticktext: at.map(clock)},
    yaxis: {
      range: [Math.max(lanes.rows, 3) - 0.5, -0.5], showgrid: false, zeroline: false,
      tickvals: lanes.shown.map((c) => lanes.top[c] + (lanes.height[c] - 1) / 2), ticktext: names,
    },
  });
  const hidden = inside.length - bars.length;
  byId("t-shown").textContent = `${clock(state.from)} to ${clock(end)}${hidden ? `; ${hidden} tracklets not drawn: zoom in` : ""}`;
  byId("t-from").value = END - START > state.span ? Math.round(1000 * (state.from - START) / (END - START - state.span)) : 0;
  byId("t-from").disabled = END - START <= state.span;
  byId("t-from").setAttribute("aria-valuetext", clock(state.from));
  byId("t-earlier").disabled = state.from <= START;
  byId("t-later").disabled = byId("t-out").disabled = byId("t-all").disabled = false;
  byId("t-later").disabled = end >= END;
  byId("t-out").disabled = byId("t-all").disabled = state.span >= END - START;
}

function moveTimeline(by, zoom) {
  const middle = state.from + state.span / 2;
  state.span = Math.max(5, Math.min(state.span * zoom, END - START));
  state.from = middle - state.span / 2 + by * state.span;
  changed(["timeline"]);
}
byId("t-earlier").addEventListener("click", () => moveTimeline(-0.5, 1));
byId("t-later").addEventListener("click", () => moveTimeline(0.5, 1));
byId("t-in").addEventListener("click", () => moveTimeline(0, 0.5));
byId("t-out").addEventListener("click", () => moveTimeline(0, 2));
byId("t-all").addEventListener("click", () => moveTimeline(0, Infinity));
byId("t-from").addEventListener("input", (event) => {
  state.from = START + (END - START - state.span) * event.target.value / 1000;
  changed(["timeline"]);
});
byId("timeline-legend").textContent = T.true
  ? "A red edge: joined to the wrong one before. Red lines: wrong joins; dotted: missed ones." : "";
