// The page of snm serve: a text, the surprisal of its words under one model or two, and what made a word probable.
"use strict";

const $ = (id) => document.getElementById(id);
const HOTTEST = 16; // bits, shown in the full colour
const SHOWN_WORDS = 4000; // more are only counted
const PIECE = 200000; // characters scored by one request
const KINDS = { ngram: "n-grams", skip: "skip-grams", class: "word classes", network: "networks and other models", cache: "caches",
  other: "others" };
const text = $("text");
let models = [];
let chosen = null; // the chosen word: {line, word}, indices into the lines of the text and the words of the line
let scored = new Map(); // model + line → result of /score
let explained = new Map(); // model + line → result of /explain
let token = sessionStorage.getItem("token");

// ------------------------------------------------------------------------------------------ talking to the server

async function ask(path, body, signal) {
  const headers = body ? { "Content-Type": "application/json" } : {};
  if (token) headers.Authorization = `Bearer ${token}`;
  const answer = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
  if (answer.status === 401) {
    await askForToken();
    return ask(path, body, signal);
  }
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  return answer.json();
}

let asking = null; // one dialog for all requests that wait for a token
function askForToken() {
  asking ??= new Promise((done) => {
    $("ask").addEventListener("close", () => {
      token = $("token").value;
      sessionStorage.setItem("token", token);
      asking = null;
      done();
    }, { once: true });
    $("ask").showModal();
  });
  return asking;
}

// Runs only the newest call of its kind, and tells its errors.
function newest(work) {
  let running = null;
  return async (...given) => {
    running?.abort();
    const own = running = new AbortController();
    try {
      await work(own.signal, ...given);
      if (!own.signal.aborted) $("problem").textContent = "";
    } catch (error) {
      if (error.name === "AbortError" || own.signal.aborted) return;
      $("problem").textContent = error instanceof TypeError ? "The server does not answer." : error.message;
    }
  };
}

// ------------------------------------------------------------------------------------------ making elements

