// The match matrix, the map, the transit times and the reliability diagram.
const matrixSize = () => (NARROW.matches ? 16 : 40);

function pairHover(pair) {
  const a = P.source[pair], b = P.target[pair], lines = [`${plain(short(title(a), 40))} → ${plain(short(title(b), 40))}`];
  lines.push(`delay ${seconds(P.delay[pair])}`);
  for (const name of REASON_NAMES) lines.push(`${name} ${signed(P.reasons[name][pair])}`);
  lines.push(`<b>score ${signed(P.gain[pair])}</b>, probability ${P.probability[pair].toFixed(3)}`);
  if (AFTER[a] === b) lines.push("joined");
  if (TRUE_BEFORE[b] === a) lines.push("true");
  return lines.join("<br>");
}

function drawMatrix() {
  const size = matrixSize();
  state.matrixAt = Math.max(0, Math.min(state.matrixAt, filtered.length - size));
  const shown = filtered.slice(state.matrixAt, state.matrixAt + size), place = new Map(shown.map((n, k) => [n, k]));
  const z = shown.map(() => shown.map(() => null)), text = shown.map(() => shown.map(() => "")), pair = shown.map(() => shown.map(() => -1));
  const joined = {x: [], y: []}, truly = {x: [], y: []};
  shown.forEach((b, row) => {
    for (const p of PAIRS_BEFORE[b]) {
      const column = place.get(P.source[p]);
      if (column === undefined) continue;
      z[row][column] = P.probability[p];
      text[row][column] = pairHover(p);
      pair[row][column] = p;
    }
    if (place.has(BEFORE[b])) { joined.x.push(place.get(BEFORE[b])); joined.y.push(row); }
    if (place.has(TRUE_BEFORE[b])) { truly.x.push(place.get(TRUE_BEFORE[b])); truly.y.push(row); }
  });
  const width = byId("matrix").clientWidth, side = Math.max(280, Math.min(width, 820));
  const names = shown.map((n) => plain(short(camera(n), 8) + " #" + T.id[n])), at = shown.map((_, k) => k);
  const axis = {tickvals: at, ticktext: names, showgrid: true, zeroline: false, tickfont: {size: 10}, range: [-0.5, shown.length - 0.5]};
  const traces = [
    {type: "heatmap", z, text, customdata: pair, hovertemplate: "%{text}<extra></extra>", hoverongaps: false, zmin: 0, zmax: 1, xgap: 1, ygap: 1,
      colorscale: [[0, colour("low")], [0.5, colour("bar")], [1, colour("high")]], showscale: !NARROW.matches,
      colorbar: {title: {text: "probability", side: "right"}, thickness: 12, outlinewidth: 0}},
    {type: "scatter", mode: "markers", name: "joined", ...joined, hoverinfo: "skip",
      marker: {symbol: "square-open", size: NARROW.matches ? 13 : 14, color: "#d95f02", line: {width: 2.5}}},
  ];
  if (T.true) {
    traces.push({type: "scatter", mode: "markers", name: "true", ...truly, hoverinfo: "skip",
      marker: {symbol: "circle", size: 6, color: colour("ink"), line: {color: colour("paper"), width: 1}}});
  }
  draw("matrix", traces, {
    height: side, showlegend: true, legend: {orientation: "h", x: 0, y: 1.01, yanchor: "bottom"}, margin: {l: 90, r: 10, t: 30, b: 90},
    xaxis: {...axis, tickangle: -90}, yaxis: {...axis, range: [shown.length - 0.5, -0.5]},
  });
  const last = state.matrixAt + shown.length;
  byId("m-shown").textContent = shown.length ? `tracklets ${state.matrixAt + 1} to ${last} of ${filtered.length}, from ${clock(T.in[shown[0]])}` : "no tracklet";
  byId("m-earlier").disabled = state.matrixAt <= 0;
  byId("m-later").disabled = last >= filtered.length;
}
byId("m-earlier").addEventListener("click", () => { state.matrixAt -= matrixSize() >> 1; changed(["matrix"]); });
byId("m-later").addEventListener("click", () => { state.matrixAt += matrixSize() >> 1; changed(["matrix"]); });

// A way from one camera to another bends to its right, so that both directions are seen.
function bend(a, b, room) {
  const dx = b[0] - a[0], dy = b[1] - a[1], length = Math.hypot(dx, dy) || 1;
  const middle = [(a[0] + b[0]) / 2 + 0.16 * dy, (a[1] + b[1]) / 2 - 0.16 * dx], x = [], y = [];
  const cut = Math.min(0.28, room / length);
  for (let k = 0; k <= 16; k++) {
    const t = cut + (1 - 2 * cut) * k / 16;
    x.push((1 - t) ** 2 * a[0] + 2 * t * (1 - t) * middle[0] + t * t * b[0]);
    y.push((1 - t) ** 2 * a[1] + 2 * t * (1 - t) * middle[1] + t * t * b[1]);
  }
  return {x, y};
}

