// The chosen tracklet with its candidates and their reasons, the identities, and the errors: all as tables.
const PAGE = 150, limits = {identities: PAGE, errors: PAGE};
const REASON_NAMES = Object.keys(P.reasons);
const number = (text) => el("td", {class: "n"}, text);
const trackletButton = (n) => el("button", {type: "button", class: "link", onclick: () => show([n])}, short(title(n), 40));

function candidateRow(pair, other, joined, truly) {
  const mark = [joined ? "joined" : "", truly ? "true" : ""].filter(Boolean).join(", ");
  return el("tr", {class: joined ? "best" : null},
    el("th", {scope: "row"}, trackletButton(other)), el("td", {}, mark), number(seconds(P.delay[pair])),
    ...REASON_NAMES.map((name) => number(signed(P.reasons[name][pair]))), number(signed(P.gain[pair])));
}

function candidateTable(caption, pairs, otherOf, joined, truly) {
  if (!pairs.length) return el("p", {class: "muted"}, `${caption}: no candidate.`);
  const best = pairs.filter((p) => P.gain[p] > -900).sort((a, b) => P.gain[b] - P.gain[a]);
  const shown = best.slice(0, 8).concat(best.slice(8).filter((p) => otherOf(p) === joined || truly(otherOf(p))));
  const head = ["tracklet", "", "delay", ...REASON_NAMES, "score"];
  const box = el("div", {class: "wide", role: "region", tabindex: 0, "aria-label": caption},
    el("table", {class: "plain"},
      el("thead", {}, el("tr", {}, ...head.map((name, n) => el("th", {scope: "col", class: n > 1 ? "n" : null}, name)))),
      el("tbody", {}, ...shown.map((p) => candidateRow(p, otherOf(p), otherOf(p) === joined, truly(otherOf(p)))))));
  const words = `${caption}, in log-odds against nobody (${shown.length} of ${pairs.length})`;
  return el("figure", {}, el("figcaption", {}, words), box);
}

function drawDetails() {
  const n = state.selected, where = byId("details");
  if (n < 0) { where.replaceChildren(); return; }
  const who = T.identity[n], parts = [];
  if (state.error >= 0) {
    const error = D.errors[state.error];
    parts.push(el("h3", {class: "bad"}, `Error ${state.error + 1}: ${KINDS[error.kind]}`),
      el("p", {}, trackletButton(error.earlier), " then ", trackletButton(error.later), `: ${error.why}.`));
  }
  const truly = T.true ? (T.true[n] < 0 ? "; truly nobody" : `; truly ${T.true[n]}`) : "";
  parts.push(el("h3", {}, `${title(n)}: identity ${who}${truly}`),
    el("p", {}, `${clock(T.in[n])} to ${clock(T.out[n])}, ${T.boxes[n]} boxes; ${MEMBERS.get(who).length} tracklet(s) in this identity.`));
  const buttons = el("div", {class: "buttons"});
  if (BEFORE[n] >= 0) buttons.append(el("button", {type: "button", onclick: () => show([BEFORE[n]])}, "The one before"));
  if (AFTER[n] >= 0) buttons.append(el("button", {type: "button", onclick: () => show([AFTER[n]])}, "The one after"));
  if (state.identity !== who) buttons.append(el("button", {type: "button", onclick: () => onlyIdentity(who)}, `Only identity ${who}`));
  for (const error of ERRORS_OF[n]) {
    if (error !== state.error) buttons.append(el("button", {type: "button", onclick: () => showError(error)}, `Error ${error + 1}`));
  }
  if (state.error >= 0) buttons.append(el("button", {type: "button", id: "back", onclick: () => toRow(state.error)}, "Back to the list of errors"));
  parts.push(buttons,
    candidateTable("Who it may have been before", PAIRS_BEFORE[n], (p) => P.source[p], BEFORE[n], (a) => TRUE_BEFORE[n] === a),
    candidateTable("Who it may be next", PAIRS_AFTER[n], (p) => P.target[p], AFTER[n], (b) => TRUE_BEFORE[b] === n));
  where.replaceChildren(...parts);
}

function onlyIdentity(who) {
  byId("f-identity").value = who;
  byId("f-identity").dispatchEvent(new Event("input"));
  byId("details").focus();
}

// Rows in portions, so that thousands stay quick; the last row asks for more.
function fill(where, name, items, rowOf, columns) {
  const rows = items.slice(0, limits[name]).map(rowOf);
  if (items.length > limits[name]) {
    const more = () => { limits[name] += PAGE; DRAW[name](); };
    rows.push(el("tr", {}, el("td", {colspan: columns}, el("button", {type: "button", onclick: more}, `Show more (${items.length - limits[name]} left)`))));
  } else if (!items.length) rows.push(el("tr", {}, el("td", {colspan: columns}, "None.")));
  where.replaceChildren(...rows);
}