function make(name, given = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(given)) {
    if (key === "class") element.className = value;
    else if (key.startsWith("--")) element.style.setProperty(key, value);
    else if (key === "width") element.style.width = value;
    else if (value !== null) element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

function draw(name, given = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(given)) {
    if (key.startsWith("--")) element.style.setProperty(key, value);
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

const bits = (word) => word.logprob10 === null ? null : -word.logprob10 * Math.log2(10);
const one = (x) => x === null ? "–" : x.toFixed(1);
const percent = (x) => x >= 0.1 ? `${(100 * x).toFixed(0)} %` : x >= 0.001 ? `${(100 * x).toFixed(1)} %` : "< 0.1 %";
const figure = (x) => x === null ? "–" : x < 100 ? x.toFixed(1) : Math.round(x).toLocaleString("en");
const spoken = (word) => word === "</S>" ? "end of sentence" : word;
const key = (model, line) => `${model}\n${line}`;
const lines = () => text.value.split("\n");
const compared = () => $("model-b").value ? [$("model-a").value, $("model-b").value] : [$("model-a").value];

// ------------------------------------------------------------------------------------------ scoring the text

const score = newest(async (signal) => {
  for (const model of compared()) {
    const missing = [...new Set(lines())].filter((line) => line.trim() && !scored.has(key(model, line)));
    for (let begun = 0, done = 0; begun < missing.length; begun = done) {
      for (let size = 0; done < missing.length && done - begun < 1000 && (done === begun || size < PIECE); done++) {
        size += missing[done].length;
      }
      const far = missing.length > 1000 ? `Scored ${begun.toLocaleString("en")} of ${missing.length.toLocaleString("en")} lines.` : "";
      $("progress").textContent = far;
      const part = missing.slice(begun, done);
      const answer = await ask("score", { model, texts: part, words: true }, signal);
      part.forEach((line, i) => scored.set(key(model, line), answer.results[i]));
    }
  }
  $("progress").textContent = "";
  show();
  forget();
});

// Keeps the scores of the text that is there, once there are many others.
function forget() {
  if (scored.size < 20000) return;
  const kept = new Set(compared().flatMap((model) => lines().map((line) => key(model, line))));
  scored = new Map([...scored].filter(([name]) => kept.has(name)));
  explained = new Map();
}

function results(model) {
  return lines().map((line) => line.trim() ? scored.get(key(model, line)) ?? null : null);
}

function totals(found) {
  const words = found.flatMap((result) => result?.words ?? []);
  const counted = words.filter((word) => word.logprob10 !== null);
  const log10 = counted.reduce((sum, word) => sum + word.logprob10, 0);
  return { words: words.filter((word) => word.word !== "</S>").length, unknown: words.filter((word) => word.oov).length,
    sentences: found.filter((result) => result?.tokens).length,
    perplexity: counted.length ? 10 ** (-log10 / counted.length) : null };
}

function summary(total) {
  const unknown = total.unknown ? `, ${total.unknown.toLocaleString("en")} unknown` : "";
  return `perplexity ${figure(total.perplexity)}, ${total.words.toLocaleString("en")} words${unknown}`;
}

function show() {
  const empty = !text.value.trim();
  $("results").hidden = empty;
  $("intro").hidden = !empty;
  if (chosen && scored.get(key(compared()[0], lines()[chosen.line]))?.words[chosen.word]?.word !== chosen.text) choose(null);
  const all = compared().map((model) => [model, results(model)]);
  $("readings").replaceChildren(...all.map(([model, found]) => reading(model, found)));
  $("tab-differences").hidden = all.length < 2;
  if (all.length < 2 && $("tab-differences").getAttribute("aria-selected") === "true") openView("words");
  $("sentences").replaceChildren(sentenceTable(all));
  $("differences").replaceChildren(...(all.length > 1 ? [differenceTable(all)] : []));
  $("status").textContent = empty ? "" : all.map(([model, found]) => `${model}: ${summary(totals(found))}`).join("; ");
}

// ------------------------------------------------------------------------------------------ words as colours

function reading(model, found) {
  const list = make("div", { class: "words", role: "listbox", "aria-label": `Words and their surprisal under ${model}`,
    "aria-orientation": "horizontal", "data-model": model });
  let left = SHOWN_WORDS;
  found.forEach((result, line) => {
    if (!result?.words.length || left <= 0) return;
    left -= result.words.length;
    list.append(make("div", { role: "group", "aria-label": `sentence ${line + 1}` },
      ...result.words.flatMap((word, i) => [wordOf(word, line, i), " "])));
  });
  const first = list.querySelector(".word");
  if (first) first.tabIndex = 0;
  list.querySelectorAll('[aria-selected="true"]').forEach((word) => { first.tabIndex = -1; word.tabIndex = 0; });
  const more = left < 0 ? [make("p", { class: "quiet" }, `The first ${SHOWN_WORDS - left} words; the view of sentences has all.`)]
    : [];
  return make("div", { class: "card" }, make("h2", {}, model), make("p", { class: "quiet" }, summary(totals(found))), list,
    ...more);
}

function wordOf(word, line, i) {
  const surprisal = bits(word);
  const isEnd = word.word === "</S>";
  const label = `${spoken(word.word)}, ${surprisal === null ? "left out" : `${one(surprisal)} bits`}${word.oov ? ", unknown" : ""}`;
  const element = make("span", { class: `word${word.oov ? " unknown" : ""}${isEnd ? " end" : ""}`, role: "option",
    "aria-selected": String(chosen?.line === line && chosen?.word === i), "aria-label": label, title: label, tabindex: "-1",
    "data-line": line, "data-word": i, "--heat": Math.min(1, (surprisal ?? 0) / HOTTEST).toFixed(3) },
  isEnd ? "↵" : word.word, make("small", {}, one(surprisal)));
  return element;
}

$("readings").addEventListener("click", (event) => {
  const word = event.target.closest(".word");
  if (word) choose(word);
});

$("readings").addEventListener("keydown", (event) => {
  const word = event.target.closest(".word");
  if (!word || event.altKey || event.ctrlKey || event.metaKey) return;
  const all = [...word.closest(".words").querySelectorAll(".word")];
  const at = all.indexOf(word);
  const sibling = (row) => row?.children[Math.min([...word.parentNode.children].indexOf(word), row.children.length - 1)];
  const next = { ArrowRight: all[at + 1], ArrowLeft: all[at - 1], Home: all[0], End: all.at(-1),
    ArrowDown: sibling(word.parentNode.nextElementSibling), ArrowUp: sibling(word.parentNode.previousElementSibling) };
  if (event.key === "Enter" || event.key === " ") choose(word);
  else if (event.key in next) move(next[event.key], all);
  else return;
  event.preventDefault();
});

function move(word, all) {
  if (!word) return;
  all.forEach((other) => { other.tabIndex = -1; });
  word.tabIndex = 0;
  word.focus();
}

function choose(element) {
  chosen = element && { line: Number(element.dataset.line), word: Number(element.dataset.word),
    text: element.firstChild.data === "↵" && element.classList.contains("end") ? "</S>" : element.firstChild.data };
  for (const word of document.querySelectorAll(".word")) {
    const own = chosen && Number(word.dataset.line) === chosen.line && Number(word.dataset.word) === chosen.word;
    word.setAttribute("aria-selected", String(Boolean(own)));
  }
  if (chosen) explain();
  else $("explanations").replaceChildren();
}

// ------------------------------------------------------------------------------------------ what made a word probable

const explain = newest(async (signal) => {
  const line = lines()[chosen.line];
  const cards = [];
  for (const model of compared()) {
    if (!models.find(({ name }) => name === model).explains) {
      cards.push(make("div", { class: "card" }, make("h2", {}, model), make("p", {},
        "Only a sparse non-negative matrix model says what made a word probable; this one is of another kind.")));
      continue;
    }
    if (!explained.has(key(model, line))) {
      explained.set(key(model, line), (await ask("explain", { model, texts: [line], top: 40 }, signal)).results[0]);
    }
    const words = explained.get(key(model, line));
    cards.push(explanation(model, ["<S>", ...words.map(({ word }) => word)], chosen.word + 1, words[chosen.word]));
  }
  $("explanations").replaceChildren(...cards);
});

function kindOf(part) {
  if (part.feature.includes("~")) return "class";
  if (part.shape) return part.shape[1] ? "skip" : "ngram";
  if (part.feature === "all words before") return "network"; // a member that is no sparse matrix
  return part.feature.startsWith("[cache") ? "cache" : "other";
}

function explanation(model, words, at, word) {
  const p = word.probability || 1;
  const card = make("div", { class: "card" },
    make("h2", {}, `“${spoken(word.word)}” according to ${model}`),
    make("p", {}, `P = ${word.probability.toPrecision(3)}, ${one(-Math.log2(word.probability))} bits. ` +
      "The shares of all features add up to P."),
    strip("By kind of feature", byKind(word.parts), p));
  if (Object.keys(word.sources).length) {
    const colours = ["--ngram", "--skip", "--class", "--network", "--cache", "--other"];
    card.append(strip("By source", Object.entries(word.sources).map(([name, share], i) =>
      [name, share, colours[i % colours.length]]), p));
  }
  const shown = word.parts.filter((part) => part.share / p >= 0.0005).slice(0, 12);
  const arcs = picture(words, at, shown, p);
  const rest = word.parts.slice(shown.length).reduce((sum, part) => sum + part.share, word.more);
  card.append(make("h3", {}, arcs.querySelector("svg").dataset.legend), arcs,
    make("h3", {}, "Features by their share"), make("ul", { class: "parts" }, ...shown.map((part, i) =>
      make("li", {}, partButton(part, i, p, arcs)))));
  if (rest / p >= 0.0005) card.append(make("p", { class: "quiet" }, `${percent(rest / p)} of all others together`));
  return card;
}

function byKind(parts) {
  const sums = {};
  for (const part of parts) sums[kindOf(part)] = (sums[kindOf(part)] ?? 0) + part.share;
  return Object.keys(KINDS).filter((kind) => sums[kind] > 0).map((kind) => [KINDS[kind], sums[kind], `--${kind}`]);
}

function strip(title, groups, p) {
  return make("div", {}, make("h3", {}, title),
    make("div", { class: "strip", "aria-hidden": "true" }, ...groups.map(([, share, colour]) => {
      const piece = make("span", { width: `${100 * share / p}%` });
      piece.style.background = `var(${colour})`;
      return piece;
    })),
    make("ul", { class: "key" }, ...groups.map(([name, share, colour]) =>
      make("li", { "--colour": `var(${colour})` }, `${name} ${percent(share / p)}`))));
}

function partButton(part, i, p, arcs) {
  const share = part.share / p;
  const label = part.feature === "[]" ? "[] any context" : part.feature;
  const name = make("span", {}, label);
  if (part.source) name.append(" ", make("span", { class: "source" }, part.source));
  const button = make("button", { type: "button", class: "part", "aria-pressed": "false",
    title: `weight ${part.weight.toFixed(3)}, gate ${part.gate.toPrecision(3)}`, "--colour": `var(--${kindOf(part)})` },
  name, make("span", {}, make("span", { class: "bar", width: `${100 * share}%` })),
  make("span", { class: "figure" }, percent(share)));
  const light = (on) => {
    arcs.querySelectorAll("g").forEach((g) => g.classList.toggle("on", on && Number(g.dataset.part) === i));
    arcs.classList.toggle("some", Boolean(arcs.querySelector(".on")));
  };
  button.addEventListener("mouseenter", () => light(true));
  button.addEventListener("mouseleave", () => light(button.getAttribute("aria-pressed") === "true"));
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.closest("ul").querySelectorAll("button").forEach((other) => other.setAttribute("aria-pressed", "false"));
    button.setAttribute("aria-pressed", String(on));
    light(on);
  });
  return button;
}