// Where the name of a camera is least in the way of its links.
function labelPlace(c) {
  const C = D.cameras, L = D.links, ways = [];
  L.source.forEach((a, n) => {
    const other = a === c ? L.target[n] : L.target[n] === c ? a : c;
    if (other !== c) ways.push(Math.atan2(C.y[other] - C.y[c], C.x[other] - C.x[c]));
  });
  const apart = (angle) => Math.min(Math.PI, ...ways.map((way) => Math.abs(Math.atan2(Math.sin(way - angle), Math.cos(way - angle)))));
  const places = [["top center", Math.PI / 2], ["bottom center", -Math.PI / 2], ["middle right", 0], ["middle left", Math.PI]];
  return places.reduce((best, place) => (apart(place[1]) > apart(best[1]) + 0.3 ? place : best))[0];
}

function drawMap() {
  const C = D.cameras, L = D.links, traces = [], crowded = CAMERAS.length > 30, thick = crowded ? 2 : NARROW.matches ? 3.5 : 6;
  const named = !(crowded && NARROW.matches), longest = NARROW.matches ? 10 : 20;
  const wide = Math.max(...C.x) - Math.min(...C.x), high = Math.max(...C.y) - Math.min(...C.y);
  const room = 0.035 * Math.max(wide, high, 1e-6), most = Math.max(1, ...L.matched.filter((_, n) => L.source[n] !== L.target[n]));
  const rows = [], groups = new Map();  // arrows of about one width make one trace: hundreds would be slow
  L.source.forEach((a, n) => {
    const b = L.target[n], count = L.matched[n];
    rows.push([CAMERAS[a], CAMERAS[b], count, L.true ? L.true[n] : "–", seconds(L.median[n]), seconds(L.typical[n]), L.prior[n] === null ? "–" : L.prior[n].toFixed(3)]);
    if (a === b) return;
    const {x, y} = bend([C.x[a], C.y[a]], [C.x[b], C.y[b]], room), level = Math.ceil(10 * count / most);
    const lines = [`<b>${plain(short(CAMERAS[a], 40))} → ${plain(short(CAMERAS[b], 40))}</b>`, `${count} matched${L.true ? `, ${L.true[n]} true` : ""}`,
      `typically ${seconds(L.median[n])} as matched, ${seconds(L.typical[n])} as learned`];
    const group = groups.get(level) || {x: [], y: [], hovertext: [], size: []};
    group.x.push(...x, null);
    group.y.push(...y, null);
    group.hovertext.push(...x.map(() => lines.join("<br>")), "");
    group.size.push(...x.map((_, k) => (k === x.length - 1 ? (crowded ? 6 : 9) + 1.2 * (1 + thick * level / 10) : 0)), 0);
    groups.set(level, group);
  });
  for (const [level, {x, y, hovertext, size}] of [...groups].sort(([a], [b]) => a - b)) {
    const shade = level ? colour("accent") : colour("muted");
    traces.push({
      type: "scatter", mode: "lines+markers", x, y, hovertext, hovertemplate: "%{hovertext}<extra></extra>",
      line: {width: level ? 1 + thick * level / 10 : 1, color: shade, dash: level ? "solid" : "dot"},
      marker: {symbol: "arrow", angleref: "previous", color: shade, opacity: 1, line: {width: 0}, size},
    });
  }
  const own = new Map(L.source.map((a, n) => [a, L.target[n] === a ? L.matched[n] : null]).filter(([, count]) => count !== null));
  traces.push({
    type: "scatter", mode: named ? "markers+text" : "markers", x: C.x, y: C.y, text: CAMERAS.map((name) => plain(short(name, longest))), textposition: CAMERAS.map((_, c) => labelPlace(c)),
    textfont: {size: crowded ? 10 : 13}, marker: {size: crowded ? 7 : 14, color: colour("ink"), line: {color: colour("paper"), width: 2}},
    hovertext: CAMERAS.map((name, n) => `<b>${plain(short(name, 60))}</b><br>${C.tracklets[n]} tracklets${own.get(n) ? `<br>${own.get(n)} fragments joined` : ""}`),
    hovertemplate: "%{hovertext}<extra></extra>",
  });
  const frame = byId("map").clientWidth, label = named ? 8 * Math.min(longest, Math.max(...CAMERAS.map((name) => name.length))) + 16 : 10;
  const free = Math.max(frame - 20 - 2 * label, frame / 3);  // between the names on the left and those on the right
  const height = C.placed && wide > 0 ? Math.max(200, Math.min(crowded ? 760 : 460, free * high / wide + 90)) : 400;
  const hidden = {visible: false}, padX = label * Math.max(wide, 1e-6) / free, padY = 40 * Math.max(high, 1e-6) / (height - 100);
  draw("map", traces, {
    height, margin: {l: 10, r: 10, t: 10, b: 10},
    xaxis: {...hidden, range: [Math.min(...C.x) - padX, Math.max(...C.x) + padX]},
    yaxis: {...hidden, scaleanchor: C.placed ? "x" : undefined, range: [Math.min(...C.y) - padY, Math.max(...C.y) + padY]},
  });
  const off = L.elsewhere ? ` ${L.elsewhere} true passages run along no link.` : "";
  byId("map-words").textContent = "An arrow a link and direction; its width counts the passages matched along it, dotted where none was."
    + (C.placed ? "" : " The links file does not place all cameras, so they stand on a circle.") + off;
  tableOf(byId("flows"), ["from", "to", "matched", "true", "median as matched", "typical as learned", "prior"], rows);
}

