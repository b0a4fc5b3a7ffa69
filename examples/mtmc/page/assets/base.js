// The data of the page, and what every part of it needs. Text from data goes into the page by textContent alone, and
// into pictures through plain(), since plotly reads a kind of HTML.
const D = JSON.parse(document.getElementById("data").textContent);
const T = D.tracklets, P = D.pairs, N = T.camera.length, CAMERAS = D.cameras.name;
const COLOURS = ["#1f6fb4", "#a8480b", "#2a7d3f", "#b3263a", "#6a4fb3", "#7c4a3a", "#b02a86", "#55605f", "#6f6a00", "#0b7a85"];
const KINDS = {wrong: "wrong join", missed: "missed join", doubtful: "doubtful join"};
const NARROW = window.matchMedia("(max-width: 40rem)");

const byId = (id) => document.getElementById(id);

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") made.addEventListener("click", value);
    else if (value !== null) made.setAttribute(name, value);
  }
  made.append(...children.map((child) => (typeof child === "object" ? child : String(child))));
  return made;
}

function plain(text) {
  return String(text).replace(/\s+/g, " ").replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

const short = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const signed = (x) => (x <= -900 ? "−∞" : (x < 0 ? "−" : "+") + Math.abs(x).toFixed(2));
const camera = (n) => CAMERAS[T.camera[n]];
const title = (n) => `${camera(n)} #${T.id[n]}`;
const seconds = (x) => (x === null ? "–" : `${x < 0 ? "−" : ""}${Math.abs(x) < 100 ? Math.abs(x).toFixed(1) : Math.round(Math.abs(x))} s`);

// A time as h:mm:ss; seconds since 1970 as the time of day in UTC.
function clock(time) {
  const whole = Math.round(time), day = 86400;
  const of = Math.abs(whole) > 1e8 ? ((whole % day) + day) % day : Math.abs(whole);
  const two = (x) => String(x).padStart(2, "0");
  return `${whole < 0 ? "−" : ""}${Math.floor(of / 3600)}:${two(Math.floor(of / 60) % 60)}:${two(of % 60)}`;
}

function draw(where, traces, layout) {
  const axis = {gridcolor: colour("line"), zerolinecolor: colour("line"), linecolor: colour("line"), fixedrange: true};
  const whole = {
    font: {family: "system-ui, sans-serif", size: 12, color: colour("ink")},
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false, showlegend: false, hovermode: "closest",
    hoverlabel: {align: "left", bgcolor: colour("panel"), bordercolor: colour("muted"), font: {color: colour("ink"), size: 12}},
    ...layout,
    xaxis: {...axis, ...layout.xaxis}, yaxis: {...axis, ...layout.yaxis},
  };
  return Plotly.react(where, traces, whole, {responsive: true, displayModeBar: false});
}

function tableOf(where, head, rows) {
  const cells = (tag, row) => row.map((cell, n) => el(n ? tag : "th", {scope: n && tag === "td" ? null : n ? "col" : tag === "th" ? "col" : "row"}, cell));
  where.replaceChildren(
    el("thead", {}, el("tr", {}, ...cells("th", head))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...cells("td", row)))),
  );
}

// Who belongs together, who is joined to whom, which candidates and errors touch a tracklet.
const MEMBERS = new Map(), BEFORE = new Int32Array(N).fill(-1), AFTER = new Int32Array(N).fill(-1);
for (let n = 0; n < N; n++) {
  const own = MEMBERS.get(T.identity[n]) || [];
  if (own.length) { BEFORE[n] = own[own.length - 1]; AFTER[BEFORE[n]] = n; }
  own.push(n);
  MEMBERS.set(T.identity[n], own);
}
const TRUE_BEFORE = new Int32Array(N).fill(-1);
if (T.true) {
  const last = new Map();
  T.true.forEach((who, n) => {
    if (who < 0) return;
    if (last.has(who)) TRUE_BEFORE[n] = last.get(who);
    last.set(who, n);
  });
}
const PAIRS_BEFORE = Array.from({length: N}, () => []), PAIRS_AFTER = Array.from({length: N}, () => []);
P.source.forEach((source, pair) => { PAIRS_AFTER[source].push(pair); PAIRS_BEFORE[P.target[pair]].push(pair); });
const ERRORS_OF = Array.from({length: N}, () => []);
D.errors.forEach((error, n) => { ERRORS_OF[error.earlier].push(n); ERRORS_OF[error.later].push(n); });

const pairOf = (a, b) => PAIRS_BEFORE[b].find((pair) => P.source[pair] === a);
const isWrong = (a, b) => T.true !== null && (T.true[a] < 0 || T.true[a] !== T.true[b]);