const pen = document.createElement("canvas").getContext("2d");

// The words before the chosen one, with arcs to the words of skip-grams and brackets under those of n-grams.
function picture(words, at, parts, p) {
  const drawn = parts.map((part, i) => [part, i]).filter(([part]) => part.shape && part.shape[0] + part.shape[2]);
  const reach = Math.max(2, ...drawn.map(([part]) => part.shape[0] + part.shape[1] + part.shape[2]));
  const first = Math.max(0, at - reach);
  pen.font = "700 15px system-ui, sans-serif";
  let x = 8;
  const places = words.slice(first, at + 1).map((word) => {
    const width = pen.measureText(spoken(word)).width;
    const place = { word: spoken(word), left: x, right: x + width, middle: x + width / 2 };
    x += width + 14;
    return place;
  });
  const place = (before) => places[places.length - 1 - before];
  const target = place(0);
  const above = drawn.filter(([part]) => part.shape[1]);
  const length = ({ shape: [r, , a] }) => r + a;
  const below = drawn.filter(([part]) => !part.shape[1]).sort(([a], [b]) => length(a) - length(b));
  const height = above.length ? Math.min(90, 30 + 10 * reach) : 8;
  const base = height + 16;
  const legend = above.length ? "Skip-grams as arcs, n-grams as brackets" : "N-grams as brackets";
  const svg = draw("svg", { width: x, "data-legend": legend, height: base + 14 + 11 * below.length, role: "img", "aria-label":
    `${above.length} skip-grams and ${below.length} n-grams that make ${target.word} probable; the list below has them` });
  const thickness = (part) => Math.max(1, Math.min(9, 12 * part.share / p)).toFixed(1);
  const bracket = (near, far, y) => {
    const [left, right] = [place(far).left, place(near).right];
    return `M${left} ${y}H${right}`;
  };
  for (const [part, i] of above) {
    const [r, s, a] = part.shape;
    if (!place(r + s + a)) continue;
    const from = (place(a + s + r).left + place(a + s + 1).right) / 2;
    const top = height - Math.min(height - 6, 18 + 10 * (r + s + a));
    const group = draw("g", { "data-part": i, "--colour": `var(--${kindOf(part)})` },
      draw("path", { d: `M${from} ${height - 2}C${from} ${top},${target.middle} ${top},${target.middle} ${height - 2}`,
        "stroke-width": thickness(part) }), draw("path", { d: bracket(a + s + 1, a + s + r, height), "stroke-width": 2 }));
    if (a) group.append(draw("path", { d: bracket(1, a, height), "stroke-width": 2 }));
    svg.append(group);
  }
  below.forEach(([part, i], row) => {
    const y = base + 10 + 11 * row;
    if (!place(length(part))) return;
    const left = place(length(part)).left;
    svg.append(draw("g", { "data-part": i, "--colour": `var(--${kindOf(part)})` },
      draw("path", { d: `M${left} ${y - 3}V${y}H${target.right}V${y - 3}`, "stroke-width": thickness(part) })));
  });
  for (const { word, left } of places) {
    svg.append(draw("text", { x: left, y: base, class: left === target.left ? "target" : "" }, word));
  }
  const box = make("div", { class: "arcs", tabindex: "0", role: "group", "aria-label": "Picture of the features" }, svg);
  return box;
}