function drawTransit(where, link) {
  const at = link.seen.map((_, k) => link.low + (k + 0.5) * link.step);
  draw(where, [
    {type: "bar", x: at, y: link.seen, width: link.step, marker: {color: colour("bar")}, hovertemplate: "%{x:.1f} s: %{y:.3g} a second<extra></extra>"},
    {type: "scatter", mode: "lines", x: link.learned.map((_, k) => link.at[0] + k * link.at[1]), y: link.learned,
      line: {color: "#d95f02", width: 2}, hovertemplate: "%{x:.1f} s: %{y:.3g} a second, believed<extra></extra>"},
  ], {margin: {l: 8, r: 8, t: 4, b: 24}, bargap: 0, xaxis: {ticksuffix: " s", nticks: 5}, yaxis: {showticklabels: false, rangemode: "tozero"}});
}

function drawTransits() {
  const where = byId("transits"), links = D.transits;
  byId("transits-words").textContent = links.length
    ? `Bars: delays seen (${D.delays_of}), from leaving one camera to entering the next. Line: the density that was believed of that link and direction (links.yaml).`
    : "No link has three passages to draw.";
  const waiting = new IntersectionObserver((seen) => {
    for (const one of seen.filter((entry) => entry.isIntersecting)) {
      waiting.unobserve(one.target);
      drawTransit(one.target, links[Number(one.target.dataset.link)]);
    }
  }, {rootMargin: "400px"});
  where.replaceChildren(...links.map((link, n) => {
    const picture = el("div", {class: "one", "data-link": n, role: "img", "aria-label": "Histogram; the table below says the same"});
    const name = `${short(CAMERAS[link.source], 40)} → ${short(CAMERAS[link.target], 40)} (n = ${link.count})`;
    waiting.observe(picture);
    return el("figure", {}, el("figcaption", {}, name), picture);
  }));
  tableOf(byId("transits-table"), ["from", "to", "passages", "median seen", "typical as learned"],
    links.map((link) => [CAMERAS[link.source], CAMERAS[link.target], link.count, seconds(link.median), seconds(link.typical)]));
}

function drawReliability() {
  const R = D.reliability;
  byId("h-reliability").parentElement.hidden = R === null;
  if (R === null) return;
  const used = R.count.map((_, k) => k).filter((k) => R.count[k] > 0), most = Math.max(1, ...R.count);
  byId("reliability-words").textContent = "Of the candidates that were given a probability, the share that is true. On the diagonal, a probability means what it says.";
  draw("reliability", [
    {type: "scatter", mode: "lines", x: [0, 1], y: [0, 1], line: {color: colour("muted"), dash: "dot"}, hoverinfo: "skip"},
    {type: "scatter", mode: "lines+markers", x: used.map((k) => R.predicted[k]), y: used.map((k) => R.observed[k]), line: {color: colour("accent")},
      marker: {color: colour("accent"), size: used.map((k) => 6 + 14 * Math.sqrt(R.count[k] / most))},
      hovertext: used.map((k) => `said ${R.predicted[k].toFixed(3)}, true ${R.observed[k].toFixed(3)}<br>${R.count[k]} candidates`), hovertemplate: "%{hovertext}<extra></extra>"},
  ], {margin: {l: 55, r: 10, t: 10, b: 45}, xaxis: {title: {text: "probability said"}, range: [-0.03, 1.03]}, yaxis: {title: {text: "share that is true"}, range: [-0.03, 1.03]}});
  tableOf(byId("reliability-table"), ["probability", "said, mean", "true, share", "candidates"],
    R.count.map((count, k) => [`${R.edges[k].toFixed(2)} to ${R.edges[k + 1].toFixed(2)}`, count ? R.predicted[k].toFixed(3) : "–", count ? R.observed[k].toFixed(3) : "–", count]));
}