function drawIdentities() {
  const shown = [...new Set(filtered.map((n) => T.identity[n]))];
  fill(byId("identities"), "identities", shown, (who) => {
    const own = MEMBERS.get(who), errors = new Set(own.flatMap((n) => ERRORS_OF[n])).size;
    const cameras = own.map(camera).filter((name, n, all) => name !== all[n - 1]).map((name) => short(name, 24));
    const button = el("button", {type: "button", class: "link", onclick: () => showIdentity(who)}, `Identity ${who}`);
    return el("tr", {class: state.selected >= 0 && T.identity[state.selected] === who ? "chosen" : null},
      el("th", {scope: "row"}, button), el("td", {}, clock(T.in[own[0]])), el("td", {}, clock(Math.max(...own.map((n) => T.out[n])))),
      number(own.length), el("td", {}, short(cameras.join(" → "), 120)), number(errors || ""));
  }, 6);
}

function showIdentity(who) {
  const own = MEMBERS.get(who);
  if (!own.every(passes)) resetFilters();
  fit(own);
  show([own[0]]);
}

const shownErrors = () => D.errors.map((_, n) => n).filter((n) => {
  const error = D.errors[n], ends = [error.earlier, error.later];
  return (!state.kind || error.kind === state.kind)
    && (state.camera < 0 || ends.some((e) => T.camera[e] === state.camera))
    && (state.identity === null || ends.some((e) => T.identity[e] === state.identity));
});

function drawErrors() {
  const shown = shownErrors(), at = shown.indexOf(state.error);
  if (at >= limits.errors) limits.errors = PAGE * Math.ceil((at + 1) / PAGE);
  fill(byId("errors"), "errors", shown, (n) => {
    const error = D.errors[n], pair = pairOf(error.earlier, error.later);
    const button = el("button", {type: "button", class: "link error", "data-error": n, onclick: () => showError(n)}, `Error ${n + 1}`);
    return el("tr", {class: n === state.error ? "chosen" : null, "aria-current": n === state.error ? "true" : null},
      el("th", {scope: "row"}, button), el("td", {}, KINDS[error.kind]), el("td", {}, trackletButton(error.earlier)),
      el("td", {}, trackletButton(error.later)), number(pair === undefined ? "–" : signed(P.gain[pair])), el("td", {}, error.why));
  }, 6);
  byId("e-previous").disabled = !shown.length || at === 0;
  byId("e-next").disabled = !shown.length || at === shown.length - 1;
  const count = (kind) => D.errors.filter((error) => error.kind === kind).length;
  byId("errors-words").textContent = T.true === null
    ? "No truth was given, so errors are not known. These are the joins that the scores are least sure of."
    : `${count("wrong")} wrong joins and ${count("missed")} missed joins; ${shown.length} pass the filters. `
      + "Each leads to its tracklets in the timeline; arrow keys move along the list.";
}

function showError(n) {
  const error = D.errors[n];
  show([error.earlier, error.later], {error: n});
}

function toRow(n) {
  const button = byId("errors").querySelector(`[data-error="${n}"]`);
  if (button) { byId("h-errors").scrollIntoView(); button.focus(); } else byId("e-next").focus();
}

function stepError(by) {
  const shown = shownErrors(), at = shown.indexOf(state.error);
  const next = at < 0 ? (by > 0 ? 0 : shown.length - 1) : Math.max(0, Math.min(shown.length - 1, at + by));
  if (shown.length) showError(shown[next]);
}

byId("e-previous").addEventListener("click", () => stepError(-1));
byId("e-next").addEventListener("click", () => stepError(1));
byId("e-kind").append(...[...new Set(D.errors.map((error) => error.kind))].map((kind) => el("option", {value: kind}, KINDS[kind])));
byId("e-kind").addEventListener("change", (event) => { state.kind = event.target.value; changed(["errors"]); });
byId("errors").addEventListener("keydown", (event) => {
  const buttons = [...byId("errors").querySelectorAll("button.error")], at = buttons.indexOf(document.activeElement);
  const to = {ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1}[event.key];
  if (at < 0 || to === undefined || !buttons[to]) return;
  event.preventDefault();
  buttons[to].focus();
});
if (!T.true) {
  byId("h-errors").textContent = "Doubtful joins";
  byId("identities-errors").textContent = "doubtful";
}