// ------------------------------------------------------------------------------------------ sentences and differences

function sentenceTable(all) {
  const rows = all[0][1].map((result, line) => ({ line, results: all.map(([, found]) => found[line]) }))
    .filter(({ results: own }) => own[0]?.tokens);
  if ($("order").value === "hard") rows.sort((a, b) => (b.results[0].ppl ?? 0) - (a.results[0].ppl ?? 0));
  const most = Math.max(...rows.flatMap(({ results: own }) => own.map((result) => Math.log(result?.ppl ?? 1))), 1);
  const head = make("tr", {}, make("th", { scope: "col" }, "line"),
    ...all.map(([model]) => make("th", { scope: "col", class: "figure" }, `perplexity, ${model}`)), make("th", { scope: "col" }, "sentence"));
  const body = rows.slice(0, 2000).map(({ line, results: own }) => make("tr", {}, make("td", { class: "figure" }, line + 1),
    ...own.map((result) => make("td", { class: "figure" }, figure(result?.ppl ?? null),
      make("span", { class: "bar", width: `${5 * Math.log(Math.max(1, result?.ppl ?? 1)) / most}rem` }))),
    make("td", { class: "long" }, lines()[line])));
  const all_ = all.map(([model, found]) => `${model}: ${summary(totals(found))}`).join("; ");
  const cut = rows.length > 2000 ? ` (2,000 of ${rows.length.toLocaleString("en")} sentences)` : "";
  return make("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Sentences" }, make("table", {},
    make("caption", {}, all_ + cut), make("thead", {}, head), make("tbody", {}, ...body)));
}

function differenceTable([[a, left], [b, right]]) {
  const rows = [];
  left.forEach((result, line) => result?.words.forEach((word, i) => {
    const other = right[line]?.words[i];
    if (!other || word.logprob10 === null || other.logprob10 === null) return;
    rows.push({ line, i, word: word.word, own: bits(word), other: bits(other), apart: bits(word) - bits(other) });
  }));
  rows.sort((x, y) => Math.abs(y.apart) - Math.abs(x.apart));
  const body = rows.slice(0, 100).map(({ line, i, word, own, other, apart }) => {
    const go = make("button", { type: "button" }, spoken(word));
    go.addEventListener("click", () => {
      openView("words");
      const found = document.querySelector(`.word[data-line="${line}"][data-word="${i}"]`);
      if (!found) return;
      move(found, [...found.closest(".words").querySelectorAll(".word")]);
      choose(found);
    });
    const before = left[line].words.slice(Math.max(0, i - 5), i).map((w) => w.word).join(" ");
    return make("tr", {}, make("td", { class: "long" }, `${before} `, go), make("td", { class: "figure" }, one(own)),
      make("td", { class: "figure" }, one(other)),
      make("td", { class: "figure name" }, `${one(Math.abs(apart))} ${apart > 0 ? b : a}`));
  });
  const heads = ["word", `bits, ${a}`, `bits, ${b}`, "better by"].map((name, i) =>
    make("th", { scope: "col", class: i ? "figure" : "" }, name));
  return make("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Differences" }, make("table", {},
    make("caption", {}, "Words on which the models differ most"), make("thead", {}, make("tr", {}, ...heads)),
    make("tbody", {}, ...body)));
}

// ------------------------------------------------------------------------------------------ views

const TABS = ["words", "sentences", "differences"];

function openView(name) {
  for (const other of TABS) {
    $(`tab-${other}`).setAttribute("aria-selected", String(other === name));
    $(`tab-${other}`).tabIndex = other === name ? 0 : -1;
    $(`view-${other}`).hidden = other !== name;
  }
}

for (const name of TABS) {
  $(`tab-${name}`).addEventListener("click", () => openView(name));
  $(`tab-${name}`).addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const open = TABS.filter((other) => !$(`tab-${other}`).hidden);
    const next = open[(open.indexOf(name) + step + open.length) % open.length];
    openView(next);
    $(`tab-${next}`).focus();
  });
}
$("order").addEventListener("change", show);
$("numbers").addEventListener("change", () => $("readings").classList.toggle("numbers", $("numbers").checked));

// ------------------------------------------------------------------------------------------ next words

let suggested = []; // words of the list
let awaited = false; // a new list is on its way
let active = 0;
let typed = ""; // the beginning of the word before the caret

const suggest = newest(async (signal) => {
  const before = text.value.slice(0, text.selectionStart);
  const prefix = /[^ \t\n]*$/.exec(before)[0];
  const context = before.slice(0, before.length - prefix.length).slice(-5000);
  try {
    const answer = await ask("next", { model: $("model-a").value, texts: [context], prefix, k: 10 }, signal);
    if (!awaited || text.value.slice(0, text.selectionStart) !== before) return; // hidden, or more was typed
    const isNew = ({ word }) => word !== "<UNK>" && word !== prefix && !(word === "</S>" && prefix);
    suggested = answer.results[0].filter(isNew).slice(0, 8);
    typed = prefix;
    active = 0;
    awaited = false;
    showNext();
  } catch (error) {
    if (!signal.aborted) hideNext();
    throw error;
  }
});

function showNext() {
  $("next").ariaBusy = "false";
  $("next").hidden = !suggested.length;
  $("next").replaceChildren(...suggested.map(({ word, probability }, i) => make("li", { role: "option", id: `next-${i}`,
    "aria-selected": String(i === active), "aria-label": `${spoken(word)}, ${percent(probability)}` },
  word === "</S>" ? "↵ end" : word, make("span", {}, percent(probability)))));
  if (suggested.length) text.setAttribute("aria-activedescendant", `next-${active}`);
  else text.removeAttribute("aria-activedescendant");
}

function hideNext() {
  suggested = [];
  awaited = false;
  showNext();
}

function take(i) {
  const { word } = suggested[i];
  const [caret, end] = [text.selectionStart, text.selectionEnd];
  const begin = word === "</S>" && text.value[caret - 1] === " " ? caret - 1 : caret - typed.length;
  text.setRangeText(word === "</S>" ? "\n" : `${word} `, begin, end, "end");
  text.focus();
  changed();
}

$("next").addEventListener("mousedown", (event) => event.preventDefault()); // the text keeps the focus
$("next").addEventListener("click", (event) => {
  const item = event.target.closest("li");
  if (item && !awaited) take([...$("next").children].indexOf(item));
});

text.addEventListener("keydown", (event) => {
  if (!suggested.length) return;
  if (event.key === "Tab" && !event.shiftKey) {
    if (!awaited) take(active);
  } else if (event.key === "Escape") hideNext();
  else if (event.altKey && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
    active = (active + (event.key === "ArrowDown" ? 1 : -1) + suggested.length) % suggested.length;
    showNext();
  } else return;
  event.preventDefault();
});
// A click that takes the focus from the text must arrive where it was aimed: the list, which moves the page, goes after it.
let pressed = false;
document.addEventListener("mousedown", () => { pressed = true; }, true);
document.addEventListener("mouseup", () => {
  pressed = false;
  if (document.activeElement !== text) setTimeout(hideNext);
}, true);
text.addEventListener("blur", () => { if (!pressed) hideNext(); });

// ------------------------------------------------------------------------------------------ the text

let waiting = [];
function changed() { // a pasted text may be many changes
  waiting.forEach(clearTimeout);
  awaited = true;
  $("next").ariaBusy = "true";
  waiting = [setTimeout(suggest, 20), setTimeout(score, text.value.length > 20000 ? 500 : 100)];
}
text.addEventListener("input", changed);

$("clear").addEventListener("click", () => {
  text.value = "";
  hideNext();
  choose(null);
  score();
  text.focus();
});

// Spaces around punctuation, and a line for each sentence: as the texts are that models are trained on.
$("split").addEventListener("click", () => {
  const spaced = text.value.replace(/([.,!?;:()"“”…])(?=\s|$|["”)])/g, " $1").replace(/(^|\s)(["“(])(?=\S)/g, "$1$2 ")
    .replace(/(\w)('s|'ll|'re|'ve|'d|'m|n't)\b/g, "$1 $2");
  text.value = spaced.replace(/ ([.!?…](?: ["”)])?) +(?=["“(]? ?\p{Lu})/gu, " $1\n").replace(/[ \t]+/g, " ").trim();
  score();
});

const proceed = newest(async (signal) => {
  const before = text.value.trimEnd().split("\n");
  const last = text.value.endsWith("\n") ? "" : before.pop() ?? "";
  $("continue").disabled = true;
  try {
    const answer = await ask("generate", { model: $("model-a").value, prompt: last, max_words: 40 }, signal);
    text.value = [...before, answer.results[0]].join("\n") + "\n";
    score();
  } finally {
    $("continue").disabled = false;
  }
});
$("continue").addEventListener("click", () => proceed());

for (const id of ["model-a", "model-b"]) {
  $(id).addEventListener("change", () => {
    choose(null);
    score();
  });
}

newest(async () => {
  ({ models } = await ask("models"));
  const option = ({ name }) => make("option", { value: name }, name);
  $("model-a").replaceChildren(...models.map(option));
  $("model-b").replaceChildren(make("option", { value: "" }, "none"), ...models.map(option));
  $("compare").hidden = models.length < 2;
  if (text.value) score();
})();
